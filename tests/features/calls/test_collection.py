"""Law: collection removes what nothing refers to and what is old, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable

import psycopg
import pytest

from tests.features.calls.scene import Scene
from tests.support.clock import Clock
from tests.support.objects import call, dag, i64, literal, put
from tests.support.verbs import Connection, ask

DAY = 86_400_000
COLLECT = "select removed, examined, more from durable.objects_collect(%s, %s, %s::jsonb)"
OPEN = "select commit_id from durable.scope_open('s')"


def collect(conn: Connection, most: int = 1000) -> int:
    """Number of objects that one collection removes."""
    removed, _, more = ask(conn, (COLLECT, ("1 day", most, None)))
    while more is not None:
        part, _, more = ask(conn, (COLLECT, ("1 day", most, json.dumps(more))))
        removed += part
    return int(removed)


def there(conn: Connection, id_: bytes) -> bool:
    """Whether an object is stored."""
    return ask(conn, ("select exists (select from durable._objects where id = %s)", (id_,))) == (True,)


@pytest.mark.parametrize("most", [1, 3, 1000])
def test_old_objects_without_a_reference_go(conn: Connection, clock: Clock, most: int) -> None:
    """With all that only they referred to, in portions of any size."""
    dag(conn, call(conn, literal(conn, 1)), a=literal(conn, 2))
    assert collect(conn, most) == 0
    clock.advance(DAY + 1)
    assert collect(conn, most) == 7
    assert ask(conn, ("select count(*) from durable._objects", ())) == (0,)


def test_a_shared_part_stays(conn: Connection, clock: Clock) -> None:
    """As long as something refers to it."""
    old = dag(conn, literal(conn, 1))
    clock.advance(DAY + 1)
    young = dag(conn, literal(conn, 2), a=literal(conn, 1))
    assert collect(conn) == 1 and not there(conn, old) and there(conn, young)
    assert there(conn, i64(conn, 1))


def test_s43_a_put_of_an_old_object_keeps_it(conn: Connection, clock: Clock) -> None:
    """An adapter publishes what is there already, and it is referred to later only."""
    made = dag(conn, literal(conn, 1))
    clock.advance(2 * DAY)
    assert dag(conn, literal(conn, 1)) == made
    assert collect(conn) == 0
    clock.advance(DAY + 1)
    assert collect(conn) == 3


def pinned(conn: Connection, node: bytes, made: bytes) -> None:
    """A scope pins an exec."""
    ask(conn, (OPEN, ()))
    conn.execute(
        "insert into durable._pins (pinned_at, version, scope, node_id, exec_id) values (1, 1, 's', %s, %s)",
        (node, made),
    )
    conn.execute(
        "insert into durable._pin_log (pinned_at, version, scope, node_id, exec_id)"
        " values (1, 1, 's', %s, %s)",
        (node, made),
    )


def committed(conn: Connection, node: bytes, made: bytes) -> None:
    """A head has a commit with an exec."""
    pinned(conn, node, made)
    ask(conn, ("select durable.scope_commit('s')", ()))
    conn.execute("delete from durable._pins")
    conn.execute("delete from durable._pin_log")


def stepped(conn: Connection, node: bytes, made: bytes) -> None:
    """A step had the exec as a hit."""
    conn.execute(
        "insert into durable._call_steps (created_at, step_id, scope, node_id, exec_id)"
        " values (1, 'r.0', 's', %s, %s)",
        (node, made),
    )


def named_by_a_user(conn: Connection, node: bytes, made: bytes) -> None:
    """A table of the user's refers to it."""
    conn.execute("create table public.results (exec bytea references durable._objects (id))")
    conn.execute("insert into public.results values (%s)", (made,))


@pytest.mark.parametrize("keep", [pinned, committed, stepped, named_by_a_user])
def test_references_from_outside_keep(
    conn: Connection, clock: Clock, keep: Callable[[Connection, bytes, bytes], None]
) -> None:
    """With all that they reach."""
    node = call(conn, literal(conn, 1))
    made = put(conn, "exec", "ok", None, [node, dag(conn, literal(conn, 2))])
    stray = literal(conn, 3)
    keep(conn, node, made)
    clock.advance(DAY + 1)
    collect(conn)
    assert (
        there(conn, made)
        and there(conn, i64(conn, 1))
        and there(conn, i64(conn, 2))
        and not there(conn, stray)
    )
    assert ask(conn, ("select durable.closure_status(%s)", (made,))) == ("ok",)


def test_an_exec_stays_with_its_node(conn: Connection, clock: Clock) -> None:
    """As long as a DAG has the node: people can see what it has given."""
    node = call(conn, literal(conn, 1))
    made = put(conn, "exec", "ok", None, [node, dag(conn, literal(conn, 2))])
    top = put(conn, "tree", "", None, [dag(conn, node)], names=["a"])
    commit = put(conn, "commit", "", bytes(4), [top])
    conn.execute(
        "insert into durable._refs (created_at, commit_id, name, kind) values (1, %s, 'main', 'head')",
        (commit,),
    )
    clock.advance(DAY + 1)
    assert collect(conn) == 0
    conn.execute("delete from durable._refs")
    assert collect(conn) == 11 and not there(conn, made)


def test_tombstones_stay(conn: Connection, clock: Clock) -> None:
    """Or the id could be stored again."""
    datum = i64(conn, 1)
    ask(conn, ("select durable.object_excise(%s, 'r')", (datum,)))
    clock.advance(DAY + 1)
    assert collect(conn) == 0 and there(conn, datum)


@pytest.mark.parametrize(
    "given", [("59 minutes", 1, None), (None, 1, None), ("1 day", 0, None), ("1 day", 1, '{"x": 1}')]
)
def test_a_wrong_request_is_refused(conn: Connection, given: tuple[object, ...]) -> None:
    """An age below one hour could take what is being used."""
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        ask(conn, (COLLECT, given))
    assert caught.value.sqlstate == "WF004"


@pytest.mark.parametrize("days", [0, 1])
def test_shared_results_stay_for_a_time(conn: Connection, clock: Clock, days: int) -> None:
    """For ever by default. After the setting they go, and the same call is a miss that runs again."""
    scene = Scene(conn)
    ask(conn, ("select durable.set_setting('call_results_days', %s)", (str(days),)))
    scene.scope("s", "t")
    first = scene.begin()
    assert scene.run() == ["completed_ok"]
    ask(conn, ("select durable.scope_drop('s')", ()))
    clock.advance(2 * DAY)
    collect(conn)
    again = scene.begin(scope="t")
    assert again["at"] == ("started" if days else "shared_hit")
    assert again["node"] == first["node"]
    if days:
        assert scene.run() == ["completed_ok"]


def test_a_live_call_keeps_its_node(conn: Connection, clock: Clock) -> None:
    """However long it runs; and the outcome that an adapter named, until it is pinned."""
    scene = Scene(conn)
    scene.scope("s")
    begun = scene.begin(["x"], timeout="90 days")
    for _ in range(3):
        for each in scene.lease():
            scene.pending(each)
        clock.advance(2 * DAY)
        collect(conn)
    assert there(conn, bytes.fromhex(begun["node"]))
    assert scene.run() == ["completed_ok"] and scene.begin(["x"])["at"] == "pinned_hit"
