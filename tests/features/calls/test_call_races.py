"""Law: calls, reports and deaths of workers at the same moment leave every attempt with one end, every waiter
with its pin, and no deadlock; a transaction that somebody leaves open stops only those who need its rows.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg
import pytest

from tests.features.calls.scene import F, Scene, refusal

SESSIONS = 8
LIMIT_S = 60.0
MANY = "select * from durable.call_reports_v1(%s)"
T = TypeVar("T")


@contextmanager
def scene_of(dsn: str) -> Iterator[Scene]:
    """A session of its own, which waits for a lock as long as a worker's does."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("set lock_timeout = '1s'")
        yield Scene(conn)


class Race:
    """Sessions go on for some seconds, and until enough has happened: on a slow machine that takes longer."""

    def __init__(self, seconds: float, enough: Callable[[], bool]) -> None:
        self._begun_s = time.monotonic()
        self._seconds = seconds
        self._enough = enough

    def goes_on(self) -> bool:
        """Whether there is another round."""
        passed_s = time.monotonic() - self._begun_s
        return passed_s < self._seconds or (passed_s < LIMIT_S and not self._enough())


def together(*programs: Callable[[], None]) -> None:
    """Run programs at once, and raise what one of them raised."""
    errors: list[BaseException] = []

    def guarded(program: Callable[[], None]) -> None:
        try:
            program()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(program,)) for program in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def waiters_without_pin(scene: Scene) -> int:
    """Waiters of attempts that have a result, whose scope has none."""
    return int(
        scene.one(
            "select count(*) from durable._call_waiters w join durable._call_attempts a using (execution_key)"
            " where a.exec_id is not null and not exists (select from durable._pins p"
            " where p.scope = w.scope and p.node_id = w.node_id)"
        )
    )


def done(scene: Scene, document: dict[str, Any], value: object = 7, **more: Any) -> str:
    """Report done until the report is stored."""
    while (state := scene.done(document, value, **more)) == "busy":
        time.sleep(0.005)
    return state


def end_of(scene: Scene, document: dict[str, Any], state: str = "busy") -> str:
    """Integrate until it is no more busy."""
    while state in ("busy", "integrate_ok", "integrate_error"):
        state = scene.integrate(document)
    return state


@pytest.mark.parametrize("rounds", [40, pytest.param(150, marks=pytest.mark.full)])
def test_s39_joins_race_an_integration(dsn: str, open_scene: Scene, rounds: int) -> None:
    """A failed result is pinned while another scope calls, which is pinned too or runs for itself."""
    scene = open_scene
    with scene_of(dsn) as caller:
        for number in range(rounds):
            scene.begin([number], scope="s")
            (document,) = scene.lease()
            answers: list[str] = []
            barrier = threading.Barrier(2)

            def join(
                number: int = number, answers: list[str] = answers, barrier: threading.Barrier = barrier
            ) -> None:
                barrier.wait()
                answers.append(caller.begin([number], scope="t")["at"])

            def fail(document: dict[str, Any] = document, barrier: threading.Barrier = barrier) -> None:
                barrier.wait()
                state = done(scene, document, {"no": 1}, outcome="error")
                assert end_of(scene, document, state) == "completed_error"

            together(join, fail)
            assert answers[0] in ("joined", "started")
            for again in scene.lease():
                end_of(scene, again, done(scene, again))
    assert waiters_without_pin(scene) == 0
    assert scene.count("_pins") == 2 * rounds


