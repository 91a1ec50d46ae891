"""One Postgres server for a test session, shared by all xdist workers, and what pytest-postgresql wants to
know of it.

The process that pytest was started in makes one folder and puts its name into the environment, which the
workers inherit; each of them attaches to the same embedded server, and whoever leaves last stops it.
Durability is off (crash tests make a server of their own). Every worker has its own template database with
the schema installed, and every test a clone of it, so order and number of workers do not matter.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

Connection = psycopg.Connection[TupleRow]
FOLDER = "PYENGINE_TEST_CLUSTER"
ROLES_LOCK = 4242
# short, because the path of a socket is limited, and open to the user who runs the server when we are root
_MEMORY = Path("/dev/shm")
_MEMORY_FREE = 6 << 30


def _base() -> str | None:
    """Where servers of tests have their data: in memory, if there is enough, for each test is a copy of a
    database, which takes a tenth of the time there.
    """
    if os.name != "posix":
        return None
    roomy = (
        _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _MEMORY_FREE
    )
    return str(_MEMORY) if roomy else "/tmp"


BASE = _base()
SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "max_prepared_transactions": "4",
    "shared_buffers": "64MB",
    "autovacuum": "off",
    "deadlock_timeout": "200ms",
    "track_functions": "all",
    "timezone": "UTC",
}

_END = "select pg_terminate_backend(a.pid) from pg_stat_activity a where a.datname = %s and a.pid <> all (%s)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Address of the server in the shape that pytest-postgresql's ``depends_on`` reads."""

    host: str
    port: int
    user: str
    password: str | None = None
    options: str = ""
    maintenance_dbname: str = "postgres"
    template_dbname: str | None = None

    def dsn(self, dbname: str) -> str:
        """URL of one of its databases, for psycopg and asyncpg."""
        return f"postgresql://{self.user}@/{dbname}?host={self.host}&port={self.port}"


class Cluster:
    """The running server of this session as seen by one process."""

    def __init__(self, folder: str | None = None) -> None:
        self._own = folder is None and FOLDER not in os.environ
        self.folder = Path(folder or os.environ.get(FOLDER) or make_folder())
        from pyengine.doors.embedded.server import EmbeddedPostgres

        self._embedded = EmbeddedPostgres(self.folder, settings=SETTINGS)

    def __enter__(self) -> Self:
        self._embedded.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._embedded.stop()
        if self._own:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def server(self) -> Server:
        """Where it listens."""
        parts: dict[str, Any] = conninfo_to_dict(self._embedded.dsn)
        return Server(host=str(parts["host"]), port=int(parts["port"]), user=str(parts["user"]))


def of_worker(name: str) -> str:
    """This name for the xdist worker that asks, which shares the server with others."""
    return f"{name}_{os.environ.get('PYTEST_XDIST_WORKER', '')}"


def make_folder() -> str:
    """A new folder; not below pytest's tmp_path, which the server's user may not enter when we are root."""
    return tempfile.mkdtemp(prefix="pyengine-tests-", dir=BASE)


def begin_session() -> None:
    """In the process that pytest was started in: choose the folder of all workers; the server makes it."""
    os.environ[FOLDER] = str(Path(BASE or tempfile.gettempdir()) / f"pyengine-tests-{secrets.token_hex(6)}")


def end_session() -> None:
    """In that process, when all workers are gone."""
    folder = os.environ.pop(FOLDER, None)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def install_schema(*, host: str, port: int, user: str, dbname: str, **_: object) -> None:
    """Loader of the template database. Roles belong to the cluster, so workers install in turn."""
    from pyengine.doors.admin import migrate

    dsn = make_conninfo(host=host, port=port, user=user, dbname=dbname)
    with psycopg.connect(make_conninfo(dsn, dbname="postgres"), autocommit=True) as turn:
        turn.execute("select pg_advisory_lock(%s)", (ROLES_LOCK,))
        migrate.install(dsn)


def end_sessions(conn: Connection, dbname: str, *, but: Sequence[int] = ()) -> None:
    """End every session in a database, but for these backends. The connection is to another one."""
    end = time.monotonic() + 10
    while conn.execute(_END, (dbname, list(but))).rowcount and time.monotonic() < end:
        time.sleep(0.002)


def deadlocks(conn: Connection, dbname: str, *, but: Sequence[int] = ()) -> int:
    """Deadlocks that PostgreSQL has counted in one database; ends the sessions there, as `end_sessions`.

    A backend reports what it counted when it ends, so the number is complete only when all are gone.
    """
    end_sessions(conn, dbname, but=but)
    row = conn.execute("select deadlocks from pg_stat_database where datname = %s", (dbname,)).fetchone()
    return int(row[0]) if row else 0


def broken_laws(dsn: str) -> list[tuple[Any, ...]]:
    """Rows of durable.check() in a database, as `laws_of` finds them."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        return laws_of(conn)


def laws_of(conn: Connection) -> list[tuple[Any, ...]]:
    """Rows of durable.check(): one for each violated law; none where there is no such function."""
    if conn.execute("select to_regproc('durable.check')").fetchone() == (None,):
        return []
    return conn.execute("select * from durable.check()").fetchall()


def create_database(conn: Connection, name: str, template: str = "template0") -> None:
    """Make a database, dropping an older one of that name: a copy of the template.

    The files are copied. By default every page would go through the log, which takes four times the CPU.
    """
    drop_database(conn, name)
    conn.execute(f'create database "{name}" template "{template}" strategy file_copy'.encode())


def drop_database(conn: Connection, name: str) -> None:
    """Drop a database, with every session there.

    DROP DATABASE looks for one that it has ended ten times a second only.
    """
    end_sessions(conn, name)
    conn.execute(f'drop database if exists "{name}" with (force)'.encode())


@contextmanager
def installed_database(server: Server, name: str, template: str | None = None) -> Iterator[str]:
    """URL of a new database with the schema, for as long as the block lasts; a clone of the template, if one
    is given."""
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as conn:
        create_database(conn, name, template or "template0")
        if template is None:
            install_schema(host=server.host, port=server.port, user=server.user, dbname=name)
        yield server.dsn(name)
        drop_database(conn, name)
