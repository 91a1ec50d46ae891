"""The plan of a migration: the SQL that makes a database as the sources are, by transactions.

Lives here: ``Part``, ``Plan`` and ``make``. May not: change the database; connect. `migrate` runs the parts
of a plan, `migration_script` prints them, `rehearsal` runs them and rolls back. So the three never differ.

Design: a part is one transaction, but for an index, and a backfill, which is one for each batch. The order:

    install    a database without the schema: all steps in the order of their numbers, and the logic
    expand     a step that expands, or adds values to an enum: each by itself, so that the locks of one table
    values     are given back before those of the next are asked for
    index      a step that makes an index, outside of a transaction, so that nobody waits
    logic      the functions and views that changed, and steps that change types which only functions use
    drops      functions and views that the sources no longer define, once no statement is running any more
               that may call them
    backfill   rows that old code wrote, in batches; only functions write, so new rows are complete by now
    contract   one step each; left out while a worker of an older version is connected

Functions of the older version work with the tables after each step, so a migration may end between any two
parts. The part `logic` creates functions first, because that locks no table. Drops and views follow, whose
locks stop others, and with them only the functions that need them. Views are locked first, from the top:
whoever reads one locks it before those that it stands on, so readers wait before they have a lock that is
needed. A function that could not be replaced in place is dropped with the objects that depend on it, and they
are created again. An older overload goes in this part only if calls would be ambiguous: calls that run may
need it. An object is compared by the checksum of its statements, which the table ``_logic`` keeps. A view is
created again after every step, since a view of ``t.*`` has the columns that the table had then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import psycopg
from psycopg.rows import TupleRow

from pyengine.core.sources import SCHEMA, Migration, Sources
from pyengine.doors.admin import migration_parts as sql
from pyengine.doors.admin.logic import Definition, Loose, read
from pyengine.doors.admin.migration_parts import Part, Plan, Segment

Connection = psycopg.Connection[TupleRow]

_OBJECTS = """
select 'function', p.oid, p.oid::regprocedure::text, p.pronargs - p.pronargdefaults, p.pronargs
  from pg_catalog.pg_proc p
  where p.pronamespace = 'durable'::regnamespace
     or (%(facade)s and p.pronamespace = to_regnamespace('resonate'))
union all
select 'view', c.oid, c.oid::regclass::text, 0, 0 from pg_catalog.pg_class c
  where c.relnamespace = 'durable'::regnamespace and c.relkind = 'v'
union all
select 'trigger', t.oid, format('%%I on %%s', t.tgname, t.tgrelid::regclass), 0, 0
  from pg_catalog.pg_trigger t
  join pg_catalog.pg_class c on c.oid = t.tgrelid
  where c.relnamespace = 'durable'::regnamespace and not t.tgisinternal and t.tgparentid = 0
"""
_DEPENDENTS = """
with reference as (
  select d.classid, d.objid, d.refclassid, case d.refclassid
      -- the type of the rows of a view, or of an array of them
      when 'pg_type'::regclass then
        (select coalesce(nullif(t.typrelid, 0), e.typrelid) from pg_catalog.pg_type t
         left join pg_catalog.pg_type e on e.oid = t.typelem where t.oid = d.refobjid)
      else d.refobjid end as relation
  from pg_catalog.pg_depend d
  where d.refclassid in ('pg_proc'::regclass, 'pg_class'::regclass, 'pg_type'::regclass)
    and d.classid in ('pg_proc'::regclass, 'pg_trigger'::regclass, 'pg_rewrite'::regclass)
)
select distinct case d.refclassid when 'pg_proc'::regclass then 'function' else 'view' end, d.relation,
       case d.classid when 'pg_proc'::regclass then 'function' when 'pg_trigger'::regclass then 'trigger'
                      else 'view' end, coalesce(r.ev_class, d.objid)
