"""The parts of a migration: SQL text, with its place in the sources, and the transaction it belongs to.

Lives here: ``Part``, ``Plan``, the settings of a part's session, and the texts that parts are made of. May
not: open a connection, decide what a database lacks (``migration_plan``).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from pyengine.core.sources import SCHEMA, VERSION, Migration, Sources
from pyengine.doors.admin.logic import Definition, Loose, read, split
from pyengine.errors import SchemaMismatch

INSTALL_LOCK = int.from_bytes(b"durable", "big")
WAIT_FOR_OTHERS = "5min"
LOCK_TIMEOUT_MS = 100
"""A part that waits longer for its locks starts again: whoever comes after it waits behind it meanwhile."""

# new in version 17; it counts from the beginning of the transaction
_UNTIL_DONE = """do $$ begin
  set local transaction_timeout = 0;
exception when undefined_object then null;
end $$;
"""
_SETTINGS = f"""set local lock_timeout = '{LOCK_TIMEOUT_MS}ms';
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local client_min_messages = warning;
set local check_function_bodies = on;
set local standard_conforming_strings = on;
set local quote_all_identifiers = off;
set local search_path = '';
"""
SESSION = _UNTIL_DONE + _SETTINGS
LOCKED_SESSION = f"""{_UNTIL_DONE}set local lock_timeout = '{WAIT_FOR_OTHERS}';
select pg_catalog.pg_advisory_xact_lock({INSTALL_LOCK});
{_SETTINGS}"""

LOOSE, INSERTS = "loose statements", "inserted rows"
_WAIT_FOR_STATEMENTS_S = 10
_INDEX = re.compile(r"create (unique )?index (\w+)(?= on )")

_OLDER_WORKERS = """
select w.id, w.about ->> 'pyengine' from {schema}._workers w
where ((w.present and w.missing_at is null)
       or w.seen_at > extract(epoch from clock_timestamp()) * 1000 - 120000)
  and coalesce(string_to_array(substring(w.about ->> 'pyengine' from '^[0-9.]*[0-9]'), '.'),
               '{{}}')::integer[] < array{version}
order by w.id
"""
_REPLACE = """do $replace$
begin
  for v_attempt in 1..2 loop
    begin
{text}      exit;
    exception when invalid_function_definition or invalid_table_definition or wrong_object_type then
      -- it cannot be replaced in place
      if v_attempt = 2 then
        raise;
      end if;
{drops}    end;
  end loop;
end
$replace$;
"""
_AWAIT_STATEMENTS = f"""do $wait$
declare
  -- transactions that began before the new functions were committed, and may be inside an old one
  v_running constant text[] := array(
    select l.virtualxid from pg_catalog.pg_locks l
    join pg_catalog.pg_stat_activity a on a.pid = l.pid
    join pg_catalog.pg_database d on d.oid = a.datid and d.datname = current_database()
    where l.locktype = 'virtualxid' and l.pid <> pg_backend_pid()
      and a.state is distinct from 'idle in transaction');
begin
  for v_round in 1..{_WAIT_FOR_STATEMENTS_S * 20} loop
    exit when not exists (select from pg_catalog.pg_locks l where l.virtualxid = any (v_running));
    perform pg_catalog.pg_sleep(0.05);
  end loop;
end
$wait$;
"""


_ONLY_UTF8 = f"""do $$ begin
  if current_setting('server_encoding') <> 'UTF8' then
    raise exception 'the database % has the encoding %, which lacks letters; the engine needs UTF8',
      current_database(), current_setting('server_encoding')
      using errcode = '{SchemaMismatch.sqlstate}',
            hint = format('create database %I encoding ''UTF8'' locale ''C'' template template0; '
                          'and name it in the URL', current_database() || '_utf8');
  end if;
