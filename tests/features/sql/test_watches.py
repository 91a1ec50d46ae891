"""Law: who owns a table says which of its rows can be waited for, in an expression that is read at once; the
triggers tell of every statement that makes a row so, and take back what the same transaction undoes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.laboratory import transaction_of
from tests.support.rows import WATCH, arm, events, settle_rows, shop, wait_for, waits
from tests.support.verbs import Connection, ask, promise_of, task_of, types_of

PAID = "update orders set status = 'paid' where id = 1"
NEW = "insert into orders values (1, 'new')"


@pytest.fixture
def conn(session: Connection) -> Connection:
    """Waits are armed by commits, so a database of its own."""
    return session


@pytest.fixture
def inside(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A connection within a transaction that is rolled back, for what nobody waits for."""
    with transaction_of(request) as connection:
        connection.execute("select 'it begins here, so that transactions below are savepoints'")
        yield connection


@pytest.fixture
def clock(standing_clock: None, dsn: str) -> Iterator[Clock]:
    """Its clock."""
    frozen = Clock(dsn)
    yield frozen
    frozen.close()


def watch(conn: Connection, relation: str, condition: str, key: str = "{id}", name: str = "w") -> Any:
    """Watch a table."""
    return ask(conn, ("select durable.watch(%s, %s, %s, %s)", (relation, name, key, condition)))[0]


def state_of(conn: Connection, id_: str = "r.0") -> Any:
    """State of the promise of a wait."""
    found = promise_of(conn, id_)
    return found[0] if found else None


def value_of(conn: Connection, id_: str = "r.0") -> Any:
    """What the wait ended with, as JSON."""
    return ask(conn, ("select value_data::jsonb from durable._promises where id = %s", (id_,)))[0]


