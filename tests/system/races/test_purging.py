"""Law: a purge beside whoever starts, awaits, forks, names or reads what it removes waits for nobody and lets
nobody wait in a circle: either the run stays, or it is gone for both.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.stories import Story
from tests.support.verbs import (
    Call,
    Connection,
    Held,
    adopt,
    ask,
    begin_run,
    complete,
    continue_as_new,
    done,
    receive,
    report,
    send,
    start,
    take_turn,
    turn,
)
from tests.system.races.drama import transaction
from tests.system.races.scenes import TICK, Endings, Scene, World, nobody_fails, play_in_every_order

DAY_MS = 86_400_000
PURGE: Call = ("select p.runs, p.generations from durable.purge('30 days') p", ())


def old_run(world: World, id_: str, key: str | None = None) -> None:
    """A run that ended more than 30 days ago."""
    held = begin_run(world.conn, id_, key=key)
    take_turn(world.conn, "W", report(held, outcomes=[done(0)], end=complete(), seen=1))
    world.clock.advance(31 * DAY_MS)


def rows(world: World, id_: str) -> int:
    """How many rows tell of a run: its promise, or that it was removed."""
    here = ask(world.conn, ("select count(*) from durable._promises where id = %s", (id_,)))
    gone = ask(world.conn, ("select count(*) from durable._removed where id = %s", (id_,)))
    return int(here[0]) + int(gone[0])


def purge_never_waits(endings: Endings) -> None:
    """Whoever else waits, the purge has not, and it did not fail."""
    assert endings["purge"].won and not endings["purge"].blocked, endings


def judge_start(world: World, endings: Endings) -> None:
    """The start found the run, or was told that it is gone; there is one of it or none."""
    purge_never_waits(endings)
    assert endings["start"].errors in ([], ["WF003"]), endings
    assert rows(world, world.id) == 1
    if endings["start"].won:
        assert endings["start"].answers[0][0][0] == world.id


def start_by_id(world: World) -> Scene:
    """The same start comes again."""
    old_run(world, world.id)
    again = start(world.id, queue=f"q-{world.id}")
    return Scene(
        programs={"purge": transaction(PURGE), "start": transaction(again)},
        judge=lambda endings: judge_start(world, endings),
    )


def start_by_key(world: World) -> Scene:
    """The same start comes again with its key alone."""
    old_run(world, world.id, key=world.id)
    again = ("select durable.start('w', key => %s)", (world.id,))
    return Scene(
        programs={"purge": transaction(PURGE), "start": transaction(again)},
        judge=lambda endings: judge_start(world, endings),
    )


def adoption(world: World) -> Scene:
    """A turn adopts the run: its journal has the result and the run stays, or an error says it is gone."""
    old_run(world, world.name("old"))
    held = begin_run(world.conn, world.id)
    begins = turn("W", report(held, commands=[adopt(0, world.name("old"))]))

    def judge(endings: Endings) -> None:
        purge_never_waits(endings)
        nobody_fails(endings)
        (has_data,) = ask(
            world.conn,
            (
                "select data is not null from durable._journal "
                "where execution = %s and type = 'child_settled'",
                (held.execution,),
            ),
        )
        (gone,) = ask(
            world.conn, ("select count(*) from durable._removed where id = %s", (world.name("old"),))
        )
        assert has_data == (gone == 1)

    return Scene(programs={"purge": transaction(PURGE), "worker": transaction(begins)}, judge=judge)


def fork(world: World) -> Scene:
    """A fork is made of the whole run or refused."""
    old_run(world, world.id)
    forks = ("select durable.fork(%s, new_id => %s)", (world.id, world.name("fork")))

    def judge(endings: Endings) -> None:
        purge_never_waits(endings)
        assert endings["fork"].errors in ([], ["WF001"]), endings
        found = ask(
            world.conn,
            (
                "select count(*) from durable._journal j join durable._executions h using (execution) "
                "where h.id = %s",
                (world.name("fork"),),
            ),
        )
        assert found == (2 * endings["fork"].won,)

    return Scene(programs={"purge": transaction(PURGE), "fork": transaction(forks)}, judge=judge)


def foreign_key(world: World) -> Scene:
    """A user's row names the run: it stays, or the row is refused."""
    world.conn.execute(
        "create table if not exists public.orders (run text references durable._promises (id))"
    )
    old_run(world, world.id)
    names = ("insert into public.orders values (%s) returning run", (world.id,))

    def judge(endings: Endings) -> None:
        purge_never_waits(endings)
        assert endings["user"].errors in ([], ["23503"]), endings
        assert rows(world, world.id) == 1

    return Scene(programs={"purge": transaction(PURGE), "user": transaction(names)}, judge=judge)


