"""Restate: its own server (from npm, at the first use) with its own log, and the Python SDK under hypercorn.
It pushes, so its backlog is made of delayed sends that fall due together, and starts are measured with sends
that are due in an hour. Everything binds to loopback and is quiet towards the outside.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import platformdirs
import psycopg

from bench.systems import READY_S, Client, Gate, System, Workflow, stop

_SERVER = "1.7.12"
_SENDERS = 16
_SENDS_PER_S = 400  # slower than any machine sends, so that the last one is sent before the first is due
ENDS = "/bench/ends"


class _Caller(Client):
    def __init__(self, session: Any, ingress: str) -> None:
        self._session = session
        self._ingress = ingress

    async def _ask(self, path: str, body: Any = None, method: str = "POST") -> Any:
        async with self._session.request(method, self._ingress + path, json=body) as answer:
            text = await answer.text()
            if answer.status >= 300:
                raise RuntimeError(f"{method} {path}: {answer.status} {text[:200]}")
            return json.loads(text) if text else None

    async def start(self, workflow: Workflow, number: int) -> Any:
        if workflow == "signalled":
            key = str(uuid.uuid4())
            await self._ask(f"/Signalled/{key}/run/send", number)
            return key
        return (await self._ask(f"/Bench/{workflow}/send", number))["invocationId"]

    async def result(self, handle: Any) -> Any:
        place = handle if handle.startswith("inv_") else None
        path = f"/restate/invocation/{place}" if place else f"/restate/workflow/Signalled/{handle}"
        return await self._ask(f"{path}/attach", method="GET")

    async def run(self, workflow: Workflow, number: int) -> Any:
        return await self._ask(f"/Bench/{workflow}", number)

    async def leave(self, number: int) -> None:
        await self._ask("/Bench/noop/send?delay=1h", number)

    async def later(self, workflow: Workflow, number: int, seconds: float) -> None:
        """A run that is due after so long."""
        await self._ask(f"/Bench/{workflow}/send?delay={max(int(seconds * 1000), 1)}ms", number)

    async def signal(self, handle: Any) -> None:
        await self._ask(f"/Signalled/{handle}/go", {"number": 1})


class RestateSystem(System):
    """Restate, one node."""

    name = "restate"
    packages = ("restate-sdk", "hypercorn", "aiohttp")
    settings = (
        "one node with its defaults (24 partitions, its log synced at each commit), no Postgres; Python SDK "
        "under hypercorn, one process, HTTP/2 both ways; client aiohttp"
    )
    abilities = frozenset({"noop", "steps", "fan_out", "signal", "long"})

    def __init__(self) -> None:
        self._ports = {name: _free_port() for name in ("fabric", "ingress", "admin", "service")}

    def _at(self, name: str) -> str:
        return f"http://127.0.0.1:{self._ports[name]}"

    def missing(self) -> str | None:
        """Its packages, or its server."""
        return super().missing() or (None if _binary() else _fetch())

    def versions(self) -> dict[str, str | None]:
        """With the server's."""
        return {"restate-server": _SERVER, **super().versions()}

    def install(self, dsn: str) -> None:
        """Nothing: it has no tables."""

    @contextmanager
    def running(self, dsn: str) -> Iterator[None]:
        """Run a server in a new folder, with the service registered."""
        folder = Path(tempfile.mkdtemp(prefix="bench-restate-", dir="/tmp"))
        found = _binary()
        assert found is not None
        env = {**os.environ, "RESTATE_DISABLE_TELEMETRY": "true", "RESTATE_LOG_FILTER": "warn"}
        env |= {"RESTATE_INGRESS__BIND_PORT": str(self._ports["ingress"])}
        env |= {"RESTATE_ADMIN__BIND_PORT": str(self._ports["admin"])}
        command = [
            str(found),
            "--no-logo",
            "--listen-mode=tcp",
            "--bind-ip=127.0.0.1",
            "--base-dir",
            str(folder),
        ]
        command += ["--node-name=bench", f"--bind-port={self._ports['fabric']}"]
        started: list[subprocess.Popen[bytes]] = []
        log = folder / "log"
        try:
            with log.open("wb") as out:
                started.append(self.start_worker(dsn, out.fileno()))
                started.append(
                    subprocess.Popen(
                        command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
                    )
                )
            try:
                _until_told(f"{self._at('service')}{ENDS}")
                _until_told(f"{self._at('admin')}/deployments", {"uri": self._at("service")})
                yield
            except Exception as error:
                error.add_note("log: " + log.read_text(errors="replace")[-1500:])
                raise
        finally:
            for process in started:
                stop(process, 0)  # both take seconds for an orderly end, of which nothing is kept
            shutil.rmtree(folder, ignore_errors=True)

    def command(self, dsn: str) -> list[str]:
        """The service."""
        return [sys.executable, "-m", "bench.systems.restate_service", str(self._ports["service"])]

    @contextmanager
    def workers(self, dsn: str, count: int = 1) -> Iterator[list[subprocess.Popen[bytes]]]:
        """None but the service, which runs already."""
        yield []

    def client(self, dsn: str) -> AbstractAsyncContextManager[Client]:
        """One HTTP session."""
        return self._client()

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[_Caller]:
        import aiohttp

        limit = aiohttp.TCPConnector(limit=_SENDERS)
        async with aiohttp.ClientSession(connector=limit, timeout=aiohttp.ClientTimeout(600)) as session:
            yield _Caller(session, self._at("ingress"))

    @contextmanager
    def fill(self, dsn: str, workflow: Workflow, count: int, *, analyze: bool = True) -> Iterator[Gate]:
        """Delayed sends."""
        due = time.time() + 1 + count / _SENDS_PER_S
        asyncio.run(self._send(workflow, count, due))

        def gate() -> float:
            if (left := due - time.time()) < 0:
                raise RuntimeError("the backlog was due before it was sent")
            time.sleep(left)
            return due

        yield gate

    async def _send(self, workflow: Workflow, count: int, due: float) -> None:
        async with self._client() as client:
            numbers = iter(range(count))

            async def some() -> None:
                for number in numbers:
                    await client.later(workflow, number, due - time.time())

            await asyncio.gather(*(some() for _ in range(_SENDERS)))

    def settled(self, conn: psycopg.Connection[Any]) -> int:
        """Handlers that came to their end, by the count of the service."""
        return int(self._ends()[0])

    def last_end(self, conn: psycopg.Connection[Any]) -> float:
        """By the clock of the service."""
        return float(self._ends()[1])

    def _ends(self) -> list[str]:
        return _told(f"{self._at('service')}{ENDS}").split()


SYSTEM = RestateSystem


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _home() -> Path:
    return Path(platformdirs.user_cache_dir("pyengine-bench", appauthor=False)) / f"restate-{_SERVER}"


def _binary() -> Path | None:
    """The server's program as npm installs it."""
    return next(iter(_home().glob("node_modules/@restatedev/restate-server-*/bin/restate-server")), None)


def _fetch() -> str | None:
    """Install the server with npm; return None, or the reason why there is none."""
    npm = shutil.which("npm")
    if npm is None:
        return "its server comes from npm, and there is no npm here"
    _home().mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(_home())]
    try:
        done = subprocess.run(
            [*command, f"@restatedev/restate-server@{_SERVER}"],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "npm did not install its server within 180 s"
    if done.returncode:
        return f"npm did not install its server: {done.stderr.strip()[-200:]}"
    return None if _binary() else "npm brought no server for this kind of machine"


def _told(url: str, body: Any = None) -> str:
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        return str(answer.read().decode())


def _until_told(url: str, body: Any = None) -> None:
    until = time.monotonic() + READY_S
    while True:
        try:
            _told(url, body)
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