REFUSED = {
    "nothing": ("create table t (id int primary key)", ("t", "w", "{id}", "  "), "WF004", "has a condition"),
    "no_boolean": ("create table t (id int primary key)", ("t", "w", "{id}", "id + 1"), "42804", "boolean"),
    "no_such_column": (
        "create table t (id int primary key)",
        ("t", "w", "{id}", "price > 1"),
        "42703",
        "price",
    ),
    "syntax": ("create table t (id int primary key)", ("t", "w", "{id}", "id >"), "42601", "syntax error"),
    "subquery": (
        "create table t (id int primary key)",
        ("t", "w", "{id}", "id = (select 1)"),
        "0A000",
        "subquery",
    ),
    "aggregate": (
        "create table t (id int primary key)",
        ("t", "w", "{id}", "max(id) > 1"),
        "42803",
        "aggregate",
    ),
    "no_key": ("create table t (id int primary key)", ("t", "w", "{}", "true"), "WF004", "has a key"),
    "same_column_twice": (
        "create table t (id int primary key)",
        ("t", "w", "{id,id}", "true"),
        "WF004",
        "has a key",
    ),
    "unknown_key": (
        "create table t (id int primary key, a int)",
        ("t", "w", "{no}", "true"),
        "WF004",
        "it has id, a",
    ),
    "key_without_index": ("create table t (id int)", ("t", "w", "{id}", "true"), "WF004", "no index"),
    "key_with_partial_index": (
        "create table t (id int); create index on t (id) where id > 1",
        ("t", "w", "{id}", "true"),
        "WF004",
        "no index",
    ),
    "key_second_in_index": (
        "create table t (id int, a int, primary key (a, id))",
        ("t", "w", "{id}", "true"),
        "WF004",
        "no index",
    ),
    "key_of_expression": (
        "create table t (id int); create index on t ((id + 1), id)",
        ("t", "w", "{id}", "true"),
        "WF004",
        "no index",
    ),
    "key_of_instants": (
        "create table t (at timestamptz primary key)",
        ("t", "w", "{at}", "true"),
        "WF004",
        "not one way alone",
    ),
    "key_that_ignores_case": (
        "create collation ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
        "create table t (id text collate ci primary key)",
        ("t", "w", "{id}", "true"),
        "WF004",
        "not one way alone",
    ),
    "bad_name": (
        "create table t (id int primary key)",
        ("t", "Paid!", "{id}", "true"),
        "WF004",
        "no name for",
    ),
    "view": ("create view t as select 1 as id", ("t", "w", "{id}", "true"), "WF004", "is a view"),
    "materialized": (
        "create materialized view t as select 1 as id",
        ("t", "w", "{id}", "true"),
        "WF004",
        "materialized",
    ),
    "foreign": (
        "create extension file_fdw; create server f foreign data wrapper file_fdw;"
        "create foreign table t (id int) server f options (filename '/dev/null')",
        ("t", "w", "{id}", "true"),
        "WF004",
        "foreign table",
    ),
    "temporary": (
        "create temporary table t (id int primary key)",
        ("t", "w", "{id}", "true"),
        "WF004",
        "temporary",
    ),
    "system": ("select 1", ("pg_class", "w", "{oid}", "true"), "WF004", "table of the system"),
    "own": ("select 1", ("durable._promises", "w", "{id}", "true"), "WF004", "table of the system"),
    "unknown_table": ("select 1", ("nowhere", "w", "{id}", "true"), "42P01", "nowhere"),
    "sequence": ("create sequence t", ("t", "w", "{id}", "true"), "WF004", "no rows of its own"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_watches_are_refused(inside: Connection, case: str) -> None:
    """The error names what is wrong, and nothing is left behind: no watch, no trigger, no passing table."""
    setup, arguments, code, words = REFUSED[case]
    for statement in setup.split(";"):
        try:
            with inside.transaction():
                inside.execute(statement.encode())
        except (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFile):
            # a server without ICU or without that module cannot have such a table at all
            if case not in ("foreign", "key_that_ignores_case"):
                raise
            return
    with pytest.raises(psycopg.Error) as caught, inside.transaction():
        inside.execute("select durable.watch(%s, %s, %s, %s)", arguments)
    assert caught.value.sqlstate == code
    assert words in str(caught.value.diag.message_primary)
    assert ask(inside, ("select count(*) from durable._watches", ()))[0] == 0
    hanging = "select count(*) from pg_trigger where tgfoid = 'durable._row_changed()'::regprocedure"
    assert ask(inside, (hanging, ()))[0] == 0


@pytest.mark.session("set role")
def test_only_the_owner_may_watch(conn: Connection) -> None:
    """Who may do everything with the engine but does not own the table is refused; so is who owns it, by
    being a member of its owner, without the rights of the engine's owner; who has both is not."""
    conn.execute("create table t (id int primary key)")
    conn.execute("create role watcher; create role shopkeeper; grant usage on schema durable to watcher")
    conn.execute(
        "grant all on all tables in schema durable to watcher; grant create on schema public to shopkeeper"
    )
    try:
        conn.execute("grant all on all sequences in schema durable to watcher")
        conn.execute("set role watcher")
        with pytest.raises(psycopg.Error) as caught:
            watch(conn, "t", "true")
        assert caught.value.sqlstate == "WF004" and "belongs to" in str(caught.value.diag.message_primary)
        conn.execute(
            "reset role; alter table t owner to shopkeeper; grant shopkeeper to watcher; set role watcher"
        )
        with pytest.raises(psycopg.Error) as caught:
            watch(conn, "t", "id > 0")
        assert caught.value.sqlstate == "WF004" and "watcher has not the rights" in str(caught.value)
        conn.execute(
            "reset role; alter table t owner to watcher; do $$ begin execute "
            "format('grant %I to watcher', current_user); end $$; set role watcher"
        )
        assert watch(conn, "t", "id > 0") == "t.w"
        conn.execute("reset role")
    finally:
        conn.execute(
            "reset role; drop table t; drop owned by watcher, shopkeeper; drop role watcher, shopkeeper"
        )


def test_a_watch_can_be_listed_changed_and_dropped(conn: Connection, clock: Clock) -> None:
    """The view tells of it; the same name again is another condition of the same watch, by which waits are
    tested anew; its triggers go with it; and a run that still waits gets an error."""
    shop(conn)
    conn.execute(NEW)
    row = conn.execute(
        'select watch, schema, "table"::text, key, condition, state, waits from durable.watches'
    )
    assert row.fetchall() == [("orders.paid", "public", "orders", ["id"], "(status = 'paid'::text)", "ok", 0)]
    wait_for(conn, "r")
    wait_for(conn, "s", {"id": 2})
    arm(conn)
    conn.execute("select durable.watch('orders', 'paid', '{id}', $$status in ('paid', 'new')$$)")
    assert settle_rows(conn) == 1
    assert (state_of(conn), state_of(conn, "s.0")) == ("resolved", "pending")
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(
            "create index on orders (status); select durable.watch('orders', 'paid', '{status}', 'true')"
        )
    assert caught.value.sqlstate == "WF003"
    assert ask(conn, ("select durable.unwatch('orders', 'paid')", ()))[0] == 1
    assert settle_rows(conn) == 1
    assert state_of(conn, "s.0") == "rejected"
    assert "taken away" in value_of(conn, "s.0")["message"]
    assert (
        ask(conn, ("select count(*) from pg_trigger where not tgisinternal and tgname ~ 'durable'", ()))[0]
        == 0
    )
    with pytest.raises(psycopg.Error) as caught:
        conn.execute("select durable.unwatch('orders', 'paid')")
    assert caught.value.sqlstate == "WF001"
    conn.execute("update orders set status = 'paid'")


@pytest.mark.session("set search_path")
def test_the_condition_means_what_it_meant(conn: Connection, clock: Clock) -> None:
    """Names in it are those that its author saw, under whatever search path the row is changed; so is the
    table after it was renamed."""
    conn.execute("create schema shop; create schema evil; set search_path to shop, public")
    conn.execute(
        "create function shop.is_paid(text) returns bool language sql immutable as $$ select $1 = 'paid' $$"
    )
    conn.execute(
        "create function evil.is_paid(text) returns boolean language sql immutable as $$ select true $$"
    )
    conn.execute("create table orders (id bigint primary key, status text)")
    conn.execute("select durable.watch('orders', 'paid', '{id}', 'is_paid(orders.status) -- so it is')")
    conn.execute("set search_path to evil")
    wait_for(conn, "r", name="shop.orders.paid")
    arm(conn)
    conn.execute("alter table shop.orders rename to old_orders")
    conn.execute("insert into shop.old_orders values (1, 'new')")
    wait_for(conn, "s", {"id": 2})
    arm(conn)
    conn.execute("update shop.old_orders set status = 'paid'")
    conn.execute("insert into shop.old_orders values (2, 'paid')")
    assert settle_rows(conn) == 2
    assert (value_of(conn)["status"], value_of(conn, "s.0")["id"]) == ("paid", 2)
    conn.execute("set search_path to public")
    conn.execute("create table shop.orders (id bigint primary key, status text)")
    with pytest.raises(psycopg.Error) as caught:
        conn.execute("select durable.watch('shop.orders', 'paid', '{id}', 'true')")
    assert caught.value.sqlstate == "WF003"


STATEMENTS = {
    "update": (NEW, PAID),
    "insert": ("", "insert into orders values (1, 'paid')"),
    "on_conflict": (
        NEW,
        "insert into orders values (1, 'paid') on conflict (id) do update set status = excluded.status",
    ),
    "merge": (
        NEW,
        "merge into orders o using (values (1, 'paid'), (2, 'paid')) v (id, status) on o.id = v.id "
        "when matched then update set status = v.status when not matched then insert values (v.id, v.status)",
    ),
    "other_key_becomes_it": (
        "insert into orders values (5, 'paid')",
        "update orders set id = 1 where id = 5",
    ),
    "cte": (NEW, f"with u as ({PAID} returning id) select * from u"),
    "many": (
        "insert into orders select n, 'new' from generate_series(1, 2000) n",
        "update orders set status = 'paid'",
    ),
    "function": (NEW, f"do $$ begin {PAID}; end $$"),
    "deferred_trigger": (
        f"{NEW}; create table payments (id int); create function pay() returns trigger language plpgsql as "
        "$$ begin update orders set status = 'paid' where id = new.id; return null; end $$; "
        "create constraint trigger pay after insert on payments deferrable initially deferred "
        "for each row execute function pay()",
        "insert into payments values (1)",
    ),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("case", STATEMENTS)
def test_every_statement_that_makes_a_row_so_wakes(conn: Connection, clock: Clock, case: str) -> None:
    """Once, with the row as it is then."""
    shop(conn)
    before, statement = STATEMENTS[case]
    if before:
        conn.execute(before.encode())
    wait_for(conn, "r")
    wait_for(conn, "s", {"id": 3000})
    arm(conn)
    conn.execute(statement.encode())
    assert events(conn) == 1
    assert settle_rows(conn) == 1
    assert value_of(conn) == {"id": 1, "status": "paid", "total": None}
    assert state_of(conn, "s.0") == "pending"
    assert task_of(conn, "r") == ("pending", 1, None)
    assert types_of(conn, "r") == [
        *("execution_started", "promise_registered", "execution_awaiting"),
        *("child_settled", "execution_resumed"),
    ]


def test_copy_and_cascades_wake(conn: Connection, clock: Clock) -> None:
    """Rows that come by COPY, and rows that a foreign key changes."""
    conn.execute("create table customers (id int primary key)")
    conn.execute(
        "create table tickets (id int primary key, "
        "customer int references customers on update cascade on delete set null)"
    )
    watch(conn, "tickets", "customer is null", name="orphaned")
    watch(conn, "tickets", "customer = 9", name="moved")
    conn.execute("insert into customers values (1), (2); insert into tickets values (1, 1), (2, 2)")
    wait_for(conn, "r", name="tickets.orphaned")
    wait_for(conn, "s", {"id": 2}, name="tickets.moved")
    wait_for(conn, "t", {"id": 3}, name="tickets.orphaned")
    arm(conn)
    conn.execute("delete from customers where id = 1")
    conn.execute("update customers set id = 9 where id = 2")
    with conn.cursor().copy("copy tickets (id) from stdin") as copy:
        copy.write("3\n")
    assert settle_rows(conn) == 3
    assert [value_of(conn, f"{name}.0")["id"] for name in "rst"] == [1, 2, 3]


UNPAID = "update orders set status = 'no'"
TAKEN_BACK = {
    "refunded": f"{PAID}; update orders set status = 'refunded'",
    "deleted": f"{PAID}; delete from orders",
    "truncated": f"{PAID}; truncate orders",
    "renumbered": f"{PAID}; update orders set id = 9",
    "savepoint": f"savepoint a; {PAID}; rollback to a",
    "back_in_a_savepoint": f"savepoint a; {PAID}; release a; savepoint b; {UNPAID}; release b",
    "in_another_time_zone": f"{PAID}; set local timezone = 'Asia/Tokyo'; update orders set status = 'no'",
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("case", TAKEN_BACK)
def test_changes_undone_in_a_transaction_wake_no_run(conn: Connection, clock: Clock, case: str) -> None:
    """A row that was so within a transaction and is not any more when it commits."""
    shop(conn)
    conn.execute("alter table orders add column at timestamptz default now()")
    conn.execute(NEW)
    wait_for(conn, "r")
    arm(conn)
    with conn.transaction():
        for statement in TAKEN_BACK[case].split("; "):
            conn.execute(statement.encode())
    assert settle_rows(conn) == 0
    assert (state_of(conn), events(conn)) == ("pending", 0)


def test_repeated_changes_in_a_transaction_wake_once(conn: Connection, clock: Clock) -> None:
    """Undone and done again, in savepoints too; the row is the last one."""
    shop(conn)
    conn.execute(NEW)
    wait_for(conn, "r")
    arm(conn)
    with conn.transaction():
        conn.execute(PAID)
        with conn.transaction(force_rollback=True):
            conn.execute("update orders set status = 'refunded'")
        conn.execute("update orders set total = 7")
        conn.execute("update orders set status = 'no'")
        conn.execute("update orders set status = 'paid', total = 8")
    assert settle_rows(conn) == 1
    assert value_of(conn) == {"id": 1, "status": "paid", "total": 8}
    assert types_of(conn, "r") == [
        *("execution_started", "promise_registered", "execution_awaiting"),
        *("child_settled", "execution_resumed"),
    ]


def test_rows_are_written_alike_under_all_settings(conn: Connection, clock: Clock) -> None:
    """Instants, spans and bytes in the row do not depend on the session that changed it."""
    conn.execute(
        "create table t (id uuid primary key, at timestamptz, span interval, raw bytea, f float8, ok boolean)"
    )
    watch(conn, "t", "ok")
    one, two = "00000000-0000-4000-8000-0000000000aa", "00000000-0000-4000-8000-0000000000bb"
    insert = "insert into t values (%s, '2026-01-01 00:00+00', '1 day 02:00', '\\xff', 0.1, true)"
    conn.execute(insert, (one,))
    wait_for(conn, "r", {"id": one.upper()}, name="t.w")
    wait_for(conn, "s", {"id": two.replace("-", "")}, name="t.w")
    arm(conn)
    conn.execute(
        "set timezone = 'Asia/Tokyo'; set intervalstyle = 'sql_standard'; set bytea_output = 'escape'"
    )
    conn.execute("set extra_float_digits = -10")
    conn.execute(insert, (two,))
    settle_rows(conn)
    first, second = value_of(conn), value_of(conn, "s.0")
    assert first.pop("id") == one and second.pop("id") == two
    assert (
        first
        == second
        == {"at": "2026-01-01T00:00:00+00:00", "span": "P1DT2H", "raw": "\\xff", "f": 0.1, "ok": True}
    )


@pytest.mark.parametrize("kind", ["partitioned", "inherited"])
def test_partitions_and_heirs_are_part_of_a_table(conn: Connection, clock: Clock, kind: str) -> None:
    """Rows that are written through the table, or into a part directly; into one that was added later, once
    durable.watch was called again."""
    if kind == "partitioned":
        conn.execute("create table t (id int primary key, ok boolean) partition by range (id)")
        conn.execute("create table t1 partition of t for values from (0) to (10)")
        conn.execute("create table t2 (ok boolean, id int not null)")
        add = "alter table t attach partition t2 for values from (10) to (20)"
    else:
        conn.execute("create table t (id int primary key, ok boolean)")
        conn.execute("create table t1 (primary key (id)) inherits (t)")
        conn.execute("create table t2 (ok boolean, id int primary key)")
        add = "alter table t2 inherit t"
    watch(conn, "t", "ok")
    for number in range(1, 4):
        wait_for(conn, f"r{number}", {"id": number}, name="t.w")
    wait_for(conn, "late", {"id": 12}, name="t.w")
    arm(conn)
    conn.execute("insert into t values (1, true)")
    conn.execute("insert into t1 values (2, true)")
    conn.execute("insert into t1 values (3, false); update t set ok = true where id = 3")
    assert settle_rows(conn) == 3
    conn.execute(add.encode())
    if kind == "partitioned":
        conn.execute("insert into t values (13, false); update t set id = 4 where id = 13")
    assert ask(conn, ("select state from durable.watches", ()))[0] == "triggers missing"
    conn.execute("insert into t2 (id, ok) values (12, true)")
    assert settle_rows(conn) == 0
    watch(conn, "t", "ok")
    assert ask(conn, ("select state from durable.watches", ()))[0] == "ok"
    assert settle_rows(conn) == 1
    assert value_of(conn, "late.0")["id"] == 12
    if kind == "partitioned":
        wait_for(conn, "moved", {"id": 15}, name="t.w")
        wait_for(conn, "free", {"id": 16}, name="t.w")
        arm(conn)
        conn.execute("update t set id = 15 where id = 1")
        assert settle_rows(conn) == 1
        conn.execute("alter table t detach partition t2")
    else:
        wait_for(conn, "free", {"id": 16}, name="t.w")
        arm(conn)
        conn.execute("alter table t2 no inherit t")
    conn.execute("insert into t2 (id, ok) values (16, true)")
    assert (events(conn), state_of(conn, "free.0")) == (0, "pending")


def test_a_condition_that_raises_leaves_the_user_alone(conn: Connection, clock: Clock) -> None:
    """The statement of the user succeeds; the run whose row it is gets the error, and no other one."""
    conn.execute("create table t (id int primary key, a int)")
    watch(conn, "t", "10 / a > 1")
    conn.execute("insert into t values (1, 100), (2, 100), (3, 100)")
    for number in (1, 2, 3):
        wait_for(conn, f"r{number}", {"id": number}, name="t.w")
    arm(conn)
    conn.execute("update t set a = 0 where id = 1; update t set a = 5 where id = 2")
    assert settle_rows(conn) == 2
    assert state_of(conn, "r1.0") == "rejected"
    assert "division by zero" in value_of(conn, "r1.0")["message"]
    assert (state_of(conn, "r2.0"), state_of(conn, "r3.0")) == ("resolved", "pending")
    conn.execute("update t set a = id - 2")
    assert settle_rows(conn) == 1
    assert state_of(conn, "r3.0") == "resolved"
    wait_for(conn, "r4", {"id": 2}, name="t.w")
    assert settle_rows(conn) == 1
    assert state_of(conn, "r4.0") == "rejected"


GONE = {
    "table_dropped": ("drop table orders", "was dropped"),
    "column_dropped": (
        "alter table orders drop column status; insert into orders values (1)",
        "does not exist",
    ),
    "key_dropped": (
        "alter table orders drop column id; insert into orders values ('paid')",
        "key column missing",
    ),
    "type_changed": (
        "alter table orders alter id type uuid using null; "
        "insert into orders values (gen_random_uuid(), 'paid')",
        "key column has another type",
    ),
}


@pytest.mark.parametrize("case", GONE)
def test_waits_for_dropped_tables_fail(conn: Connection, clock: Clock, case: str) -> None:
    """A table or column that goes under a wait ends it with an error, by itself or when the table is changed
    next; other watches and runs go on, and so does who changes the table."""
    shop(conn)
    conn.execute("create table other (id int primary key); insert into other values (1)")
    watch(conn, "other", "id > 1")
    wait_for(conn, "s", name="other.w")
    wait_for(conn, "r")
    arm(conn)
    if case == "type_changed":
        conn.execute("alter table orders drop constraint orders_pkey")
    for statement in GONE[case][0].split("; "):
        conn.execute(statement.encode())
    assert settle_rows(conn) == 1
    assert state_of(conn) == "rejected"
    assert GONE[case][1] in value_of(conn)["message"]
    assert state_of(conn, "s.0") == "pending"
    conn.execute("update other set id = 2; update other set id = 1")
    assert waits(conn) == [("s.0", True)]
    if case == "table_dropped":
        assert (
            ask(conn, ("select state from durable.watches where watch = 'orders.paid'", ()))[0]
            == "table dropped"
        )
        conn.execute("create table orders (id bigint primary key, status text not null)")
        conn.execute(WATCH)
        wait_for(conn, "t")
        arm(conn)
        conn.execute("insert into orders values (1, 'paid')")
        assert settle_rows(conn) == 1


def test_disabled_triggers_are_reported(conn: Connection, clock: Clock) -> None:
    """What a replica applies, or a table with its triggers switched off, wakes nobody until the table is
    watched again; the view says so."""
    shop(conn)
    conn.execute(NEW)
    wait_for(conn, "r")
    arm(conn)
    conn.execute("alter table orders disable trigger all")
    conn.execute(PAID)
    assert settle_rows(conn) == 0
    assert ask(conn, ("select state from durable.watches", ()))[0] == "triggers disabled"
    conn.execute("alter table orders enable trigger all")
    conn.execute(WATCH)
    assert settle_rows(conn) == 1


def test_writers_of_rows_need_no_rights_in_the_engine(conn: Connection, clock: Clock) -> None:
    """A role that may do nothing but write the table wakes a run."""
    shop(conn)
    conn.execute(NEW)
    wait_for(conn, "r")
    arm(conn)
    conn.execute("create role clerk; grant select, update on orders to clerk; set role clerk")
    try:
        conn.execute(PAID)
    finally:
        conn.execute("reset role; drop owned by clerk; drop role clerk")
    assert settle_rows(conn) == 1
