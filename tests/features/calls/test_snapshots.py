"""Law: a snapshot freezes a scope, goes forward only, and what is published on it is pinned nowhere."""

from __future__ import annotations

import uuid

import psycopg
import pytest

from tests.features.calls.scene import Scene, refusal
from tests.support.clock import Clock
from tests.support.objects import call, dag, literal, put
from tests.support.verbs import Connection, ask

CREATE = "select ref, commit_id from durable.snapshot_create('s', %s)"
ADVANCE = "select durable.snapshot_advance(%s, %s, %s)"
ONE = b"\0\0\0\1"


@pytest.fixture
def scope(conn: Connection) -> Connection:
    """An open scope."""
    ask(conn, ("select durable.scope_open('s')", ()))
    return conn


def publish(conn: Connection, parent: bytes, *execs: bytes) -> bytes:
    """A commit on top of another, as an orchestrator makes it."""
    return put(conn, "commit", "", ONE, [put(conn, "tree"), parent, *execs])


def refused(conn: Connection, text: str, *given: object) -> str:
    """SQLSTATE of a refused statement."""
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        ask(conn, (text, given))
    return str(caught.value.sqlstate)


def test_a_snapshot_is_made_once(scope: Connection) -> None:
    """Under the name of its UUID."""
    name = uuid.UUID(int=1)
    ref, commit = ask(scope, (CREATE, (name,)))
    assert ref == f"exec/{name}" and ask(
        scope, ("select kind from durable.refs where name = %s", (ref,))
    ) == ("exec",)
    assert ask(scope, ("select durable._parents_of(%s)", (commit,)))[0]
    assert refused(scope, CREATE, name) == "WF003"
    assert refused(scope, CREATE, None) == "WF004"
    assert refused(scope, "select durable.snapshot_create('nowhere')") == "WF001"


def test_s44_a_snapshot_goes_forward_only(scope: Connection) -> None:
    """A commit that is not based on it is refused, and so is another version."""
    ref, commit = ask(scope, (CREATE, (uuid.UUID(int=1),)))
    stray = put(scope, "commit", "", bytes(4), [put(scope, "tree")])
    assert refused(scope, ADVANCE, ref, stray, None) == "WF003"
    assert refused(scope, ADVANCE, ref, publish(scope, commit), 2) == "WF003"
    assert ask(scope, (ADVANCE, (ref, publish(scope, commit), 1))) == (2,)
    assert refused(scope, ADVANCE, "s", publish(scope, commit), None) == "WF004"


def test_s45_execs_of_others_are_pinned_nowhere(scope: Connection) -> None:
    """An orchestrator that publishes an exec of its own changes no scope."""
    ref, commit = ask(scope, (CREATE, (uuid.UUID(int=1),)))
    node = call(scope, literal(scope, 1))
    made = put(scope, "exec", "ok", None, [node, dag(scope, literal(scope, 2))])
    ask(scope, (ADVANCE, (ref, publish(scope, commit, node, made, bytes(32)), 1)))
    assert ask(scope, ("select count(*) from durable._pins", ())) == (0,)
    other = call(scope, literal(scope, 7))
    with pytest.raises(psycopg.Error, match="whose exec it is not"), scope.transaction():
        publish(scope, commit, other, made, bytes(32))


def test_old_snapshots_are_pruned(scope: Connection) -> None:
    """By their age, not the scopes."""
    for number in (1, 2):
        ask(scope, (CREATE, (uuid.UUID(int=number),)))
    scope.execute("update durable._refs set created_at = 1 where name = %s", (f"exec/{uuid.UUID(int=1)}",))
    assert ask(scope, ("select durable.snapshot_prune('1 hour')", ())) == (1,)
    assert ask(scope, ("select count(*) from durable._refs", ())) == (2,)
    assert refused(scope, "select durable.snapshot_prune('-1 hour')") == "WF004"


def test_a_call_has_the_snapshot_that_it_asks_for(scene: Scene, clock: Clock) -> None:
    """Its scope as it was at the start, under the UUID of the attempt, as long as the attempt runs."""
    first = scene.begin([1])
    scene.run(7)
    scene.begin([2], request={"snapshot": True})
    (document,) = scene.lease()
    ref, commit = f"exec/{document['execution_uuid']}", document["snapshot"]["commit"]
    assert document["snapshot"] == {"ref": f"refs/{ref}", "commit": commit, "remote": "durable:"}
    frozen = scene.all("select node, exec from durable._execs_of(%s)", bytes.fromhex(commit))
    assert [node.hex() for node, _ in frozen] == [first["node"]]
    published = publish(scene.conn, bytes.fromhex(commit))
    assert scene.one(ADVANCE, ref, published, 1) == 2
    clock.advance(172_800_000)
    assert scene.one("select durable.snapshot_prune()") == 0
    assert scene.done(document) == "completed_ok"
    assert scene.one("select durable.snapshot_prune()") == 1


def test_a_call_that_asks_for_none_has_none(scene: Scene) -> None:
    """Its adapter reads objects by their ids; one that joins has what the attempt has."""
    scene.begin([1])
    scene.begin([1], scope="t", request={"snapshot": True})
    scene.begin([2], request={"snapshot": False})
    assert [each["snapshot"] for each in scene.lease()] == [None, None]
    assert scene.count("_refs where kind = 'exec'") == 0
    assert refusal(scene.conn, scene.begin, [3], request={"snapshot": 1}).startswith("WF004")
