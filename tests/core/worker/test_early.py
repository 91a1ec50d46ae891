"""Law: a run may end by a result that is not recorded yet, if its end is recorded with it; and does nothing
else by one.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from pyengine import App, Retry, ctx
from pyengine.core.worker import run_driver
from pyengine.core.worker.effects import FetchJournal, StartAttempt
from pyengine.core.worker.journal_poller import JournalFetcher
from pyengine.core.worker.step_runner import StepRunner
from pyengine.errors import RunCancelled, RunFailed
from tests.support import verbs
from tests.support.turns import Send, intercept

Connection = psycopg.Connection[tuple[Any, ...]]
Bundles = list[dict[str, Any]]
Body = Callable[[App], Awaitable[None]]


@contextmanager
def turns(before: Callable[[Bundles], Any] | None = None) -> Iterator[list[Bundles]]:
    """What turns carry, in their order; `before` is called with each before it leaves."""
    sent: list[Bundles] = []

    async def watch(send: Send, args: tuple[Any, ...]) -> Any:
        bundles = next((json.loads(one) for one in args if isinstance(one, str) and one.startswith("[{")), [])
        if bundles and before is not None:
            before(bundles)
        answer = await send()
        if bundles:
            sent.append(bundles)
        return answer

    undo = intercept(watch)
    try:
        yield sent
    finally:
        undo()


def shapes(sent: list[Bundles]) -> list[tuple[int, int, str | None]]:
    """Of each bundle: how many outcomes, how many commands, how it ends its run."""
    return [
        (len(each.get("outcomes", ())), len(each.get("commands", ())), (each.get("end") or {}).get("do"))
        for bundles in sent
        for each in bundles
    ]


def counting(dsn: str) -> tuple[App, list[str]]:
    """Workflows that end after steps, and what their steps did."""
    app, ran = App(dsn), list[str]()

    @app.step
    async def tick(n: int) -> int:
        ran.append(f"tick {n}")
        return n

    @app.step
    async def fail(n: int) -> int:
        raise LookupError(f"there is no {n}")

    @app.workflow
    async def steps(count: int) -> int:
        return sum([await tick(n) for n in range(count)])

    @app.workflow
    async def wide(count: int) -> int:
        return sum(await asyncio.gather(*(tick(n) for n in range(count))))

    @app.workflow
    async def broken(n: int) -> int:
        try:
            return await fail(n)
        except LookupError:
            pass
        raise ValueError("nothing of that")

    @app.workflow
    async def napping(nap: bool) -> int:
        found = await tick(1)
        if nap:
            await ctx.sleep("1ms")
        return found

    @app.workflow
    async def careful(nap: bool) -> int:
        try:
            return await tick(1)
        finally:
            ran.append("left")

    return app, ran


async def result(client: Any, name: str, *args: Any, id: str) -> Any:
    """The result of a run."""
    return await (await client.start(name, *args, id=id)).result(timeout=20)


def serve(app: App, play: Callable[[Any], Awaitable[None]]) -> None:
    """A worker, and a client that plays."""

    async def main() -> None:
        async with app.worker(), app.client() as client:
            await play(client)

    asyncio.run(asyncio.wait_for(main(), 60))


def journal(conn: Connection, id: str) -> list[str]:
    """The types of the rows of a run."""
    rows = conn.execute(
        "select j.type::text from durable._journal j "
        "join durable._executions h using (execution, bucket) where h.id = %s order by j.seq",
        (id,),
    )
    return [str(row[0]) for row in rows]


def test_the_end_goes_out_with_the_last_result(dsn: str, conn: Connection) -> None:
    """The first run of a workflow shows where it ends; the others save a turn. The journals are the same."""
    app, ran = counting(dsn)

    async def play(client: Any) -> None:
        assert await result(client, "steps", 1, id="a") == 0
        assert await result(client, "steps", 1, id="b") == 0

    with turns() as sent:
        serve(app, play)
    assert shapes(sent) == [(1, 0, None), (0, 0, "complete"), (1, 0, "complete")]
    assert (
        journal(conn, "a")
        == journal(conn, "b")
        == ["execution_started", "step_completed", "execution_completed"]
        and ran == ["tick 0"] * 2
    )


def test_no_step_begins_before_what_it_depends_on_is_recorded(dsn: str, conn: Connection) -> None:
    """A run that does not end where others did has gone on early; what it does then is kept back."""
    app, ran = counting(dsn)
    seen: list[tuple[int, int]] = []

    def note(bundles: Bundles) -> None:
        row = conn.execute("select count(*) from durable._journal where type = 'step_completed'").fetchone()
        assert row is not None
        seen.append((len(ran), row[0]))

    async def play(client: Any) -> None:
        for n in range(1, 4):
            assert await result(client, "steps", n, id=f"r{n}") == sum(range(n))
        ran.clear()
        seen.clear()
        assert await result(client, "steps", 4, id="last") == 6

    with turns(note) as sent:
        serve(app, play)
    # three earlier runs recorded six steps; of this one each turn leaves with one step more than is recorded
    assert seen == [(1, 6), (2, 7), (3, 8), (4, 9), (4, 10)]
    assert shapes(sent)[-5:] == [(1, 0, None)] * 4 + [(0, 0, "complete")]
    assert journal(conn, "last") == [
        *("execution_started", "step_completed", "step_completed", "step_completed"),
        *("step_completed", "execution_completed"),
    ]


def test_all_results_of_a_gather_go_with_the_end(dsn: str, conn: Connection) -> None:
    """What ends the run is the last of several results, and all of them are recorded in their order."""
    app, _ = counting(dsn)

    async def play(client: Any) -> None:
        for id in "ab":
            assert await result(client, "wide", 5, id=id) == 10

    with turns() as sent:
        serve(app, play)
    outcomes = [
        outcome["child"] for bundles in sent for each in bundles for outcome in each.get("outcomes", ())
    ]
    assert sorted(outcomes) == sorted([*range(5), *range(5)])
    ends = [shape for shape in shapes(sent) if shape[2] == "complete"]
    assert len(ends) == 2 and ends[1][0] > 0
    assert (
        journal(conn, "a")
        == journal(conn, "b")
        == [
            *("execution_started", "step_completed", "step_completed", "step_completed"),
            *("step_completed", "step_completed", "execution_completed"),
        ]
    )


def test_a_command_is_kept_back(dsn: str, conn: Connection) -> None:
    """A timer that follows a result is recorded after it, and a run that only looked like one that ends is
    continued.
    """
    app, _ = counting(dsn)

    async def play(client: Any) -> None:
        assert await result(client, "napping", False, id="a") == 1
        assert await result(client, "napping", True, id="b") == 1
        assert await result(client, "napping", False, id="c") == 1

    with turns() as sent:
        serve(app, play)
    assert (1, 0, "complete") in shapes(sent)
    assert journal(conn, "b") == [
        *("execution_started", "step_completed", "timer_scheduled", "execution_awaiting"),
        *("timer_fired", "execution_resumed", "execution_completed"),
    ] and journal(conn, "c") == ["execution_started", "step_completed", "execution_completed"]


def test_an_error_is_told_as_it_would_be(dsn: str, conn: Connection) -> None:
    """The failure of a run that went on early is that of one that did not, word by word."""
    app, _ = counting(dsn)

    async def play(client: Any) -> None:
        for id in "ab":
            with pytest.raises(RunFailed, match="nothing of that"):
                await result(client, "broken", 1, id=id)

    with turns() as sent:
        serve(app, play)
    assert shapes(sent)[-1] == (1, 0, "fail")
    errors = conn.execute(
        "select value_data::jsonb - '{traceback,origin}'::text[] from durable._promises "
        "where id in ('a', 'b') order by id"
    ).fetchall()
    assert len(errors) == 2 and errors[0] == errors[1]
    texts = conn.execute("select value_data from durable._promises where id in ('a', 'b')").fetchall()
    assert all("LookupError" not in text for (text,) in texts)


@pytest.mark.parametrize("name", ["careful", "napping"])
def test_a_request_to_stop_that_comes_first_counts(
    dsn: str, conn: Connection, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What the code did with a result before the request came into sight is taken back: the run is replayed,
    its step is not run again, and it ends as cancelled.
    """
    app, ran = counting(dsn)
    overtaken: list[Bundles] = []

    def cancel(bundles: Bundles) -> None:
        if not overtaken and conn.execute("select from durable._tasks where id = 'stop'").rowcount:
            conn.execute("select durable.cancel('stop')")
            overtaken.append(bundles)

    async def play(client: Any) -> None:
        for id in "ab":
            assert await result(client, name, False, id=id) == 1
        ran.clear()
        with pytest.raises(RunCancelled):
            await result(client, name, True, id="stop")

    with turns(cancel):
        serve(app, play)
    assert shapes(overtaken) == [(1, 0, "complete" if name == "careful" else None)]
    assert "is stale and its journal holds nothing new" not in caplog.text
    assert ran.count("tick 1") == 1
    assert journal(conn, "stop")[:3] == [
        *("execution_started", "cancel_requested", "step_completed"),
    ] and journal(conn, "stop")[-1:] == ["execution_cancelled"]