def test_joins_and_integrations_of_eight_sessions(
    dsn: str, open_scene: Scene, seed: int, race_s: float
) -> None:
    """Callers and workers at the same few calls, some forced: no deadlock (the fixture counts)."""
    found: list[str] = []
    race = Race(race_s, lambda: found.count("started") > 50)

    def caller(number: int) -> None:
        chance = random.Random(seed + number)
        with scene_of(dsn) as scene:
            step = 0
            while race.goes_on():
                step += 1
                forced = chance.random() < 0.3
                options = {"cache": "force", "step_id": f"{number}.{step}"} if forced else {}
                found.append(scene.begin([chance.randrange(3)], scope=chance.choice("stu"), **options)["at"])

    def worker(number: int) -> None:
        chance = random.Random(seed - number)
        with scene_of(dsn) as scene:
            while race.goes_on():
                for document in scene.lease(f"W{number}", most=3):
                    outcome = chance.choice(("ok", "error"))
                    end_of(scene, document, done(scene, document, chance.randrange(2), outcome=outcome))

    together(
        *(lambda number=number: caller(number) for number in range(SESSIONS // 2)),  # type: ignore[misc]
        *(lambda number=number: worker(number) for number in range(SESSIONS // 2)),  # type: ignore[misc]
    )
    with scene_of(dsn) as scene:
        while documents := scene.lease():
            for document in documents:
                end_of(scene, document, done(scene, document))
        assert scene.count("_call_attempts where ended_at is null") == 0
        assert scene.count("_call_attempts") > 50
        assert waiters_without_pin(scene) == 0


def test_s38_workers_die_at_random(dsn: str, open_scene: Scene, seed: int) -> None:
    """Forty attempts whose workers stop after a lease, a poll or a stored outcome all reach their end."""
    scene = open_scene
    # the pauses and the number of failures of a real adapter would make this take minutes
    scene.one("select durable.set_setting('call_backoff_max_ms', '20')")
    scene.one("select durable.set_setting('call_retries', '1000')")
    answers = [scene.begin([number]) for number in range(40)]
    end = time.monotonic() + 180

    def worker(number: int) -> None:
        chance = random.Random(seed + number)
        with scene_of(dsn) as mine:
            while time.monotonic() < end and mine.count("_call_attempts where ended_at is null"):
                mine.one("select durable.tick_v1(100)")
                for document in mine.lease(f"W{chance.random()}", most=3, ttl=200):
                    try:
                        live(mine, document, chance)
                    except psycopg.Error as error:
                        if error.sqlstate != "WF002":
                            raise

    def live(mine: Scene, document: dict[str, Any], chance: random.Random) -> None:
        if chance.random() < 0.3:
            return  # died with the lease
        if document["phase"] == "poll_adapter" and chance.random() < 0.4:
            mine.pending(document, f"t{chance.random()}", poll_after_ms=chance.randrange(20))
        elif document["phase"] == "poll_adapter":
            state = done(mine, document, integrate=False)
            if chance.random() < 0.5:
                end_of(mine, document, state)
        else:
            end_of(mine, document)

    together(*(lambda number=number: worker(number) for number in range(4)))  # type: ignore[misc]
    assert {scene.state(answer) for answer in answers} == {"completed_ok"}
    assert scene.count("_pins") == 40
    assert scene.count("_objects where kind = 'exec'") == 40


# -- nothing stands still


@contextmanager
def open_transaction(dsn: str, statement: str, *parameters: object) -> Iterator[None]:
    """Somebody leaves a transaction open after this statement."""
    with psycopg.connect(dsn) as conn:
        conn.execute(statement.encode(), parameters or None)
        yield
        conn.rollback()


HELD = {
    "_pins": "select * from durable._pins where node_id = %s for update",
    "_calls": "select * from durable._calls where value_key = %s for update",
    "_call_attempts": "select * from durable._call_attempts where execution_key = %s for update",
    "_call_waiters": "select * from durable._call_waiters where execution_key = %s for update",
    "_call_steps": "select * from durable._call_steps where execution_key = %s for update",
    "_call_polls": "select * from durable._call_polls where execution_key = %s for update",
    "_claims": "select * from durable._claims where execution_key = %s for update",
    "_adapters": "select * from durable._adapters where worker = encode(%s, 'hex') or true for update",
    "_routes": "select * from durable._routes where prefix = encode(%s, 'hex') or true for update",
    "_pin_log": "select * from durable._pin_log where node_id = %s for update",
    "_promises": "select * from durable._promises where id = 'call:' || encode(%s, 'hex') for update",
    "_tasks": "select * from durable._tasks where id = 'call:' || encode(%s, 'hex') for update",
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("table", HELD)
def test_a_locked_row_stops_nobody_else(dsn: str, open_scene: Scene, table: str) -> None:
    """With all rows of one call locked by hand, another is made, polled, failed, integrated and swept; the
    locked one goes on as soon as they are free."""
    scene = open_scene
    scene.one("select durable.call_route('s3://', 'fake')")
    held = scene.begin([1], step_id="w.0")
    scene.pending(scene.lease()[0], "t", poll_after_ms=0)
    key = bytes.fromhex(held["execution_key"])
    scene.one("select durable.claim_acquire(%s, 'o', 60000)", key)
    value_key = scene.one("select value_key from durable._call_attempts")
    row = {"_pins": bytes.fromhex(held["node"]), "_pin_log": bytes.fromhex(held["node"]), "_calls": value_key}
    with scene_of(dsn) as mine, open_transaction(dsn, HELD[table], row.get(table, key)):
        begun = time.monotonic()
        assert mine.begin([2])["at"] == "started"
        documents = {each["execution_key"]: each for each in mine.lease()}
        other = next(each for name, each in documents.items() if name != held["execution_key"])
        assert mine.failed(other) == "retry_wait"
        assert mine.one("select durable.call_wake(%s)", bytes.fromhex(other["execution_key"])) is True
        (other,) = mine.lease()
        assert mine.done(other) == "completed_ok"
        assert mine.begin([2])["at"] == "pinned_hit" and mine.begin([2], scope="t")["at"] == "shared_hit"
        mine.one("select durable.call_sweep_v1()")
        if held["execution_key"] in documents:
            # the report of the locked one is answered, sooner or later, and never waits for the user
            state = mine.done(documents[held["execution_key"]])
            assert state in ("busy", "integrate_ok", "completed_ok"), state
        assert time.monotonic() - begun < 5
    for document in scene.lease():
        documents[document["execution_key"]] = document
    last = documents[held["execution_key"]]
    assert end_of(scene, last, scene_state(scene, last) or done(scene, last)) == "completed_ok"
    assert scene.begin([1])["at"] == "pinned_hit"


def scene_state(scene: Scene, document: dict[str, Any]) -> str:
    """How far a leased attempt has come, or nothing if its outcome is not stored."""
    state: str = scene.one(
        "select state from durable.call_attempts where execution_key = %s", document["execution_key"]
    )
    return "" if state in ("poll_adapter", "retry_wait") else state


def test_an_open_call_stops_only_the_same_call(dsn: str, open_scene: Scene) -> None:
    """An uncommitted start: others start, the same call waits for it, and joins what was committed."""
    scene = open_scene
    node = scene.literal(1)
    scene.begin([9])  # the objects that both need are there
    with psycopg.connect(dsn) as conn:
        Scene(conn).begin([node])
        with scene_of(dsn) as mine:
            assert mine.begin([2])["at"] == "started"
            assert refusal(mine.conn, mine.begin, [node], scope="t").startswith("55P03")
            assert [each["op"] for each in mine.lease()] == ["poll", "poll"]
        conn.commit()
    assert scene.begin([node], scope="t")["at"] == "joined"
    assert len(scene.lease()) == 1


def test_an_open_join_makes_a_report_busy(dsn: str, open_scene: Scene) -> None:
    """The worker is answered at once; it reports again when the caller has committed."""
    scene = open_scene
    scene.begin([1])
    (document,) = scene.lease()
    with psycopg.connect(dsn) as conn:
        assert Scene(conn).begin([1], scope="t")["at"] == "joined"
        begun = time.monotonic()
        assert scene.done(document) == "busy"
        assert time.monotonic() - begun < 1
        conn.commit()
    assert scene.done(document) == "completed_ok"
    assert scene.count("_pins") == 2


def test_a_locked_pin_makes_an_integration_busy(dsn: str, open_scene: Scene) -> None:
    """The outcome of a forced run is stored, and pinned when the old pin is free."""
    scene = open_scene
    scene.begin([1])
    scene.run()
    scene.begin([1], cache="force", step_id="w.0")
    (document,) = scene.lease()
    with scene_of(dsn) as mine, open_transaction(dsn, "select * from durable._pins for update"):
        begun = time.monotonic()
        assert mine.done(document, 8) == "integrate_ok"
        assert mine.integrate(document) == "busy"
        assert time.monotonic() - begun < 1
    assert scene.integrate(document) == "completed_ok"
    assert scene.begin([1])["dag"] == scene.dag(8).hex()


# -- keys that somebody inserts and does not commit


@contextmanager
def somebody(dsn: str) -> Iterator[Scene]:
    """A user's session in a transaction that stays open, and ends without a commit."""
    with psycopg.connect(dsn) as conn:
        yield Scene(conn)
        conn.rollback()


def within(seconds: float, act: Callable[[], T]) -> T:
    """What this answers, in so much time."""
    begun = time.monotonic()
    answer = act()
    assert time.monotonic() - begun < seconds
    return answer


def done_with(value: object) -> dict[str, Any]:
    """A report of an end with a value."""
    return {"class": "done", "outcome": "ok", "value": value}


def locked(scene: Scene, id_: str) -> bool:
    """Whether a session holds the promise of an attempt."""
    query = "select id from durable._promises where id = %s for no key update skip locked"
    return scene.conn.execute(query, (id_,)).fetchone() is None


def test_an_uncommitted_value_makes_only_its_report_busy(dsn: str, open_scene: Scene) -> None:
    """Somebody has put the value of a result, by any way. The report that has it is busy at once and sent
    again; those beside it are stored, alone and in one request."""
    scene = open_scene
    answers = [scene.begin([number]) for number in range(4)]
    reports = [
        {"execution_key": each["execution_key"], "version": each["version"], **done_with({"string": text})}
        for each, text in zip(scene.lease(), ("held", "free", "held", "free too"), strict=True)
    ]
    with somebody(dsn) as user, psycopg.connect(dsn, autocommit=True) as conn:
        user.literal("held")
        worker = Scene(conn)
        assert within(1, lambda: worker.report(reports[0], **reports[0])) == "busy"
        states = within(1, lambda: worker.all(MANY, json.dumps(reports)))
        assert [row[0]["state"] for row in states] == ["busy", "completed_ok", "busy", "completed_ok"]
        assert worker.one("show lock_timeout") == "0"
    states = scene.all(MANY, json.dumps([reports[0], reports[2]]))
    assert [row[0]["state"] for row in states] == ["completed_ok", "completed_ok"]
    assert {scene.state(answer) for answer in answers} == {"completed_ok"}


@pytest.mark.parametrize("at_once", [True, False])
def test_an_uncommitted_pin_makes_only_its_report_busy(dsn: str, open_scene: Scene, at_once: bool) -> None:
    """Somebody pins an older result in a scope that waits for the attempt. The outcome is stored, and nothing
    of the attempt is locked while the pin is waited for."""
    scene = open_scene
    older = scene.begin([1], share=False)
    scene.run(8)
    exec_id = scene.one("select exec_id from durable._pins")
    answer = scene.begin([1], scope="t")
    other = scene.begin([2], scope="t")
    documents = {each["execution_key"]: each for each in scene.lease()}
    document = documents[answer["execution_key"]]
    with somebody(dsn) as user, psycopg.connect(dsn, autocommit=True) as conn:
        assert user.one("select durable.pin_set('t', %s, %s)", bytes.fromhex(older["node"]), exec_id) is True
        worker = Scene(conn)
        state = within(1, lambda: worker.done(document, integrate=at_once))
        assert state == "integrate_ok"
        assert within(1, lambda: worker.integrate(document)) == "busy"
        assert within(1, lambda: worker.done(documents[other["execution_key"]])) == "completed_ok"
        watch = threading.Thread(target=lambda: [worker.integrate(document) for _ in range(10)])
        watch.start()
        held = [locked(scene, answer["promise"]) for _ in range(200) if time.sleep(0.002) is None]
        watch.join()
        assert sum(held) < 20, "the promise is locked while the report waits"
        user.conn.commit()
    assert end_of(scene, document) == "completed_ok"
    assert (
        scene.one(
            "select exec_id from durable._pins where scope = 't' and node_id = %s",
            bytes.fromhex(older["node"]),
        )
        == exec_id
    )


def test_an_uncommitted_call_stops_others_for_a_second(dsn: str, open_scene: Scene) -> None:
    """Somebody has begun a call of a new value. Another call of this value is refused after a second, in a
    session without a limit of its own, and begins after the commit; others begin at once."""
    open_scene.begin([9])  # the function is known
    with psycopg.connect(dsn) as conn, psycopg.connect(dsn, autocommit=True) as mine:
        user, other = Scene(conn), Scene(mine)
        assert user.begin(["new"])["at"] == "started"
        assert within(1, lambda: other.begin(["old"]))["at"] == "started"
        assert within(3, lambda: refusal(mine, other.begin, ["new", "old"])).startswith("55P03")
        assert within(3, lambda: refusal(mine, other.literal, "new")).startswith("55P03")
        assert other.one("show lock_timeout") == "0"
        conn.commit()
        assert within(1, lambda: other.begin(["new", "old"]))["at"] == "started"
        assert within(1, lambda: other.begin(["new"], scope="t"))["at"] == "joined"


def test_open_transactions_beside_calls_and_workers(
    dsn: str, open_scene: Scene, seed: int, race_s: float
) -> None:
    """Users who put values, pin results, call and wait, while workers and callers use the same few: every
    attempt reaches its end, every waiter has its pin, and nothing deadlocks (the fixture counts)."""
    found: list[str] = []
    race = Race(race_s, lambda: found.count("started") > 10)

    def user(number: int) -> None:
        chance = random.Random(seed + number)
        while race.goes_on():
            with (
                scene_of(dsn) as scene,
                suppress(psycopg.errors.LockNotAvailable),
                scene.conn.transaction(force_rollback=chance.random() < 0.5),
            ):
                if chance.random() < 0.5:
                    scene.literal(chance.randrange(40))
                else:
                    scene.begin([chance.randrange(40)], scope=chance.choice("stu"))
                time.sleep(chance.random() / 3)

    def caller(number: int) -> None:
        chance = random.Random(seed * 2 + number)
        with scene_of(dsn) as scene:
            while race.goes_on():
                with suppress(psycopg.errors.LockNotAvailable):
                    found.append(scene.begin([chance.randrange(40)], scope=chance.choice("stu"))["at"])

    def worker(number: int) -> None:
        chance = random.Random(seed - number)
        with scene_of(dsn) as scene:
            while race.goes_on():
                for document in scene.lease(f"W{number}", most=3):
                    value = {"i64": chance.randrange(40)}
                    while (state := scene.report(document, **done_with(value))) == "busy":
                        time.sleep(0.01)
                    end_of(scene, document, state)

    together(
        *(lambda number=number: user(number) for number in range(3)),  # type: ignore[misc]
        *(lambda number=number: caller(number) for number in range(2)),  # type: ignore[misc]
        *(lambda number=number: worker(number) for number in range(3)),  # type: ignore[misc]
    )
    with scene_of(dsn) as scene:
        while documents := scene.lease():
            for document in documents:
                end_of(scene, document, done(scene, document))
        assert scene.count("_call_attempts where ended_at is null") == 0
        assert scene.count("_call_attempts where exec_id is not null") > 10
        assert waiters_without_pin(scene) == 0


def test_pinned_hits_lock_nothing(dsn: str, open_scene: Scene) -> None:
    """A hit is answered while everything else of the call is locked."""
    scene = open_scene
    scene.begin([1])
    scene.run()
    with open_transaction(dsn, "lock table durable._calls, durable._call_attempts in row exclusive mode"):
        assert scene.begin([1])["at"] == "pinned_hit"
    node = scene.literal(1)
    with open_transaction(dsn, "select * from durable._calls for update"):
        begun = time.monotonic()
        answer = scene.one("select durable.call_begin('t', %s, array[%s::bytea])", F, node)
        assert answer["at"] == "shared_hit" and time.monotonic() - begun < 1
