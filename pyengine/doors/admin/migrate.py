"""Migration of a database to the schema of this code: the numbered steps of the tables, then the functions
and views that changed.

Lives here: ``install``, ``migrate``, ``status``. May not: know the content of a file, decide what to run
(``migration_plan``), or decide anything about runs.

Design: a plan is made and its first part executed, under one advisory lock and in one transaction, until
nothing is left to do. So concurrent installs are safe, a failure changes nothing of its part, and what was
done stays done. ``migration_locks`` tries a part again that does not get its locks. Steps go forward only,
and the checksum of each applied step is recorded: an edited step is an error. Functions and views are
replaced in place, so objects that depend on them remain. A test installation also has ``sql/debug``; the
next ordinary install removes it, because its checksum differs. The facade, a schema of its own, is kept: it
is replaced as the rest of the logic is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psycopg
from psycopg.rows import TupleRow

from pyengine.core.passwords import hidden
from pyengine.core.servers import libpq_url
from pyengine.core.sources import FACADE, SCHEMA, VERSION, Migration, Sources, found
from pyengine.doors.admin import migration_plan
from pyengine.doors.admin.migration_batches import fill, index
from pyengine.doors.admin.migration_locks import Limits, Patience, Tell
from pyengine.doors.admin.migration_parts import (
    LOCKED_SESSION,
    WAIT_FOR_OTHERS,
    Part,
    Plan,
    drop,
    fresh,
    version_number,
)
from pyengine.doors.admin.migration_script import script
from pyengine.errors import (
    NO_RIGHT,
    RIGHTS,
    EngineError,
    InvalidRequest,
    NotFound,
    SchemaMismatch,
    Unavailable,
)

Connection = psycopg.Connection[TupleRow]
_LIMITS = Limits()
_MAY_CREATE = "install as the owner of the database, or: grant create on database ... to that role"

# the facade of this engine says so in its comment: another schema of that name is left alone
_OUR_FACADE = (
    f"pg_namespace n where n.nspname = '{FACADE}' "
    "and starts_with(obj_description(n.oid, 'pg_namespace'), 'pyengine:')"
)
_OBJECTS_OF_FACADE = f"""
select 'trigger ' || format('%I on %s', t.tgname, t.tgrelid::regclass) from pg_catalog.pg_trigger t
  join pg_catalog.pg_proc p on p.oid = t.tgfoid and p.pronamespace = '{FACADE}'::regnamespace
union all
select 'function ' || p.oid::regprocedure::text from pg_catalog.pg_proc p
  where p.pronamespace = '{FACADE}'::regnamespace