def end_at_once(self: StepRunner, effect: StartAttempt) -> None:
    """Run the body of a step that never waits as Python 3.12 does: before `start` returns."""
    self._active += 1
    with pytest.raises(StopIteration):
        contextvars.copy_context().run(self._execute(effect.run, effect.attempt).send, None)


def test_a_result_is_kept_though_the_end_is_refused(dsn: str, conn: Connection) -> None:
    """The database refuses the end of a run: it is set aside with its last result recorded, so whoever
    continues it does not run the step again.
    """
    app, ran = counting(dsn)

    async def play(client: Any) -> None:
        assert await result(client, "steps", 1, id="a") == 0
        conn.execute("alter table durable._promises add check (state <> 'resolved' or id <> 'b')")
        run = await client.start("steps", 1, id="b")
        while (await run.get()).state != "halted":
            await asyncio.sleep(0.01)

    try:
        with turns() as sent:
            serve(app, play)
    finally:
        conn.execute("alter table durable._promises drop constraint _promises_check")
    assert shapes(sent)[-1] == (1, 0, "halt")
    assert journal(conn, "b") == ["execution_started", "step_completed"] and ran == ["tick 0"] * 2
    conn.execute("select durable.cancel('b')")


def test_nothing_is_being_handled_when_the_code_goes_on(dsn: str, conn: Connection) -> None:
    """The code of a run sees no error of the engine around it, whatever became of its step."""
    app = App(dsn)

    @app.step
    async def huge(n: int) -> int:
        return object()  # type: ignore[return-value]

    @app.workflow
    async def look(n: int) -> list[str]:
        try:
            await huge(n)
        except Exception as error:
            words = [type(error).__name__]
        words.append(str(sys.exc_info()[0]))
        try:
            raise ValueError
        except ValueError as error:
            words.append(str(error.__context__))
        return words

    async def play(client: Any) -> None:
        for id in "abc":
            assert await result(client, "look", 1, id=id) == ["EncodeError", "None", "None"]

    with turns() as sent:
        serve(app, play)
    assert shapes(sent)[-1] == (1, 0, "complete")


