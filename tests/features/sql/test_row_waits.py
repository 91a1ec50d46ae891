"""Law: a wait for a row ends with the row, with its deadline, with its run, or with an error that says why
there will never be one; until the triggers have it, it is tested; and nobody's lock on a user's table is
waited for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.laboratory import transaction_of
from tests.support.rows import WATCH, arm, events, settle_rows, shop, until, wait_for, waits
from tests.support.verbs import (
    Connection,
    ask,
    begin_run,
    cancel,
    claim,
    complete,
    continue_as_new,
    promise_of,
    report,
    settle,
    suspend,
    take_turn,
    tick,
    timer,
    types_of,
)

PAID = "update orders set status = 'paid' where id = 1"
NEW = "insert into orders values (1, 'new')"


@pytest.fixture
def conn(session: Connection) -> Connection:
    """Waits are armed by commits, so a database of its own."""
    return session


@pytest.fixture
def clock(standing_clock: None, dsn: str) -> Iterator[Clock]:
    """Its clock."""
    frozen = Clock(dsn)
    yield frozen
    frozen.close()


@pytest.fixture
def other(dsn: str) -> Iterator[Connection]:
    """A session of a user's."""
    with psycopg.connect(dsn) as connection:
        yield connection


def state_of(conn: Connection, id_: str = "r.0") -> Any:
    """State of the promise of a wait."""
    found = promise_of(conn, id_)
    return found[0] if found else None


def error_of(conn: Connection, id_: str = "r.0") -> tuple[str, str]:
    """Type and words of the error that a wait ended with."""
    found = promise_of(conn, id_)
    assert found is not None and found[0] == "rejected", found
    error = json.loads(found[1])
    return error["type"], error["message"]


def test_a_row_that_is_there_ends_the_wait_at_once(conn: Connection, clock: Clock) -> None:
    """Housekeeping is due at once after the turn that begins to wait, and finds the row."""
    shop(conn)
    conn.execute("insert into orders values (1, 'paid', 12.50)")
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held, commands=[until(0)], end=suspend(0), seen=held.next))
    assert answer.raw["due_in"] == -1
    assert answer.of(held) == ("ok", "suspended")
    assert settle_rows(conn) == 1
    assert promise_of(conn, "r.0") == ("resolved", '{"id": 1, "total": 12.50, "status": "paid"}')
    assert types_of(conn, "r") == [
        *("execution_started", "promise_registered", "execution_awaiting"),
        *("child_settled", "execution_resumed"),
    ]
    assert (waits(conn), events(conn)) == ([], 0)
    assert tick(conn)["next_due_ms"] is None


REFUSED: dict[str, tuple[str, object, str, str]] = {
    "unknown": ("orders.payd", {"id": 1}, "NotFound", "public.orders.paid"),
    "unknown_table": ("order.paid", {"id": 1}, "NotFound", "There is no watch order.paid"),
    "ambiguous": ("lines.big", {"id": 1}, "InvalidRequest", "several schemas"),
    "no_object": ("orders.paid", [1], "InvalidRequest", "is (id), not [1]"),
    "no_column": ("orders.paid", {}, "InvalidRequest", "is (id), not {}"),
    "other_column": ("orders.paid", {"nr": 1}, "InvalidRequest", "is (id)"),
    "more_columns": ("orders.paid", {"id": 1, "nr": 1}, "InvalidRequest", "is (id)"),
    "null": ("orders.paid", {"id": None}, "InvalidRequest", "of type bigint, which null is not"),
    "text": ("orders.paid", {"id": "1"}, "InvalidRequest", "of type bigint"),
    "fraction": ("orders.paid", {"id": 1.5}, "InvalidRequest", "of type bigint"),
    "too_long": ("names.known", {"name": "x" * 1100}, "InvalidRequest", "1024 are allowed"),
    "no_date": ("days.over", {"day": "tomorrow"}, "InvalidRequest", "of type date"),
    "no_uuid": ("keys.used", {"id": "zz"}, "InvalidRequest", "of type uuid"),
    "no_boolean": ("flags.set", {"flag": 1}, "InvalidRequest", "of type boolean"),
}
TABLES = """
create table names (name text primary key); select durable.watch('names', 'known', '{name}', 'true');
create table days (day date primary key); select durable.watch('days', 'over', '{day}', 'true');
create table keys (id uuid primary key); select durable.watch('keys', 'used', '{id}', 'true');
create table flags (flag boolean primary key); select durable.watch('flags', 'set', '{flag}', 'true');
create type mood as enum ('sad', 'ok'); create domain price as numeric check (value > 0);
create table mixed (mood mood, price price, size smallint, code varchar(9),
                    primary key (mood, price, size, code));
select durable.watch('mixed', 'there', '{mood,price,size,code}', 'true');
create table lines (id int primary key); select durable.watch('lines', 'big', '{id}', 'id > 9');
create schema shop; create table shop.lines (id int primary key);
select durable.watch('shop.lines', 'big', '{id}', 'id > 9');
"""


