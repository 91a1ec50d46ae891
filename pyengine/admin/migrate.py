"""Migration of a database to the schema of this code: the numbered steps of the tables, then all functions
and views.

Lives here: ``install``, ``migrate``, ``status``. May not: know the content of a file, or decide anything
about runs.

Design: everything happens in one transaction under one advisory lock, so concurrent installs are safe and a
failure changes nothing. There is one exception: PostgreSQL refuses a new value of an enum in the transaction
that adds it, so a step that adds one is committed, with the steps before it, before the rest. Steps go
forward only, and the checksum of each applied step is recorded: an edited step is an error. Functions and
views are replaced in place, so objects that depend on them remain; functions and views that the sources no
longer define are dropped. If a changed signature makes replacing impossible, all of them are dropped and
created again in the same transaction. Grants are in the last logic file, so that every application restores
them. A test installation also has ``sql/debug``; the next ordinary install removes it, because its checksum
differs. The facade, a schema of its own, is kept: it is replaced as the rest of the logic is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.rows import TupleRow

from pyengine.errors import EngineError, InvalidRequest, NotFound, SchemaMismatch, Unavailable
from pyengine.passwords import hidden
from pyengine.servers import libpq_url
from pyengine.sources import FACADE, SCHEMA, VERSION, Migration, Sources, found

__all__ = ["INSTALL_LOCK", "Report", "Status", "install", "migrate", "set_facade", "status"]

INSTALL_LOCK = int.from_bytes(b"durable", "big")
WAIT_FOR_OTHERS = "5min"
WAIT_FOR_TABLES = "10s"

Connection = psycopg.Connection[TupleRow]
Catalogue = dict[tuple[str, str], str]

# errors of PostgreSQL for an object that cannot be replaced in place
_SHAPE_CHANGED = (
    psycopg.errors.AmbiguousFunction,
    psycopg.errors.DependentObjectsStillExist,
    psycopg.errors.InvalidFunctionDefinition,
    psycopg.errors.InvalidTableDefinition,
    psycopg.errors.WrongObjectType,
)
_CREATED = re.compile(
    rf"^create or replace (?:function|procedure|view|trigger) (?:(?:{SCHEMA}|{FACADE})\.)?(\w+)", re.M | re.I
)

_SESSION = f"""
set local lock_timeout = '{WAIT_FOR_OTHERS}';
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local client_min_messages = warning;
set local check_function_bodies = on;
set local standard_conforming_strings = on;
set local quote_all_identifiers = off;
set local search_path = '';
select pg_advisory_xact_lock({INSTALL_LOCK});
set local lock_timeout = '{WAIT_FOR_TABLES}';
"""

# the facade of this engine says so in its comment: another schema of that name is left alone
_OUR_FACADE = (
    f"pg_namespace n where n.nspname = '{FACADE}' "
    "and starts_with(obj_description(n.oid, 'pg_namespace'), 'pyengine:')"
)

_OBJECTS = f"""
select 'function', p.oid::regprocedure::text, p.xmin::text || p.ctid::text
  from pg_proc p where p.pronamespace = %(schema)s::regnamespace
  or p.pronamespace = (select n.oid from pg_catalog.{_OUR_FACADE})
union all
select 'view', c.oid::regclass::text, r.xmin::text || r.ctid::text
  from pg_class c join pg_rewrite r on r.ev_class = c.oid and r.rulename = '_RETURN'
  where c.relnamespace = %(schema)s::regnamespace and c.relkind = 'v'
union all
select 'trigger', format('%%I on %%s', t.tgname, t.tgrelid::regclass), t.xmin::text || t.ctid::text
  from pg_trigger t join pg_class c on c.oid = t.tgrelid
  where c.relnamespace = %(schema)s::regnamespace and not t.tgisinternal and t.tgparentid = 0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The changes of an install or a migration; empty fields mean no change."""

    applied: tuple[str, ...] = ()
    logic: bool = False
    dropped: tuple[str, ...] = ()

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
        EngineError: a statement failed; the message names file and line, nothing was changed.
    """
    return _migrate(dsn, sources or found(), reapply=reapply, must_exist=False, debug=debug)


def migrate(dsn: str, *, sources: Sources | None = None, reapply: bool = False) -> Report:
    """Like ``install``, but only for a database that already has the schema; removes debug operations.

    Raises:
        NotFound: there is no schema to migrate.
    """
    return _migrate(dsn, sources or found(), reapply=reapply, must_exist=True, debug=False)


