"""Law: what several primaries will need of the storage is so already: no identity ends after two billion
rows, no table depends on a function, partitions may be made from outside, unlogged tables are rebuilt, and a
listener may live in another database. docs/decisions/0039-open-storage.md says why.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyengine.core.database.statements.procedures import TAKE_PRESENCE
from tests.support.clock import Clock
from tests.support.rows import arm, settle_rows, shop, wait_for
from tests.support.verbs import (
    Connection,
    ask,
    begin_run,
    complete,
    create,
    promise_of,
    refusal,
    report,
    settle,
    start,
    take_turn,
    tick,
)

INITIAL = Path(__file__).parents[3] / "migrations" / "0001_initial.sql"
BEYOND = 2**31 + 5
WEEK_MS = 7 * 86_400_000


# -- identities

IDENTITIES = """
    select c.relname, a.attname, a.atttypid::regtype::text
    from pg_attribute a join pg_class c on c.oid = a.attrelid
    where c.relnamespace = 'durable'::regnamespace and c.relkind in ('r', 'p')
      and (a.attidentity <> '' or a.attname in ('execution', 'head', 'owner', 'origin', 'previous')
           or a.attname in ('number', 'watch'))
"""


def test_no_identity_ends_early(conn: Connection) -> None:
    """Numbers that the database draws, and the columns that refer to them, are bigint; so are the
    sequences.
    """
    found = conn.execute(IDENTITIES).fetchall()
    assert len(found) > 10
    assert [one for one in found if one[2] != "bigint"] == []
    sequences = "select s.seqrelid::regclass, s.seqtypid::regtype::text, s.seqmax from pg_sequence s"
    assert {one[1:] for one in conn.execute(sequences).fetchall()} == {("bigint", 2**63 - 1)}


def test_numbers_beyond_two_billion(dsn: str, conn: Connection, clock: Clock) -> None:
    """A worker, a watch, its news and a run with such numbers do what others do."""
    for table, column in (
        ("_workers", "number"),
        ("_watches", "id"),
        ("_row_events", "id"),
        ("_executions", "execution"),
    ):
        conn.execute(f"alter table durable.{table} alter column {column} restart with {BEYOND}".encode())
    words = "select durable.worker_hello_v1('W', '{default}', '{w}', '{1}', '{}') ->> 'number'"
    assert ask(conn, (words, ())) == (str(BEYOND),)
    with psycopg.connect(dsn, autocommit=True) as presence:
        take = TAKE_PRESENCE.sql.replace("$1", str(BEYOND))
        assert presence.execute(take.encode()).fetchone() == (True,)
        assert ask(conn, ("select durable.worker_present_v1('W', true)", ())) == (True,)
    clock.advance(1)
    tick(conn)
    assert ask(conn, ("select missing_at = durable._now_ms() from durable._workers", ())) == (True,)
    shop(conn)
    held = wait_for(conn, "r")
    assert held.execution >= BEYOND
    arm(conn)
    conn.execute("insert into orders values (1, 'paid')")
    assert settle_rows(conn) == 1
    assert (promise_of(conn, "r.0") or ("",))[0] == "resolved"


# -- state and logic

DEPENDS = """
    select d.classid::regclass::text, pg_describe_object(d.classid, d.objid, d.objsubid)
    from pg_depend d join pg_proc p on p.oid = d.refobjid
    where d.refclassid = 'pg_proc'::regclass and p.pronamespace = 'durable'::regnamespace
      and d.classid not in ('pg_rewrite'::regclass, 'pg_proc'::regclass)
      -- a view is logic, and so is what it does with an UPDATE
      and not exists (select from pg_trigger t join pg_class c on c.oid = t.tgrelid
                      where d.classid = 'pg_trigger'::regclass and t.oid = d.objid and c.relkind = 'v')
