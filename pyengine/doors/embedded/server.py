"""The embedded Postgres: the first process that needs it starts it, the last one stops it.

Lives here: the choice of the database (`database_url`), and the users of a data folder's server
(`EmbeddedPostgres`). May not: the server's process and files (``postmaster.py``), the search for programs and
the choice of a user (``binaries.py``), SQL, connections.

Design: the kernel counts the users. Each process that uses the server has a shared ``flock`` on
``users.lock``; a process that gets it exclusively is the last one and stops the server. The server's own
processes have ``server.lock``, which they inherit; a process that gets that one knows that no process of
Postgres, not even an orphan of a killed postmaster or an initdb, still works in the folder. ``kill -9``
releases both locks, zombies and reused process ids do not matter, and there is no clean-up. ``start.lock``
makes starting and stopping exclusive. (Some network file systems do not inherit an flock; there
``postmaster.pid`` decides.)

A forked child that runs no new program does not count as a user: if it outlives its parent, it calls `start`
itself.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import platformdirs

from pyengine.core.passwords import ESCAPE, is_unescaped
from pyengine.core.process import clock
from pyengine.doors.embedded.binaries import Binaries, find_binaries, server_account, user_name
from pyengine.doors.embedded.postmaster import ELSEWHERE, Postmaster, ServerFolder, answers, wait_for
from pyengine.errors import EmbeddedPostgresError

with contextlib.suppress(ModuleNotFoundError):  # needed where a server is started; a URL does without
    import fcntl

_POLL_S = 0.003
_ROOT_DATA_DIR = Path("/var/lib/pyengine")
_SETTINGS = {"listen_addresses": "", "unix_socket_permissions": "0700", "jit": "off"}
_URL_VARIABLES = ("PYENGINE_DATABASE_URL", "DATABASE_URL")
_LISTEN_VARIABLE = "PYENGINE_LISTEN_URL"
_locks: set[FileIO] = set()


def _drop_inherited_locks() -> None:
    """Close the locks in a forked child, so that the server stops with its parent."""
    for lock in _locks:
        lock.close()
    _locks.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_drop_inherited_locks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The chosen database.

    Args:
        url: URL of an existing server, or None for the embedded one.
        source: the origin of the choice: ``argument``, the name of an environment variable, or ``embedded``.
        data_dir: folder of the embedded server, or None with a URL.
    """

    url: str | None
    source: str
    data_dir: Path | None

    @property
    def embedded(self) -> bool:
        """Whether it is the embedded server."""
        return self.url is None


def database_url(url: str | None = None, data_dir: Path | None = None) -> Target:
    """Choose the database: argument, PYENGINE_DATABASE_URL, DATABASE_URL, else the embedded server.

    The embedded server never replaces a URL that is set, even a malformed one: an empty database there would
    look as if all runs were lost.

    Args:
        url: the caller's URL, or None.
        data_dir: folder for the embedded server, if no URL is set; None means `default_data_dir()`.

    Raises:
        EmbeddedPostgresError: the first URL that is set is empty or malformed, or PYENGINE_DATA_DIR is empty.
    """
    for source, value in (("argument", url), *((name, os.environ.get(name)) for name in _URL_VARIABLES)):
        if value is None:
            continue
        if problem := _problem_of_url(value):
            label = "The database URL given" if source == "argument" else f"{source} is set, but it"
            raise EmbeddedPostgresError(
                f"{label} {problem}. Write it as postgresql://user:password@host:5432/database, or unset it "
                "to use the embedded Postgres, which never takes the place of a URL that is set."
            )
        return Target(url=value, source=source, data_dir=None)
    folder = default_data_dir() if data_dir is None else Path(data_dir)
    return Target(url=None, source="embedded", data_dir=folder)


def listen_url(url: str | None = None) -> str | None:
    """Return the URL past a pooler, for hints and presence: argument, PYENGINE_LISTEN_URL, else None.

    Args:
        url: the caller's URL, or None.

    Raises:
        EmbeddedPostgresError: the first one that is set is empty or malformed.
    """
    for source, value in (("The direct URL", url), (_LISTEN_VARIABLE, os.environ.get(_LISTEN_VARIABLE))):
        if value is None:
            continue
        if problem := _problem_of_url(value):
            raise EmbeddedPostgresError(
                f"{source} is set, but it {problem}. Write it as postgresql://user:password@host:5432/database,"
                " or unset it and polling does all behind a pooler."
            )
        return value
    return None


