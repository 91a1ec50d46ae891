"""Law: a run that has ended can be deleted by its id, whatever its age, with all that belongs to it and as
retention does it; one that lives, is a child, or is needed stays, and the refusal says why."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.verbs import (
    Connection,
    adopt,
    ask,
    begin_run,
    claim,
    complete,
    create,
    done,
    refusal,
    report,
    run,
    send,
    suspend,
    take_turn,
)

TABLES = (
    *("_promises", "_tasks", "_executions", "_journal", "_signals", "_inboxes", "_callbacks"),
    *("_resumes", "_join_sets", "_members", "_progress", "_forks", "_backlog"),
)


def rows(conn: Connection) -> dict[str, int]:
    """How many rows the tables of runs have."""
    found = {}
    for table in TABLES:
        found[table] = int(ask(conn, (f"select count(*) from durable.{table}", ()))[0])
    return found


def ended(conn: Connection, id_: str) -> None:
    """A run with a step, a signal, a promise, a named value and a child, which has ended."""
    held = begin_run(conn, id_, key=f"key of {id_}")
    ask(conn, send(id_))
    answer = take_turn(conn, "W", report(held, outcomes=[done(0)]))
    child = run(1, queue=f"kids-{id_}")
    answer = take_turn(conn, "W", report(held, commands=[child], seen=answer.next_of(held)))
    take_turn(conn, "W", report(held, end=suspend(1), seen=answer.next_of(held)))
    take_turn(conn, "W", report(claim(conn, "W", f"kids-{id_}"), end=complete()))
    ask(conn, ("select durable.set_value(%s, 'stage', '1')", (id_,)))
    take_turn(conn, "W", report(claim(conn, "W", f"q-{id_}"), end=complete()))


def refused(conn: Connection, id_: str) -> tuple[str, str]:
    """The code and the sentence with which a deletion is refused."""
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        ask(conn, ("select durable.delete(%s)", (id_,)))
    assert caught.value.diag.message_hint
    return caught.value.sqlstate or "", caught.value.diag.message_primary or ""


def test_nothing_is_left(conn: Connection) -> None:
    """All rows of the run and its child go, at once and whatever its age, and those of others stay; its id
    and its key are taken, and to ask again is no error."""
    ended(conn, "other")
    before = rows(conn)
    ended(conn, "r")
    assert rows(conn) != before
    assert ask(conn, ("select durable.delete('r')", ())) == (True,)
    assert rows(conn) == before
    assert ask(conn, ("select durable.delete('r')", ())) == (False,)
    assert refusal(conn, ("select durable.start('w', id => 'r')", ())) == "WF003"
    assert refusal(conn, ("select durable.start('w', key => 'key of r')", ())) == "WF003"


def test_what_stays(conn: Connection) -> None:
    """Runs that live, children, parents of children that live, what is awaited and what is no run stay."""
    ended(conn, "over")
    begin_run(conn, "live")
    assert refused(conn, "live") == ("WF003", "Run 'live' has not ended.")
    assert refused(conn, "over.1")[0] == "WF003"
    held = begin_run(conn, "parent")
    take_turn(conn, "W", report(held, commands=[{**run(0, queue="kids"), "detached": True}]))
    ask(conn, ("select durable.cancel('parent', force => true)", ()))
    code, sentence = refused(conn, "parent")
    assert (code, "parent.0" in sentence) == ("WF003", True)
    ask(conn, create("plain"))
    assert refused(conn, "plain")[0] == "WF001"
    assert refused(conn, "nobody")[0] == "WF001"


def test_what_another_run_reads(conn: Connection) -> None:
    """A run whose result another run has adopted stays while that run is there."""
    for id_ in ("first", "second"):
        ended(conn, id_)
    held = begin_run(conn, "reader")
    take_turn(conn, "W", report(held, commands=[adopt(0, "first")]))
    assert refused(conn, "first") == ("WF003", "Run 'first' stays: another run reads its result.")
    ask(conn, ("select durable.cancel('reader', force => true)", ()))
    assert ask(conn, ("select durable.delete('reader'), durable.delete('first')", ())) == (True, True)


def test_what_a_row_of_users_refers_to(conn: Connection) -> None:
    """A foreign key without an action keeps a run; one that cascades goes with it."""
    ended(conn, "r")
    conn.execute("create table orders (run text references durable._promises (id))")
    conn.execute("insert into orders values ('r')")
    code, sentence = refused(conn, "r")
    assert (code, "foreign key" in sentence) == ("WF003", True)
    conn.execute("delete from orders")
    assert ask(conn, ("select durable.delete('r')", ())) == (True,)