def set_facade(dsn: str, wanted: bool, *, sources: Sources | None = None) -> Report:
    """Install or remove the schema ``resonate``, through which SDKs reach the engine without a gateway.

    Only this schema and its triggers are touched. A later install or migration keeps it and replaces it.

    Raises:
        NotFound: there is no schema to put it on.
        SchemaMismatch: the engine is not up to date; a schema of that name belongs to somebody else; or
            objects of others use the facade.
    """
    sources = sources or found()
    with _connected(dsn) as conn, conn.transaction():
        _locked(conn)
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
            _define(conn, sources.facade_files())
        else:
            dropped = _drop_facade(conn)
        _record_logic(conn, sources, debug=now.debug, facade=wanted)
        return Report(logic=True, dropped=dropped)


def status(dsn: str, *, sources: Sources | None = None) -> Status:
    """Compare the database with the sources, without changes.

    Raises:
        SchemaMismatch: the database is newer than the code, or an applied step was edited.
        Unavailable: no connection.
    """
    with _connected(dsn) as conn:
        return _status(conn, sources or found())


def _migrate(dsn: str, sources: Sources, *, reapply: bool, must_exist: bool, debug: bool) -> Report:
    with _connected(dsn) as conn:
        now = _status(conn, sources)
        if must_exist and not now.installed:
            raise NotFound(f"this database has no schema {SCHEMA}", hint="pyengine db init")
        if now.current and now.debug == debug and not reapply:
            return Report()
        values = [step for step in sources.migration_steps() if step.adds_values and step.name in now.pending]
        applied: tuple[str, ...] = ()
        for last in values:
            with conn.transaction():
                _locked(conn)
                applied += _apply_steps(conn, sources, last)
        with conn.transaction():
            _locked(conn)
            applied += _apply_steps(conn, sources)
            now = _status(conn, sources)
            if now.logic_current and now.debug == debug and not reapply:
                return Report(applied=applied)
            dropped = _apply_logic(conn, sources.functions(debug=debug, facade=now.facade))
            if not debug:
                conn.execute(f"delete from {SCHEMA}.settings where name like 'debug\\_%'".encode())
            _record_logic(conn, sources, debug=debug, facade=now.facade)
            _record_setting(conn, "engine_version", VERSION, "version of pyengine that installed sql/logic")
            return Report(applied=applied, logic=True, dropped=dropped)


def _apply_steps(conn: Connection, sources: Sources, last: Migration | None = None) -> tuple[str, ...]:
    """Apply and record the pending steps, up to the last one if it is given; return their names."""
    pending = _status(conn, sources).pending
    steps = [
        step
        for step in sources.migration_steps()
        if step.name in pending and (last is None or step.id <= last.id)
    ]
    for step in steps:
        _run(conn, step.path, step.text)
        _record_step(conn, step)
    return tuple(step.name for step in steps)


