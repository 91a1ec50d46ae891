"""A lease is known on both sides: nothing begins under one that may be over, none is renewed for nothing."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import Awaitable
from pathlib import Path

import psycopg
import pytest

from pyengine import App, Client, Worker
from pyengine.core.database.statements.procedures import HEARTBEAT, JOURNAL, START, START_FRESH, TICK, TURN
from pyengine.core.database.statements.time_limits import LIMIT_S, limit_s
from pyengine.core.definitions.registry import Workflow
from pyengine.core.process import clock
from pyengine.core.process.clock import _SINCE_BOOT
from pyengine.core.process.lease_terms import LeaseTerms
from pyengine.core.worker.run_state import Fetching
from pyengine.core.worker.turn_loop import TurnLoop
from tests.support.hand_clock import HandClock
from tests.support.idle import idle
from tests.support.turns import Send, intercept
from tests.support.verbs import take_turn, tick
from tests.system.crash.processes import launch, stop, until

Connection = psycopg.Connection[tuple[object, ...]]


def _waiting(app: App, begun: list[str], free: threading.Event) -> list[Workflow[[], None]]:
    """Workflows whose second step waits for the first one to end, in the loop and in threads."""

    @app.step
    async def holds_loop() -> None:
        begun.append("holds")
        while not free.is_set():
            await asyncio.sleep(0.01)

    @app.step
    def holds_thread() -> None:
        begun.append("holds")
        free.wait()

    @app.step(timeout="50ms")
    async def in_loop() -> None:
        begun.append("step")

    @app.step(timeout="50ms")
    def in_thread() -> None:
        begun.append("step")

    async def noted(call: Awaitable[None]) -> None:
        await call
        begun.append("code")

    @app.workflow
    async def in_loops() -> None:
        await asyncio.gather(noted(holds_loop()), in_loop())

    @app.workflow
    async def in_threads() -> None:
        await asyncio.gather(noted(holds_thread()), in_thread())

    return [in_loops, in_threads]


def test_no_body_begins_after_its_lease(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of both kinds that waited for their turn wait for a renewal that names their run; what runs goes
    on, code that it would wake stands still, and the time limit of a step counts from its beginning.
    """
    app = App(dsn)
    begun: list[str] = []
    free = threading.Event()
    workflows = _waiting(app, begun, free)

    async def main(worker: Worker) -> None:
        terms, leased = worker.parts.terms, worker.parts.runs.leased
        # the heartbeat would renew the leases at any time
        renewed = terms.renewed
        monkeypatch.setattr(terms, "renewed", lambda helds, until_s: None)
        async with app.client() as client:
            runs = [await client.start(one) for one in workflows]
            while begun != ["holds", "holds"]:
                await asyncio.sleep(0.01)
            for one in leased.values():
                one.known_until_s = float("-inf")
            free.set()
            while not (
                worker._steps._put_off and [type(one.phase) for one in leased.values()] == [Fetching] * 2
            ):
                await asyncio.sleep(0.01)
            renewed([], float("inf"))
            await asyncio.sleep(0.1)
            assert begun == ["holds", "holds"]
            assert [len(one.phase.attempts) for one in leased.values()] == [1, 1]
            renewed(leased.values(), float("inf"))
            for run in runs:
                await run.result(timeout=20)

    async def served() -> None:
        async with asyncio.timeout(60), app.worker(step_concurrency=1, threads=1) as worker:
            await main(worker)

    asyncio.run(served())
    assert sorted(begun) == ["code", "code", "holds", "holds", "step", "step"]


def _taken(conn: Connection, run: str) -> None:
    """The lease of a run runs out, and another worker gets it."""
    while conn.execute("select pid from durable._tasks where id = %s", (run,)).fetchone() != ("V",):
        tick(conn)
        take_turn(conn, "V", want=1, workflows=["go"])


