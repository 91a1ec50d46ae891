"""The database that a command works on: which one, opened how, and what is said when that fails.

Lives here: from options and environment to a connection. May not: know what a command does with it. The
embedded server is held for as long as the command runs; it never takes the place of a URL that is set.
"""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyengine.cli.output import Output, printable, program, read_json, redact
from pyengine.database.error_mapping import refuses
from pyengine.database.statements.procedures import SESSION
from pyengine.database.statements.sessions import CLIENT_SETTINGS
from pyengine.errors import EngineError, InvalidRequest, NotFound, SchemaMismatch, Unavailable, from_sqlstate
from pyengine.passwords import hidden

if TYPE_CHECKING:
    import psycopg
    from psycopg import Connection
    from psycopg.rows import TupleRow

    from pyengine.embedded.server import Target

__all__ = ["Database", "Invocation", "explain"]

CONNECT_TIMEOUT_S = 10
_PAUSE_MAX_S = 3.0
_TOLD_EVERY = 20
_NO_SUCH_OBJECT = ("3F000", "42883", "42P01", "42703")  # schema, function, table, column


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """An open database.

    Args:
        conn: an autocommit connection.
        url: what it was opened with; holds the password.
        target: how the database was chosen.
        psql: the command line that opens it in psql, for `subprocess`; without a password.
    """

    conn: Connection[TupleRow]
    url: str
    target: Target
    psql: tuple[str, ...]

    @property
    def place(self) -> str:
        """Which database it is, for people."""
        if self.target.embedded:
            return f"embedded Postgres in {self.target.data_dir}"
        return f"{where(self.url)} (from {origin(self.target)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """What every command is told: where the database is, and how to answer.

    Args:
        out: where answers go.
        database_url: ``--database-url``, or None.
        data_dir: ``--data-dir``, or None.
    """

    out: Output
    database_url: str | None = None
    data_dir: Path | None = None

    def target(self) -> Target:
        """Find out which database is meant.

        Raises:
            EmbeddedPostgresError: a URL that is set is no URL.
        """
        from pyengine.embedded.server import database_url

        target = database_url(self.database_url, self.data_dir)
        if self.data_dir is not None and not target.embedded:
            raise InvalidRequest(
                f"--data-dir names the embedded Postgres, but {origin(target)} names another database",
                hint="leave one of them out",
            )
        return target

    @property
    def psql_line(self) -> str:
        """The command to type for psql; it also brings the embedded server back."""
        return self.line("db", "psql")

    def line(self, *command: str) -> str:
        """Return a command to type, for the same database."""
        return shlex.join([*program(), *command, *self.words()])

    def words(self) -> list[str]:
        """Return the options that name the same database again, without a password."""
        if self.database_url is not None:
            return ["--database-url", redact(self.database_url)]
        return [] if self.data_dir is None else ["--data-dir", str(self.data_dir)]

    @contextmanager
    def database(
        self, *, create: bool = False, schema: bool = True, wait: bool = False
    ) -> Iterator[Database]:
        """Open the database for the length of a `with` block.

        Args:
            create: the embedded server is made if it never was, and given the schema.
            schema: the schema must be there, in a version that fits; with `create` it is installed into the
                embedded server, and never into another one without being asked.
            wait: a server that cannot be reached is waited for, and people are told.

        Raises:
            NotFound: the embedded database was never made.
            Unavailable: no connection.
            SchemaMismatch: the schema is missing, older or newer.
        """
        target = self.target()
        with ExitStack() as held:
            if target.url is not None:
                url, psql = target.url, _psql_of_url(target.url)
            else:
                url, psql = self._embedded(target, held, create=create)
            if wait:
                _wait_for(url, target, self.out)
            conn = held.enter_context(connect(url, target))
            opened = Database(conn=conn, url=url, target=target, psql=psql)
            if create and schema and target.embedded:
                install(url, self.out)
            if schema:
                must_fit(conn, self.line)
            yield opened

    def _embedded(self, target: Target, held: ExitStack, *, create: bool) -> tuple[str, tuple[str, ...]]:
        from pyengine.embedded.server import EmbeddedPostgres

        folder = target.data_dir
        if not create and folder is not None and not (folder.expanduser() / "data").is_dir():
            raise NotFound(
                f"the embedded Postgres in {folder} was never started",
                hint=f"{self.line('db', 'init')}, or: {self.line('demo')}",
            )
        server = held.enter_context(EmbeddedPostgres(folder))
        return server.dsn, tuple(shlex.split(server.psql_command()))


@contextmanager
def connect(url: str, target: Target) -> Iterator[Connection[TupleRow]]:
    """Connect, and say in one line why that is impossible.

    Raises:
        Unavailable: no connection.
    """
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.types.json import set_json_loads

    try:
        told = conninfo_to_dict(url)
        timeout = int(told.get("connect_timeout") or os.environ.get("PGCONNECT_TIMEOUT") or CONNECT_TIMEOUT_S)
        conn = psycopg.connect(
            url,
            autocommit=True,
            prepare_threshold=None,
            application_name="pyengine cli",
            connect_timeout=timeout,
        )
    except (psycopg.OperationalError, psycopg.ProgrammingError, ValueError) as error:
        raise Unavailable(
            f"no connection to {where(url)} (from {origin(target)}): {hidden(_one_line(error), url)}",
            hint=_way_out(target),
        ) from error
    with conn:
        set_json_loads(read_json, conn)
        if conn.execute(SESSION.sql.encode()).fetchone() == (conn.info.backend_pid,):
            # no pooler stands in between: the session is ours
            conn.execute(CLIENT_SETTINGS.sql.encode())
        yield conn


def _wait_for(url: str, target: Target, out: Output) -> None:
    """Return when the server can be reached, or if it refuses us whenever we come."""
    failures = 0
    while True:
        try:
            with connect(url, target):
                break
        except Unavailable as error:
            failures += 1
            if refuses(str(error.__cause__)):
                break
            if failures == 1 or failures % _TOLD_EVERY == 0:
                out.note(f"{error.message}; waiting for it (--no-wait ends instead)")
            time.sleep(min(_PAUSE_MAX_S, 0.1 * 2**failures))
    if failures > 1:
        out.note(f"{where(url)} is there")


def install(url: str, out: Output) -> None:
    """Install the schema, or bring it up to date."""
    from pyengine.admin import migrate

    report = migrate.install(url)
    if report.applied:
        out.note("installed the schema durable")


def must_fit(conn: Connection[TupleRow], line: Callable[..., str]) -> None:
    """Refuse a database whose schema is missing or of another version.

    Args:
        conn: a connection to it.
        line: makes the command to type, for the same database.

    Raises:
        SchemaMismatch: says which version it is and what to type.
    """
    from pyengine.admin import queries
    from pyengine.sources import VERSION, found

    known = len(found().migration_steps())
    if not queries.installed(conn):
        raise SchemaMismatch("this database has no schema durable", hint=line("db", "init"))
    version, lowest, highest = queries.versions(conn)
    if version > known or lowest > 1:
        raise SchemaMismatch(
            f"the database has schema version {version}, newer than this pyengine {VERSION} ({known})",
            hint="pip install --upgrade pyengine",
        )
    if version < known or highest < 1:
        raise SchemaMismatch(
            f"the database has schema version {version}, this pyengine {VERSION} needs {known}",
            hint=line("db", "migrate"),
        )


def where(url: str) -> str:
    """Name a database without its password."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        told = conninfo_to_dict(url)
    except ProgrammingError:
        return "the database URL"
    host = told.get("host") or os.environ.get("PGHOST") or "the local socket"
    port = told.get("port") or os.environ.get("PGPORT") or "5432"
    name = told.get("dbname") or os.environ.get("PGDATABASE") or told.get("user") or "the default database"
    return printable(redact(hidden(f"{host}:{port}/{name}", url)))