"""


def test_state_depends_on_no_logic(conn: Connection) -> None:
    """No table, type, index, default, constraint or trigger of a table refers to one of the functions; one
    that does is found.
    """
    assert conn.execute(DEPENDS).fetchall() == []
    with conn.transaction(force_rollback=True):
        conn.execute("alter table durable._hints add column x bigint default durable._now_ms()")
        conn.execute("alter table durable._forks add check (durable._is_plain_name(id))")
        found = {table for table, _ in conn.execute(DEPENDS).fetchall()}
    assert found == {"pg_attrdef", "pg_constraint"}


def test_state_stands_alone(empty_database: Callable[[], str]) -> None:
    """A database from the migration alone has no function, and takes rows."""
    with psycopg.connect(empty_database(), autocommit=True) as bare:
        bare.execute(INITIAL.read_bytes())
        functions = "select count(*) from pg_proc where pronamespace = 'durable'::regnamespace"
        assert bare.execute(functions).fetchone() == (0,)
        bare.execute("insert into durable._promises (id, timeout_at, created_at) values ('x', 2, 1)")
        bare.execute("insert into durable._tasks (id, deadline, retry_at, queue) values ('x', 2, 1, 'q')")
        columns = "(id, bucket, workflow, workflow_version)"
        bare.execute(f"insert into durable._executions {columns} values ('x', 1, 'w', '1')".encode())
        with pytest.raises(psycopg.errors.CheckViolation):
            bare.execute("update durable._promises set state = 'resolved'")


# -- partitions


def week(conn: Connection, ahead: int) -> int:
    """A week, so many after this one."""
    return int(ask(conn, ("select durable._week(durable._now_ms()) + %s", (ahead,)))[0])


def partitions(conn: Connection) -> dict[str, str]:
    """Journal partitions and what they hold."""
    found = (
        "select c.relname, pg_get_expr(c.relpartbound, c.oid) from pg_inherits i"
        " join pg_class c on c.oid = i.inhrelid where i.inhparent = 'durable._journal'::regclass"
    )
    return dict(conn.execute(found).fetchall())


@pytest.mark.parametrize("values", ["{0}", "{0}, {1}"])
def test_a_partition_that_somebody_made(conn: Connection, clock: Clock, values: str) -> None:
    """That of a week to come is there already, in another schema and under another name, maybe with the week
    after it: the tick takes it, runs begin in it, and no other is made.
    """
    tick(conn)
    first, second = week(conn, 5), week(conn, 6)
    conn.execute("create schema elsewhere")
    held = values.format(first, second)
    conn.execute(f"create table elsewhere.mine partition of durable._journal for values in ({held})".encode())
    before = partitions(conn)
    clock.advance(2 * WEEK_MS)
    # the first one looks after retention
    assert [tick(conn).get("problem") for _ in range(3)] == [None, None, None]
    known = "select bucket from durable._buckets where bucket >= %s order by 1"
    found = conn.execute(known, (first,)).fetchall()
    assert found == [(first,), (second,)]
    made = set(partitions(conn)) - set(before)
    assert made == ({f"_journal_{second}"} if values == "{0}" else set())
    clock.advance(3 * WEEK_MS)
    held_run = begin_run(conn, "r")
    take_turn(conn, "W", report(held_run, end=complete()))
    assert ask(conn, ("select count(*) from elsewhere.mine", ())) == (2,)


def test_retention_drops_what_somebody_made(conn: Connection, clock: Clock) -> None:
    """By what it holds, once it is empty and old, as if the engine had made it."""
    conn.execute("select durable.set_setting('retention_days', '1')")
    first = week(conn, 5)
    conn.execute(f'create table "Odd name" partition of durable._journal for values in ({first})'.encode())
    tick(conn)
    clock.advance(2 * WEEK_MS)
    for _ in range(3):
        tick(conn)
    assert "Odd name" in partitions(conn)
    clock.advance(10 * WEEK_MS)
    for wait_ms in (0, 0, 0, 3_600_000, *([200] * 40)):
        clock.advance(wait_ms)
        tick(conn)
    assert "Odd name" not in partitions(conn)
    assert ask(conn, ("select count(*) from durable._buckets where bucket = %s", (first,))) == (0,)


# -- unlogged tables


def idle(conn: Connection) -> Any:
    """Worker W is idle."""
    address = f"durable_to_{'0' * 32}:{'0' * 32}"
    words = "select durable.worker_idle_v1('W', %s, '{q}', '{w}', '{ab}', 15000, 60000)"
    return ask(conn, (words, (address,)))


def hint(conn: Connection) -> Any:
    """A start from plain SQL, which sends a hint."""
    conn.execute("select durable.start('w', '[]', any_workflow => true)")
    return ask(conn, ("select count(*) from durable._hints", ()))


REBUILT: dict[str, tuple[Callable[[Connection], Any], Any]] = {
    "_idle_workers": (idle, (True,)),
    "_hints": (hint, (1,)),
}


def test_unlogged_tables_are_rebuilt(conn: Connection, clock: Clock) -> None:
    """A crash empties them; the next use writes what is needed."""
    unlogged = (
        "select relname from pg_class where relpersistence = 'u' and relkind = 'r'"
        " and relnamespace = 'durable'::regnamespace"
    )
    assert {table for (table,) in conn.execute(unlogged).fetchall()} == set(REBUILT)
    conn.execute("select durable.worker_hello_v1('W', '{q}', '{w}', '{1}', '{}')")
    conn.execute("update durable._workers set present = true")
    for table, (use, answer) in REBUILT.items():
        assert use(conn) == answer
        conn.execute(f"truncate durable.{table}".encode())
        clock.advance(1000)
        assert use(conn) == answer
        assert ask(conn, (f"select count(*) from durable.{table}", ())) == (1,)


# -- another database


def test_a_listener_in_another_database(conn: Connection) -> None:
    """Its address names a cell and a task there; the unblock row is the outbox, until it is acknowledged."""
    address = f"cell://eu-7/{'r' * 900}.3"
    ask(conn, create("x", external="true"))
    conn.execute("select durable.promise_register_listener('x', %s)", (address,))
    ask(conn, settle("x", '"done"'))
    claimed = "select promise_id, address, attempt from durable.unblock_claim(%s)"
    assert conn.execute(claimed, (address,)).fetchall() == [("x", address, 1)]
    assert ask(conn, ("select durable.unblock_acknowledge('x', %s)", (address,))) == (True,)


NO_CELLS = (
    *("cell://", "cell://a", "cell://a/", "cell:///x", "cell://a b/x", "cell://a/x y"),
    f"cell://{64 * 'a'}/x",
)


@pytest.mark.parametrize("address", NO_CELLS)
def test_what_is_no_address_of_a_cell(conn: Connection, address: str) -> None:
    """A name, and an id without blanks."""
    ask(conn, create("x", external="true"))
    listen = "select 1 from durable.promise_register_listener('x', %s)"
    assert refusal(conn, (listen, (address,))) == "WF004"
    assert refusal(conn, start("r", queue="cell://a/x")) == "WF004"