@pytest.mark.sample(1)
@pytest.mark.parametrize("how", ["a claim", pytest.param("a hand-off", marks=pytest.mark.session("notes"))])
def test_what_is_read_after_its_lease_begins_no_body(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The loop stands still while the run is on its way, and the renewals that go on do not name it."""
    conn.execute("update durable.settings set value = '3000' where name = 'lease_ttl_ms'")
    conn.execute("update durable.settings set value = '60000' where name = 'stall_limit_ms'")
    app = App(dsn)
    begun: list[str] = []
    brought: list[str] = []

    @app.step
    async def note() -> None:
        begun.append("step")

    @app.workflow
    async def go() -> None:
        begun.append("workflow")
        await note()

    async def claimed(send: Send, args: tuple[object, ...]) -> object:
        answer = await send()
        if how == "a claim" and not brought and json.loads(answer)["tasks"]:
            brought.append("turn")
            _taken(conn, "late")
        return answer

    message_came = TurnLoop.message_came

    def handed(loop: TurnLoop, text: str) -> None:
        if how == "a hand-off" and not brought:
            brought.append("message")
            _taken(conn, "late")
        message_came(loop, text)

    monkeypatch.setattr(TurnLoop, "message_came", handed)

    async def main() -> None:
        async with asyncio.timeout(60), app.worker() as worker:
            leased = worker.parts.runs.leased
            if how == "a claim":
                conn.execute("select durable.start('go', '[]', id => 'late', any_workflow => true)")
            else:
                await idle(conn)
                async with Client(dsn, registry=app.registry) as client:
                    await client.start(go, id="late")
            while not (brought and leased):
                await asyncio.sleep(0)
            while leased:
                await asyncio.sleep(0.01)
            assert begun == []
            conn.execute("select durable.worker_release_unknown_v1('V', '{}', '{}')")
            while conn.execute("select state from durable.runs").fetchone() != ("completed",):
                await asyncio.sleep(0.01)

    undo = intercept(claimed)
    try:
        asyncio.run(main())
    finally:
        undo()
    assert begun.count("step") == 1


@pytest.mark.session("notes")
def test_a_hand_off_that_comes_late_begins_no_body(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message is on its way, or its start commits, for longer than the lease, while the loop turns and
    renewals are answered on another connection.
    """
    conn.execute("update durable.settings set value = '2000' where name = 'lease_ttl_ms'")
    app = App(dsn)
    begun: list[str] = []
    held: list[str] = []
    message_came = TurnLoop.message_came
    monkeypatch.setattr(TurnLoop, "message_came", lambda loop, text: held.append(text))

    @app.workflow
    async def go() -> None:
        begun.append("go")

    async def main() -> None:
        async with asyncio.timeout(60), app.worker() as worker:
            leased = worker.parts.runs.leased
            await idle(conn)
            async with Client(dsn, registry=app.registry) as client:
                await client.start(go, id="late")
                over_s = clock.elapsed() + 2.2
                while not held:
                    await asyncio.sleep(0.01)
                with conn.transaction():
                    # another worker has it from now on, for long
                    conn.execute(
                        "update durable._tasks set pid = 'V', version = version + 1, ttl = 600000, "
                        "expires_at = expires_at + 600000"
                    )
                while clock.elapsed() < over_s:
                    await asyncio.sleep(0.01)
                message_came(worker.turn_loop, held[0])
                while not leased:
                    await asyncio.sleep(0)
                while leased:
                    await asyncio.sleep(0.01)
        assert begun == []

    asyncio.run(main())


FROZEN = """
import asyncio, os, time
from pyengine import App

app = App()

@app.step
def note(name: str) -> None:
    with open("notes", "a") as file:
        file.write(f"{os.getpid()} {name}\\n")
    time.sleep(0.1)

@app.workflow
async def go(name: str) -> None:
    await note(name)

async def main() -> None:
    app.use_database(os.environ["PYENGINE_DATABASE_URL"])
    async with app.worker(threads=1):
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_worker_that_was_frozen_begins_nothing_of_others(
    dsn: str, conn: Connection, tmp_path: Path
) -> None:
    """It has twenty steps that wait for its one thread, and is stopped for longer than its leases."""
    (tmp_path / "frozen.py").write_text(FROZEN)
    conn.execute("update durable.settings set value = '1500' where name = 'lease_ttl_ms'")
    conn.execute(
        "select durable.start('go', jsonb_build_array(n::text), id => 'r' || n, any_workflow => true) "
        "from generate_series(1, 20) n"
    )

    def notes() -> list[str]:
        path = tmp_path / "notes"
        return path.read_text().splitlines() if path.exists() else []

    first = launch(dsn, "frozen.py", folder=tmp_path)
    try:
        ends_s = time.monotonic() + 60
        while not notes() and time.monotonic() < ends_s:
            time.sleep(0.01)
        first.send_signal(signal.SIGSTOP)
        before = notes()
        second = launch(dsn, "frozen.py", folder=tmp_path)
        try:
            until(dsn, "select count(*) = 20 from durable.runs where state = 'completed'")
        finally:
            stop(second)
        first.send_signal(signal.SIGCONT)
        # its one thread comes to this one after all that were there before
        conn.execute("select durable.start('go', '[\"probe\"]', id => 'probe', any_workflow => true)")
        until(dsn, "select count(*) = 1 from durable.runs where id = 'probe' and state = 'completed'")
    finally:
        first.send_signal(signal.SIGCONT)
        stop(first)
    own = [line for line in notes() if line.startswith(f"{first.pid} ")]
    assert own[: len(before)] == before and own[-1] == f"{first.pid} probe"
    # a body may have begun before the stop, and write after it
    assert len(own) - len(before) <= 2


def test_a_turn_without_an_answer_renews_nothing(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat has a connection of its own; while the turn has none it leaves the runs to others."""
    conn.execute("update durable.settings set value = '1000' where name = 'lease_ttl_ms'")
    app = App(dsn)
    began, free = asyncio.Event(), asyncio.Event()

    @app.step
    async def hold() -> None:
        began.set()
        await free.wait()

    @app.workflow
    async def go() -> None:
        await hold()

    async def main() -> None:
        async with app.worker() as worker, app.client() as client:
            run = await client.start(go)
            await began.wait()
            answered = asyncio.Event()
            send_once = worker.parts.turns.send_once

            async def unanswered(*args: object, **options: object) -> object:
                worker.parts.turns.asked_s = float("-inf")
                await answered.wait()
                worker.parts.turns.asked_s = None
                return await send_once(*args, **options)  # type: ignore[arg-type]

            monkeypatch.setattr(worker.parts.turns, "send_once", unanswered)
            while conn.execute("select crashes from durable._tasks").fetchone() == (0,):
                await asyncio.sleep(0.05)
            answered.set()
            free.set()
            await run.result(timeout=30)

    asyncio.run(main())


@pytest.mark.session("the user's transaction")
def test_a_lease_that_nobody_knows_of_begins_no_body(dsn: str, conn: Connection) -> None:
    """Run and worker are held, so that the database knows of no heartbeat: a sweep may be about to give the
    run away. The step under way goes on, and the next one begins with the next renewal.
    """
    conn.execute("update durable.settings set value = '400' where name = 'lease_ttl_ms'")
    app = App(dsn)
    began, free, begun = asyncio.Event(), asyncio.Event(), list[str]()

    @app.step
    async def hold() -> None:
        began.set()
        await free.wait()
        begun.append("held")

    @app.step
    async def note() -> None:
        begun.append("noted")

    @app.workflow
    async def go() -> None:
        await asyncio.gather(hold(), note())

    async def main() -> None:
        async with app.worker(step_concurrency=1), app.client() as client:
            run = await client.start(go, id="r")
            await began.wait()
            with psycopg.connect(dsn) as user:
                user.execute("select from durable._workers for update")
                user.execute("select from durable._tasks for update")
                over = "select from durable._tasks where expires_at < durable._now_ms()"
                while conn.execute(over).fetchone() is None:
                    await asyncio.sleep(0.05)
                free.set()
                while not begun:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)
                assert begun == ["held"]
            await run.result(timeout=30)
            assert begun == ["held", "noted"]

    asyncio.run(main())