@contextmanager
def _connected(dsn: str) -> Iterator[Connection]:
    try:
        conn = psycopg.connect(
            libpq_url(dsn), autocommit=True, prepare_threshold=None, application_name="pyengine admin"
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
        yield conn


def _locked(conn: Connection) -> None:
    try:
        conn.execute(_SESSION.encode())
    except psycopg.errors.LockNotAvailable as error:
        raise Unavailable(
            f"another install has been running for {WAIT_FOR_OTHERS}",
            hint="look for application_name 'pyengine admin' in pg_stat_activity",
        ) from error


def _status(conn: Connection, sources: Sources) -> Status:
    steps = sources.migration_steps()
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
    if version is not None and _ordered(version) > _ordered(VERSION):
        raise _newer(f"it was installed by pyengine {version}")
    return Status(
        installed=True,
        applied=tuple(name for _, name, _ in recorded),
        pending=tuple(step.name for step in steps[len(recorded) :]),
        logic_current=debug or logic == sources.logic_sha256(facade=facade),
        debug=debug,
        facade=facade,
        version=version,
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


def _apply_logic(conn: Connection, files: tuple[Path, ...]) -> tuple[str, ...]:
    before = _objects(conn)
    try:
        with conn.transaction():
            defined = _define(conn, files)
            _drop(conn, set(before) - defined)
    except EngineError as error:
        if not isinstance(error.__cause__, _SHAPE_CHANGED):
            raise
        _drop(conn, set(before))
        _define(conn, files)
    return tuple(sorted(f"{kind} {name}" for kind, name in set(before) - set(_objects(conn))))


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
    objects = {key for key in _objects(conn) if key[1].startswith((f"{FACADE}.", f"{FACADE}_"))}
    _drop(conn, objects)
    try:
        conn.execute(f"drop table {FACADE}._ticks; drop schema {FACADE} restrict".encode())
    except psycopg.errors.DependentObjectsStillExist as error:
        raise SchemaMismatch(
            f"objects of yours are in the schema {FACADE}",
            detail=error.diag.message_detail,
            hint="drop or move those objects; nothing was changed",
        ) from error
    return tuple(sorted(f"{kind} {name}" for kind, name in objects))


def _define(conn: Connection, files: tuple[Path, ...]) -> set[tuple[str, str]]:
    """Run these files; return the objects that they define.

    A file defines the objects that it changed in the catalogue and that it names: a grant on all functions
    changes all of them.
    """
    defined: set[tuple[str, str]] = set()
    before = _objects(conn)
    for path in files:
        text = path.read_text(encoding="utf-8")
        _run(conn, path, text)
        now = _objects(conn)
        names = {match.group(1).lower() for match in _CREATED.finditer(text)}
        defined |= {key for key, row in now.items() if before.get(key) != row and _bare(key) in names}
        before = now
    return defined


def _bare(key: tuple[str, str]) -> str:
    """``durable.start(text,jsonb)`` -> ``start``; ``guard on durable._journal`` -> ``guard``."""
    name = key[1].removeprefix(f"{SCHEMA}.").removeprefix(f"{FACADE}.")
    return re.split(r"[ (]", name, maxsplit=1)[0].strip('"').lower()


def _objects(conn: Connection) -> Catalogue:
    rows = conn.execute(_OBJECTS, {"schema": SCHEMA}).fetchall()
    return {(kind, name): row for kind, name, row in rows}


def _drop(conn: Connection, objects: set[tuple[str, str]]) -> None:
    try:
        for kind, name in sorted(objects):
            if kind == "trigger":
                conn.execute(f"drop trigger {name}".encode())
        for kind, word in (("view", "view"), ("function", "routine")):
            names = sorted(name for its_kind, name in objects if its_kind == kind)
            if names:
                conn.execute(f"drop {word} {', '.join(names)} restrict".encode())
    except psycopg.errors.DependentObjectsStillExist as error:
        raise SchemaMismatch(
            "objects of yours stand on functions or views that this version changes or drops",
            detail=error.diag.message_detail,
            hint="drop those objects, install, and make them again; nothing was changed",
        ) from error


def _run(conn: Connection, path: Path, text: str) -> None:
    try:
        conn.execute(text.encode())
    except psycopg.errors.LockNotAvailable as error:
        raise Unavailable(
            f"{path.name}: a table or view was locked for longer than {WAIT_FOR_TABLES}; nothing was changed",
            hint="look for long transactions in pg_stat_activity, then try again",
        ) from error
    except psycopg.Error as error:
        position = error.diag.statement_position
        line = text.count("\n", 0, int(position) - 1) + 1 if position else None
        where = f"{path.parent.name}/{path.name}" + (f":{line}" if line else "")
        raise EngineError(
            f"{where}: {error.diag.message_primary or error} ({error.sqlstate}); nothing was changed",
            detail=error.diag.message_detail or error.diag.context,
            hint=error.diag.message_hint,
        ) from error


def _record_logic(conn: Connection, sources: Sources, *, debug: bool, facade: bool) -> None:
    checksum = sources.logic_sha256(debug=debug, facade=facade)
    _record_setting(conn, "logic_sha256", checksum, "checksum of sql/logic as installed")


def _record_step(conn: Connection, step: Migration) -> None:
    conn.execute(
        f"insert into {SCHEMA}.migrations (id, name, sha256, applied_at) values (%s, %s, %s, now())",
        (step.id, step.name, step.sha256),
    )


def _record_setting(conn: Connection, name: str, value: str, description: str) -> None:
    conn.execute(
        f"insert into {SCHEMA}.settings as s (name, value, description) values (%s, %s, %s) "
        "on conflict (name) do update set value = excluded.value, description = excluded.description",
        (name, value, description),
    )


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _exists(conn: Connection, what: str) -> bool:
    return conn.execute(f"select from pg_catalog.{what}".encode()).fetchone() is not None