def replayed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of runs that are replayed because their coroutine did what the journal does not hold."""
    anew, fetch = list[str](), JournalFetcher.fetch

    def note(self: JournalFetcher, effect: FetchJournal) -> None:
        anew.append(effect.run.info.id)
        fetch(self, effect)

    monkeypatch.setattr(JournalFetcher, "fetch", note)
    return anew


def test_what_others_may_end_is_not_foreseen(dsn: str, conn: Connection) -> None:
    """A timer that fired before the result was recorded comes first, as it will in each replay."""
    app = App(dsn)

    @app.step
    async def tick(n: int) -> int:
        return n

    @app.workflow
    async def race(n: int) -> list[str]:
        order = list[str]()

        async def nap() -> None:
            await ctx.sleep("1ms")
            order.append("nap")

        napping = asyncio.create_task(nap())
        await asyncio.sleep(0)
        order.append(str(await tick(n)))
        napping.cancel()
        return order

    def fire(bundles: Bundles) -> None:
        if any(each.get("outcomes") for each in bundles):
            while conn.execute("select from durable._promises where timer and state = 'pending'").rowcount:
                verbs.tick(conn)

    async def play(client: Any) -> None:
        for id in "ab":
            assert await result(client, "race", 1, id=id) == ["nap", "1"]

    with turns(fire):
        serve(app, play)
    assert journal(conn, "a") == [
        *("execution_started", "timer_scheduled", "timer_fired"),
        *("step_completed", "execution_completed"),
    ]


def test_only_the_last_of_several_results_ends(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step after which others ended is not the last one here: its run waits for the other."""
    anew, told = replayed(monkeypatch), list[list[str]]()
    app = App(dsn)

    @app.step
    async def after(ms: int) -> int:
        await asyncio.sleep(ms / 1000)
        return ms

    @app.workflow
    async def both(first: int, second: int) -> int:
        return sum(await asyncio.gather(after(first), after(second)))

    async def play(client: Any) -> None:
        # the first result has to be recorded before the second comes, which a slow machine may take long for
        for ms in (50, 100, 200, 400, 800, 1600):
            for id, first, second in ((f"a{ms}", 0, ms), (f"b{ms}", ms, 0), (f"c{ms}", 0, ms)):
                assert await result(client, "both", first, second, id=id) == ms
                told.append(journal(conn, id))
            if (1, 0, "complete") in shapes(sent):
                return

    with turns() as sent:
        serve(app, play)
    assert anew == [] and (1, 0, "complete") in shapes(sent)
    assert all(
        types == ["execution_started", "step_completed", "step_completed", "execution_completed"]
        for types in told
    )