@pytest.fixture
def inside(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A connection within a transaction that is rolled back, for what no trigger is to see."""
    with transaction_of(request) as connection:
        yield connection


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", REFUSED)
def test_a_wait_that_cannot_begin_fails_at_its_place(inside: Connection, case: str) -> None:
    """The turn is accepted and everything else of it counts; that child has failed, in the journal, and the
    coroutine learns of it with the answer instead of going to sleep."""
    conn = inside
    shop(conn)
    conn.execute(TABLES)
    name, key, kind, words = REFUSED[case]
    held, good = begin_run(conn, "r"), begin_run(conn, "g")
    commands = [timer(0, 1000), until(1, key, name=name), until(2)]
    answer = take_turn(
        conn,
        "W",
        report(held, commands=commands, end=suspend(0, 1, 2), seen=held.next),
        report(good, commands=[until(0)], end=suspend(0), seen=good.next),
    )
    assert (answer.of(held), answer.of(good)) == (("ok", "acquired"), ("ok", "suspended"))
    ((_, type_, child, _, _, _, data, ok),) = answer.tail(held)
    assert (type_, child, ok) == ("child_settled", 1, False)
    assert (json.loads(data)["type"], words in json.loads(data)["message"]) == (kind, True), data
    assert error_of(conn, "r.1")[0] == kind
    assert types_of(conn, "r") == [
        *("execution_started", "timer_scheduled", "promise_registered"),
        *("promise_registered", "child_settled"),
    ]
    assert [promise for promise, _ in waits(conn)] == ["g.0", "r.2"]
    again = take_turn(conn, "W", report(held, end=complete(), seen=answer.next_of(held) + 2))
    assert again.of(held) == ("ok", "done")
    settle_rows(conn)
    assert [promise for promise, _ in waits(conn)] == ["g.0"]


def test_keys_of_every_kind_are_found(conn: Connection, clock: Clock) -> None:
    """By the sweep and by the triggers alike, however the caller writes them."""
    conn.execute(TABLES)
    key = {"mood": "ok", "price": 1.50, "size": 3, "code": "a b"}
    dear = {"mood": "sad", "price": 10**20, "size": -3, "code": "\u00fc"}
    dates = ({"day": "2026-02-28"}, {"day": "2026-03-01"})
    wants = [("mixed.there", key), ("mixed.there", dear), *(("days.over", one) for one in dates)]
    wants += [("flags.set", {"flag": True}), ("shop.lines.big", {"id": 10}), ("public.lines.big", {"id": 10})]
    for number, (name, wanted) in enumerate(wants):
        wait_for(conn, f"r{number}", wanted, name=name)
    conn.execute("insert into mixed values ('ok', 1.5, 3, 'a b'); insert into days values ('2026-02-28')")
    assert settle_rows(conn) == 2
    arm(conn)
    conn.execute("insert into mixed values ('sad', %s, -3, %s)", (Decimal(10**20), "\u00fc"))
    conn.execute("insert into days values ('2026-03-01'); insert into flags values (true)")
    conn.execute("insert into shop.lines values (10)")
    assert settle_rows(conn) == 4
    assert [promise for promise, _ in waits(conn)] == ["r6.0"]


def test_several_runs_wait_for_one_row(conn: Connection, clock: Clock) -> None:
    """Each is woken, once, by one commit; so is a run that waits for several rows, by the first of them."""
    shop(conn)
    for name in ("a", "b", "c"):
        wait_for(conn, name)
    held = begin_run(conn, "many")
    commands = [until(number, {"id": number}) for number in (0, 1, 2)]
    take_turn(conn, "W", report(held, commands=commands, end=suspend(0, 1, 2), seen=held.next))
    arm(conn)
    conn.execute("insert into orders select n, 'paid' from generate_series(1, 5) n")
    assert events(conn) == 5
    assert settle_rows(conn) == 5
    assert [types_of(conn, name) for name in ("a", "b", "c", "many")] == [
        [
            *("execution_started", "promise_registered", "execution_awaiting"),
            *("child_settled", "execution_resumed"),
        ]
    ] * 3 + [
        [
            *("execution_started", "promise_registered", "promise_registered", "promise_registered"),
            *("execution_awaiting", "child_settled", "child_settled", "execution_resumed"),
        ]
    ]


def test_a_deadline_ends_the_wait(conn: Connection, clock: Clock) -> None:
    """Like that of any promise; who comes later wakes nobody, and news that were not looked at by then win
    nothing."""
    shop(conn)
    conn.execute(NEW)
    wait_for(conn, "r", timeout=1000)
    wait_for(conn, "s", timeout=1000)
    arm(conn)
    clock.advance(999)
    conn.execute(PAID)
    clock.advance(1)
    assert settle_rows(conn) == 2
    assert (state_of(conn), state_of(conn, "s.0")) == ("rejected_timedout", "rejected_timedout")
    conn.execute("update orders set total = 1")
    assert (waits(conn), events(conn), settle_rows(conn)) == ([], 0, 0)


def test_the_first_settlement_wins(conn: Connection, clock: Clock) -> None:
    """It is a promise: somebody else may settle it, and news that come too late are swept."""
    shop(conn)
    conn.execute(NEW)
    wait_for(conn, "r")
    arm(conn)
    conn.execute(PAID)
    ask(conn, settle("r.0", '"by hand"'))
    assert (waits(conn), events(conn)) == ([], 1)
    assert settle_rows(conn) == 0
    assert (promise_of(conn, "r.0"), events(conn)) == (("resolved", '"by hand"'), 0)


ENDS = {
    "completed": lambda conn, held: take_turn(conn, "W", report(held, end=complete())),
    "settled": lambda conn, held: ask(conn, settle("r")),
    "cancelled": lambda conn, held: ask(conn, cancel("r", force=True)),
    "continued": lambda conn, held: take_turn(conn, "W", report(held, end=continue_as_new(on=1))),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_wait_ends_with_its_run(conn: Connection, clock: Clock, how: str) -> None:
    """Whatever ends the run, or that generation of it: its wait is cancelled by the housekeeping, and whoever
    else awaits that promise hears of it."""
    shop(conn)
    conn.execute(NEW)
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held, commands=[until(0)], seen=held.next))
    arm(conn)
    held = type(held)(execution=held.execution, id="r", version=held.version, next=answer.next_of(held))
    ENDS[how](conn, held)
    assert tick(conn)["waits"] == 1
    assert settle_rows(conn) == 1
    assert (state_of(conn), waits(conn)) == ("rejected_canceled", [])
    conn.execute(PAID)
    assert events(conn) == 0


def test_a_wait_ends_with_a_run_that_ends_while_it_is_tested(alone: str) -> None:
    """The housekeeping has read the wait, and not noted yet that it is left to the triggers from now on: it
    is not, because its run has ended meanwhile."""
    with psycopg.connect(alone, autocommit=True) as conn, Stage(alone) as stage:
        shop(conn)
        conn.execute(NEW)
        wait_for(conn, "r")
        tick(conn)
        conn.execute("update durable._row_waits set test_at = 1")
        gate, sweep = stage.player("gate"), stage.player("sweep")
        gate.begin()
        gate.do("lock table durable._row_events in share mode")
        noting = sweep.do("select durable.tick_v1(100)")
        assert noting.blocked
        ask(conn, cancel("r", force=True))
        gate.commit()
        noting.rows()
        assert settle_rows(conn) == 1
        assert (state_of(conn), waits(conn)) == ("rejected_canceled", [])


def test_a_fork_waits_by_itself(conn: Connection, clock: Clock) -> None:
    """A copy of a run that waits has a wait of its own, also when that of the original is over; a key that no
    watch has any more is an error at its place."""
    shop(conn)
    conn.execute(NEW)
    held = wait_for(conn, "r")
    arm(conn)
    ask(conn, ("select durable.fork('r', new_id => 'f')", ()))
    arm(conn)
    assert waits(conn) == [("f.0", True), ("r.0", True)]
    conn.execute(PAID)
    assert settle_rows(conn) == 2
    assert (state_of(conn), state_of(conn, "f.0")) == ("resolved", "resolved")
    ask(conn, ("select durable.fork('r', seq => %s, new_id => 'g')", (held.next + 1,)))
    assert settle_rows(conn) == 1
    assert types_of(conn, "g") == ["execution_started", "promise_registered", "child_settled"]
    ask(conn, ("select durable.unwatch('orders', 'paid')", ()))
    ask(conn, ("select durable.fork('r', seq => %s, new_id => 'h')", (held.next + 1,)))
    assert error_of(conn, "h.0")[0] == "NotFound"
    assert claim(conn, "W", "q-r").id in ("r", "f", "g", "h")


LOST = {
    "renamed": ("alter table orders rename id to nr", "key column missing"),
    "dropped": ("alter table orders drop id", "key column missing"),
    "made_anew": ("alter table orders drop id; alter table orders add id uuid", "another type"),
    "other_type": (
        "alter table orders drop constraint orders_pkey; alter table orders alter id type numeric",
        "another type",
    ),
}


@pytest.mark.parametrize("case", LOST)
def test_a_dropped_key_ends_the_waits(conn: Connection, clock: Clock, case: str) -> None:
    """A key column that was renamed, dropped, or is of another type: no trigger ever finds those waits again,
    so the housekeeping ends them, armed or not, with an error that says so; a run that begins to wait gets it
    at once; the view tells; other waits go on; and who writes the table is left alone."""
    statement, words = LOST[case]
    shop(conn)
    conn.execute("create table t (id int primary key); select durable.watch('t', 'there', '{id}', 'true')")
    wait_for(conn, "other", name="t.there")
    wait_for(conn, "a")
    arm(conn)
    wait_for(conn, "b")
    conn.execute(statement.encode())
    conn.execute("insert into orders (status) values ('paid')" if case == "dropped" else "select 1")
    seen = conn.execute("select state from durable.watches order by watch").fetchall()
    assert (words in seen[0][0], seen[1][0]) == (True, "ok")
    assert settle_rows(conn) == 2
    held = begin_run(conn, "c")
    answer = take_turn(conn, "W", report(held, commands=[until(0)], end=suspend(0), seen=held.next))
    assert answer.of(held) == ("ok", "acquired")
    for name in "abc":
        kind, message = error_of(conn, f"{name}.0")
        assert kind == "Conflict" and words in message and "(id) of type (bigint)" in message, message
    assert waits(conn) == [("other.0", True)]
    conn.execute("insert into t values (1)")
    assert settle_rows(conn) == 1


@pytest.mark.session("a temporary table")
def test_a_key_that_means_the_same_keeps_the_waits(conn: Connection, clock: Clock) -> None:
    """A new name of the table, of another column or of a label, another length, a domain over the type: the
    waits go on; nor does it matter what the session of the housekeeping calls its own tables."""
    conn.execute(TABLES)
    wait_for(conn, "a", {"mood": "fine", "price": 1, "size": 3, "code": "x"}, name="mixed.there")
    wait_for(conn, "b", {"day": "2026-03-01"}, name="days.over")
    conn.execute("create domain small as smallint; alter table mixed alter size type small")
    conn.execute("alter table mixed alter code type varchar(20); alter table mixed rename to blended")
    conn.execute("alter type mood rename value 'ok' to 'fine'; create temporary table date (a int)")
    arm(conn)
    assert waits(conn) == [("a.0", True), ("b.0", True)]
    states = "select distinct state from durable.watches"
    assert conn.execute(states.encode()).fetchall() == [("ok",)]
    conn.execute("insert into blended values ('fine', 1, 3, 'x'); insert into days values ('2026-03-01')")
    assert settle_rows(conn) == 2


def test_an_open_writer_keeps_a_wait_with_the_tests(
    conn: Connection, clock: Clock, other: Connection
) -> None:
    """While somebody writes who began before, whatever he writes, a wait is tested after growing pauses and
    not left to the triggers."""
    shop(conn)
    settle_rows(conn)
    conn.execute("create table elsewhere (id int)")
    other.execute("insert into elsewhere values (1)")
    wait_for(conn, "r")
    pauses = []
    for _ in range(9):
        assert tick(conn)["waits"] == 1
        due = int(tick(conn, 500)["next_due_ms"])
        pauses.append(due)
        clock.advance(due)
    assert pauses == [5, 20, 80, 320, 1280, 5000, 5000, 5000, 5000]
    assert waits(conn) == [("r.0", False)]
    conn.execute("insert into orders values (1, 'paid')")
    assert settle_rows(conn) == 1
    wait_for(conn, "s", {"id": 2})
    settle_rows(conn)
    assert waits(conn) == [("s.0", False)]
    other.rollback()
    clock.advance(5000)
    arm(conn)


def test_a_bad_row_beside_good_ones(conn: Connection, clock: Clock) -> None:
    """Waits that are tested together: one over whose row the condition raises fails, the others have their
    row or go on."""
    conn.execute("create table t (id int primary key, a int); insert into t values (1, 5), (2, 0), (3, 50)")
    conn.execute("select durable.watch('t', 'w', '{id}', '10 / a > 1')")
    for number in (1, 2, 3, 4):
        wait_for(conn, f"r{number}", {"id": number}, name="t.w")
    assert settle_rows(conn) == 2
    assert (state_of(conn, "r1.0"), error_of(conn, "r2.0")[0]) == ("resolved", "Conflict")
    arm(conn)
    assert waits(conn) == [("r3.0", True), ("r4.0", True)]


def test_a_locked_table_is_tested_later(conn: Connection, clock: Clock, other: Connection) -> None:
    """Somebody who alters a table makes its waits wait, and nothing else: the sweep gives up soon, holds no
    lock of the engine meanwhile, and other tables are tested."""
    shop(conn)
    conn.execute(
        "create table free (id int primary key); select durable.watch('free', 'there', '{id}', 'true')"
    )
    conn.execute("insert into orders values (1, 'paid'); insert into free values (1)")
    other.execute("lock table orders in access exclusive mode")
    wait_for(conn, "r")
    wait_for(conn, "s", name="free.there")
    assert settle_rows(conn) == 1
    assert (state_of(conn), state_of(conn, "s.0")) == ("pending", "resolved")
    other.rollback()
    clock.advance(5000)
    assert settle_rows(conn) == 1


def test_an_open_user_transaction_blocks_nothing(conn: Connection, clock: Clock, other: Connection) -> None:
    """While a user has changed the row and does not commit: turns, settlements, deadlines and other waits go
    on, and two such users do not meet in the engine."""
    shop(conn)
    conn.execute("insert into orders values (1, 'new'), (2, 'new')")
    held = wait_for(conn, "r")
    wait_for(conn, "s", {"id": 2})
    arm(conn)
    other.execute(PAID)
    conn.execute("set lock_timeout = '1s'")
    conn.execute("update orders set status = 'paid' where id = 2")
    assert settle_rows(conn) == 1
    ask(conn, settle("r.0", '"meanwhile"'))
    held = claim(conn, "W", "q-r")
    assert take_turn(conn, "W", report(held, end=complete())).of(held) == ("ok", "done")
    other.commit()
    assert settle_rows(conn) == 0
    assert (promise_of(conn, "r.0"), events(conn)) == (("resolved", '"meanwhile"'), 0)
    held_locks = (
        "select count(*) from pg_locks where starts_with(relation::regclass::text, 'durable.') "
        "and mode <> 'AccessShareLock'"
    )
    assert ask(conn, (held_locks, ()))[0] == 0


def test_changes_for_a_locked_promise_are_not_lost(conn: Connection, clock: Clock, other: Connection) -> None:
    """A promise that somebody is about to settle is left to him; when he undoes it, the row ends the wait."""
    shop(conn)
    conn.execute(NEW)
    wait_for(conn, "r")
    arm(conn)
    other.execute("select durable.resolve('r.0', '1')")
    conn.execute(PAID)
    conn.execute("set lock_timeout = '1s'")
    conn.execute(
        "insert into durable._row_events (xid, watch) select pg_current_xact_id(), id from durable._watches"
    )
    assert settle_rows(conn, rounds=3) == 0
    other.rollback()
    assert settle_rows(conn) == 1
    assert (state_of(conn), events(conn)) == ("resolved", 0)


def test_a_test_that_was_asked_for_is_not_forgotten(
    conn: Connection, clock: Clock, other: Connection
) -> None:
    """A wait that is about to be ended by somebody cannot be marked; when he undoes it, it is tested."""
    shop(conn)
    conn.execute(NEW)
    wait_for(conn, "r")
    arm(conn)
    conn.execute("alter table orders disable trigger all")
    conn.execute(PAID)
    conn.execute("alter table orders enable trigger all")
    other.execute("select durable.resolve('r.0', '1')")
    conn.execute(WATCH)
    assert settle_rows(conn, rounds=3) == 0
    other.rollback()
    assert settle_rows(conn) == 1


def test_a_row_that_is_too_large_is_an_error(conn: Connection, clock: Clock) -> None:
    """Over the limit of payloads there is an error instead of the row."""
    shop(conn)
    conn.execute("select durable.set_setting('payload_max_bytes', '1000')")
    conn.execute(
        "alter table orders add column note text; insert into orders values (1, 'paid', 1, repeat('x', 2000))"
    )
    wait_for(conn, "r")
    assert settle_rows(conn) == 1
    assert error_of(conn)[0] == "PayloadTooLarge"


def test_above_read_committed_nothing_is_tested(conn: Connection, clock: Clock) -> None:
    """A snapshot that is old cannot tell, so such a sweep leaves waits alone."""
    shop(conn)
    wait_for(conn, "r")
    with conn.transaction():
        conn.execute("set transaction isolation level repeatable read")
        assert ask(conn, ("select durable._sweep_rows(500, durable._now_ms())", ()))[0] == 0
    assert waits(conn) == [("r.0", False)]


def test_the_work_is_in_proportion_to_what_changes(alone: str) -> None:
    """Among twenty thousand waits a statement looks up the keys of the rows that it changed, and the sweep
    looks up the rows of the waits that it tests; neither reads a table from end to end, analyzed or not."""
    with psycopg.connect(alone, autocommit=True) as conn:
        shop(conn)
        conn.execute("create table plain (id bigint primary key, status text)")
        held = wait_for(conn, "r")
        arm(conn)
        conn.execute(
            "insert into durable._row_waits (execution, watch, promise_id, key, since) "
            "select %s, 1, 'x' || n, jsonb_build_object('id', n), '1' from generate_series(2, 20001) n",
            (held.execution,),
        )
        conn.execute("insert into orders select n, 'new' from generate_series(1, 20001) n")

        def read(statement: str) -> tuple[int, int]:
            """Rows of waits and of orders read by it, through indexes and from end to end."""
            counters = (
                "select (select idx_tup_read + 1000000 * seq_scan "
                "from (select sum(idx_tup_read) as idx_tup_read, "
                "(select seq_scan from pg_stat_user_tables where relname = '_row_waits') as seq_scan "
                "from pg_stat_user_indexes where relname = '_row_waits') w), "
                "(select coalesce(seq_tup_read, 0) from pg_stat_user_tables where relname = 'orders')"
            )
            found = []
            for part in ("select 1", statement):
                conn.execute(part.encode())
                conn.execute("select pg_stat_force_next_flush()")
                conn.execute("select 1")
                found.append(ask(conn, (counters, ())))
            return int(found[1][0] - found[0][0]), int(found[1][1] - found[0][1])

        for turn_ in range(2):
            for count in (1, 100):
                lookups, _ = read(f"update orders set total = {turn_} where id between 500 and {499 + count}")
                assert lookups <= count + 1, (turn_, count, lookups)
            assert read("insert into plain values (1, 'x') on conflict do nothing")[0] == 0
            conn.execute("update durable._row_waits set test_at = 1 where promise_id in ('x2', 'x3', 'x4')")
            looked, scanned = read("select durable.tick_v1(500)")
            assert looked <= 40 and scanned == 0, (turn_, looked, scanned)
            conn.execute("analyze")
        conn.execute("delete from durable._row_waits where promise_id <> 'r.0'")
        conn.execute("delete from durable._row_events")
