"""Law: starts by id and by key that meet, one by one or many at once, make each run once, and nobody locks in
a circle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.verbs import Call, Connection, ask, refusal, start
from tests.system.races.drama import transaction
from tests.system.races.scenes import Endings, Scene, World, nobody_fails, play_in_every_order


def many(*ids: str, keys: list[str] | None = None) -> Call:
    """Start a run for each of these ids."""
    args = ["[]"] * len(keys or ids)
    return (
        "select array_agg(array[id, created::text]) "
        "from durable.start_many('w', %s::jsonb[], ids => %s, keys => %s)",
        (args, list(ids) or None, keys),
    )


def created(endings: Endings, name: str) -> set[str]:
    """Ids that a session's call has made."""
    (answer,) = endings[name].answers
    return {id_ for id_, made in answer[0][0] if made == "true"}


def made_once(world: World, endings: Endings, ids: set[str]) -> None:
    """Every id was made, by one of the sessions."""
    nobody_fails(endings)
    sets = [created(endings, name) for name in endings]
    assert set().union(*sets) == ids
    assert sum(map(len, sets)) == len(ids)
    assert ask(world.conn, ("select count(*) from durable._tasks where id = any (%s)", (sorted(ids),))) == (
        len(ids),
    )


def ids_in_opposite_order(world: World) -> Scene:
    """Two calls with the same ids, listed the other way round, start each run once."""
    ids = [world.name(part) for part in "abcd"]
    return Scene(
        programs={
            "one": transaction(many(*ids[:3])),
            "two": transaction(many(*reversed(ids[1:]))),
        },
        judge=lambda endings: made_once(world, endings, set(ids)),
    )


def ids_with_numbers(world: World) -> Scene:
    """Ids that look like children of others are locked below their ancestors in the same order."""
    ids = [world.name(part) for part in ("a.1", "b.1", "c", "d.7.1")]
    return Scene(
        programs={
            "one": transaction(many(*ids)),
            "two": transaction(many(*reversed(ids))),
        },
        judge=lambda endings: made_once(world, endings, set(ids)),
    )


def keys_in_opposite_order(world: World) -> Scene:
    """The same with keys: one call names the runs, the other finds them."""
    keys = [world.name(part) for part in "abc"]
    row = ask(
        world.conn, ("select array_agg(durable._root_id('', 'w', k)) from unnest(%s::text[]) k", (keys,))
    )
    return Scene(
        programs={
            "one": transaction(many(keys=keys)),
            "two": transaction(many(keys=list(reversed(keys)))),
        },
        judge=lambda endings: made_once(world, endings, set(row[0])),
    )


def many_against_one(world: World) -> Scene:
    """A single start of a run that is among many is that run."""
    ids = [world.name(part) for part in "ab"]

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        assert endings["one"].answer() == ids[1]
        assert ask(world.conn, ("select count(*) from durable._tasks where id = any (%s)", (ids,))) == (2,)

    return Scene(
        programs={"many": transaction(many(*ids)), "one": transaction(start(ids[1]))},
        judge=judge,
    )


def many_against_a_promise(world: World) -> Scene:
    """Of a promise below one of the ids, or in its place, and the runs only the first is made."""
    ids = [world.name(part) for part in "ab"]

    def judge(endings: Endings) -> None:
        won = [name for name in endings if endings[name].won]
        if endings["below"].won:
            assert endings["many"].errors == ["WF004"], won
        else:
            assert endings["below"].errors == ["WF004"], won

    return Scene(
        programs={
            "many": transaction(many(*ids)),
            "below": transaction(("select durable.create_promise(%s)", (f"{ids[0]}.5",))),
        },
        judge=judge,
    )


def one_against_a_promise(world: World) -> Scene:
    """Of a single run and a promise below its id only the first is made."""
    id_ = world.name("a")

    def judge(endings: Endings) -> None:
        loser = "one" if endings["below"].won else "below"
        assert endings[loser].errors == ["WF004"], [name for name in endings if endings[name].won]

    return Scene(
        programs={
            "one": transaction(start(id_)),
            "below": transaction(("select durable.create_promise(%s)", (f"{id_}.5",))),
        },
        judge=judge,
    )