from reference d
left join pg_catalog.pg_rewrite r on d.classid = 'pg_rewrite'::regclass and r.oid = d.objid
where r.ev_class is distinct from d.relation
"""
_QUOTED = "select n, pg_catalog.quote_ident(n) from unnest(%s::text[]) n"
_TYPES = """
select t, pg_catalog.format_type(pg_catalog.to_regtype(t), null) from unnest(%s::text[]) t
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of an installed database, as far as a plan depends on it.

    Args:
        pending: steps of the sources that it lacks.
        is_current: its functions and views are those of the sources, by the checksum of all.
        records: checksum and signature of each object, by its key.
        objects: name of each function, view and trigger, with the least and the greatest number of arguments.
        dependents: names of the functions and views that depend directly on one.
        types: full names of types, by the names in the sources; None if there is no such type.
        quoted: names as PostgreSQL quotes them.
        older: connected workers of older versions.
    """

    pending: tuple[Migration, ...]
    is_current: bool
    records: dict[str, tuple[str, str | None]]
    objects: dict[str, tuple[int, int]]
    dependents: dict[str, set[str]] = field(default_factory=dict)
    types: dict[str, str | None] = field(default_factory=dict)
    quoted: dict[str, str] = field(default_factory=dict)
    older: tuple[str, ...] = ()

    def name(self, definition: Definition) -> str:
        """Return the name of an object as PostgreSQL writes it: with quotes and full names of types."""
        types = tuple(self.types.get(kind) or kind for kind in definition.types)
        return replace(definition, name=self.quoted.get(definition.name, definition.name), types=types).key

    def standing_on(self, name: str) -> set[str]:
        """Return all functions and views that depend on one, directly or not."""
        found: set[str] = set()
        waiting = [name]
        while waiting:
            new = self.dependents.get(waiting.pop(), set()) - found
            found |= new
            waiting += new
        return found

    def topmost_first(self, names: Iterable[str]) -> list[str]:
        """Return names in an order in which they can be dropped: an object has more on it than they have."""
        return sorted(names, key=lambda name: (len(self.standing_on(name)), name))


def make(
    conn: Connection,
    sources: Sources,
    pending: Sequence[Migration],
    *,
    is_current: bool,
    debug: bool,
    facade: bool,
    reapply: bool,
) -> Plan:
    """Plan the migration of an installed database.

    Args:
        conn: a connection inside a transaction with an empty `search_path`. Functions are created in it, to
            see which of them need the steps, and that is rolled back.
        sources: the files.
        pending: steps that the database lacks.
        is_current: its functions and views are those of the sources.
        debug: with debug operations.
        facade: with the facade.
        reapply: replace all functions and views.
    """
    items = read(sources.functions(debug=debug, facade=facade))
    state = _state(conn, items, pending, is_current=is_current, facade=facade)
    return _Planner(conn, sources, items, state, debug=debug, facade=facade, reapply=reapply).plan()


def before_functions(pending: Iterable[Migration]) -> list[Part]:
    """Return the parts with the steps that come before the functions and views, each by itself."""
    return [
        sql.index(step) if step.phase == "index" else sql.steps_part(step.phase, [step])
        for step in pending
        if step.phase in ("expand", "values", "index")
    ]


class _Planner:
    """Makes one plan."""

    def __init__(
        self,
        conn: Connection,
        sources: Sources,
        items: tuple[Definition | Loose, ...],
        state: State,
        *,
        debug: bool,
        facade: bool,
        reapply: bool,
    ) -> None:
        self._conn = conn
        self._sources = sources
        self._items = items
        self._state = state
        self._debug = debug
        self._facade = facade
        self._reapply = reapply
        self._definitions = [item for item in items if isinstance(item, Definition)]
        self._wanted = {state.name(one): one for one in self._definitions}
        loose = {inserts: sql.checksum_of_loose(items, inserts=inserts) for inserts in (False, True)}
        self._all_again = reapply or self._recorded(sql.LOOSE) != loose[False]
        self._rows_changed = self._recorded(sql.INSERTS) != loose[True]

    def plan(self) -> Plan:
        """Return the plan."""
        pending = {
            phase: [step for step in self._state.pending if step.phase == phase]
            for phase in ("types", "backfill", "contract")
        }
        parts = before_functions(self._state.pending)
        parts += self._logic_parts(pending["types"])
        parts += map(sql.backfill, pending["backfill"])
        left = tuple(step.name for step in pending["contract"]) if self._state.older else ()
        if not left:
            parts += [sql.steps_part("contract", [step]) for step in pending["contract"]]
        return Plan(parts=tuple(parts), left=left, older=self._state.older if left else ())

    def _logic_parts(self, types: list[Migration]) -> list[Part]:
        """Return the parts `logic` and `drops`, if there is anything to do."""
        strays = set(self._state.objects) - set(self._wanted)
        stale = set(filter(self._is_ambiguous, strays))
        falls = stale.union(*map(self._state.standing_on, stale))
        drops = self._state.topmost_first(strays - falls)
        changed = self._changed()
        work = bool(types or changed or falls or self._all_again or self._rows_changed)
        if not (work or drops or not self._state.is_current):
            return []
        parts = []
        if work or not drops:
            parts.append(self._logic(types, changed, falls, finishes=not drops))
        if drops:
            parts.append(
                Part(
                    phase="drops",
                    segments=(sql.await_statements(), *sql.drop(drops), *self._finish()),
                    dropped=tuple(drops),
                    logic=True,
                    finishes=True,
                    ahead=1,
                )
            )
        return parts

    def _is_ambiguous(self, stray: str) -> bool:
        """Whether a call may mean this function or one of the sources; others are left to calls that run."""
        least, most = self._state.objects[stray]
        overloads = [one for one in self._definitions if one.place == _place(stray)]
        return any(least <= len(one.types) and one.required <= most for one in overloads)

    def _changed(self) -> list[Definition]:
        """Return the definitions that the database lacks or has otherwise."""
        steps, objects = self._sources.migration_steps(), set(self._state.objects)
        return [
            one
            for one in self._definitions
            if self._all_again
            or self._state.name(one) not in objects
            or self._recorded(one.key) != sql.checksum(one, steps)
        ]

    def _logic(
        self, types: list[Migration], changed: list[Definition], falls: set[str], *, finishes: bool
    ) -> Part:
        """Return the part with the changed functions and views, and the types that only functions use.

        Args:
            types: steps that change such types.
            changed: what changed.
            falls: names of objects to drop first.
            finishes: no other part has to drop anything.
        """
        replaced = {
            name: self._state.standing_on(name)
            for name in map(self._state.name, filter(self._may_need_drop, changed))
        }
        again = falls.union(*replaced.values())
        todo = {one.key for one in changed} | {self._wanted[name].key for name in again & self._wanted.keys()}
        texts = {
            one.key: Segment(text=self._text(one, replaced), path=one.path, line=one.line)
            for one in self._definitions
            if one.key in todo
        }
        drops = sql.drop(self._state.topmost_first(falls))
        before = self._before_locks(texts, replaced, falls)
        segments = [texts[key] for key in texts if key in before]
        segments.append(sql.records(self._items, self._sources.migration_steps(), todo))
        ahead = len(segments)
        views = {name for name in self._state.objects if name.startswith("view ")}
        replaced_views = views & {
            *falls,
            *(self._state.name(one) for one in self._definitions if one.key in todo),
        }
        segments += sql.lock_views(self._state.topmost_first(replaced_views))
        segments += drops
        for step in types:
            segments += [sql.of_file(step.path), sql.recorded_step(step)]
        segments += self._after_locks(texts, before)
        if finishes:
            segments += self._finish()
        return Part(
            phase="logic",
            segments=tuple(segments),
            steps=tuple(types),
            logic=self._reapply or not self._state.is_current,
            finishes=finishes,
            dropped=tuple(sorted(falls - self._wanted.keys())),
            ahead=ahead,
        )

    def _recorded(self, key: str) -> str | None:
        """Return the checksum that the database has for an object."""
        checksum, _ = self._state.records.get(key, (None, None))
        return checksum

    def _may_need_drop(self, definition: Definition) -> bool:
        """Whether an object exists and replacing it in place may be impossible."""
        if self._state.name(definition) not in self._state.objects:
            return False
        _, signature = self._state.records.get(definition.key, ("", None))
        return self._reapply or definition.kind == "view" or signature != definition.signature

    def _text(self, definition: Definition, replaced: dict[str, set[str]]) -> str:
        name = self._state.name(definition)
        if name not in replaced:
            return definition.text
        return sql.replacement(definition, [*self._state.topmost_first(replaced[name]), name])

    def _before_locks(
        self, texts: dict[str, Segment], replaced: dict[str, set[str]], falls: set[str]
    ) -> set[str]:
        """Return the keys of functions that can be created before drops, steps and views: it is tried."""
        others = {name for name, standing in replaced.items() if any(map(_locks_relation, standing))} | falls
        candidates = [
            one
            for one in self._definitions
            if one.key in texts and one.kind == "function" and self._state.name(one) not in others
        ]
        before: set[str] = set()
        with self._conn.transaction(force_rollback=True):
            for _, group in groupby(candidates, key=lambda one: one.path):
                keys = [one.key for one in group]
                if self._possible("".join(texts[key].text for key in keys)):
                    before.update(keys)
                else:
                    before.update(key for key in keys if self._possible(texts[key].text))
        return before

    def _possible(self, text: str) -> bool:
        try:
            with self._conn.transaction():
                self._conn.execute(text.encode())
        except psycopg.Error as error:
            if error.sqlstate is None:
                raise
            return False
        return True

    def _after_locks(self, texts: dict[str, Segment], before: set[str]) -> list[Segment]:
        """Return the statements after the steps, in the order of the files."""
        segments = []
        for item in self._items:
            if isinstance(item, Loose):
                segments.append(Segment(text=f"{item.text};\n", path=item.path, line=item.line))
            elif item.key in texts and item.key not in before:
                segments.append(texts[item.key])
        return segments

    def _finish(self) -> list[Segment]:
        """Return the statements that say that the logic is complete."""
        segments = []
        wanted = {one.key for one in self._definitions} | {sql.LOOSE, sql.INSERTS}
        gone = sorted(self._state.records.keys() - wanted)
        if gone:
            listed = ", ".join(map(sql.literal, gone))
            segments.append(Segment(text=f"delete from {SCHEMA}._logic where object in ({listed});\n"))
        return [*segments, *sql.settings(self._sources, debug=self._debug, facade=self._facade)]


def _state(
    conn: Connection,
    items: Iterable[Definition | Loose],
    pending: Sequence[Migration],
    *,
    is_current: bool,
    facade: bool,
) -> State:
    found_objects = conn.execute(_OBJECTS, {"facade": facade}).fetchall()
    objects = {(kind, oid): f"{kind} {name}" for kind, oid, name, _, _ in found_objects}
    dependents: dict[str, set[str]] = {}
    for kind, oid, other_kind, other in conn.execute(_DEPENDENTS).fetchall():
        if (kind, oid) in objects and (other_kind, other) in objects:
            dependents.setdefault(objects[kind, oid], set()).add(objects[other_kind, other])
    definitions = [item for item in items if isinstance(item, Definition)]
    types = sorted({kind for one in definitions for kind in one.types})
    names = sorted({one.name for one in definitions})
    older: tuple[str, ...] = ()
    if any(step.phase == "contract" for step in pending):
        found = conn.execute(sql.older_workers().encode()).fetchall()
        older = tuple(f"{worker} ({version or 'unknown'})" for worker, version in found)
    records = conn.execute(f"select object, sha256, signature from {SCHEMA}._logic".encode()).fetchall()
    return State(
        pending=tuple(pending),
        is_current=is_current,
        records={key: (sha256, signature) for key, sha256, signature in records},
        objects={f"{kind} {name}": (least, most) for kind, _, name, least, most in found_objects},
        dependents=dependents,
        types=dict(conn.execute(_TYPES, (types,)).fetchall()),
        quoted=dict(conn.execute(_QUOTED, (names,)).fetchall()),
        older=older,
    )


def _place(name: str) -> str:
    """``function durable."check"(text)`` -> ``function durable.check``."""
    return name.split("(", 1)[0].replace('"', "")


def _locks_relation(name: str) -> bool:
    """Whether replacing or dropping an object locks a table or view: all but functions do."""
    return not name.startswith("function ")
