"""A cable between two places, which a test can cut.

What lives here: `Cable`, a TCP port of this machine that leads to a server's socket. What may not: what goes
through it. Cut, it breaks what goes through and takes no more, as a firewall does that refuses. Silent, it
takes connections and never answers, as a machine does that was switched off. Lost, it never serves again what
goes through, without a word, and takes more, as a middlebox does that has lost its state.
"""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

CHUNK = 1 << 16
SERVER_SEES_S = 15.0
CLIENT_SEES_S = 120.0


class Place(Protocol):
    """Where a server's socket is."""

    @property
    def place(self) -> tuple[str, str]:
        """Folder and port."""
        ...


class Cable:
    """A port that leads to a node.

    Args:
        node: where to; may be changed for connections to come.
    """

    def __init__(self, node: Place) -> None:
        self.node = node
        self.silent = False
        self._lost: dict[int, threading.Event] = {}
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._cut = False
        self._ends: list[socket.socket] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it, with all that goes through it."""
        self._ended.set()
        self._listener.close()
        self.cut()

    @property
    def place(self) -> tuple[str, str]:
        """Host and port."""
        return "127.0.0.1", str(self._listener.getsockname()[1])

    @property
    def dsn(self) -> str:
        """URL of the database `postgres` through it."""
        host, port = self.place
        return f"postgresql://postgres@{host}:{port}/postgres"

    def cut(self) -> None:
        """Break all connections, and take no more."""
        with self._lock:
            self._cut = True
            ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def lose(self, port: int | None = None) -> None:
        """Carry nothing more for the connections that there are. The server gives them up after a while, as
        by its keepalives; the client, whose packets are still acknowledged, only after much longer.

        Args:
            port: of the client, if it is one connection only.
        """
        with self._lock:
            losses = [*self._lost.values()] if port is None else [self._lost[port]]
        for lost in losses:
            lost.set()

    def mend(self) -> None:
        """Take connections again."""
        self._cut = False

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self._cut:
                    near.close()
                    continue
                with self._lock:
                    self._ends.append(near)
                    self._lost[near.getpeername()[1]] = threading.Event()
                if not self.silent:
                    threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        far, lost = socket.socket(socket.AF_UNIX), self._lost[near.getpeername()[1]]
        with suppress(OSError, ValueError), near, far, selectors.DefaultSelector() as both:
            host, port = self.node.place
            far.connect(f"{host}/.s.PGSQL.{port}")
            with self._lock:
                self._ends.append(far)
            both.register(near, selectors.EVENT_READ, far)
            both.register(far, selectors.EVENT_READ, near)
            while not (self._cut or lost.is_set()):
                for key, _ in both.select(0.5):
                    if lost.is_set():
                        break
                    data = key.fileobj.recv(CHUNK)  # type: ignore[union-attr]
                    if not data:
                        return
                    key.data.sendall(data)
            if lost.is_set() and not self._ended.wait(SERVER_SEES_S):
                far.close()
                self._ended.wait(CLIENT_SEES_S)
