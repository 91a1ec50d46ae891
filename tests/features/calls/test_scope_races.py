"""Law: a scope that is dropped beside a call, a pin or a result has either all of it or nothing: no pin and
no running call is left without its scope, and the open drop stops only what concerns that scope. Retention
beside calls takes nothing that they need.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from functools import partial

import psycopg
import pytest

from tests.features.calls.scene import F, Scene
from tests.features.calls.test_call_races import Race, done, end_of, scene_of, together
from tests.support.barrier import Stage

BEGIN = "select durable.call_begin('s', 'dml+exec://fake/f', array[durable.literal(%s)]) ->> 'at'"
DROP = "select durable.scope_drop('s')"
NAMES = "abcdef"
ORPHANS = """
select (select count(*) from durable._pins p
        where not exists (select from durable._refs r where r.name = p.scope))
  + (select count(*) from durable._call_waiters w join durable._call_attempts a using (execution_key)
     where a.ended_at is null and not exists (select from durable._refs r where r.name = w.scope))"""


def sqlstate(error: BaseException | None) -> str:
    """With which a step was refused."""
    return str(error.sqlstate) if isinstance(error, psycopg.Error) else "none"


@pytest.fixture
def called(open_scene: Scene) -> Scene:
    """A shared result of the argument 1, which no scope has pinned, and literals."""
    open_scene.begin([1], scope="t")
    open_scene.run(7)
    open_scene.literal(2)
    open_scene.one("select durable.node_call('dml+exec://fake/f', array[durable.literal('2')])")
    return open_scene


def pin_by_hand(scene: Scene) -> tuple[str, tuple[object, ...]]:
    """A pin of an execution that there is."""
    node, made = scene.all("select node_id, exec_id from durable._pins where scope = 't'")[0]
    return "select durable.pin_set('s', %s, %s)", (node, made)


WRITES = {
    "start": lambda scene: (BEGIN, ("2",)),
    "shared_hit": lambda scene: (BEGIN, ("1",)),
    "pin_set": pin_by_hand,
    "builtin": lambda scene: (
        "select durable.builtin('list/construct', array[durable.literal('1')], 's')",
        (),
    ),
    "call": lambda scene: ("select durable.call('dml+exec://fake/f', '[1]', 's')", ()),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_drop_comes_after_what_is_written(called: Scene, dsn: str, write: str) -> None:
    """It waits for the commit, and sees it: a running call keeps the scope, pins go with it."""
    with Stage(dsn) as stage:
        caller, dropper = stage.player("caller"), stage.player("dropper")
        caller.begin()
        caller.do(*WRITES[write](called)).rows()
        drop = dropper.do(DROP)
        assert drop.blocked
        caller.commit().rows()
        assert sqlstate(drop.error) == ("WF003" if write == "start" else "none")
    assert called.one(ORPHANS) == 0


@pytest.mark.parametrize("write", WRITES)
def test_what_is_written_comes_after_a_drop(called: Scene, dsn: str, write: str) -> None:
    """It waits for the commit and is refused, and leaves nothing; other scopes go on meanwhile."""
    statement = WRITES[write](called)
    with Stage(dsn) as stage:
        caller, dropper = stage.player("caller"), stage.player("dropper")
        dropper.begin()
        assert dropper.do(DROP).value() is True
        written = caller.do(*statement)
        assert written.blocked
        assert called.begin([1], scope="u")["at"] == "shared_hit"
        dropper.commit().rows()
        assert sqlstate(written.error) == "WF001"
    assert called.one(ORPHANS) == 0 and called.count("_call_attempts") == 1


def test_a_scope_that_is_held_makes_an_integration_busy(dsn: str, open_scene: Scene) -> None:
    """The worker does not wait; the result is stored, and pinned when the scope is free."""
    open_scene.begin([1])
    (document,) = open_scene.lease()
    with psycopg.connect(dsn) as user, scene_of(dsn) as mine:
        user.execute("select from durable._refs where name = 's' for update")
        begun = time.monotonic()
        assert mine.done(document) == "integrate_ok"
        assert mine.integrate(document) == "busy"
        assert time.monotonic() - begun < 1
        user.commit()
    assert open_scene.integrate(document) == "completed_ok"


def test_scopes_come_and_go(dsn: str, open_scene: Scene, seed: int, race_s: float) -> None:
    """Six sessions: four call and force calls in six scopes, one works, one drops and opens the scopes."""
    met: set[str] = set()
    wanted = {"started", "pinned_hit", "shared_hit", "dropped True"}
    race = Race(race_s, lambda: wanted <= met)

    def attempt(scene: Scene, chance: random.Random, step: str) -> None:
        try:
            forced = {"cache": "force", "step_id": step} if chance.random() < 0.05 else {}
            met.add(scene.begin([chance.randrange(3)], scope=chance.choice(NAMES), **forced)["at"])
        except psycopg.Error as error:
            met.add(sqlstate(error))

    def caller(number: int) -> None:
        chance = random.Random(seed + number)
        with scene_of(dsn) as scene:
            while race.goes_on():
                attempt(scene, chance, f"{number}.{chance.random()}")

    def worker() -> None:
        with scene_of(dsn) as scene:
            while race.goes_on():
                for document in scene.lease():
                    end_of(scene, document, done(scene, document))

    def dropper() -> None:
        chance = random.Random(seed)
        with scene_of(dsn) as scene:
            while race.goes_on():
                name = chance.choice(NAMES)
                try:
                    met.add(f"dropped {scene.one('select durable.scope_drop(%s)', name)}")
                except psycopg.Error as error:
                    met.add(sqlstate(error))
                scene.scope(name)

    open_scene.scope(*NAMES)
    callers = [lambda number=number: caller(number) for number in range(4)]  # type: ignore[misc]
    together(*callers, worker, dropper)
    # a scope is gone, has a running call, or is held for a second
    assert wanted <= met <= wanted | {"joined", "WF001", "WF003", "55P03"}, f"seed {seed}: {met}"
    assert open_scene.one(ORPHANS) == 0


def test_calls_beside_retention(dsn: str, open_scene: Scene, seed: int, race_s: float) -> None:
    """Six sessions: three call, force, cancel and invalidate the same few calls, one works, two purge all
    that has ended and forget that it was removed. Each call has an answer, and afterwards nothing is left.
    """
    open_scene.one("select durable.set_setting('removed_ids_days', '0')")
    met: set[str] = set()
    removed: list[int] = []
    wanted = {"started", "joined", "pinned_hit"}
    race = Race(race_s, lambda: wanted <= met and sum(removed) > 20)

    def caller(number: int) -> None:
        chance = random.Random(seed + number)
        with scene_of(dsn) as scene:
            while race.goes_on():
                value, dice = chance.randrange(3), chance.random()
                forced = {"cache": "force", "step_id": f"{number}.{dice}"} if dice < 0.4 else {}
                answer = scene.begin([value], scope="stu"[number], **forced)
                met.add(answer["at"])
                if dice < 0.2:
                    scene.one(
                        "select durable.call_cancel(%s, %s)", "stu"[number], bytes.fromhex(answer["node"])
                    )
                elif dice < 0.5:
                    scene.one("select durable.call_invalidate(function => %s)", F)
                elif answer["at"] == "started":  # again, before the worker is done with it
                    met.add(scene.begin([value], scope="stu"[number])["at"])

    def worker() -> None:
        with scene_of(dsn) as scene:
            while race.goes_on():
                for document in scene.lease():
                    with suppress(psycopg.Error):  # cancelled meanwhile
                        end_of(scene, document, done(scene, document))

    def purger() -> None:
        with scene_of(dsn) as scene:
            while race.goes_on():
                removed.append(purge_all(scene))

    callers = [lambda number=number: caller(number) for number in range(3)]  # type: ignore[misc]
    together(*callers, worker, purger, purger)
    assert wanted <= met, f"seed {seed}: {met}"
    assert sum(removed) > 20, f"seed {seed}: {removed}"
    for document in open_scene.lease():
        end_of(open_scene, document, done(open_scene, document))
    open_scene.one("select durable.call_invalidate(function => %s)", F)
    for name in "stu":
        open_scene.one("select durable.scope_drop(%s)", name)
    for _ in range(4):
        purge_all(open_scene)
    assert [open_scene.count(f"_call{name}") for name in ("s", "_attempts", "_waiters", "_steps")] == [0] * 4


def test_commits_of_one_head_have_no_deadlock(dsn: str, open_scene: Scene, race_s: float) -> None:
    """Eight sessions commit the same roots, so the same new objects, in eight scopes on one head. A commit
    that finds the head moved puts other objects, and holds no lock meanwhile that another one waits for.
    """
    open_scene.one("select version from durable.scope_open('main', 'head')")
    committed: list[bytes] = []
    race = Race(race_s, lambda: len(committed) > 20)

    def committer(number: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            scene = Scene(conn)
            scene.one("select version from durable.scope_open(%s, base => 'main')", f"work-{number}")
            while race.goes_on():
                with suppress(psycopg.errors.LockNotAvailable):  # on a slow machine: others wait for the head
                    root = scene.literal(int(time.monotonic() * 20))
                    commit = scene.one("select durable.scope_commit(%s, %s, 'm')", f"work-{number}", root)
                    committed.append(bytes(commit))

    together(*(partial(committer, number) for number in range(8)))
    assert len(set(committed)) == len(committed) > 20
    assert open_scene.one("select version from durable._refs where name = 'main'") == 1 + len(committed)
    assert open_scene.one("select deadlocks from pg_stat_database where datname = current_database()") == 0


def purge_all(scene: Scene) -> int:
    """Purge promises and calls, and forget the ids; how many rows of calls went."""
    scene.one("select count(*) from durable.purge('0')")
    scene.one("select durable._forget_removed(durable._now_ms() + 1, 1000)")
    return int(scene.one("select removed from durable.calls_purge('0', 100000)"))


def test_a_history_loses_its_beginning_only(dsn: str, open_scene: Scene) -> None:
    """An old entry that somebody has locked keeps those behind it, so the rest is a chain."""
    open_scene.begin([1])
    open_scene.run(0)
    for number in range(1, 4):
        open_scene.begin([1], cache="force", step_id=f"x{number}")
        open_scene.run(number)
    time.sleep(0.01)
    with psycopg.connect(dsn) as user:
        user.execute("select from durable._pin_log where version = 2 for update")
        open_scene.one("select removed from durable.calls_purge('0')")
        versions = "select version from durable._pin_log order by id"
        assert [row[0] for row in open_scene.all(versions)] == [2, 3, 4]
        assert open_scene.all("select * from durable.check()") == []
        user.commit()
    open_scene.one("select removed from durable.calls_purge('0')")
    assert [row[0] for row in open_scene.all(versions)] == [4]
