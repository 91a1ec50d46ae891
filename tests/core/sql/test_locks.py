"""Law: a lock function locks what it names, in the order of ids, and knows everything that a settlement
touches.

The order itself is proved in tests/system/races.
"""

from __future__ import annotations

import psycopg
import pytest
from psycopg import IsolationLevel

from tests.support.verbs import (
    Call,
    Connection,
    ask,
    begin_run,
    create,
    park,
    promise,
    refusal,
    report,
    run,
    settle,
    start,
    suspend,
    take,
    take_turn,
)


@pytest.mark.parametrize(
    ("id_", "ancestors"),
    [
        ("x", []),
        ("x.y", []),
        ("x.1", ["x"]),
        ("x.1.22", ["x.1", "x"]),
        ("a.b.3", ["a.b"]),
        ("1.2", ["1"]),
        ("x.1.", []),
        ("x.1234567890", []),
        (".1", []),
        ("x" + ".1" * 255, ["x" + ".1" * n for n in range(254, -1, -1)]),
    ],
)
def test_ancestors(conn: Connection, id_: str, ancestors: list[str]) -> None:
    """An id that ends in numbers would be a descendant of every run before them, and of nothing else."""
    found = ask(conn, ("select durable._ancestors(%s)", (id_,)))[0]
    assert [name for name in found if name] == ancestors


def test_awaiters_are_listed_once(conn: Connection) -> None:
    """A task that waits for two of the promises is locked once."""
    for name in ("a", "b"):
        ask(conn, create(name, external="true"))
    for name in ("t1", "t2"):
        take(conn, name)
        ask(conn, park(name, "a", "b"))
    assert sorted(ask(conn, ("select durable._awaiters_of('{a,b,none}')", ()))[0]) == ["t1", "t2"]
    assert ask(conn, ("select durable._awaiters_of('{none}')", ())) == ([],)


def test_heads_of_a_settlement(conn: Connection) -> None:
    """Settling a child touches its own head, its owner's, and those of the tasks that wait."""
    parent = begin_run(conn, "p")
    answer = take_turn(conn, "W", report(parent, commands=[run(0), promise(1)]))
    take_turn(conn, "W", report(parent, end=suspend(0, 1), seen=answer.next_of(parent)))
    other = begin_run(conn, "o")
    (child,) = ask(conn, ("select head from durable._promises where id = 'p.0'", ()))
    heads = "select (select array_agg(h order by h) from unnest(durable._heads_of(%s, %s)) h)"
    assert ask(conn, (heads, (["p.0"], ["o"]))) == (sorted([parent.execution, child, other.execution]),)
    assert ask(conn, (heads, (["p.1"], []))) == ([parent.execution],)
    assert ask(conn, (heads, ([], []))) == (None,)


AFTER_A_FENCE: dict[str, Call] = {
    "settle": settle("x"),
    "create": create("new"),
    "start": start("new.run"),
    "acquire": ("select durable.task_acquire('u', 0, 'P', 1000)", ()),
    "callback": ("select durable.promise_register_callback('x', 'u')", ()),
    "halt": ("select durable.task_halt('u')", ()),
    "fence of a task before it": ("select durable.fence('s', 1)", ()),
    "fence of a task after it": ("select durable.fence('v', 1)", ()),
}


@pytest.mark.parametrize("name", AFTER_A_FENCE)
def test_a_fence_comes_last(conn: Connection, name: str) -> None:
    """After durable.fence a transaction asks for no lock that comes before it: else WF003."""
    for task in ("s", "t", "v"):
        take(conn, task)
    ask(conn, create("x", external="true"))
    ask(conn, create("u", target="g"))
    with conn.transaction(force_rollback=True):
        ask(conn, ("select durable.fence('t', 1)", ()))
        ask(conn, ("select durable.fence('t', 1)", ()))
        assert refusal(conn, AFTER_A_FENCE[name]) == "WF003"
    with conn.transaction(force_rollback=True):
        with conn.transaction(force_rollback=True):
            ask(conn, ("select durable.fence('t', 1)", ()))
        assert refusal(conn, AFTER_A_FENCE[name]) == ""
    assert refusal(conn, AFTER_A_FENCE[name]) == ""


@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
def test_locking_functions_refuse_one_snapshot(dsn: str, level: str) -> None:
    """A transaction that cannot see what it waited for is refused with WF003, whatever it asks for."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        take(conn, "t")
        ask(conn, create("x", external="true"))
        conn.isolation_level = IsolationLevel[level]
        for call in (settle("x"), create("y"), ("select durable.fence('t', 1)", ()), start("r")):
            with conn.transaction(force_rollback=True):
                assert refusal(conn, call) == "WF003"


def test_who_is_alone_is_told_the_level(dsn: str) -> None:
    """Where the default is another level: what the transaction is, what would be wrong, what to write. It has
    waited for nothing, so the sentence does not say so."""
    options = "-c default_transaction_isolation=serializable"
    with (
        psycopg.connect(dsn, autocommit=True, options=options) as conn,
        pytest.raises(psycopg.Error) as found,
    ):
        conn.execute("select durable.create_promise('y')")
    detail, hint = found.value.diag.message_primary or "", found.value.diag.message_hint or ""
    assert detail.startswith("This transaction is SERIALIZABLE: if it had to wait here")
    assert "BEGIN ISOLATION LEVEL READ COMMITTED" in hint and "default_transaction_isolation" in hint