def two_purges(world: World) -> Scene:
    """Two purges share what there is."""
    for part in "abc":
        old_run(world, world.name(part))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        assert not any(ending.blocked for ending in endings.values())
        assert max(ending.answers[0][0][0] for ending in endings.values()) >= 3
        assert sum(rows(world, world.name(part)) for part in "abc") == 3

    return Scene(programs={"one": transaction(PURGE), "two": transaction(PURGE)}, judge=judge)


def old_generations(world: World, id_: str) -> Held:
    """A run in its fifth generation, each of which got a signal and ended more than 30 days ago."""
    story = Story(world.conn, world.clock, id_)
    for number in range(4):
        ask(world.conn, send(id_, key=str(number)))
        story.report(commands=[receive(number)])
        story.report(end=continue_as_new(on=number + 1))
        world.clock.advance(31 * DAY_MS)
        story.again()
    assert story.held is not None
    return story.held


def generations(world: World, id_: str) -> list[int]:
    """The numbers of the generations that are left."""
    rows = world.conn.execute("select generation from durable.generations(%s)", (id_,)).fetchall()
    return [number for (number,) in rows]


def two_purges_of_generations(world: World) -> Scene:
    """Two purges share the generations of two runs."""
    for part in "ab":
        old_generations(world, world.name(part))

    def judge(endings: Endings) -> None:
        nobody_fails(endings)
        assert not any(ending.blocked for ending in endings.values())
        for part in "ab":
            assert generations(world, world.name(part)) == [4, 5]

    return Scene(programs={"one": transaction(PURGE), "two": transaction(PURGE)}, judge=judge)


def generation_at_work(world: World) -> Scene:
    """The present generation works, and continues as new."""
    held = old_generations(world, world.id)
    works = turn("W", report(held, outcomes=[done(held.first_child)], end=continue_as_new(on=9)))

    def judge(endings: Endings) -> None:
        purge_never_waits(endings)
        assert not endings["worker"].blocked
        nobody_fails(endings)
        assert generations(world, world.id) in ([4, 5, 6], [5, 6])

    return Scene(programs={"purge": transaction(PURGE), "worker": transaction(works)}, judge=judge)


def repeated_signal(world: World) -> Scene:
    """A signal that an old generation got comes again: it is known, before and after the purge."""
    old_generations(world, world.id)
    again = send(world.id, key="0")

    def judge(endings: Endings) -> None:
        purge_never_waits(endings)
        nobody_fails(endings)
        assert endings["sender"].answers[0][0][1] is False
        assert generations(world, world.id) == [4, 5]

    return Scene(programs={"purge": transaction(PURGE), "sender": transaction(again)}, judge=judge)


def end_of_a_long_run(world: World) -> Scene:
    """The run ends: its head is not touched by what its generations lose."""
    held = old_generations(world, world.id)
    ends = turn("W", report(held, end=complete()))

    def judge(endings: Endings) -> None:
        purge_never_waits(endings)
        assert not endings["worker"].blocked
        nobody_fails(endings)
        assert generations(world, world.id) == (
            [4, 5] if endings["purge"].answers[0][0][1] else [1, 2, 3, 4, 5]
        )

    return Scene(programs={"purge": transaction(PURGE), "worker": transaction(ends)}, judge=judge)