def default_data_dir() -> Path:
    """Return PYENGINE_DATA_DIR, else /var/lib/pyengine for root, else the user's data folder.

    Root has a fixed folder, because the server's user usually cannot enter root's home.

    Raises:
        EmbeddedPostgresError: PYENGINE_DATA_DIR is set but empty.
    """
    named = os.environ.get("PYENGINE_DATA_DIR")
    if named is not None and not named.strip():
        raise EmbeddedPostgresError("PYENGINE_DATA_DIR is set but empty. Set it to a folder, or unset it.")
    if named is not None:
        return Path(named)
    if sys.platform != "win32" and os.geteuid() == 0:
        return _ROOT_DATA_DIR
    folder = Path()
    with contextlib.suppress(RuntimeError):  # older versions leave a "~" that nothing says the folder of
        folder = Path(platformdirs.user_data_dir("pyengine", appauthor=False))
    if not folder.is_absolute():
        raise EmbeddedPostgresError(
            f"The user {user_name(os.geteuid())} has no home folder for the embedded Postgres. Set HOME or "
            "PYENGINE_DATA_DIR to a folder, or PYENGINE_DATABASE_URL to a server."
        )
    return folder


def _problem_of_url(url: str) -> str | None:
    """Return the problem of a database URL, or None; never repeat the URL, which may have a password."""
    if not url.strip():
        return "is empty"
    if re.search(r"\s", url):
        return "contains white space"
    scheme, found, rest = url.partition("://")
    if not found or scheme not in ("postgresql", "postgres"):
        return "does not begin with postgresql://"
    if is_unescaped(url):
        return f"has @ / ? or # in its user or password that is not escaped ({ESCAPE})"
    hosts = re.split(r"[/?]", rest, maxsplit=1)[0].rpartition("@")[2]
    for host in hosts.split(",") if hosts else ():
        match = re.fullmatch(r"(?:\[[^\[\]]+\]|[^:\[\]]*)(?::(\d*))?", host)
        if not match or int(match[1] or 1) not in range(1, 65536):
            return "has a host or port that cannot be read"
    return None


