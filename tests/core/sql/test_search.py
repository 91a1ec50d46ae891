"""Law: a page holds what its filter says as of one instant, in the order of ids."""

from __future__ import annotations

import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    Call,
    Connection,
    ask,
    create,
    refusal,
    settle,
)


def search(**arguments: object) -> Call:
    """promise.search, as a list of ids."""
    named = ", ".join(f"p_{name} => %s" for name in arguments)
    return f"select array(select id from durable.promise_search({named}))", tuple(arguments.values())


def test_search(conn: Connection, clock: Clock) -> None:
    """By projected state, by tags, by prefix, in the order of ids, page after page; what is found past its
    deadline is settled before it is told."""
    for name in ("a.1", "a.2", "b"):
        ask(conn, create(name, external="true"))
    ask(conn, create("a.due", clock.now_ms + 10))
    ask(conn, create("timer", clock.now_ms + 10, timer="true"))
    ask(conn, settle("b"))
    assert ask(conn, search()) == (["a.1", "a.2", "a.due", "b", "timer"],)
    assert ask(conn, search(state="pending")) == (["a.1", "a.2", "a.due", "timer"],)
    clock.advance(10)
    assert ask(conn, search(state="pending")) == (["a.1", "a.2"],)
    assert ask(conn, search(state="resolved")) == (["b", "timer"],)
    assert ask(conn, search(state="rejected_timedout")) == (["a.due"],)
    stored = conn.execute("select id from durable._promises where state = 'pending' order by id").fetchall()
    assert stored == [("a.1",), ("a.2",)]
    assert ask(conn, search(prefix="a.")) == (["a.1", "a.2", "a.due"],)
    assert ask(conn, search(limit=2)) == (["a.1", "a.2"],)
    assert ask(conn, search(limit=2, cursor="a.2")) == (["a.due", "b"],)
    assert ask(conn, search(cursor="zzz")) == ([],)
    tags = '{"resonate:external": "true"}'
    assert ask(conn, search(tags=tags, cursor="a.1")) == (["a.2", "b"],)
    assert ask(conn, search(tags=tags, state="pending", prefix="a.", limit=1)) == (["a.1"],)


@pytest.mark.parametrize("wrong", [{"state": "done"}, {"limit": 0}, {"limit": 1001}, {"limit": None}])
def test_search_refuses_what_is_malformed(conn: Connection, wrong: dict[str, object]) -> None:
    """A state that is none, or a page size out of 1 to 1000, is WF004."""
    assert refusal(conn, search(**wrong)) == "WF004"


def test_preload(conn: Connection, clock: Clock) -> None:
    """The other promises of the same branch in the order of ids, as they are now; nothing without the tag."""
    preload = "select array(select id || ' ' || state from durable.promise_preload(%s))"
    for name, branch in (("r", "r"), ("r.b", "r"), ("r.a", "r"), ("other", "other")):
        ask(conn, create(name, clock.now_ms + (10 if name == "r.b" else 900), branch=branch))
    ask(conn, create("plain"))
    clock.advance(10)
    assert ask(conn, (preload, ("r",))) == (["r.a pending", "r.b rejected_timedout"],)
    assert ask(conn, (preload, ("plain",))) == ([],)
    assert ask(conn, (preload, ("none",))) == ([],)


def test_pages_of_what_is_pending(conn: Connection, clock: Clock) -> None:
    """Pages of pending promises leave none out and tell none twice: with and without a task in one order,
    without what is settled or past its deadline."""
    for name in "cafe":
        ask(conn, create(f"{name}.plain", external="true"))
        ask(conn, create(f"{name}.task", target="g"))
        ask(conn, create(f"{name}.over"))
        ask(conn, settle(f"{name}.over"))
        ask(conn, create(f"{name}.late", clock.now_ms + 5, target="g"))
    clock.advance(5)
    found: list[str] = []
    while page := ask(conn, search(state="pending", limit=3, cursor=found[-1] if found else ""))[0]:
        found += page
    assert found == [f"{name}.{kind}" for name in "acef" for kind in ("plain", "task")]
    assert ask(conn, search(state="pending", prefix="c"))[0] == ["c.plain", "c.task"]


def test_a_preload_is_bounded(conn: Connection) -> None:
    """At most 1000 promises and 8 MiB of payloads: a worker asks for the rest."""
    conn.execute(
        "insert into durable._promises (id, timeout_at, created_at, param_data, tags) "
        "select c || '.' || n, 9007199254740991, 1, case c when 'b' then repeat('x', 3000000) end, "
        """jsonb_build_object('resonate:branch', c) """
        "from unnest(array['a', 'b']) c, generate_series(1, case c when 'a' then 1200 else 4 end) n"
    )
    preload = "select count(*) from durable.promise_preload(%s)"
    assert ask(conn, (preload, ("a.1",))) == (1000,)
    assert ask(conn, (preload, ("b.1",))) == (2,)
