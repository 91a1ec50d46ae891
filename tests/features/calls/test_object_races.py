"""Law: collection beside reuse leaves no reference that dangles and meets no deadlock, and a transaction that
a user leaves open stops nobody whom it does not concern.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.features.calls.scene import Scene
from tests.support.clock import Clock
from tests.support.objects import closure, dag, i64, literal, put
from tests.support.verbs import Connection, ask

WRITERS, COLLECTORS, DAGS = 5, 3, 12
HOUR = 3_600_000


@pytest.fixture
def frozen(standing_clock: None, dsn: str, direct: str) -> Iterator[Clock]:
    """The clock of the test's own database, standing still until the test moves it."""
    clock = Clock(direct)
    yield clock
    clock.close()


@contextmanager
def session(dsn: str, *, lock_timeout: str = "1s") -> Iterator[Connection]:
    """A session as workers have it: it waits for a lock for one second at most."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(f"set lock_timeout = '{lock_timeout}'".encode())
        yield conn


def write(conn: Connection, chance: random.Random, head: str) -> None:
    """In one transaction: put a DAG of a few, which may be there, and name its commit, or drop the name."""
    number = chance.randrange(DAGS)
    with conn.transaction():
        made = dag(conn, literal(conn, number), a=literal(conn, number + 1))
        tree = put(conn, "tree", "", None, [made], names=["a"])
        commit = put(conn, "commit", "", bytes(4), [tree])
        conn.execute("delete from durable._refs where name = %s", (head,))
        if chance.random() < 0.6:
            conn.execute(
                "insert into durable._refs (created_at, commit_id, name, kind) values (1, %s, %s, 'head')",
                (commit, head),
            )


def in_threads(works: list[Callable[[], None]]) -> None:
    """Run all of these at once; raise what one of them raised."""
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@pytest.mark.parametrize("rounds", [40, pytest.param(120, marks=pytest.mark.full)])
def test_collection_beside_reuse(dsn: str, direct: str, frozen: Clock, seed: int, rounds: int) -> None:
    """Eight connections: five put and name the same few DAGs, three collect, and time flies. Afterwards every
    ref of every object is there, durable.check() is empty and no deadlock was counted.
    """
    running = threading.Event()
    running.set()
    removed: list[int] = []
    busy: list[int] = []

    def writer(number: int) -> None:
        chance = random.Random(seed + number)
        with session(direct, lock_timeout="10s") as conn:
            for _ in range(rounds):
                try:
                    write(conn, chance, f"head-{number}")
                except psycopg.errors.LockNotAvailable:
                    busy.append(number)

    def collector() -> None:
        with session(direct) as conn:
            while running.is_set():
                removed.append(ask(conn, ("select removed from durable.objects_collect('1 hour')", ()))[0])

    def passing() -> None:
        while running.is_set():
            frozen.advance(2 * HOUR)

    def writers() -> None:
        try:
            in_threads([lambda number=number: writer(number) for number in range(WRITERS)])  # type: ignore[misc]
        finally:
            running.clear()

    in_threads([writers, passing, *[collector] * COLLECTORS])
    assert sum(removed) > 0, f"seed {seed}: nothing was collected beside the puts"
    with session(direct) as conn:
        assert len(busy) < WRITERS * rounds / 10, f"seed {seed}: {len(busy)} puts were busy"
        for name, commit in conn.execute("select name, commit_id from durable._refs").fetchall():
            assert closure(conn, commit) == "ok", f"seed {seed}: {name}"


@pytest.mark.parametrize("rounds", [5, pytest.param(15, marks=pytest.mark.full)])
def test_collection_beside_shared_hits(dsn: str, direct: str, frozen: Clock, seed: int, rounds: int) -> None:
    """Eight connections, some rounds: results that nobody has pinned any more are old enough to go; five
    sessions call again while three collect. Each call is a hit with its whole result or a miss, and no error.
    """
    answers: list[str] = []
    start = threading.Barrier(WRITERS + COLLECTORS)

    def caller(turn: int, number: int) -> None:
        chance = random.Random(seed + 100 * turn + number)
        with session(direct, lock_timeout="10s") as own:
            scene = Scene(own)
            scene.scope(f"c{turn}-{number}")
            scene.begin(["warm"], scope=f"c{turn}-{number}")
            start.wait(30)
            for value in chance.sample(range(6), 6):
                time.sleep(chance.uniform(0, 0.04))
                answers.append(scene.begin([value], scope=f"c{turn}-{number}")["at"])

    def collector() -> None:
        with session(direct) as own:
            ask(own, ("select removed from durable.objects_collect('900 days')", ()))
            start.wait(30)
            for _ in range(3):
                ask(own, ("select removed from durable.objects_collect('1 hour')", ()))

    with session(direct) as conn:
        main = Scene(conn)
        ask(conn, ("select durable.set_setting('call_results_days', '1')", ()))
        for turn in range(rounds):
            main.scope(f"m{turn}")
            for value in range(6):
                main.begin([value], scope=f"m{turn}")
            main.run()
            for (name,) in conn.execute("select name from durable.refs where kind = 'index'").fetchall():
                ask(conn, ("select durable.scope_drop(%s)", (name,)))
            frozen.advance(50 * HOUR)
            callers = [lambda turn=turn, number=number: caller(turn, number) for number in range(WRITERS)]
            in_threads([*callers, *[collector] * COLLECTORS])  # type: ignore[list-item]
            main.run()
    assert len(answers) == rounds * WRITERS * 6
    assert {"started", "shared_hit"} <= set(answers), f"seed {seed}: {set(answers)}"


def waits(conn: Connection, text: str, *given: Any) -> bool:
    """Whether a statement waits for somebody until its lock timeout."""
    try:
        ask(conn, (text, given))
    except psycopg.errors.LockNotAvailable:
        return True
    return False


def test_an_open_put_stops_only_puts_of_the_same_new_object(dsn: str, direct: str) -> None:
    """What is there already, though it is being put again, stops nobody."""
    one = "select durable.literal('1')"
    with session(direct) as user, session(direct, lock_timeout="200ms") as conn:
        i64(conn, 1)
        user.execute("begin")
        user.execute(one.encode())
        assert waits(conn, one)
        assert not waits(conn, "select durable.literal('2')")
        assert not waits(conn, 'select durable.datum_put(\'{"list": [{"i64": 1}]}\')')
        assert not waits(conn, "select removed from durable.objects_collect('1 hour')")
        user.execute("commit")
        assert not waits(conn, one)


def test_an_open_reuse_of_an_old_object_stops_nobody(dsn: str, direct: str, frozen: Clock) -> None:
    """Both write down that it is used; collection passes over it."""
    one = "select durable.literal('1')"
    with session(direct) as user, session(direct, lock_timeout="200ms") as conn:
        ask(conn, (one, ()))
        frozen.advance(5 * HOUR)
        user.execute("begin")
        user.execute(one.encode())
        assert not waits(conn, one)
        assert ask(conn, ("select removed from durable.objects_collect('1 hour')", ())) == (0,)
        user.execute("rollback")
        assert ask(conn, ("select removed from durable.objects_collect('1 hour')", ())) == (0,)


@pytest.mark.parametrize("mode", ["for update", "for no key update", "for share"])
def test_an_object_locked_by_hand_stops_little(dsn: str, direct: str, frozen: Clock, mode: str) -> None:
    """Only puts that refer to it, and those only in the strongest mode."""
    with session(direct) as user, session(direct, lock_timeout="200ms") as conn:
        made = dag(conn, literal(conn, 1))
        frozen.advance(5 * HOUR)
        user.execute("begin")
        user.execute(f"select from durable._objects where id = %s {mode}".encode(), (made,))
        assert waits(conn, "select durable.node_import(%s)", made) == (mode == "for update")
        assert closure(conn, made) == "ok"
        assert not waits(conn, "select durable.dag(%s)", made)
        assert not waits(conn, "select durable.literal('2')")
        if mode != "for no key update":
            assert ask(conn, ("select removed from durable.objects_collect('1 hour')", ())) == (0,)
        user.execute("rollback")


def test_an_open_excision_stops_only_excisions(dsn: str, direct: str) -> None:
    """Puts, walks and reads go on, and the walk is remembered for the excision that it saw."""
    with session(direct) as user, session(direct, lock_timeout="200ms") as conn:
        made = dag(conn, literal(conn, 1))
        two = i64(conn, 2)
        user.execute("begin")
        user.execute("select durable.object_excise(%s, 'r')", (i64(conn, 1),))
        assert closure(conn, made) == "ok"
        assert waits(conn, "select durable.object_excise(%s, 'r')", two)
        assert not waits(conn, "select durable.literal('[1, 2]')")
        user.execute("commit")
        assert closure(conn, made) == "excised"


def test_an_open_walk_stops_no_other(dsn: str, direct: str) -> None:
    """Of the same object, which the transaction has not written down yet."""
    with session(direct) as user, session(direct, lock_timeout="200ms") as conn:
        made = dag(conn, literal(conn, 1))
        ask(conn, ("select durable.object_excise(%s, 'r')", (i64(conn, 2),)))
        user.execute("begin")
        assert closure(user, made) == "ok"
        assert closure(conn, made) == "ok"
        user.execute("rollback")
        assert closure(conn, made) == "ok"


def test_a_name_locked_by_hand_stops_only_its_changes(dsn: str, direct: str) -> None:
    """Other names move, snapshots are pruned, the scope is read."""
    with session(direct) as user, session(direct, lock_timeout="200ms") as conn:
        for name in ("a", "b"):
            ask(conn, ("select durable.scope_open(%s)", (name,)))
        ref = ask(conn, ("select ref from durable.snapshot_create('a')", ()))[0]
        user.execute("begin")
        user.execute("select from durable._refs where name = any (%s) for update", (["a", ref],))
        commit = "select durable.scope_commit(%s, durable.literal('1'), 'x')"
        assert waits(conn, commit, "a") and not waits(conn, commit, "b")
        assert not waits(conn, "select durable.scope_open('a')")
        assert ask(conn, ("select durable.snapshot_prune('0')", ())) == (0,)
        user.execute("rollback")
        assert ask(conn, ("select durable.snapshot_prune('0')", ())) == (1,)


def test_scopes_commit_at_once_on_one_head(dsn: str, direct: str) -> None:
    """Each commit is on top of another, and none is lost."""
    with session(direct) as conn:
        ask(conn, ("select durable.scope_open('main', 'head')", ()))
        for number in range(4):
            ask(conn, ("select durable.scope_open(%s, base => 'main')", (f"s{number}",)))

    def committer(number: int) -> None:
        with session(direct, lock_timeout="10s") as own:
            for turn in range(5):
                text = "select durable.scope_commit(%s, durable.literal('1'), %s)"
                ask(own, (text, (f"s{number}", f"{number}-{turn}")))

    in_threads([lambda number=number: committer(number) for number in range(4)])  # type: ignore[misc]
    with session(direct) as conn:
        assert ask(conn, ("select version from durable.refs where name = 'main'", ())) == (21,)
        text = (
            "select cardinality(t.names) from durable._refs r join durable._objects c on c.id = r.commit_id"
        )
        assert ask(
            conn, (f"{text} join durable._objects t on t.id = c.refs[1] where r.name = 'main'", ())
        ) == (20,)
