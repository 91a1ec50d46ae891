"""Law: a watch gives nobody rights that he has not. Rows are evaluated with the rights of the engine's owner,
so only if the table's owner has them, or somebody who has them trusts him; and what the code of a column does
never fails the statement of who changes a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.cluster import of_worker
from tests.support.rows import WATCH, arm, events, settle_rows, shop, wait_for, waits
from tests.support.verbs import Connection, ask, promise_of

pytestmark = pytest.mark.session("set role")

# roles are the server's, which other workers share
MALLORY = of_worker("mallory")

# it records with whose rights it runs, in sequences, because the sweep undoes the writes of its tests
SPY = """
create function spy(a text) returns boolean language plpgsql as
$$ begin perform nextval('public.seen_' || current_user); return true; end $$;
"""
PRICE = """
create type price as enum ('1', '2', '3', '4', '5', '6');
create function price_as_json(p price) returns json language plpgsql as
$$ begin perform public.spy(''); return to_json(p::text); end $$;
create cast (price as json) with function price_as_json(price);
"""


@pytest.fixture
def conn(dsn: str) -> Iterator[Connection]:
    """A database of its own, with a role without rights and a spy."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SPY)
        connection.execute(f"create role {MALLORY}; grant create on schema public to {MALLORY}".encode())
        for who in (ask(connection, ("select current_user", ()))[0], MALLORY):
            connection.execute(
                f"create sequence seen_{who}; grant all on sequence seen_{who} to public".encode()
            )
        try:
            yield connection
        finally:
            connection.execute(f"reset role; drop owned by {MALLORY} cascade; drop role {MALLORY}".encode())


@pytest.fixture
def clock(standing_clock: None, dsn: str) -> Iterator[Clock]:
    """Its clock."""
    frozen = Clock(dsn)
    yield frozen
    frozen.close()


def error_of(conn: Connection, id_: str = "r.0") -> tuple[str, str]:
    """Type and words of the error that a wait ended with."""
    return ask(
        conn,
        (
            "select value_data::jsonb ->> 'type', value_data::jsonb ->> 'message' from durable._promises "
            "where id = %s and state = 'rejected'",
            (id_,),
        ),
    )


def seen(conn: Connection) -> set[Any]:
    """With whose rights the spy ran."""
    return {
        name.removeprefix("seen_")
        for (name,) in conn.execute(
            "select sequencename from pg_sequences "
            "where sequencename like 'seen_%' and last_value is not null"
        ).fetchall()
    }


def forget_seen(conn: Connection) -> None:
    """Empty what the spy has recorded."""
    conn.execute(
        "select setval(sequencename::regclass, 1, false) from pg_sequences where sequencename like 'seen_%'"
    )


def state_of(conn: Connection) -> Any:
    """What the view says of the only watch."""
    return ask(conn, ("select state from durable.watches", ()))[0]


STRANGE = {
    "table": f"alter table orders owner to {MALLORY}",
    "heir": f"create table old () inherits (orders); alter table old owner to {MALLORY}",
    "heir_of_heir": (
        "create table old () inherits (orders); create table older () inherits (old); "
        f"alter table older owner to {MALLORY}"
    ),
}


@pytest.mark.parametrize("case", STRANGE)
def test_a_foreign_table_is_watched_by_trust_only(conn: Connection, clock: Clock, case: str) -> None:
    """Refused with what to do about it; nothing is left behind; with trust_owner it is a watch like any."""
    conn.execute("create table orders (id bigint primary key, status text not null, total numeric)")
    conn.execute(STRANGE[case].encode())
    for more in ("", ", trust_owner => false", ", trust_owner => null"):
        with pytest.raises(psycopg.Error) as caught:
            conn.execute(WATCH.replace("$$)", f"$${more})").encode())
        assert caught.value.sqlstate == "WF004"
        assert f"belongs to {MALLORY}" in str(caught.value.diag.message_primary)
        assert "trust_owner => true" in str(caught.value.diag.message_hint)
    hanging = "select count(*) from pg_trigger where tgfoid = 'durable._row_changed()'::regprocedure"
    assert ask(conn, (hanging, ())) == ask(conn, ("select count(*) from durable._watches", ())) == (0,)
    conn.execute(WATCH.replace("$$)", "$$, trust_owner => true)").encode())
    assert state_of(conn) == "ok"
    wait_for(conn, "r")
    arm(conn)
    conn.execute("insert into orders values (1, 'paid')")
    assert settle_rows(conn) == 1
    assert promise_of(conn, "r.0") == ("resolved", '{"id": 1, "total": null, "status": "paid"}')


def test_trust_needs_the_rights(conn: Connection, clock: Clock) -> None:
    """Who may call everything and write everything of the engine cannot trust himself with more; nor hang the
    trigger on a table of his own, whose columns bring their casts."""
    shop(conn)
    conn.execute(f"grant usage on schema durable to {MALLORY}".encode())
    conn.execute(f"grant all on all tables in schema durable to {MALLORY}".encode())
    conn.execute(f"grant all on all sequences in schema durable to {MALLORY}; set role {MALLORY}".encode())
    conn.execute("create table t (id int primary key)")
    with pytest.raises(psycopg.Error) as caught:
        conn.execute("select durable.watch('t', 'w', '{id}', 'true', trust_owner => true)")
    assert caught.value.sqlstate == "WF004"
    assert f"{MALLORY} has not the rights" in str(caught.value.diag.message_primary)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute(
            "create trigger t after insert on t referencing new table as new_rows for each statement "
            "execute function durable._row_changed('1')"
        )