end $$;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """SQL text with its place in the sources.

    Args:
        text: one or more statements, each with its semicolon.
        path: its file; None if it was not read from one.
        line: its first line there.
    """

    text: str
    path: Path | None = None
    line: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a migration.

    Args:
        phase: install, values, expand, index, logic, drops, backfill or contract.
        segments: what it runs, in order. Of a backfill first the statement that is repeated, each time in a
            transaction of its own, until it changes no row; then what records the step. Of an index first the
            statement that makes it.
        steps: the steps that it applies.
        ahead: how many of the segments lock no table; they come first.
        logic: it replaces functions and views by other ones.
        finishes: the functions and views are those of the sources afterwards.
        dropped: functions and views that it drops for good.
    """

    phase: str
    segments: tuple[Segment, ...]
    steps: tuple[Migration, ...] = ()
    logic: bool = False
    finishes: bool = False
    dropped: tuple[str, ...] = ()
    ahead: int = 0

    @property
    def text(self) -> str:
        """All segments, as one query."""
        return "".join(segment.text for segment in self.segments)

    def place(self, position: int) -> tuple[Path | None, int]:
        """Return file and line of a position in the text, which counts from 1."""
        begin = 0
        for segment in self.segments:
            if position <= begin + len(segment.text):
                return segment.path, segment.line + segment.text.count("\n", 0, position - 1 - begin)
            begin += len(segment.text)
        return None, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The parts of a migration.

    Args:
        parts: in the order in which they run.
        left: names of steps that wait until workers of an older version are gone.
        older: those workers.
        applied: names of the steps that the database has.
        logic: checksum of its functions and views.
        logic_after: that checksum at the end.
    """

    parts: tuple[Part, ...]
    left: tuple[str, ...] = ()
    older: tuple[str, ...] = ()
    applied: tuple[str, ...] = ()
    logic: str | None = None
    logic_after: str | None = None


def fresh(sources: Sources, *, debug: bool = False) -> tuple[Part, ...]:
    """Return the parts that install everything into a database without the schema.

    It is one, unless a step adds values to an enum: before PostgreSQL 17 those cannot be named until they are
    committed, even if their type is new too.
    """
    steps = sources.migration_steps()
    parts: list[Part] = []
    while any(step.phase == "values" for step in steps):
        count = next(at for at, step in enumerate(steps, 1) if step.phase == "values")
        parts.append(steps_part("install", steps[:count]))
        steps = steps[count:]
    segments = [segment for step in steps for segment in (of_file(step.path), recorded_step(step))]
    segments += [of_file(path) for path in sources.functions(debug=debug)]
    items = read(sources.functions(debug=debug))
    segments += [records(items, sources.migration_steps()), *settings(sources, debug=debug)]
    last = Part(phase="install", segments=tuple(segments), steps=steps, logic=True, finishes=True)
    first, *rest = (*parts, last)
    return (replace(first, segments=(Segment(text=_ONLY_UTF8), *first.segments)), *rest)