SCENES = [
    *(start_by_id, start_by_key, adoption, fork, foreign_key, two_purges),
    *(two_purges_of_generations, generation_at_work, repeated_signal, end_of_a_long_run),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_a_purge_beside(
    conn: Connection, clock: Clock, stage: Stage, scene: Callable[[World], Scene]
) -> None:
    """In every order of statements and commits the purge waits for nobody, and both tell the same."""
    play_in_every_order(conn, clock, stage, scene)


def week_of(conn: Connection) -> int:
    """The oldest journal partition."""
    return int(ask(conn, ("select min(bucket) from durable._buckets", ()))[0])


def due(conn: Connection) -> None:
    """The sweep of retention goes on at the next round."""
    conn.execute(
        "insert into durable._retention (subject) values ('runs') "
        "on conflict (subject) do update set due_at = 0"
    )


def test_a_partition_is_not_dropped_beside_a_reader(conn: Connection, clock: Clock, stage: Stage) -> None:
    """While a transaction that has read the journal is open its partitions stay and the sweep gives up by
    itself; a later one goes on."""
    ask(conn, TICK)  # opens partitions for now
    due(conn)
    week = week_of(conn)
    reader, sweep, worker = stage.player("reader"), stage.player("sweep"), stage.player("worker")
    reader.begin()
    reader.do("select count(*) from durable._journal").rows()
    assert sweep.do(*TICK).value()["removed"] == 0
    assert week_of(conn) == week
    assert not worker.do("select durable.start('w', id => 'r')").blocked
    reader.commit().rows()
    due(conn)
    assert sweep.do(*TICK).value()["more"]
    assert week_of(conn) > week


def test_a_run_moved_to_another_partition_goes_on(conn: Connection, clock: Clock, stage: Stage) -> None:
    """A run whose worker is at work is not moved; once it is, its worker finds every row of it."""
    ask(conn, ("select durable.set_setting('retention_days', '30')", ()))
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, outcomes=[done(0)], seen=1))
    (week,) = ask(conn, ("select bucket from durable._executions", ()))
    clock.advance(60 * DAY_MS)
    ask(conn, TICK)
    worker, sweep = stage.player("worker"), stage.player("sweep")
    holds = ("select from durable._tasks where id = 'r' for no key update", ())
    for held_up in (turn("W", want=1, queues=["q-r"]), holds):
        worker.begin()
        worker.do(*held_up).rows()
        for _ in range(10):
            due(conn)
            sweep.do(*TICK).rows()
        assert ask(conn, ("select array_agg(distinct bucket) from durable._journal", ())) == ([week],)
        worker.rollback().rows()
    for _ in range(20):
        due(conn)
        sweep.do(*TICK).rows()
    (now,) = ask(conn, ("select min(bucket) from durable._executions", ()))
    assert now > week
    due(conn)
    claimed = take_turn(conn, "W", want=1, queues=["q-r"]).tasks
    assert [[row[1] for row in task.rows] for task in claimed] == [["execution_started", "step_completed"]]


# what the sweep of retention waits for is bounded, in each part of it
PATIENT = {
    "_remove_ended": "waits 100 ms, and tries tree by tree",
    "_remove_generations": "waits 100 ms, and tries run by run",
    "_drop_partition": "waits 50 ms, and gives up",
    "_move_rows": "waits 100 ms, and gives up",
    "_collect": "waits 100 ms, and tries object by object",
}


@pytest.mark.parametrize("name", PATIENT)
def test_a_wait_of_retention_is_bounded(conn: Connection, name: str) -> None:
    """By a setting of the function."""
    found = "select count(*) from pg_proc where proname = %s and proconfig::text ~ 'lock_timeout=(50|100)ms'"
    assert ask(conn, (found, (name,))) == (1,)
