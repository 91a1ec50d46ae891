"""Law: what is at work costs the same however much has been finished. Renewing a lease and settling what
never expires change no index; tables of what is at work stay as small as they were wherever vacuum comes by;
and each of them says how often it shall.

The counters of the server are the witness, read in the transaction that they count. The database is on a
server of its own (`alone`): a transaction that has written, in whatever database of a shared one, keeps dead
rows in their pages everywhere, and then a page has no room for the next version of a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tests.support.verbs import (
    TTL_MS,
    Call,
    Connection,
    ask,
    complete,
    create,
    done,
    heartbeat,
    promise,
    report,
    settle,
    suspend,
    take,
    take_turn,
)

HOT = {
    *("_tasks", "_callbacks", "_listeners", "_resumes", "_unblocks", "_row_waits", "_row_events"),
}
"""Tables whose rows go when the work is done."""
HISTORY = {
    "_removed",
    "_removed_signals",
    *(
        "_promises",
        "_executions",
        "_journal",
        "_journal_values",
        "_inboxes",
        "_signals",
        "_backlog",
        "_join_sets",
        "_members",
        "_forks",
        "_progress",
    ),
    *("_objects", "_object_uses", "_closures", "_refs", "_pins", "_pin_log"),
    *("_calls", "_call_attempts", "_call_waiters", "_call_steps", "_call_polls", "_claims"),
}
"""Tables that grow with finished runs and calls."""
FEW = {
    "_retention",
    *("_workers", "_idle_workers", "_workflows", "_hints", "_schedules", "_schedule_instants", "_services"),
    *("_watches", "_buckets"),
    *("_adapters", "_routes", "_published", "_code_waits", "_cancellations"),
    *("settings", "migrations", "_logic", "_site"),
}
"""Tables with a row for each thing that somebody has set up, or that waits for its code."""
AGED: Call = (
    """with aged as (update durable._tasks set expires_at = durable._now_ms() + ttl / 3 where pid = 'W'
    returning 1) select count(*) from aged""",
    (),
)
"""A turn renews leases in their second half."""


@contextmanager
def updating(conn: Connection, table: str) -> Iterator[list[int]]:
    """Adds to a list what happens within one transaction: updates of a table, and those that changed no
    index."""
    found = [0, 0]
    before = _counted(conn, table)
    yield found
    found[:] = [now - then for now, then in zip(_counted(conn, table), before, strict=True)]
    conn.commit()


def _counted(conn: Connection, table: str) -> tuple[int, ...]:
    # of this session, as far as it has not handed its counters in, which it never does within a transaction
    return ask(
        conn,
        (
            "select pg_stat_get_xact_tuples_updated(c), pg_stat_get_xact_tuples_hot_updated(c) "
            "from (select %s::regclass) t (c)",
            (f"durable.{table}",),
        ),
    )


def start_some(conn: Connection, count: int) -> None:
    """Runs in the default queue."""
    ask(conn, ("select count(*) from durable.start_many('w', array_fill('[]'::jsonb, array[%s]))", (count,)))


@pytest.mark.parametrize("renewal", ["worker_heartbeat", "task_heartbeat", "turn"])
def test_renewals_change_no_index(alone: str, renewal: str) -> None:
    """Of the renewals of 150 held tasks, again and again, more than 95 in 100 are HOT."""
    total = hot = 0
    ids = [f"t{number}" for number in range(150)]
    with psycopg.connect(alone) as conn:
        ask(conn, ("select durable.worker_hello_v1('W', '{default}', '{w}', '{1}', null)", ()))
        for id_ in ids:
            take(conn, id_)
        start_some(conn, 150)
        held = take_turn(conn, "W", want=150).tasks
        ones = [1] * len(ids)
        conn.commit()
        for round_ in range(20):
            ask(conn, AGED)
            conn.commit()
            with updating(conn, "_tasks") as renewed:
                if renewal == "worker_heartbeat":
                    ask(conn, heartbeat("W", *held))
                elif renewal == "task_heartbeat":
                    ask(conn, ("select durable.task_heartbeat('P', %s, %s)", (ids, ones)))
                else:
                    outcomes = [done(round_)]
                    seen = 3 * round_
                    take_turn(
                        conn, "W", *(report(one, outcomes=outcomes, seen=one.next + seen) for one in held)
                    )
            assert renewed[0] == 150
            total, hot = total + renewed[0], hot + renewed[1]
    assert hot > 0.95 * total, f"{hot} of {total}"


def test_settling_what_never_expires_changes_no_index(alone: str) -> None:
    """Of 150 promises that are settled one by one, most find room in their page; what can expire leaves the
    index of deadlines, and the sweep does not see it any more."""
    total = hot = 0
    with psycopg.connect(alone) as conn:
        for number in range(150):
            ask(conn, create(f"p{number}", external="true"))
        ask(conn, create("soon", 4_102_444_800_000, external="true"))
        conn.commit()
        due = ("select count(*) from durable._promises where due_at is not null", ())
        assert ask(conn, due) == (1,)
        for number in range(150):
            with updating(conn, "_promises") as settled:
                ask(conn, settle(f"p{number}"))
            total, hot = total + settled[0], hot + settled[1]
        with updating(conn, "_promises") as settled:
            ask(conn, settle("soon"))
        assert settled == [1, 0]
        assert ask(conn, due) == (0,)
    assert total == 150
    assert hot > 0.8 * total, f"{hot} of {total}"


def cycle(conn: Connection, tag: str) -> None:
    """A hundred runs from their start to their end: claimed, asleep with a listener, woken, claimed again."""
    start_some(conn, 100)
    held = take_turn(conn, "W", want=100, ttl_ms=TTL_MS).tasks
    assert len(held) == 100
    take_turn(conn, "W", *(report(one, commands=[promise(0)], end=suspend(0)) for one in held))
    awaited = [f"{one.id}.0" for one in held]
    for id_ in awaited:
        ask(conn, ("select durable.promise_register_listener(%s, 'poll://any@g')", (id_,)))
        # by the door, which has the settings of plans
        ask(conn, ("select durable.promise_settle(%s, 'resolved')", (id_,)))
        ask(conn, ("select durable.unblock_acknowledge(%s, 'poll://any@g')", (id_,)))
    woken = take_turn(conn, "W", want=100, ttl_ms=TTL_MS).tasks
    assert len(woken) == 100, tag
    take_turn(conn, "W", *(report(one, end=complete()) for one in woken))


def size(conn: Connection, table: str) -> int:
    """Bytes of a table and its indexes."""
    both = "select pg_table_size(c) + pg_indexes_size(c) from (select %s::regclass) t (c)"
    return int(ask(conn, (both, (f"durable.{table}",)))[0])


@pytest.mark.parametrize("waves", [6, pytest.param(10, marks=pytest.mark.full)])
def test_tables_of_what_is_at_work_do_not_grow(alone: str, waves: int) -> None:
    """Waves of a hundred runs, vacuum between: the tables that have no history, with their indexes, are at
    most half as large again as after three waves."""
    sizes: list[dict[str, int]] = []
    with psycopg.connect(alone, autocommit=True) as conn:
        for number in range(waves):
            cycle(conn, f"c{number}")
            conn.execute(f"vacuum {', '.join(f'durable.{table}' for table in HOT)}".encode())
            sizes.append({table: size(conn, table) for table in HOT})
    early, late = sizes[2], sizes[-1]
    assert all(early[table] for table in HOT)
    grown = {table: (early[table], late[table]) for table in HOT if late[table] > 1.5 * early[table]}
    assert not grown


def test_each_hot_table_says_how_often_it_is_vacuumed(alone: str) -> None:
    """Every table is known to grow with finished runs or not; those that lose rows all the time are vacuumed
    early, at full speed and without being cut, partitions of the journal are frozen early."""
    with psycopg.connect(alone, autocommit=True) as conn:
        found: dict[str, list[str]] = dict(
            conn.execute(
                "select relname, coalesce(reloptions, '{}') from pg_class "
                "where relnamespace = 'durable'::regnamespace and relkind in ('r', 'p')"
            ).fetchall()
        )
    partitions = {name for name in found if re.fullmatch(r"_journal_(values_)?\d+", name)}
    assert set(found) - partitions == HOT | HISTORY | FEW
    for name in HOT:
        asked = {
            "autovacuum_vacuum_scale_factor=0.02",
            "autovacuum_vacuum_cost_delay=0",
            "vacuum_truncate=off",
        }
        assert asked <= set(found[name]), name
    for name in ("_promises", "_executions"):
        assert {"autovacuum_vacuum_scale_factor=0.1", "autovacuum_vacuum_cost_limit=2000"} <= set(found[name])
    assert partitions
    for name in partitions:
        assert {"autovacuum_vacuum_insert_scale_factor=0.05", "autovacuum_freeze_min_age=0"} <= set(
            found[name]
        )
