"""Law: names of commits move forward only, each by a compare-and-swap, and a commit freezes a scope."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.support.objects import call, dag, literal, put
from tests.support.verbs import Connection, ask

OPEN = "select version, commit_id, is_new from durable.scope_open(%s, %s, %s)"
COMMIT = "select durable.scope_commit(%s, %s, %s, %s)"
PIN = """with pin as (
    insert into durable._pins (pinned_at, version, scope, node_id, exec_id) values (1, 1, %s, %s, %s)
    returning *)
  insert into durable._pin_log (pinned_at, version, scope, node_id, exec_id)
  select pinned_at, version, scope, node_id, exec_id from pin"""


def refused(conn: Connection, text: str, *given: Any) -> str:
    """SQLSTATE of a refused statement."""
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        ask(conn, (text, given))
    return str(caught.value.sqlstate)


def version(conn: Connection, name: str) -> int:
    """Version of a name."""
    return int(ask(conn, ("select version from durable.refs where name = %s", (name,)))[0])


def pin(conn: Connection, scope: str, number: int) -> tuple[bytes, bytes]:
    """A call of a number and its exec, which the scope pins."""
    node = call(conn, literal(conn, number))
    made = put(conn, "exec", "ok", None, [node, dag(conn, literal(conn, number + 1))])
    conn.execute(PIN.encode(), (scope, node, made))
    return node, made


@pytest.fixture
def heads(conn: Connection) -> Connection:
    """A head and a scope that is open on it."""
    ask(conn, (OPEN, ("main", "head", None)))
    ask(conn, (OPEN, ("work", "index", "main")))
    return conn


def test_a_scope_is_opened_once(heads: Connection) -> None:
    """Opened again it is as it was; another base or kind is refused."""
    first = ask(heads, (OPEN, ("work", "index", "main")))
    assert first[0] == 1 and first[2] is False
    assert ask(heads, (OPEN, ("work", "index", None))) == first
    ask(heads, (OPEN, ("other", "head", None)))
    assert refused(heads, OPEN, "work", "index", "other") == "WF003"
    assert refused(heads, OPEN, "work", "head", None) == "WF004"
    assert refused(heads, OPEN, "new", "index", "nowhere") == "WF001"
    assert refused(heads, OPEN, "new", "index", "work") == "WF004"
    for name in ("", "n" * 1025, "e\u0301"):
        assert refused(heads, OPEN, name, "index", None) == "WF004"
    assert refused(heads, OPEN, "new", "exec", None) == "WF004"


def test_a_commit_freezes_the_pins(heads: Connection) -> None:
    """With a DAG under its name; the head moves to it, and so does the scope."""
    node, made = pin(heads, "work", 1)
    commit = ask(heads, (COMMIT, ("work", literal(heads, 5), "model", 1)))[0]
    (refs,) = ask(heads, ("select refs from durable._objects where id = %s", (commit,)))
    assert refs[2:] == [node, made, bytes(32)]
    (names,) = ask(heads, ("select names from durable._objects where id = %s", (refs[0],)))
    assert names == ["model"] and version(heads, "main") == version(heads, "work") == 2
    for ref in ("main", "work"):
        found = ask(heads, ("select node, exec from durable.exec_map where ref = %s", (ref,)))
        assert found == (node.hex(), made.hex())


def test_a_new_scope_has_the_exec_map_of_its_base(heads: Connection) -> None:
    """As pins of its own."""
    node, made = pin(heads, "work", 1)
    ask(heads, (COMMIT, ("work", None, None, None)))
    ask(heads, (OPEN, ("next", "index", "main")))
    assert ask(heads, ("select node_id, exec_id from durable._pins where scope = 'next'", ())) == (node, made)


def test_two_scopes_commit_on_one_head(heads: Connection) -> None:
    """The second is on top of the first, and its own exec of a node wins."""
    ask(heads, (OPEN, ("second", "index", "main")))
    node, one = pin(heads, "work", 1)
    two = put(heads, "exec", "error", None, [node, dag(heads, literal(heads, 9))])
    heads.execute(PIN.encode(), ("second", node, two))
    other, three = pin(heads, "work", 2)
    first = ask(heads, (COMMIT, ("work", literal(heads, 1), "a", None)))[0]
    second = ask(heads, (COMMIT, ("second", literal(heads, 2), "b", None)))[0]
    assert ask(heads, ("select durable._parents_of(%s)", (second,))) == ([first],)
    rows = heads.execute("select node, exec from durable._execs_of(%s)", (second,)).fetchall()
    assert rows == sorted([(node, two), (other, three)]) and one != two
    assert refused(heads, COMMIT, "work", literal(heads, 3), "a", 2) == "WF003"


def test_a_head_goes_forward_only(heads: Connection) -> None:
    """To a commit that was made from it, at the version that was read."""
    forward = "select durable.head_forward(%s, %s, %s)"
    ask(heads, (OPEN, ("free", "index", None)))
    ask(heads, (COMMIT, ("work", literal(heads, 1), "a", None)))
    base, one = version(heads, "main"), literal(heads, 7)
    stray = ask(heads, (COMMIT, ("free", one, "x", None)))[0]
    assert refused(heads, forward, "main", stray, None) == "WF003"
    (tip,) = ask(heads, ("select commit_id from durable._refs where name = 'main'", ()))
    tree = put(heads, "tree")
    better = put(heads, "commit", "", b"\0\0\0\2", [tree, stray, tip])
    assert refused(heads, forward, "main", better, base + 1) == "WF003"
    assert refused(heads, forward, "main", one, None) == "WF001"
    assert refused(heads, forward, "nowhere", better, None) == "WF001"
    assert refused(heads, forward, "work", better, None) == "WF004"
    assert ask(heads, (forward, ("main", better, base))) == (base + 1,)


def test_a_scope_is_dropped_with_its_pins(heads: Connection) -> None:
    """A head with open scopes is not."""
    pin(heads, "work", 1)
    assert refused(heads, "select durable.scope_drop('main')") == "WF003"
    assert ask(heads, ("select durable.scope_drop('work')", ())) == (True,)
    assert ask(heads, ("select durable.scope_drop('work')", ())) == (False,)
    assert ask(heads, ("select count(*) from durable._pins", ())) == (0,)
    assert ask(heads, ("select durable.scope_drop('main')", ())) == (True,)


def test_a_scope_with_running_calls_is_not_dropped(conn: Connection) -> None:
    """Its calls would be pinned nowhere."""
    ask(conn, (OPEN, ("s", "index", None)))
    begun = ask(conn, ("select durable.call_begin('s', 'dml+exec://local/x', '{}')", ()))[0]
    assert begun["at"] == "started" and refused(conn, "select durable.scope_drop('s')") == "WF003"
    ask(conn, ("select durable.call_cancel('s', %s)", (bytes.fromhex(begun["node"]),)))
    ask(conn, ("select durable.call_sweep_v1()", ()))
    assert ask(conn, ("select durable.scope_drop('s')", ())) == (True,)


@pytest.mark.parametrize(
    ("law", "hand"),
    [
        ("refs_kind_is_known", "update durable._refs set kind = 'tag' where name = 'main'"),
        ("refs_name_is_1_to_1024_bytes", "update durable._refs set name = '' where name = 'work'"),
        ("refs_version_positive", "update durable._refs set version = 0"),
        ("refs_only_an_index_has_a_base", "update durable._refs set base = 'main' where name = 'main'"),
        ("refs_base_exists", "update durable._refs set base = 'x' where name = 'work'"),
        ("refs_commit_exists", "update durable._refs set commit_id = sha256('x')"),
        (
            "closures_excision_positive",
            "insert into durable._closures (excision, is_whole, id) select 0, true, id from o",
        ),
        (
            "closures_are_of_objects",
            "insert into durable._closures (excision, is_whole, id) values (1, true, sha256('x'))",
        ),
        (
            "object_uses_are_of_objects",
            "insert into durable._object_uses (used_at, id) values (1, sha256('x'))",
        ),
    ],
)
def test_a_row_that_breaks_a_law_is_refused(heads: Connection, law: str, hand: str) -> None:
    """By the constraint of its name."""
    text = hand.replace("from o", "from durable._objects limit 1")
    with pytest.raises(psycopg.errors.IntegrityError) as caught, heads.transaction():
        heads.execute(text.encode())
    assert caught.value.diag.constraint_name == law