def literal(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def version_number(version: str) -> tuple[int, ...]:
    """``0.1.0`` -> ``(0, 1, 0)``."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def await_statements() -> Segment:
    """Return the statement that waits for all that are running now, for a while."""
    return Segment(text=_AWAIT_STATEMENTS)


def older_workers() -> str:
    """Return the query for connected workers of older versions, and those versions."""
    return _OLDER_WORKERS.strip().format(schema=SCHEMA, version=list(version_number(VERSION)))


def replacement(definition: Definition, standing: Sequence[str]) -> str:
    """Return a block that replaces an object, or drops it with those that stand on it and creates it."""
    lines = [line for segment in drop(standing, if_exists=True) for line in segment.text.splitlines()]
    return _REPLACE.format(text=definition.text, drops="".join(f"      {line}\n" for line in lines))


def steps_part(phase: str, steps: Sequence[Migration]) -> Part:
    """Return a part that applies steps."""
    segments = [segment for step in steps for segment in (of_file(step.path), recorded_step(step))]
    return Part(phase=phase, segments=tuple(segments), steps=tuple(steps))


def backfill(step: Migration) -> Part:
    """Return the part of a backfill.

    Raises:
        ValueError: it is more than one statement.
    """
    if len(list(split(step.text))) != 1:
        raise ValueError(
            f"{step.path}: a backfill is one statement, which is repeated until it changes no row"
        )
    done = recorded_step(step).text.replace(";\n", "\n  on conflict (id) do nothing;\n")
    return Part(phase="backfill", segments=(of_file(step.path), Segment(text=done)), steps=(step,))


def index(step: Migration) -> Part:
    """Return the part that makes an index while others write its table.

    Raises:
        ValueError: its first statement makes no index.
    """
    first, *others = [text for text, _ in split(step.text)]
    if _INDEX.match(first) is None:
        raise ValueError(f"{step.path}: the first statement of an index is: create index NAME on ...")
    rest = "".join(f"{text};\n" for text in others)
    done = recorded_step(step).text.replace(";\n", "\n  on conflict (id) do nothing;\n")
    made = _INDEX.sub(r"create \1index concurrently if not exists \2", first) + ";\n"
    return Part(
        phase="index",
        segments=(Segment(text=made, path=step.path), Segment(text=rest + done, path=step.path)),
        steps=(step,),
    )


def invalid_index(made: Segment) -> str:
    """Return the query for the statement that drops an index which a failure has left unfinished."""
    match = _INDEX.match(made.text.replace("concurrently if not exists ", ""))
    name = literal(match[2] if match else "")
    return (
        "select pg_catalog.format('drop index concurrently %s', i.indexrelid::pg_catalog.regclass)\n"
        "from pg_catalog.pg_index i join pg_catalog.pg_class c on c.oid = i.indexrelid\n"
        f"where not i.indisvalid and c.relname = {name}\n"
        f"  and c.relnamespace = pg_catalog.to_regnamespace({literal(SCHEMA)})"
    )


def of_file(path: Path) -> Segment:
    """Return the text of a file."""
    text = path.read_text(encoding="utf-8").rstrip()
    return Segment(text=text + ("\n" if text.endswith(";") else "\n;\n"), path=path)


def recorded_step(step: Migration) -> Segment:
    """Return the statement that records a step."""
    return Segment(
        text=f"insert into {SCHEMA}.migrations (id, name, sha256, applied_at)\n"
        f"  values ({step.id}, {literal(step.name)}, {literal(step.sha256)}, now());\n"
    )


def drop(names: Sequence[str], *, if_exists: bool = False) -> list[Segment]:
    """Return the statements that drop triggers, views and functions by their names, in their order."""
    exists = "if exists " if if_exists else ""
    segments = []
    for kind, group in groupby(names, key=lambda name: name.split(" ", 1)[0]):
        listed = [name.removeprefix(f"{kind} ") for name in group]
        if kind == "trigger":
            segments += [Segment(text=f"drop trigger {exists}{one};\n") for one in listed]
        else:
            word = "routine" if kind == "function" else kind
            segments.append(Segment(text=f"drop {word} {exists}{', '.join(listed)} restrict;\n"))
    return segments


def lock_views(names: Iterable[str]) -> list[Segment]:
    """Return statements that lock views and change nothing; LOCK would lock what they read too."""
    views = [name.removeprefix("view ") for name in names]
    return [Segment(text=f"alter view {view} reset (check_option);\n") for view in views]


def records(
    items: Iterable[Definition | Loose], steps: Sequence[Migration], keys: set[str] | None = None
) -> Segment:
    """Return the statement that records definitions: all, or those of these keys."""
    items = tuple(items)
    rows: list[tuple[str, str, str | None]] = [
        (LOOSE, checksum_of_loose(items, inserts=False), None),
        (INSERTS, checksum_of_loose(items, inserts=True), None),
    ]
    for item in items:
        if isinstance(item, Definition) and (keys is None or item.key in keys):
            rows.append((item.key, checksum(item, steps), item.signature))
    values = ",\n".join(
        f"  ({literal(key)}, '{sha256}', {'null' if signature is None else literal(signature)})"
        for key, sha256, signature in rows
    )
    return Segment(
        text=f"insert into {SCHEMA}._logic (object, sha256, signature) values\n{values}\n"
        "on conflict (object) do update set sha256 = excluded.sha256, signature = excluded.signature;\n"
    )


def settings(sources: Sources, *, debug: bool, facade: bool = False) -> list[Segment]:
    """Return the statements that record the logic as a whole, and the version."""
    segments = []
    if not debug:
        segments.append(Segment(text=f"delete from {SCHEMA}.settings where name like E'debug\\\\_%';\n"))
    checksum = sources.logic_sha256(debug=debug, facade=facade)
    segments.append(
        Segment(
            text=f"insert into {SCHEMA}.settings (name, value, description)\n"
            f"  values ('logic_sha256', '{checksum}', 'checksum of sql/logic as installed'),\n"
            f"         ('engine_version', '{VERSION}', 'version of pyengine that installed sql/logic')\n"
            "  on conflict (name) do update\n"
            "  set value = excluded.value, description = excluded.description;\n"
        )
    )
    return segments


def checksum(definition: Definition, steps: Sequence[Migration]) -> str:
    """Return the checksum that is recorded for a definition."""
    if definition.kind == "function":
        return definition.sha256
    last = max((step.id for step in steps if step.phase in ("expand", "contract")), default=0)
    return hashlib.sha256(f"{definition.sha256} {last}".encode()).hexdigest()


def checksum_of_loose(items: Iterable[Definition | Loose], *, inserts: bool) -> str:
    """Return the checksum of the loose statements that insert rows, or of the others."""
    loose = [item for item in items if isinstance(item, Loose) and not item.is_of_facade]
    texts = [item.text for item in loose if item.inserts == inserts]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()
