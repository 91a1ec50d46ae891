"""The database of a command: its choice, its connection, and the errors of both.

Lives here: from options and environment to a connection. May not: know what a command does with it. The
embedded server runs as long as the command; it never replaces a URL that is set.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyengine.core.client.caller_connection import psycopg_error
from pyengine.core.database.error_mapping import READ_ONLY, refuses
from pyengine.core.database.statements.procedures import SESSION, Procedure
from pyengine.core.database.statements.sessions import CLIENT_SETTINGS
from pyengine.core.passwords import hidden
from pyengine.core.process import clock
from pyengine.core.process.backoff import backoff_pause
from pyengine.core.servers import Servers, libpq_url
from pyengine.doors.cli.output import Output, printable, program, read_json, redact
from pyengine.errors import EngineError, InvalidRequest, NotFound, SchemaMismatch, Unavailable

if TYPE_CHECKING:
    import psycopg
    from psycopg import Connection
    from psycopg.rows import TupleRow

    from pyengine.doors.embedded.server import EmbeddedPostgres, Target

_PAUSE_S = 0.1
_PAUSE_MAX_S = 3.0
_REPORT_EVERY = 20
_NO_SUCH_OBJECT = ("3F000", "42883", "42P01", "42703")  # schema, function, table, column


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """An open database.

    Args:
        conn: an autocommit connection.
        url: its URL, with the password.
        target: how the database was chosen.
        psql: the command line that opens it in psql, for `subprocess`; without a password.
        start_server: starts the embedded server again, if it was killed; None: it is not embedded.
    """

    conn: Connection[TupleRow]
    url: str
    target: Target
    psql: tuple[str, ...]
    start_server: Callable[[], object] | None = None

    def rows(self, procedure: Procedure, *values: object) -> list[dict[str, Any]]:
        """Run a statement of clients, and return its rows."""
        from psycopg import RawCursor
        from psycopg.rows import dict_row

        with RawCursor(self.conn, row_factory=dict_row) as cursor:
            return cursor.execute(procedure.sql.encode(), values).fetchall()

    def ask(self, procedure: Procedure, *values: object) -> dict[str, Any]:
        """Run a statement of clients, and return its first row."""
        return next(iter(self.rows(procedure, *values)), {})

    @property
    def place(self) -> str:
        """The database's name in messages."""
        if self.target.embedded:
            return f"embedded Postgres in {self.target.data_dir}"
        return f"database {where(self.url)} (from {origin(self.target)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """The common options of every command: the database, and the form of the answer.

    Args:
        out: prints the answer.
        database_url: ``--database-url``, or None.
        data_dir: ``--data-dir``, or None.
    """

    out: Output
    database_url: str | None = None
    data_dir: Path | None = None

    def target(self) -> Target:
        """Return the database that the options and the environment name.

        Raises:
            EmbeddedPostgresError: a URL that is set is malformed.
            Unavailable: it has a parameter that not every driver heeds.
        """
        from pyengine.doors.embedded.server import database_url

        target = database_url(self.database_url, self.data_dir)
        if self.data_dir is not None and not target.embedded:
            raise InvalidRequest(
                f"--data-dir names the embedded Postgres, but {origin(target)} names another database",
                hint="leave one of them out",
            )
        if target.url is not None:
            try:
                Servers(target.url)
            except InvalidRequest as error:
                raise Unavailable(f"{error.message} (from {origin(target)})", hint=error.hint) from error
        return target

    @property
    def psql_line(self) -> str:
        """The command to type for psql, which starts the embedded server if necessary."""
        return self.line("db", "psql")

    def line(self, *command: str) -> str:
        """Return a command to type, for the same database."""
        return shlex.join([*program(), *command, *self.options()])

    def options(self) -> list[str]:
        """Return the options that name the same database, without a password."""
        if self.database_url is not None:
            return ["--database-url", redact(self.database_url)]
        return [] if self.data_dir is None else ["--data-dir", str(self.data_dir)]

    @contextmanager
    def database(
        self, *, create: bool = False, schema: bool = True, wait: bool = False
    ) -> Iterator[Database]:
        """Open the database for the length of a `with` block.

        Args:
            create: create the embedded server if it does not exist, and install the schema there.
            schema: the schema must be installed in a compatible version; with `create` it is installed into
                the embedded server, but never into another one.
            wait: wait for a server that cannot be reached, and print that.

        Raises:
            NotFound: the embedded database was never created.
            Unavailable: no connection.
            SchemaMismatch: the schema is missing, older or newer.
        """
        target = self.target()
        with ExitStack() as stack:
            server = None
            if target.url is not None:
                url, psql = target.url, _psql_of_url(target.url)
            else:
                server = self._embedded(target, stack, create=create)
                url, psql = server.dsn, tuple(shlex.split(server.psql_command()))
            reached = _reached(url, target, self.out) if wait else connect(url, target)
            conn = stack.enter_context(reached)
            start = None if server is None else server.start
            opened = Database(conn=conn, url=url, target=target, psql=psql, start_server=start)
            if create and schema and target.embedded:
                install(url, self.out)
            if schema:
                must_fit(conn, self.line)
            yield opened

    def _embedded(self, target: Target, stack: ExitStack, *, create: bool) -> EmbeddedPostgres:
        from pyengine.doors.embedded.server import EmbeddedPostgres

        folder = target.data_dir
        if not create and folder is not None and not (folder.expanduser() / "data").is_dir():
            raise NotFound(
                f"the embedded Postgres in {folder} was never started",
                hint=f"{self.line('db', 'init')}, or: {self.line('demo')}",
            )
        return stack.enter_context(EmbeddedPostgres(folder))


@contextmanager
def connect(url: str, target: Target) -> Iterator[Connection[TupleRow]]:
    """Connect to a database.

    Raises:
        Unavailable: no connection; the reason is one line.
    """
    import psycopg
    from psycopg.types.json import set_json_loads

    conn = None
    try:
        conn = psycopg.connect(
            libpq_url(url),
            autocommit=True,
            prepare_threshold=None,
            application_name="pyengine cli",
            client_encoding="utf8",
            connect_timeout=int(Servers(url).timeout_s),
        )
        set_json_loads(read_json, conn)
        if conn.execute(SESSION.sql.encode()).fetchone() == (conn.info.backend_pid,):
            # there is no pooler: the session is our own
            conn.execute(CLIENT_SETTINGS.sql.encode())
    except (psycopg.OperationalError, psycopg.ProgrammingError, ValueError) as error:
        if conn is not None:
            conn.close()
        raise Unavailable(
            f"no connection to {where(url)} (from {origin(target)}): {hidden(_one_line(error), url)}",
            hint=_advice(target),
        ) from error
    with conn:
        yield conn


@contextmanager
def _reached(url: str, target: Target, out: Output) -> Iterator[Connection[TupleRow]]:
    """Connect as soon as the server can be reached.

    Raises:
        Unavailable: the server refuses it permanently.
    """
    failures, conn = 0, None
    with ExitStack() as stack:
        while conn is None:
            try:
                conn = stack.enter_context(connect(url, target))
            except Unavailable as error:
                failures += 1
                if refuses(str(error.__cause__)):
                    raise
                if failures == 1 or failures % _REPORT_EVERY == 0:
                    out.remark(f"{error.message}; waiting for it (--no-wait ends instead)")
                clock.pause(backoff_pause(_PAUSE_S, _PAUSE_MAX_S, failures))
        if failures > 1:
            out.remark(f"{where(url)} is reachable")
        yield conn


def install(url: str, out: Output) -> None:
    """Install the schema, or bring it up to date."""
    from pyengine.doors.admin import migrate

    report = migrate.install(url)
    if report.applied:
        out.remark("installed the schema durable")


def must_fit(conn: Connection[TupleRow], line: Callable[..., str]) -> None:
    """Check that the schema is installed in a compatible version.

    Args:
        conn: a connection to the database.
        line: makes a command to type, for the same database.

    Raises:
        SchemaMismatch: names the version and the command to type.
    """
    from pyengine.core.sources import VERSION, found
    from pyengine.doors.admin import queries

    # code never needs the rows that a backfill fills, nor what a contract takes away
    known = max(step.id for step in found().migration_steps() if step.phase in ("expand", "values"))
    if not queries.installed(conn):
        raise SchemaMismatch("this database has no schema durable", hint=line("db", "init"))
    version, lowest, highest = queries.versions(conn)
    if lowest > 1:
        raise SchemaMismatch(
            f"the database has schema version {version}, too new for this pyengine {VERSION} ({known})",
            hint="pip install --upgrade pyengine-durable",
        )
    if version < known or highest < 1:
        raise SchemaMismatch(
            f"the database has schema version {version}, this pyengine {VERSION} needs {known}",
            hint=line("db", "migrate"),
        )


def where(url: str) -> str:
    """Return the name of a database without its password."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        info = conninfo_to_dict(url)
    except ProgrammingError:
        return "the database URL"
    host = info.get("host") or os.environ.get("PGHOST") or "the local socket"
    port = info.get("port") or os.environ.get("PGPORT") or "5432"
    name = info.get("dbname") or os.environ.get("PGDATABASE") or info.get("user") or "the default database"
    return printable(redact(hidden(f"{host}:{port}/{name}", url)))


