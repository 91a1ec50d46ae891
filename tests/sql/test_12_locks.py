"""Law: a lock function locks what it names, in the order of ids, and knows everything that a settlement
touches.

The order itself is proved in tests/races.
"""

from __future__ import annotations

import pytest

from tests.support.verbs import (
    Connection,
    ask,
    begin_run,
    bundle,
    create,
    park,
    promise,
    run,
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
    answer = take_turn(conn, "W", bundle(parent, acts=[run(0), promise(1)]))
    take_turn(conn, "W", bundle(parent, end=suspend(0, 1), seen=answer.next_of(parent)))
    other = begin_run(conn, "o")
    (child,) = ask(conn, ("select head from durable._promises where id = 'p.0'", ()))
    heads = "select (select array_agg(h order by h) from unnest(durable._heads_of(%s, %s)) h)"
    assert ask(conn, (heads, (["p.0"], ["o"]))) == (sorted([parent.execution, child, other.execution]),)
    assert ask(conn, (heads, (["p.1"], []))) == ([parent.execution],)
    assert ask(conn, (heads, ([], []))) == (None,)