def one_key_with_two_ids(world: World) -> Scene:
    """Two single starts with one key and different ids make one run; the other hears whose key it is."""
    ids, key = [world.name(part) for part in "ab"], world.name("k")

    def judge(endings: Endings) -> None:
        assert sorted(endings[name].won for name in endings) == [False, True]
        assert [endings[name].errors for name in endings if not endings[name].won] == [["WF009"]]
        assert ask(world.conn, ("select count(*) from durable._tasks where id = any (%s)", (ids,))) == (1,)

    return Scene(
        programs={
            name: transaction(start(id_, key=key)) for name, id_ in zip(("one", "two"), ids, strict=True)
        },
        judge=judge,
    )


def a_rollback_gives_way(world: World) -> Scene:
    """What waited for a start that is undone makes the run itself."""
    ids = [world.name(part) for part in "ab"]

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        assert created(endings, "two") == set(ids)

    undone: list[Any] = ["begin", many(*ids), "rollback"]
    return Scene(programs={"one": undone, "two": transaction(many(*reversed(ids)))}, judge=judge)


def one_key_among_many(world: World) -> Scene:
    """A single start with a key that is among many is that run, or WF009 if it wants another id."""
    ids, keys = [world.name(part) for part in "ab"], [world.name(part) for part in "kl"]

    def judge(endings: Endings) -> None:
        runs = ask(world.conn, ("select count(*) from durable._executions where key = any (%s)", (keys,)))
        assert runs == (2 if endings["many"].won else 1,)
        if endings["many"].won:
            assert endings["one"].answer() == ids[1]
        else:
            assert endings["many"].errors == ["WF009"]

    return Scene(
        programs={
            "many": transaction(many(*ids, keys=keys)),
            "one": transaction(("select durable.start('w', key => %s)", (keys[1],))),
        },
        judge=judge,
    )


def keys_and_ids_in_opposite_order(world: World) -> Scene:
    """Two calls with the same keys the other way round and ids of their own: one makes all."""
    ids, keys = [world.name(part) for part in "abcd"], [world.name(part) for part in "kl"]

    def judge(endings: Endings) -> None:
        assert sorted(endings[name].won for name in endings) == [False, True]
        assert [endings[name].errors for name in endings if not endings[name].won] == [["WF009"]]
        assert ask(world.conn, ("select count(*) from durable._tasks where id = any (%s)", (ids,))) == (2,)

    return Scene(
        programs={
            "one": transaction(many(*ids[:2], keys=keys)),
            "two": transaction(many(*ids[2:], keys=keys[::-1])),
        },
        judge=judge,
    )


MOST = (
    "create or replace function durable._most_names() returns integer language sql immutable parallel safe "
    "as 'select {}'"
)
"""How many names of one call are locked one by one."""
BELOW: list[Callable[[World], Scene]] = [ids_with_numbers, many_against_a_promise]
SCENES: list[Callable[[World], Scene]] = [
    ids_in_opposite_order,
    ids_with_numbers,
    keys_in_opposite_order,
    many_against_one,
    many_against_a_promise,
    one_against_a_promise,
    one_key_with_two_ids,
    a_rollback_gives_way,
    one_key_among_many,
    keys_and_ids_in_opposite_order,
]