def origin(target: Target) -> str:
    """Name what said which database is meant, as people know it."""
    return "--database-url" if target.source == "argument" else target.source


def _way_out(target: Target) -> str:
    if target.embedded:
        return f"look into the end of {target.data_dir}/postgres.log, then try again"
    drop = "leave out --database-url" if target.source == "argument" else f"unset {target.source}"
    return (
        f"start that server or correct the URL, then: pyengine db status. Or {drop} for the embedded Postgres"
    )


def _one_line(error: BaseException) -> str:
    """The cause that libpq gives, on one line."""
    lines = [line.strip(" -\t") for line in str(error).splitlines() if line.strip(" -\t")]
    told = next(
        (line for line in lines if "failed:" in line or "error" in line.lower()), lines[0] if lines else ""
    )
    return printable(redact(told.rpartition("failed: ")[2].removeprefix("FATAL:  ")))


def _psql_of_url(url: str) -> tuple[str, ...]:
    """Command line of psql for a URL, without its password, which goes into the environment."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    from pyengine.embedded.binaries import find_binaries
    from pyengine.errors import EmbeddedPostgresError

    program = shutil.which("psql")
    if program is None:
        try:
            ours = find_binaries().bin_dir / "psql"
            program = str(ours) if ours.exists() else None
        except EmbeddedPostgresError:
            program = None
    try:
        told = conninfo_to_dict(url)
    except ProgrammingError:  # connecting will say what is wrong with it
        return (program or "psql", "")
    told.pop("password", None)
    return (program or "psql", make_conninfo("", **told))


def explain(error: psycopg.Error) -> EngineError:
    """Turn an error of the database into one of ours, with the next command to type."""
    if error.sqlstate in _NO_SUCH_OBJECT:
        return SchemaMismatch(
            f"the schema durable of this database does not fit: {error.diag.message_primary}",
            hint="pyengine db migrate",
        )
    if error.sqlstate is None:
        return Unavailable(f"the connection broke: {_one_line(error)}", hint="pyengine db status")
    diag = error.diag
    if error.sqlstate.startswith("22"):  # data that its type does not take, such as a NUL in JSON
        return InvalidRequest(
            f"the database does not take that: {diag.message_primary}", detail=diag.message_detail
        )
    return from_sqlstate(
        error.sqlstate, diag.message_primary or str(error), diag.message_detail, diag.message_hint
    )
