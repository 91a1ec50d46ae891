"""Law: durable.wait tells what durable.result tells, as soon as it is so or its time is over; between its
looks it holds nothing."""

from __future__ import annotations

import threading

import psycopg
import pytest

from tests.support.barrier import Stage
from tests.support.verbs import ask, settle, start

Connection = psycopg.Connection[tuple[object, ...]]
SHORT = "call durable.wait(%s, timeout => '10 ms')"
LONG = "call durable.wait(%s, timeout => '1 min')"


@pytest.fixture
def own(session: Connection) -> Connection:
    """An autocommit connection: a wait is a statement of its own."""
    return session


def test_a_settled_promise_is_answered_at_once(own: Connection) -> None:
    """State, value and error are those of durable.result."""
    for name, state, value in (("a", "resolved", '{"n": 1}'), ("b", "rejected", '{"type": "Boom"}')):
        ask(own, ("select durable.create_promise(%s)", (name,)))
        ask(own, settle(name, value, state=state))
        told = ask(own, ("select * from durable.result(%s)", (name,)))
        assert ask(own, (LONG, (name,))) == told
    assert ask(own, ("call durable.wait('a')", ())) == ("resolved", {"n": 1}, None)


def test_its_time_ends(own: Connection) -> None:
    """What is pending when the time is over is told as pending; no time is one look."""
    ask(own, start("r"))
    assert ask(own, (SHORT, ("r",))) == ("pending", None, None)
    assert ask(own, ("call durable.wait('r', '0 s')", ())) == ("pending", None, None)


def test_it_ends_with_the_settlement(own: Connection, dsn: str) -> None:
    """A wait that is under way sees what another session commits meanwhile."""
    ask(own, ("select durable.create_promise('p')", ()))
    told = []

    def wait() -> None:
        with psycopg.connect(dsn, autocommit=True, application_name="waiter") as other:
            told.append(ask(other, (LONG, ("p",))))

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    asleep = (
        "select count(*) from pg_stat_activity where datname = current_database() "
        "and application_name = 'waiter' and wait_event = 'PgSleep'"
    )
    while ask(own, (asleep, ())) != (1,):
        assert waiter.is_alive()
    ask(own, settle("p", "7"))
    waiter.join(30)
    assert told == [("resolved", 7, None)]


@pytest.mark.session("a session is looked at from another")
def test_a_wait_holds_no_locks(own: Connection, dsn: str) -> None:
    """While it sleeps its session has no transaction id and no lock on anything of the schema, and its
    snapshot moves on from look to look."""
    ask(own, ("select durable.create_promise('p')", ()))
    with psycopg.connect(dsn, autocommit=True) as other:
        pid = other.info.backend_pid
        waiter = threading.Thread(target=lambda: ask(other, (LONG, ("p",))), daemon=True)
        waiter.start()
        seen: set[object] = set()
        looks = (
            "select a.backend_xid is null, a.backend_xmin::text, a.wait_event, "
            "(select count(*) from pg_locks l join pg_class c on c.oid = l.relation and c.relname ~ '^_' "
            "where l.pid = a.pid) "
            "+ (select count(*) from pg_locks l where l.pid = a.pid and l.locktype = 'advisory') "
            "from pg_stat_activity a where a.pid = %s"
        )
        while len(seen) < 3:
            assert waiter.is_alive()
            ask(own, ("select pg_current_xact_id()", ()))
            free, xmin, event, locks = ask(own, (looks, (pid,)))
            if event == "PgSleep":
                assert (free, locks) == (True, 0)
                seen.add(xmin)
        ask(own, settle("p"))
        waiter.join(30)


def test_a_passed_deadline_is_answered(own: Connection) -> None:
    """A promise past its deadline is settled by the look, and told as that."""
    ask(own, ("select durable.create_promise('p', timeout => '1 ms')", ()))
    state, value, error = ask(own, (LONG, ("p",)))
    assert (state, value, error["type"]) == ("rejected_timedout", None, "Timeout")
    assert ask(own, ("select state from durable._promises", ())) == ("rejected_timedout",)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("call durable.wait('nobody')", "WF001"),
        ("call durable.wait('')", "WF001"),
        ("call durable.wait('r', null)", "WF004"),
        ("call durable.wait('r', '-1 s')", "WF004"),
        ("begin; call durable.wait('r')", "WF003"),
        ("select 1; call durable.wait('r')", "WF003"),
    ],
)
def test_refusals(own: Connection, call: str, code: str) -> None:
    """Nobody to wait for, a time that is no time, statements that are sent together."""
    ask(own, start("r"))
    with pytest.raises(psycopg.Error) as caught:
        own.execute(call.encode())
    assert caught.value.sqlstate == code


def test_in_a_transaction_block(own: Connection) -> None:
    """It says why it cannot wait there, and what can be called instead."""
    ask(own, start("r"))
    for begin in ("begin", "begin isolation level serializable"):
        own.execute(begin.encode())
        with pytest.raises(psycopg.Error) as caught:
            own.execute("call durable.wait(%s)", ("r",))
        own.execute("rollback")
    assert caught.value.sqlstate == "WF003"
    assert "durable.result" in (caught.value.diag.message_hint or "")


def test_in_a_function(own: Connection) -> None:
    """A function cannot commit, so it is told the same; a procedure and a DO block may wait."""
    ask(own, start("r"))
    body = "declare s text; v jsonb; e jsonb; begin call durable.wait('r', '0 s', s, v, e); %s end"
    own.execute(f"create function f() returns text language plpgsql as $${body % 'return s;'}$$".encode())
    own.execute(f"create procedure p() language plpgsql as $${body % ''}$$".encode())
    with pytest.raises(psycopg.Error) as caught:
        own.execute("select f()")
    assert caught.value.sqlstate == "WF003"
    own.execute("call p()")
    own.execute(f"do $${body % ''}$$".encode())


def test_under_a_hostile_search_path(own: Connection) -> None:
    """Functions and operators that somebody puts in front of PostgreSQL's own are never called."""
    ask(own, start("r"))
    own.execute("create schema evil")
    for name, args in (
        ("pg_sleep", "double precision"),
        ("least", "bigint"),
        ("result", "text"),
        ("_poll_result", "text"),
    ):
        own.execute(
            f"create function evil.{name}({args}) returns void language plpgsql "
            "as $$ begin raise exception 'hijacked'; end $$".encode()
        )
    own.execute(
        "create function evil.trap(integer, integer) returns integer language plpgsql "
        "as $$ begin raise exception 'hijacked'; end $$"
    )
    own.execute("create operator evil.+ (leftarg = integer, rightarg = integer, function = evil.trap)")
    own.execute("set search_path = evil, pg_catalog")
    assert ask(own, (SHORT, ("r",))) == ("pending", None, None)


def test_a_wait_does_not_block_a_settlement(own: Connection, stage: Stage) -> None:
    """A session that has the promise locked does not make a wait wait, nor the other way round."""
    ask(own, ("select durable.create_promise('p')", ()))
    settler = stage.player("settler")
    settler.begin()
    settler.do(*settle("p"))
    assert ask(own, (SHORT, ("p",))) == ("pending", None, None)
    settler.commit()
    assert ask(own, (LONG, ("p",))) == ("resolved", 1, None)