@pytest.mark.parametrize("part", ["orders", "old"])
def test_a_table_that_changes_hands_is_not_evaluated(conn: Connection, clock: Clock, part: str) -> None:
    """When it, or a part of it, becomes a stranger's, neither the trigger nor the sweep runs his code; the
    waits, armed or not, and later ones end with an error; and trust makes it a watch again."""
    conn.execute(PRICE)
    conn.execute("create table orders (id bigint primary key, price price)")
    conn.execute("create table old (primary key (id)) inherits (orders)")
    # a condition calls nothing volatile when it is given; what its owner makes of it later is his
    watch = (
        "alter function spy stable; "
        "select durable.watch('orders', 'paid', '{id}', 'public.spy(orders.id::text)', trust_owner => %s); "
        "alter function spy volatile"
    )
    conn.execute((watch % "false").encode())
    wait_for(conn, "a")
    arm(conn)
    wait_for(conn, "b")
    conn.execute(f"alter table {part} owner to {MALLORY}".encode())
    forget_seen(conn)
    assert state_of(conn) == "owner not trusted"
    with conn.transaction():
        conn.execute(f"insert into {part} values (1, '5')".encode())
        conn.execute(f"update {part} set price = '6'; delete from {part}".encode())
        conn.execute(f"insert into {part} values (1, '5')".encode())
    assert (seen(conn), events(conn)) == (set(), 0)
    assert settle_rows(conn) == 2
    wait_for(conn, "c")
    for name in "abc":
        kind, words = error_of(conn, f"{name}.0")
        assert kind == "Conflict" and f"belongs to {MALLORY}" in words and "trust_owner" in words
    assert (seen(conn), waits(conn)) == (set(), [])
    conn.execute((watch % "true").encode())
    wait_for(conn, "d")
    assert settle_rows(conn) == 1
    assert seen(conn) == {ask(conn, ("select current_user", ()))[0]}


def test_changes_before_a_change_of_owner_are_tested(conn: Connection, clock: Clock) -> None:
    """What the same transaction had said of a row before it gave the table away cannot be compared with the
    row any more, and settles nothing by itself."""
    shop(conn)
    wait_for(conn, "r")
    arm(conn)
    with conn.transaction():
        conn.execute(f"insert into orders values (1, 'paid'); alter table orders owner to {MALLORY}".encode())
        conn.execute("update orders set status = 'refunded'")
    assert settle_rows(conn) == 1
    assert error_of(conn)[0] == "Conflict"


@pytest.mark.parametrize("name", ["text", "jsonb", "xid8"])
def test_temporary_types_of_who_changes_a_row_have_no_say(
    conn: Connection, clock: Clock, dsn: str, name: str
) -> None:
    """A domain of a session, called like a type of the server, is not what the trigger means by it, nor what
    it calls, even if that session has called the same before."""
    shop(conn)
    wait_for(conn, "r")
    arm(conn)
    conn.execute(f"grant all on orders to {MALLORY}; grant usage on schema durable to {MALLORY}".encode())
    conn.execute(f"grant all on all tables in schema durable to {MALLORY}".encode())
    with psycopg.connect(dsn, autocommit=True) as user:
        user.execute(f"set role {MALLORY}; set search_path = ''".encode())
        user.execute(f"create domain pg_temp.{name} as pg_catalog.{name} check (public.spy('x'))".encode())
        user.execute("select durable._hint('durable_ready', 1)")
        user.execute("insert into public.orders values (1, 'new')")
        user.execute("update public.orders set status = 'paid'")
        user.execute("update public.orders set total = 1")
    assert seen(conn) <= {MALLORY}
    assert settle_rows(conn) == 1


BRITTLE = """
create table broken (yes boolean); insert into broken values (false);
create type price as enum ('1', '2', '3', '4', '5', '6');
create function price_as_json(p price) returns json language plpgsql as $$
begin
  if (select b.yes from public.broken b) then raise 'no such price'; end if;
  return to_json(p::text);
end $$;
create cast (price as json) with function price_as_json(price);
create table t (id int primary key, ok boolean, price price);
select durable.watch('t', 'w', '{id}', 'ok');
"""


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_a_cast_that_raises_leaves_the_user_alone(conn: Connection, clock: Clock, isolation: str) -> None:
    """Every kind of statement succeeds; the run whose row it is gets the error; and what the transaction had
    said before and can no more be compared is tested instead of believed."""
    conn.execute(BRITTLE)
    conn.execute("insert into t values (1, false, '1'), (2, false, '2'), (4, false, '4')")
    for number in (1, 2, 3):
        wait_for(conn, f"r{number}", {"id": number}, name="t.w")
    arm(conn)
    for statement in ("update t set ok = true where id = 2", "delete from t where id = 2", "truncate t"):
        with conn.transaction(force_rollback=True):
            conn.execute(f"set transaction isolation level {isolation}".encode())
            conn.execute("update t set ok = true where id = 1; update broken set yes = true")
            conn.execute(statement.encode())
            conn.execute("insert into t values (3, true, '3') on conflict do nothing")
            told = "select count(*) from durable._row_events where state is not null"
            assert ask(conn, (told, ())) == (0,), statement
    with conn.transaction():
        conn.execute(f"set transaction isolation level {isolation}".encode())
        conn.execute("update t set ok = true where id = 1; update broken set yes = true")
        conn.execute("update t set ok = false where id = 1")
        conn.execute("insert into t values (3, true, '3')")
        conn.execute("update broken set yes = false")
    assert settle_rows(conn) == 1
    assert [promise_of(conn, f"r{n}.0")[0] for n in (1, 2, 3)] == ["pending", "pending", "resolved"]  # type: ignore[index]
    conn.execute("update broken set yes = true; update t set ok = true where id = 2")
    assert settle_rows(conn) == 1
    assert error_of(conn, "r2.0")[0] == "Conflict" and "no such price" in error_of(conn, "r2.0")[1]