# one lock for all names of a kind: by default where ids, keys, or one start among many meet
BY_DEFAULT = [ids_in_opposite_order, keys_in_opposite_order, many_against_one, keys_and_ids_in_opposite_order]
CASES = [
    *((scene, 1000) for scene in SCENES),
    *(
        pytest.param(scene, 1, marks=[] if scene in BY_DEFAULT else [pytest.mark.full])
        for scene in SCENES
        # there very many do not wait: test_promises_below_an_id_exclude_very_large_starts
        if scene not in BELOW
    ),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize(("scene", "most"), CASES)
def test_in_every_order(
    conn: Connection, clock: Clock, stage: Stage, scene: Callable[[World], Scene], most: int
) -> None:
    """Every order of the sessions' statements and commits ends well; the scene's docstring is the law. So it
    does where a call has more names than are locked one by one."""
    conn.execute(MOST.format(most).encode())
    play_in_every_order(conn, clock, stage, scene)


@pytest.mark.parametrize("kind", ["ids", "keys"])
def test_locks_have_one_order(conn: Connection, stage: Stage, kind: str) -> None:
    """Two calls that list the same names the other way round lock them in the same order: while a third one
    holds the middle one, neither holds what the other needs."""
    order = "select n::text from generate_series(1, 9) n order by hashtext(%s || n) limit 3"
    names = [name for (name,) in conn.execute(order, ("" if kind == "ids" else "/w/",)).fetchall()]
    holder, one, two = (stage.player(name) for name in ("holder", "one", "two"))

    def call(names: list[str]) -> Call:
        return many(*names) if kind == "ids" else many(keys=names)

    for player in (holder, one, two):
        player.begin()
    assert not holder.do(*call(names[1:2])).blocked
    first, second = one.do(*call(names)), two.do(*call(names[::-1]))
    assert first.blocked and second.blocked
    holder.rollback()
    assert len(first.value()) == 3
    one.commit()
    assert len(second.value()) == 3
    two.commit()
    assert ask(conn, ("select count(*) from durable._tasks", ())) == (3,)


IDS = [f"r{n}" for n in range(1500)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("held", [{}, {"key": "k"}])
def test_more_ids_than_named_locks_block_no_other_start(
    conn: Connection, stage: Stage, held: dict[str, str]
) -> None:
    """While one start is not committed, a call with more ids than are locked by name is done, and so are
    those after it, by id, by key and with neither; the same id waits for its own run."""
    one, two, three = (stage.player(name) for name in ("one", "two", "three"))
    one.begin()
    assert not one.do(*start("early", **held)).blocked
    two.begin()
    big = two.do(*many(*IDS))
    assert (big.blocked, len(big.value())) == (False, 1500)
    for call in (start("unrelated"), start("other", key="other"), ("select durable.start('w')", ())):
        assert refusal(conn, call) == ""
    other = three.do(*many(*(f"s{n}" for n in range(1500)), keys=[f"k{n}" for n in range(1500)]))
    assert (other.blocked, len(other.value())) == (False, 1500)
    waiting = three.do(*start("r7"))
    assert waiting.blocked
    two.commit()
    assert waiting.value() == "r7"
    one.commit()
    assert ask(conn, ("select count(*) from durable._tasks where id ~ '^[rs]'", ())) == (3000,)


def test_promises_below_an_id_exclude_very_large_starts(conn: Connection, stage: Stage) -> None:
    """Who makes a promise below an id that is not there keeps very many out until he commits, and they keep
    him out; below an id that is there he passes."""
    one, two = stage.player("one"), stage.player("two")
    ask(conn, ("select durable.create_promise('there')", ()))
    one.begin()
    assert not one.do("select durable.create_promise('r7.1')").blocked
    busy = two.do(*many(*IDS))
    assert isinstance(busy.error, psycopg.errors.LockNotAvailable)
    assert refusal(conn, start("r8")) == ""
    one.rollback()
    two.begin()
    assert len(two.do(*many(*IDS)).value()) == 1500
    assert refusal(conn, ("select durable.create_promise('there.1')", ())) == ""
    one.begin()
    waiting = one.do("select durable.create_promise('r7.1')")
    assert waiting.blocked
    two.commit()
    assert isinstance(waiting.error, psycopg.Error) and waiting.error.sqlstate == "WF004"
    one.rollback()


def test_very_many_below_others(conn: Connection) -> None:
    """Ids that lie below more than a thousand others are refused; below one they are started."""
    assert refusal(conn, many(*(f"{id_}.1" for id_ in IDS))) == "WF004"
    assert refusal(conn, many(*(f"order.{number}" for number in range(1500)))) == ""
