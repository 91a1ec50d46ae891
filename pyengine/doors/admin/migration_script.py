"""A plan as one script for psql.

Lives here: ``script``. May not: open a connection, decide what to run (``migration_plan``). Design: the
script runs the texts that `migrate` runs, in the same transactions. Two things stand in the script instead of
the program: each part begins with a guard, which refuses a database that is not as the plan found it, and a
backfill is a block that commits its batches. A part that does not get a lock in time fails, and the script
has to be written again from there.
"""

from __future__ import annotations

from pathlib import Path

from pyengine.core.sources import SCHEMA, VERSION, Sources
from pyengine.doors.admin.logic import split
from pyengine.doors.admin.migration_parts import (
    LOCK_TIMEOUT_MS,
    LOCKED_SESSION,
    Part,
    Plan,
    invalid_index,
    literal,
    older_workers,
)

_HEAD = f"""\
-- pyengine {VERSION}: what `pyengine db migrate` would do to this database now.
-- Run it with: psql -v ON_ERROR_STOP=1 -f migrate.sql
-- Each transaction refuses a database that has been migrated since. One that does not get a lock within
-- {LOCK_TIMEOUT_MS} ms fails and changes nothing: write the script again, it begins there.
"""
_WHY = {
    "install": "a database without the schema: all steps, functions and views",
    "values": "new values of an enum, which can be named once they are committed",
    "expand": "each by itself, so its locks are given back before the next",
    "index": "outside of a transaction, so that nobody waits for it",
    "logic": "functions and views; what locks no table first",
    "drops": "once the statements have ended that may still call these functions",
    "backfill": "in batches, each in a transaction of its own",
    "contract": "only while no worker of an older version is connected",
}
_GUARD = """do $guard$
begin
  if (select string_agg(m.name, ' ' order by m.id) from {schema}.migrations m) is distinct from {applied}
     or (select s.value from {schema}.settings s where s.name = 'logic_sha256') is distinct from {logic} then
    raise exception 'this database is not as it was when the script was written'
      using hint = 'Write it again: pyengine db migrate --sql';
  end if;
end
$guard$;
"""
_NO_OLDER = """do $guard$
begin
  if exists (
    {query}
  ) then
    raise exception 'workers older than {version} are connected'
      using hint = 'Stop them, then write the script again.';
  end if;
end
$guard$;
"""
_BATCHES = """do $backfill$
declare
  v_rows bigint;
  v_begin timestamptz;
begin
  loop
    v_begin := clock_timestamp();
    begin
      perform set_config('lock_timeout', '{timeout}ms', true), set_config('search_path', '', true);
      {batch};
      get diagnostics v_rows = row_count;
    exception when lock_not_available or deadlock_detected then
      v_rows := -1;
    end;
    exit when v_rows = 0;
    commit;
    perform pg_catalog.pg_sleep(case when v_rows < 0 then 0.1
                                     else least(extract(epoch from clock_timestamp() - v_begin), 2) end);
  end loop;
  {record}end
$backfill$;
"""


def script(plan: Plan, sources: Sources, *, head: str = _HEAD) -> str:
    """Return a plan as SQL, whose statements are to be sent one by one.

    Args:
        plan: the plan.
        sources: the files that it was made from.
        head: the comment at the beginning.
    """
    texts = [head]
    applied, logic = set(plan.applied), plan.logic
    order = {step.name: step.id for step in sources.migration_steps()}
    for number, part in enumerate(plan.parts, start=1):
        steps = ", ".join(step.name for step in part.steps)
        texts.append(f"\n-- {number}. {part.phase}{f' {steps}' if steps else ''}: {_WHY[part.phase]}\n")
        guard = ""
        if part.phase != "install":
            names = " ".join(sorted(applied, key=order.__getitem__))
            known = "null" if logic is None else literal(logic)
            guard = _GUARD.format(schema=SCHEMA, applied=literal(names), logic=known)
        write = {"backfill": _batches, "index": _index}.get(part.phase, _transaction)
        texts.append(write(part, guard))
        applied |= {step.name for step in part.steps}
        logic = plan.logic_after if part.finishes else logic
    if plan.left:
        why = f"because these workers are older: {', '.join(plan.older)}"
        texts.append(f"\n-- left out: {', '.join(plan.left)}, {why}\n")
    return "".join(texts)


def _transaction(part: Part, guard: str) -> str:
    texts = ["\nbegin;\n", LOCKED_SESSION, guard]
    if part.phase == "contract":
        query = older_workers().replace("\n", "\n    ")
        texts.append(_NO_OLDER.format(query=query, version=VERSION))
    place: Path | None = None
    for segment in part.segments:
        if segment.path != place and segment.path is not None:
            texts.append(f"\n-- {segment.path.parent.name}/{segment.path.name}\n\n")
        elif segment.path is None:
            texts.append("\n")
        texts.append(segment.text)
        place = segment.path
    return "".join([*texts, "\ncommit;\n"])


def _batches(part: Part, guard: str) -> str:
    batch, record = part.segments
    ((statement, _),) = split(batch.text)
    block = _BATCHES.format(timeout=LOCK_TIMEOUT_MS, batch=statement, record=record.text)
    return f"\n{guard}\n{block}"


def _index(part: Part, guard: str) -> str:
    made, record = part.segments
    # each row of the query is a statement of its own, outside of a transaction
    return f"\n{guard}\n{invalid_index(made)}\n\\gexec\n{made.text}\n{record.text}"