def test_what_came_between_is_not_passed_over(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal came before the result: what the code did is taken back, and done again by the journal."""
    anew = replayed(monkeypatch)
    app = App(dsn)

    @app.step
    async def tick(n: int) -> int:
        return n

    @app.workflow
    async def listening(more: bool) -> int:
        found = await tick(1)
        return found + await ctx.receive("go", type=int) if more else found

    def send(bundles: Bundles) -> None:
        if not conn.execute("select from durable._signals").rowcount:
            conn.execute("select durable.signal(id, 'go', '5') from durable._tasks where id = 'c'")

    async def play(client: Any) -> None:
        for id in "ab":
            assert await result(client, "listening", False, id=id) == 1
        assert await result(client, "listening", True, id="c") == 6

    with turns(send):
        serve(app, play)
    assert anew == ["c"] and journal(conn, "c") == [
        *("execution_started", "signal_delivered", "step_completed"),
        *("signal_received", "execution_completed"),
    ]


def flaky_app(dsn: str, seen: Callable[[str], object] = len) -> App:
    """A workflow whose first step fails once in each run, and whose second step calls `seen`."""
    app, failed = App(dsn), set[str]()

    @app.step(retry=Retry(max_attempts=3, initial="100ms", jitter=0))
    async def flaky(id: str) -> int:
        if id not in failed:
            failed.add(id)
            raise LookupError(id)
        return 1

    @app.step
    async def other(id: str) -> int:
        seen(id)
        return 2

    @app.workflow
    async def trying(id: str, more: bool) -> int:
        found = await flaky(id)
        return found + await other(id) if more else found

    return app


async def try_all(client: Any) -> None:
    """Two runs that end after the step that failed once, and one that goes on."""
    for id in "ab":
        assert await result(client, "trying", id, False, id=id) == 1
    assert await result(client, "trying", "c", True, id="c") == 3


def test_a_result_after_a_failure_is_foreseen(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the last attempt of a step will be in the journal is known, so nothing is replayed."""
    anew = replayed(monkeypatch)
    with turns() as sent:
        serve(flaky_app(dsn), try_all)
    assert (1, 0, "complete") in shapes(sent) and anew == []
    assert [journal(conn, id) for id in "abc"] == [
        ["execution_started", "first_attempt_failed", "last_attempt_completed", "execution_completed"],
        ["execution_started", "first_attempt_failed", "last_attempt_completed", "execution_completed"],
        [
            *("execution_started", "first_attempt_failed", "last_attempt_completed"),
            *("step_completed", "execution_completed"),
        ],
    ]


def test_a_step_that_ends_as_it_begins(dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 runs a body that never waits at once, so a run that was given back until the next attempt
    goes on early while it is being taken up again: the next step waits all the same.
    """
    start_task = StepRunner.start_task

    def at_once(self: StepRunner, effect: StartAttempt) -> None:
        call = effect.attempt.call
        if call.attempt == 1 and call.name.endswith("flaky"):
            start_task(self, effect)
        else:
            end_at_once(self, effect)

    monkeypatch.setattr(StepRunner, "start_task", at_once)
    monkeypatch.setattr(run_driver, "RELEASE_AFTER_MS", 10)
    seen: list[list[str]] = []
    serve(flaky_app(dsn, lambda id: seen.append(journal(conn, id))), try_all)
    assert seen == [["execution_started", "first_attempt_failed", "last_attempt_completed"]] and journal(
        conn, "c"
    ) == [
        *("execution_started", "first_attempt_failed", "last_attempt_completed"),
        *("step_completed", "execution_completed"),
    ]