def test_statements_are_given_up_by_their_purpose() -> None:
    """A turn, a tick, a heartbeat and a start that waits for nobody take milliseconds."""
    limits = [limit_s(one) for one in (HEARTBEAT, TURN, START_FRESH, TICK, START, JOURNAL)]
    assert limits == [10, 20, 20, 30, LIMIT_S, LIMIT_S]


class _Lease:
    """What is held under a lease."""

    def __init__(self, known_until_s: float) -> None:
        self.known_until_s = known_until_s


@pytest.fixture
def hand_clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    """A clock that stands still."""
    hand = HandClock(now_s=0.0)
    monkeypatch.setattr("pyengine.core.process.clock._clock", hand)
    return hand


def test_a_renewal_says_nothing_of_others(hand_clock: HandClock) -> None:
    """Each lease holds from when it was asked for, or from the last renewal that named it."""

    async def main() -> None:
        terms = LeaseTerms(10)
        one, other = _Lease(terms.asked()), _Lease(terms.asked())
        hand_clock.move(6)
        until_s = terms.asked()
        hand_clock.move(3)
        assert terms.may_begin(one) and terms.may_begin(other)
        terms.renewed([one], until_s)
        hand_clock.move(1)
        assert terms.may_begin(one) and not terms.may_begin(other)
        # an answer to an older one comes late
        terms.renewed([one], 5)
        hand_clock.move(5.9)
        assert terms.may_begin(one)
        hand_clock.move(0.1)
        assert not terms.may_begin(one)

    asyncio.run(main())


