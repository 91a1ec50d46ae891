"""A real PgBouncer in transaction mode, before the test session's server.

What lives here: where its program comes from, and `Pooler`, one process of it. What may not: which tests go
through it (conftest.py). The program is PYENGINE_PGBOUNCER, else the one that is installed, else that of the
Debian package, unpacked into the user's cache with the libraries that it needs: no root, nothing installed.
Every transaction gets another session than the one before (`server_round_robin`, and `warm` opens several),
so whoever leaves something in a session, or looks for it there, is found out.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import asyncpg
import psycopg
import pytest

from pyengine.doors.embedded.binaries import Account, server_account
from tests.support.cluster import BASE, Server
from tests.support.debian import NoPackage, libraries, unpacked

PROGRAM = "PYENGINE_PGBOUNCER"
PACKAGE = "pgbouncer"
INSIDE = "usr/sbin/pgbouncer"
SIZE = 10
WARM = 4
WAIT_S = 20.0
SETTINGS = """\
[databases]
* = host={host} port={port}

[pgbouncer]
listen_addr =
listen_port = {own_port}
unix_socket_dir = {folder}
auth_type = trust
auth_file = {folder}/users
admin_users = {user}
pool_mode = transaction
default_pool_size = {size}
server_round_robin = 1
server_login_retry = 1
; Go's lib/pq and JDBC ask for it; Python's drivers do not
ignore_startup_parameters = extra_float_digits
max_client_conn = 1000
max_db_connections = 0
query_wait_timeout = 60
logfile = {folder}/log
{more}
"""


class NoPooler(Exception):
    """There is no PgBouncer here, and this is why."""


@cache
def program() -> tuple[Path, Path | None]:
    """Find PgBouncer, or get it: the program, and the folder with its libraries if it is not installed.

    Raises:
        NoPooler: it is neither here nor to be had.
    """
    named = os.environ.get(PROGRAM)
    if named is not None:
        if not os.access(named, os.X_OK):
            raise NoPooler(f"{PROGRAM} names {named}, which cannot be run")
        return Path(named), None
    found = shutil.which(PACKAGE, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
    if found:
        return Path(found), None
    try:
        root = unpacked(PACKAGE, program=INSIDE)
    except NoPackage as reason:
        raise NoPooler(str(reason)) from None
    return root / INSIDE, root


class Pooler:
    """A PgBouncer process before a server; all databases of the server, under their names.

    Args:
        server: before which.
        owner: data folder of that server: as root, PgBouncer runs as its owner.
        size: sessions for each database.
        mode: when a session is free again: after a transaction, or when its client has gone.
        more: further lines for its settings.

    Use it as a context manager.

    Raises:
        NoPooler: there is no program.
    """

    def __init__(
        self, server: Server, owner: Path, *, size: int = SIZE, mode: str = "transaction", more: str = ""
    ) -> None:
        self._server = server
        self._account = server_account(owner)
        self._program, self._unpacked = program()
        self._settings = {"host": server.host, "port": server.port, "user": server.user}
        self._settings |= {"size": size, "more": more}
        self._mode = mode
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path()
        self._port = 6432

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="pyengine-pooler-", dir=BASE))
        text = SETTINGS.format(folder=self._folder, own_port=self._port, **self._settings)
        text = text.replace("pool_mode = transaction", f"pool_mode = {self._mode}")
        (self._folder / "ini").write_text(text, encoding="utf-8")
        (self._folder / "users").write_text(f'"{self._server.user}" ""\n', encoding="utf-8")
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        command, environment = self._command()
        args = self._account.popen_args() if self._account is not None else {}
        if self._account is not None:
            _give(self._folder, self._account)
        self._process = subprocess.Popen(
            [*command, "-q", str(self._folder / "ini")],
            cwd=self._folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **args,
        )
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                self.ask("show version")
                return
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    log = self._folder / "log"
                    said = log.read_text(encoding="utf-8") if log.exists() else str(error)
                    self.stop()
                    raise RuntimeError(f"PgBouncer did not start: {said}") from error
            time.sleep(0.01)

    def _command(self) -> tuple[list[str], dict[str, str]]:
        """The program; where it is not installed, a copy that the account which runs it can reach."""
        if self._unpacked is None:
            return [str(self._program)], {}
        root = self._folder / "root"
        shutil.copytree(self._unpacked, root, symlinks=True, ignore=shutil.ignore_patterns("share", "etc"))
        return [str(root / INSIDE)], libraries(root)

    def stop(self) -> None:
        """End the process, at once."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None

    def dsn(self, dbname: str) -> str:
        """URL of a database through the pooler."""
        return f"postgresql://{self._server.user}@/{dbname}?host={self._folder}&port={self._port}"

    def ask(self, command: str) -> list[dict[str, Any]]:
        """Run a command of its own console, such as `show servers`."""
        with psycopg.connect(self.dsn(PACKAGE), autocommit=True, prepare_threshold=None) as console:
            cursor = console.execute(command.encode())
            names = [column.name for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()] if names else []

    def sessions(self, dbname: str) -> list[int]:
        """Backends that it holds for a database."""
        return [int(row["remote_pid"]) for row in self.ask("show servers") if row["database"] == dbname]

    def warm(self, dbname: str, count: int = WARM) -> None:
        """Have it open some sessions, which transactions then take in turn."""
        deadline = time.monotonic() + WAIT_S
        while True:
            with ExitStack() as stack:
                try:
                    for _ in range(count):
                        one = stack.enter_context(psycopg.connect(self.dsn(dbname), prepare_threshold=None))
                        one.execute("select 1")
                    return
                except psycopg.Error:
                    # somebody asked for the database while it was not there, and that is remembered a while
                    if time.monotonic() > deadline:
                        raise
            time.sleep(0.05)

    def forget(self, dbname: str) -> None:
        """Have it close all connections for a database: it is about to be dropped."""
        # a database that it does not know
        with suppress(psycopg.Error):
            self.ask(f'kill "{dbname}"')
            self.ask(f'resume "{dbname}"')


def as_users_must(patch: pytest.MonkeyPatch) -> None:
    """Have connections that tests open themselves name no statements, as behind a pooler everybody must; what
    the package opens is left as it is.
    """
    doors: tuple[tuple[Any, str, dict[str, Any]], ...] = (
        (asyncpg, "connect", {"statement_cache_size": 0}),
        (psycopg, "connect", {"prepare_threshold": None}),
        (psycopg.AsyncConnection, "connect", {"prepare_threshold": None}),
    )
    for home, name, option in doors:
        patch.setattr(home, name, _with(getattr(home, name), option))


def _with(connect: Callable[..., Any], option: dict[str, Any]) -> Callable[..., Any]:
    def connected(*args: Any, **kwargs: Any) -> Any:
        ours = str(sys._getframe(1).f_globals["__name__"]).startswith("pyengine")
        return connect(*args, **(kwargs if ours else kwargs | option))

    return connected


def _give(folder: Path, account: Account) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, account.uid, account.gid, follow_symlinks=False)