def origin(target: Target) -> str:
    """Return the option or variable that chose the database."""
    return "--database-url" if target.source == "argument" else target.source


def _advice(target: Target) -> str:
    if target.embedded:
        return f"look into the end of {target.data_dir}/postgres.log, then try again"
    drop = "leave out --database-url" if target.source == "argument" else f"unset {target.source}"
    return (
        f"start that server or correct the URL, then: pyengine db status. Or {drop} for the embedded Postgres"
    )


def _one_line(error: BaseException) -> str:
    """Return the reason of libpq on one line."""
    lines = [line.strip(" -\t") for line in str(error).splitlines() if line.strip(" -\t")]
    reason = next(
        (line for line in lines if "failed:" in line or "error" in line.lower()), lines[0] if lines else ""
    )
    return printable(redact(reason.rpartition("failed: ")[2].removeprefix("FATAL:  ")))


def _psql_of_url(url: str) -> tuple[str, ...]:
    """Return the command line of psql for a URL, without its password, which goes into the environment."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    from pyengine.doors.embedded.binaries import find_binaries
    from pyengine.errors import EmbeddedPostgresError

    program = shutil.which("psql")
    if program is None:
        try:
            ours = find_binaries().bin_dir / "psql"
            program = str(ours) if ours.exists() else None
        except EmbeddedPostgresError:
            program = None
    try:
        info = conninfo_to_dict(libpq_url(url))
    except ProgrammingError:  # the attempt to connect reports the problem
        return (program or "psql", "")
    info.pop("password", None)
    return (program or "psql", make_conninfo("", **info))


@contextmanager
def asked(at: Invocation, *command: str) -> Iterator[Database]:
    """Open the database for a command; an error of it becomes ours.

    Args:
        at: the invocation.
        command: the command to type if something was not found, or if the error names none.
    """
    import psycopg

    with at.database() as db:
        try:
            yield db
        except psycopg.Error as error:
            ours = explain(error)
            if isinstance(ours, NotFound) or not ours.hint:
                ours.hint = at.line(*command)
            raise ours from error


def explain(error: psycopg.Error) -> EngineError:
    """Return the engine's error for one of psycopg, with the next command to type."""
    if error.sqlstate in _NO_SUCH_OBJECT:
        return SchemaMismatch(
            f"the schema durable of this database does not fit: {error.diag.message_primary}",
            hint="pyengine db migrate",
        )
    if error.sqlstate is None:
        return Unavailable(f"the connection broke: {_one_line(error)}", hint="pyengine db status")
    if error.sqlstate == READ_ONLY:
        return Unavailable(
            f"the server only reads: {error.diag.message_primary}",
            hint="a standby takes no writes: name the primary, or all servers of the cluster, in the URL",
        )
    return psycopg_error(error, "the database", closed=False)