order by 1 desc
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The changes of an install or a migration; empty fields mean no change.

    Args:
        applied: steps that were applied.
        logic: functions and views were replaced.
        dropped: functions and views that were dropped for good.
        left: steps that contract, left for later, because workers of an older version are connected.
        older: those workers, with their versions.
    """

    applied: tuple[str, ...] = ()
    logic: bool = False
    dropped: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    older: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether the database was changed."""
        return bool(self.applied or self.logic or self.dropped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of a database compared with the sources of this code."""

    installed: bool
    applied: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    logic_current: bool = False
    debug: bool = False
    facade: bool = False
    version: str | None = None
    logic: str | None = None

    @property
    def current(self) -> bool:
        """Whether an install of the same kind would have nothing to do."""
        return self.installed and not self.pending and self.logic_current


def install(
    dsn: str, *, sources: Sources | None = None, reapply: bool = False, debug: bool = False
) -> Report:
    """Install the schema of this code, or migrate any older version to it.

    Args:
        dsn: connection string of PostgreSQL.
        sources: another tree of SQL files, for tests.
        reapply: replace functions, views and grants even if they look current.
        debug: also install the debug operations, which can empty the database and set its clock; otherwise
            they are removed.

    Raises:
        SchemaMismatch: the database is newer than the code, or an applied step was edited.
        InvalidRequest: the connection string cannot be read.
        Unavailable: no connection, or a lock was not granted in time.
        EngineError: a statement failed; the message names file and line, and its part was rolled back.
    """
    return _migrate(dsn, sources or found(), reapply=reapply, must_exist=False, debug=debug)


def migrate(
    dsn: str,
    *,
    sources: Sources | None = None,
    reapply: bool = False,
    limits: Limits = _LIMITS,
    tell: Tell | None = None,
) -> Report:
    """Like ``install``, but only for a database that already has the schema; removes debug operations.

    Args:
        dsn: connection string of PostgreSQL.
        sources: another tree of SQL files, for tests.
        reapply: as `install`.
        limits: how long it waits for the locks of others.
        tell: gets each try that did not get a lock.

    Raises:
        NotFound: there is no schema to migrate.
    """
    return _migrate(
        dsn, sources or found(), reapply=reapply, must_exist=True, debug=False, limits=limits, tell=tell
    )


def status(dsn: str, *, sources: Sources | None = None) -> Status:
    """Compare the database with the sources, without changes.

    Raises:
        SchemaMismatch: the database is newer than the code, or an applied step was edited.
        Unavailable: no connection.
    """
    with connected(dsn) as conn:
        return _status(conn, sources or found())


def plan(
    conn: Connection, sources: Sources, *, debug: bool = False, reapply: bool = False, only_next: bool = False
) -> Plan:
    """Return what is to be done, inside a transaction that has begun with ``LOCKED_SESSION``.

    Args:
        conn: its connection.
        sources: the files.
        debug: with debug operations.
        reapply: replace all functions and views.
        only_next: as far as the next part, without a look at the functions if that is a step before them.

    Raises:
        SchemaMismatch: as `status`.
    """
    now = _status(conn, sources)
    if not now.installed:
        return Plan(parts=fresh(sources, debug=debug))
    pending = [step for step in sources.migration_steps() if step.name in now.pending]
    is_current = now.logic_current and now.debug == debug
    if is_current and not pending and not reapply:
        return Plan(parts=())
    if only_next and (ahead := migration_plan.before_functions(pending)):
        return Plan(parts=(ahead[0],))
    made = migration_plan.make(
        conn, sources, pending, is_current=is_current, debug=debug, facade=now.facade, reapply=reapply
    )
    after = sources.logic_sha256(debug=debug, facade=now.facade)
    return replace(made, applied=now.applied, logic=now.logic, logic_after=after)


def set_facade(dsn: str, wanted: bool, *, sources: Sources | None = None) -> Report:
    """Install or remove the schema ``resonate``, through which SDKs reach the engine without a gateway.

    Only this schema and its triggers are touched. A later install or migration keeps it and replaces it.

    Raises:
        NotFound: there is no schema to put it on.
        SchemaMismatch: the engine is not up to date; a schema of that name belongs to somebody else; or
            objects of others use the facade.
    """
    sources = sources or found()
    with connected(dsn) as conn, conn.transaction():
        _lock(conn)
        now = _status(conn, sources)
        if not now.installed:
            raise NotFound(f"this database has no schema {SCHEMA}", hint="pyengine db init")
        if not now.current:
            raise SchemaMismatch(f"the schema {SCHEMA} is not up to date", hint="pyengine db migrate")
        if now.facade == wanted:
            return Report()
        dropped: tuple[str, ...] = ()
        if wanted:
            _claim_facade(conn)
        else:
            dropped = _drop_facade(conn)
        for part in plan(conn, sources, debug=now.debug).parts:
            conn.execute(part.text.encode())
        return Report(logic=True, dropped=dropped)


def _claim_facade(conn: Connection) -> None:
    """Make the schema of the facade, with the comment by which it is known as ours."""
    if _exists(conn, f"pg_namespace where nspname = '{FACADE}'"):
        raise SchemaMismatch(
            f"this database has a schema {FACADE} that pyengine did not make",
            hint="a Postgres server of Resonate is installed there: use another database, or drop it",
        )
    conn.execute(f"create schema {FACADE}".encode())
    conn.execute(
        f"comment on schema {FACADE} is 'pyengine: for SDKs of Resonate, without a gateway'".encode()
    )


def _drop_facade(conn: Connection) -> tuple[str, ...]:
    """Drop the facade; return what went."""
    names = tuple(name for (name,) in conn.execute(_OBJECTS_OF_FACADE).fetchall())
    try:
        for segment in drop(names):
            conn.execute(segment.text.encode())
        conn.execute(f"drop table {FACADE}._ticks; drop schema {FACADE} restrict".encode())
    except psycopg.errors.DependentObjectsStillExist as error:
        raise SchemaMismatch(
            f"objects of yours are in the schema {FACADE}, or use it",
            detail=error.diag.message_detail,
            hint="drop or move those objects; nothing was changed",
        ) from error
    return names


def as_script(dsn: str, *, sources: Sources | None = None) -> str:
    """Return a script for psql that does what `migrate` would do now.

    Raises:
        SchemaMismatch: as `status`.
        Unavailable: no connection.
    """
    sources = sources or found()
    with connected(dsn) as conn, conn.transaction(force_rollback=True):
        _lock(conn)
        return script(plan(conn, sources), sources)


def _migrate(
    dsn: str,
    sources: Sources,
    *,
    reapply: bool,
    must_exist: bool,
    debug: bool,
    limits: Limits = _LIMITS,
    tell: Tell | None = None,
) -> Report:
    with connected(dsn) as conn:
        now = _status(conn, sources)
        if must_exist and not now.installed:
            raise NotFound(f"this database has no schema {SCHEMA}", hint="pyengine db init")
        if now.current and now.debug == debug and not reapply:
            _adopt_idle_copy(conn)
            return Report()
        report, patience = Report(), Patience(limits, tell)
        part: Part | None = None
        while True:
            try:
                with conn.transaction():
                    _lock(conn)
                    todo = plan(conn, sources, debug=debug, reapply=reapply, only_next=True)
                    part = todo.parts[0] if todo.parts else None
                    patience.at = part
                    if part is not None and part.phase not in ("backfill", "index"):
                        patience.run(conn, part)
                if part is not None and part.phase == "backfill":
                    fill(conn, part, limits, tell)
                if part is not None and part.phase == "index":
                    index(conn, part, limits)
            except psycopg.Error as error:
                if not patience.covers(error):
                    raise failed(error, patience.at or part, report.applied) from error
                patience.pause(conn, error, part)
                continue
            if part is None:
                _adopt_idle_copy(conn)
                return replace(report, left=todo.left, older=todo.older)
            report, reapply = _with(report, part), reapply and not part.logic
            patience = Patience(limits, tell)


def _adopt_idle_copy(conn: Connection) -> None:
    """Adopt a new installation, or a copy of one in which nothing could run."""
    conn.execute(f"select {SCHEMA}._adopt_idle_copy()")


def _with(report: Report, part: Part) -> Report:
    return replace(
        report,
        applied=report.applied + tuple(step.name for step in part.steps),
        logic=report.logic or part.logic,
        dropped=tuple(sorted({*report.dropped, *part.dropped})),
    )


@contextmanager
def connected(dsn: str) -> Iterator[Connection]:
    """Connect to a database, for the length of a `with` block.

    Raises:
        Unavailable: no connection.
        InvalidRequest: the connection string cannot be read.
    """
    try:
        conn = psycopg.connect(
            libpq_url(dsn),
            autocommit=True,
            prepare_threshold=None,
            application_name="pyengine admin",
            client_encoding="utf8",
        )
        # these are options of BEGIN, so they work behind a pooler too
        conn.isolation_level, conn.read_only = psycopg.IsolationLevel.READ_COMMITTED, False
    except psycopg.OperationalError as error:
        # libpq reads the part after the first @ of a password as the host, and repeats it
        reason = re.sub(r"[^\s'\"]*@", "***@", hidden(str(error), dsn))
        raise Unavailable(f"cannot connect to the database: {reason}") from None
    except psycopg.ProgrammingError:
        # the text of this error repeats a part of the URL, which may be the password
        raise InvalidRequest(
            "the connection string cannot be read",
            hint="write it as postgresql://user:password@host:5432/database, special characters as %XX",
        ) from None
    with conn:
        try:
            yield conn
        except psycopg.errors.InsufficientPrivilege as error:
            raise _no_right(conn, error) from error


def _no_right(conn: Connection, error: psycopg.Error) -> EngineError:
    """Return the error for a role that lacks a right, with the grant to type."""
    reason = f"database {conn.info.dbname!r}: {error.diag.message_primary} (SQLSTATE {NO_RIGHT})"
    ours = EngineError(reason, hint=RIGHTS)
    query = (
        "select quote_ident(current_user), "
        "has_function_privilege('pg_catalog.pg_control_system()', 'execute')"
    )
    role, may = conn.execute(query).fetchone() or ("ROLE", True)
    if not may:
        missing = f"grant execute on function pg_catalog.pg_control_system() to {role}"
        ours.hint = f"{RIGHTS}; a superuser types: {missing}"
    return ours


def _lock(conn: Connection) -> None:
    try:
        conn.execute(LOCKED_SESSION.encode())
    except psycopg.errors.LockNotAvailable as error:
        raise Unavailable(
            f"another install has been running for {WAIT_FOR_OTHERS}",
            hint="look for application_name 'pyengine admin' in pg_stat_activity",
        ) from error


def _status(conn: Connection, sources: Sources) -> Status:
    steps = sources.migration_steps()
    if edited := sources.edited():
        raise SchemaMismatch(
            f"migrations/{edited[0]}.sql is not as it was released (migrations/SHA256SUMS)",
            hint="install pyengine again, or restore the file; a released migration is never edited",
        )
    # a query, because to_regclass() may answer from a cache that is older than our lock
    if not _exists(conn, f"pg_tables where schemaname = '{SCHEMA}' and tablename = 'migrations'"):
        if _exists(conn, f"pg_namespace where nspname = '{SCHEMA}'"):
            raise SchemaMismatch(
                f"this database has a schema {SCHEMA} that pyengine did not make",
                hint=f"rename or drop it: alter schema {SCHEMA} rename to ...",
            )
        return Status(installed=False, pending=tuple(step.name for step in steps))
    recorded = conn.execute(f"select id, name, sha256 from {SCHEMA}.migrations order by id").fetchall()
    _verify(recorded, steps, f"database {conn.info.dbname!r} on {conn.info.host}")
    settings: dict[str, str] = dict(
        conn.execute(
            f"select name, value from {SCHEMA}.settings where name in ('logic_sha256', 'engine_version')"
        ).fetchall()
    )
    version, logic = settings.get("engine_version"), settings.get("logic_sha256")
    facade = _exists(conn, _OUR_FACADE)
    debug = logic == sources.logic_sha256(debug=True, facade=facade) != sources.logic_sha256(facade=facade)
    if version is not None and version_number(version) > version_number(VERSION):
        raise _newer(f"it was installed by pyengine {version}")
    return Status(
        installed=True,
        applied=tuple(name for _, name, _ in recorded),
        pending=tuple(step.name for step in steps if step.id not in {id_ for id_, _, _ in recorded}),
        logic_current=debug or logic == sources.logic_sha256(facade=facade),
        debug=debug,
        facade=facade,
        version=version,
        logic=logic,
    )


def _verify(recorded: list[TupleRow], steps: tuple[Migration, ...], where: str) -> None:
    known = {step.id: step for step in steps}
    for id_, name, sha256 in recorded:
        step = known.get(id_)
        if step is None:
            raise _newer(f"it has migration {name}")
        if step.name != name or step.sha256 != sha256:
            raise SchemaMismatch(
                f"migrations/{step.path.name} differs from the {name} that {where} has applied",
                hint="an applied migration is never edited: restore the file and write a new one "
                "(a development database of an unreleased 0001 is dropped and created again: "
                "pyengine db psql -c 'drop schema durable cascade', then pyengine db init)",
            )


def _newer(why: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"the database is newer than this pyengine {VERSION}: {why}",
        hint="upgrade pyengine here; an older one can work beside it for two releases, but not install",
    )


def failed(error: psycopg.Error, part: Part | None, applied: tuple[str, ...]) -> EngineError:
    """Return the error for a part that failed: with file and line, and the state of the database.

    Args:
        error: the driver's.
        part: the part, if there is one.
        applied: steps that were applied before it.
    """
    if isinstance(error, psycopg.errors.DependentObjectsStillExist):
        return SchemaMismatch(
            "objects of yours stand on functions or views that this version changes or drops",
            detail=error.diag.message_detail,
            hint="drop those objects, install, and make them again; nothing was changed",
        )
    if error.sqlstate == SchemaMismatch.sqlstate:
        return SchemaMismatch(error.diag.message_primary or str(error), hint=error.diag.message_hint)
    state = f"rolled back; {', '.join(applied)} remains applied" if applied else "nothing was changed"
    where = _place(error, part) if part is not None else "plan"
    return EngineError(
        f"{where}: {error.diag.message_primary or error} ({error.sqlstate}); {state}",
        detail=error.diag.message_detail or error.diag.context,
        hint=error.diag.message_hint or (_MAY_CREATE if error.sqlstate == NO_RIGHT else None),
    )


def _place(error: psycopg.Error, part: Part) -> str:
    """Return file and line of an error, as far as the server says them."""
    position, inner = error.diag.statement_position, error.diag.internal_query
    if position is None and inner and (at := part.text.find(inner)) >= 0:
        # a statement inside the block that may drop the object first
        position = str(at + int(error.diag.internal_position or 1))
    path, line = part.place(int(position)) if position else (None, 0)
    return f"{path.parent.name}/{path.name}:{line}" if path else f"part {part.phase}"


def _exists(conn: Connection, what: str) -> bool:
    return conn.execute(f"select from pg_catalog.{what}".encode()).fetchone() is not None
