"""Law: a journal is born with the newest rules of replay that the schema knows and the worker that announced
its workflow last; it keeps them, and no worker gets it that does not know them."""

from __future__ import annotations

import pytest

from pyengine.core.rules import RULES
from tests.core.sql.test_workers import handed, idle, present
from tests.support.verbs import (
    Connection,
    ask,
    code,
    take_turn,
)

OLD_HELLO = "select durable.worker_hello_v1('W', '{default}', '{w,child}', '{1,1}', null, '{ab,ab}')"
HELLO = OLD_HELLO.replace("'W'", "%s").replace("'{ab,ab}')", "'{ab,ab}', null, null, %s)")
OLD_TURN = "select durable.worker_turn_v1('W', '{default}', %s, '{ab}', 9, '[]', 1000) #>> '{tasks,0,1}'"
BORN = "select h.rules, t.rules from durable._executions h join durable._tasks t using (execution) {}"
V1 = "select durable.start_v1('w', '[]', {}, {}, null, '1', null, null, 0, '{{}}', '', true)"
STARTS = {
    "start": "select durable.start('w', id => 'r')",
    "start with a key": "select durable.start('w', key => 'k')",
    "ordinary start": "select durable.start('w')",
    "start of a client": V1.format("'r'", "null"),
    "start of many": "select durable.start_many('w', array['[1]'::jsonb, '[2]'])",
    "start of many with ids": "select durable.start_many('w', array['[1]'::jsonb], ids => array['r'])",
}


def hello(conn: Connection, rules: int = RULES, worker: str = "W") -> None:
    """Register a worker that knows rules."""
    ask(conn, (HELLO, (worker, rules)))


def born(conn: Connection, id_: str) -> int:
    """The rules of a run, which its task has too."""
    of_head, of_task = ask(conn, (BORN.format("where h.id = %s"), (id_,)))
    assert of_head == of_task
    return int(of_head)


def started(conn: Connection, call: str) -> set[int]:
    """The rules of the runs that a call starts, which are not kept."""
    with conn.transaction(force_rollback=True):
        conn.execute(call.encode())
        return {born(conn, id_) for (id_,) in conn.execute("select id from durable._executions").fetchall()}


def test_the_schema_knows_what_the_code_knows(conn: Connection) -> None:
    """Both name the same rules as the newest."""
    assert ask(conn, ("select durable._rules()", ())) == (RULES,)


@pytest.mark.parametrize("call", STARTS.values(), ids=STARTS)
def test_starts(conn: Connection, call: str) -> None:
    """Each kind of start gives a run the rules of the worker that announced its workflow last, the schema's
    own if that worker knows newer ones, and the first if there was none, or if it says nothing."""
    assert started(conn, call) == {1}
    hello(conn)
    assert started(conn, call) == {RULES}
    hello(conn, RULES + 1)
    assert started(conn, call) == {RULES}
    ask(conn, (OLD_HELLO, ()))
    assert started(conn, call) == {1}


def test_the_claim_hands_out_no_run_with_newer_rules(conn: Connection) -> None:
    """A worker that says nothing gets the first rules only; one that knows more gets all up to them, and is
    told which a run has."""
    ask(conn, ("select durable.start('w', id => 'first', any_workflow => true)", ()))
    hello(conn)
    ask(conn, ("select durable.start('w', id => 'second')", ()))
    old = (OLD_TURN, ([code("w")],))
    assert [ask(conn, old), ask(conn, old)] == [("first",), (None,)]
    handed = take_turn(conn, "V", want=9, rules=RULES + 1).handed
    assert [(each["id"], each["rules"]) for each in handed] == [("second", RULES)]


def test_a_worker_of_unknown_rules_is_given_nothing(conn: Connection) -> None:
    """However many runs it may not have stand before it, the next one that it may have is claimed."""
    hello(conn)
    conn.execute("select durable.start_many('w', array(select '[1]'::jsonb from generate_series(1, 50)))")
    ask(conn, (OLD_HELLO, ()))
    ask(conn, ("select durable.start('w', id => 'mine')", ()))
    assert ask(conn, (OLD_TURN, ([code("w")],))) == ("mine",)


@pytest.mark.session("notes")
def test_an_idle_worker_gets_no_hand_off_with_newer_rules(dsn: str, session: Connection) -> None:
    """A run is born with the rules of the last hello, by whichever worker it was."""
    ears = present(dsn, session)
    assert ask(session, idle()) == (True,)
    hello(session, worker="V")
    assert not handed(session, "r")
    ask(session, (OLD_HELLO, ()))
    assert handed(session, "s")
    ears.conn.close()