def test_what_comes_unasked_is_younger_than_what_did_not_know_its_number(hand_clock: HandClock) -> None:
    """Its lease counts from the last renewal before it, or the one before; else it waits for the next."""

    async def main() -> None:
        terms = LeaseTerms(10)
        assert terms.handed(1) == 10
        hand_clock.move(5)
        terms.numbered(7, terms.asked())
        hand_clock.move(4)
        # the second one was on its way when that was answered
        assert terms.handed(8) == 15 and terms.handed(7) == 10
        terms.numbered(9, terms.asked())
        assert [terms.handed(number) for number in (10, 9, 7)] == [19, 15, float("-inf")]
        # the schema was installed again, and counts from the beginning
        terms.numbered(0, terms.asked())
        assert terms.handed(1) == 19

    asyncio.run(main())


def test_what_is_given_back_stays_so(hand_clock: HandClock) -> None:
    """A renewal, a claim or a hand-off that was on its way brings nothing back; a later one does."""

    async def main() -> None:
        terms = LeaseTerms(10)
        asked_s = terms.asked()
        hand_clock.move(1)
        terms.void()
        lease = _Lease(asked_s)
        assert not terms.may_begin(lease)
        terms.renewed([lease], asked_s)
        assert not terms.may_begin(lease) and not terms.may_begin(_Lease(terms.handed(1)))
        hand_clock.move(1)
        terms.renewed([lease], terms.asked())
        assert terms.may_begin(lease)

    asyncio.run(main())


def test_a_body_that_is_not_wanted_waits_no_longer(hand_clock: HandClock) -> None:
    """It waits for no renewal, which may never come; one that is wanted does."""

    async def main() -> None:
        terms, lease, wanted = LeaseTerms(10), _Lease(0.0), [True]
        waiting = asyncio.create_task(terms.holds(lease, lambda: bool(wanted)))
        await asyncio.sleep(0)
        terms.wake()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        wanted.clear()
        terms.wake()
        await waiting
        wanted.append(True)
        waiting = asyncio.create_task(terms.holds(lease, lambda: bool(wanted)))
        terms.renewed([lease], terms.asked())
        await waiting

    asyncio.run(main())


def test_the_clock_of_leases_counts_a_suspended_machine() -> None:
    """It is the one that goes on while the machine is suspended, where there is one."""
    assert getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC) == _SINCE_BOOT
    assert time.clock_gettime(_SINCE_BOOT) <= clock.elapsed() <= time.clock_gettime(_SINCE_BOOT)