class EmbeddedPostgres:
    """A Postgres server for one data folder, shared by every process that uses the folder.

    Usable as a context manager. Several objects for one folder, also in one process, share the server. A
    process that ends without `stop` does not count as a user any more; the next process that is the last one
    stops the server.

    Args:
        data_dir: the folder; None means `default_data_dir()`. As root: one that the server's user can enter.
        settings: server settings in addition to ours, such as ``{"fsync": "off"}``, if this object starts it.
        binaries: programs to use; None means `find_binaries()`.
        timeout_s: the longest wait, in seconds, until the server is ready, or has stopped in an orderly way.
    """

    def __init__(
        self,
        data_dir: Path | str | None = None,
        settings: Mapping[str, str] | None = None,
        binaries: Binaries | None = None,
        *,
        timeout_s: float = 60.0,
    ) -> None:
        self.data_dir = Path(default_data_dir() if data_dir is None else data_dir).expanduser().resolve()
        self.log_file = self.data_dir / "postgres.log"
        self._settings = {**_SETTINGS, **(settings or {})}
        self._binaries = binaries
        self._timeout_s = timeout_s
        self._folder = ServerFolder(self.data_dir, None)
        self._users: FileIO | None = None
        self._server: Postmaster | None = None
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def dsn(self) -> str:
        """URL of the database ``postgres``, for asyncpg and psycopg alike."""
        return self.database("postgres")

    def database(self, name: str) -> str:
        """Return the URL of a database of this server, whether or not it exists."""
        server = self._started()
        host = quote(server.socket_dir, safe="/")
        return f"postgresql://postgres@/{quote(name, safe='')}?host={host}&port={server.port}"

    def psql_command(self) -> str:
        """Return the command line that opens this server in psql."""
        server = self._started()
        psql = "psql"
        with suppress(
            EmbeddedPostgresError
        ):  # another process may have started the server, with its programs
            ours = (self._binaries or find_binaries()).bin_dir / "psql"
            psql = str(ours) if ours.exists() else psql
        return shlex.join(
            [psql, "-h", server.socket_dir, "-p", str(server.port), "-U", "postgres", "postgres"]
        )

    def start(self) -> str:
        """Attach to the server of the folder, starting it if it does not run, and return its URL.

        May be called again, also to restart a server that was killed.

        Raises:
            EmbeddedPostgresError: no programs, an unusable folder, data of another version, or no start.
        """
        if sys.platform == "win32":
            raise EmbeddedPostgresError("Embedded Postgres needs Linux or macOS; set PYENGINE_DATABASE_URL.")
        try:
            account = server_account(self.data_dir / "data")
            self._folder = ServerFolder(self.data_dir, account)
            self.data_dir.mkdir(mode=0o755 if account else 0o700, parents=True, exist_ok=True)
            with self._starting_or_stopping():
                try:
                    if self._users is None or self._users.closed:
                        self._users = self._open_lock("users.lock")
                        fcntl.flock(self._users, fcntl.LOCK_SH)
                    self._server = self._attach_or_launch()
                except BaseException:
                    self._leave()
                    raise
        except OSError as error:
            raise EmbeddedPostgresError(self._explain(error)) from error
        atexit.unregister(self.stop)
        atexit.register(self.stop)
        return self.dsn

    def stop(self) -> bool:
        """Stop using the server, and stop it if it has no other users; return true if it had none.

        Raises:
            EmbeddedPostgresError: the server does not stop.
        """
        if self._users is None or self._users.closed:  # never started, or inherited by a forked child
            return False
        atexit.unregister(self.stop)
        try:
            with self._starting_or_stopping():
                last = _try_flock(self._users, fcntl.LOCK_EX)
                if last and (server := self._folder.running()):
                    self._folder.shut_down(server, self._timeout_s)
                return last
        except FileNotFoundError:  # the folder was removed, as its server would notice within a minute
            if self._child is not None and self._child.poll() is None:
                self._child.send_signal(signal.SIGQUIT)
                self._child.wait(self._timeout_s)
            return True
        except OSError as error:
            raise EmbeddedPostgresError(self._explain(error)) from error
        finally:
            self._leave()

    def _attach_or_launch(self) -> Postmaster:
        """Return the server once it is ready, launching it if there is none. Called under ``start.lock``."""
        self._child = None
        deadline = clock.monotonic() + self._timeout_s
        while True:
            server = self._folder.running()
            if server is not None and server.ready and answers(server):
                return server
            if server is None and self._child is None:
                self._child = self._launch()
                deadline = clock.monotonic() + self._timeout_s if self._child else deadline
            elif server is None and self._child is not None and self._child.poll() is not None:
                raise EmbeddedPostgresError(
                    f"Postgres did not start in {self.data_dir}. {self._folder.end_of_log()}"
                )
            if clock.monotonic() > deadline:
                raise EmbeddedPostgresError(self._reason_of_delay(server))
            clock.pause(_POLL_S)

    def _launch(self) -> subprocess.Popen[bytes] | None:
        """Start the server; return None if processes of an earlier one still work in the folder."""
        lock = self._open_lock("server.lock")
        try:
            if not _try_flock(lock, fcntl.LOCK_EX):
                return None
            return self._folder.launch(self._binaries, self._settings, lock.fileno())
        finally:
            _close(lock)  # not unlocked: the server's processes have inherited it

    @contextmanager
    def _starting_or_stopping(self) -> Iterator[None]:
        """Take the lock for starting and stopping the server of this folder."""
        lock = self._open_lock("start.lock")
        try:
            if not wait_for(lambda: _try_flock(lock, fcntl.LOCK_EX), self._timeout_s):
                raise EmbeddedPostgresError(
                    f"Another process has been starting or stopping the server in {self.data_dir} for "
                    f"{self._timeout_s:g} s. Find it with: fuser -v {self.data_dir}/start.lock"
                )
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)
            _close(lock)

    def _open_lock(self, name: str) -> FileIO:
        lock = FileIO(self._folder.open_file(name), "r+")
        _locks.add(lock)
        return lock

    def _leave(self) -> None:
        """Stop counting as a user."""
        if self._users is not None and not self._users.closed:
            fcntl.flock(self._users, fcntl.LOCK_UN)  # a process that another thread just forks has it too
            _close(self._users)
        self._server = None

    def _started(self) -> Postmaster:
        if self._server is None:
            raise EmbeddedPostgresError(
                f"The embedded Postgres in {self.data_dir} is not started; call start() first."
            )
        return self._server

    def _reason_of_delay(self, server: Postmaster | None) -> str:
        pid = server.pid if server else self._child.pid if self._child else None
        if pid is None:
            return (
                f"Processes of an earlier Postgres still work in {self.data_dir} after "
                f"{self._timeout_s:g} s. Find them with: fuser -v {self.data_dir}/server.lock"
            )
        return (
            f"Postgres (process {pid}) in {self.data_dir} does not answer after {self._timeout_s:g} s. It is "
            f"left running, as it may be recovering much data; try again later. {self._folder.end_of_log()}"
        )

    def _explain(self, error: OSError) -> str:
        """Return the message for a folder or file that cannot be used, with the users concerned."""
        users = f"this process runs as {user_name(os.geteuid())!r}"
        with suppress(OSError):
            users += f", the folder belongs to {user_name(self.data_dir.stat().st_uid)!r}"
        return (
            f"The data folder {self.data_dir} cannot be used: {error} ({users}). Correct that, {ELSEWHERE}."
        )


def _try_flock(lock: FileIO, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _close(lock: FileIO) -> None:
    _locks.discard(lock)
    lock.close()
