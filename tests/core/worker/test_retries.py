"""Attempts of steps: how often, when, and how they end."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg
import pytest

from pyengine import App, Retry, ctx
from pyengine.errors import EncodeError, RunFailed, StepTimeout

Connection = psycopg.Connection[tuple[object, ...]]
FAST = Retry(max_attempts=3, initial="5ms", jitter=0)


def row_types(conn: Connection, child: int = 0) -> list[str]:
    """The types of the journal rows of one child, in order."""
    rows = conn.execute(
        "select type from durable._journal where child = %s order by execution, seq", (child,)
    )
    return [str(row[0]) for row in rows]


def test_a_bare_step_is_tried_once(dsn: str) -> None:
    """A step without a policy fails at its first failure."""
    app = App(dsn)
    attempts: list[int] = []

    @app.step
    async def fail() -> None:
        attempts.append(ctx.step.attempt)
        raise OSError("down")

    @app.workflow
    async def go() -> None:
        await fail()

    with pytest.raises(RunFailed, match="down"):
        app.run(go)
    assert attempts == [1]


def test_a_failed_attempt_is_recorded_and_tried_again(dsn: str, conn: Connection) -> None:
    """Each failed attempt has its journal row before the next one begins; the last one decides."""
    app = App(dsn)
    attempts: list[int] = []

    @app.step(retry=FAST)
    async def third_time() -> str:
        attempts.append(ctx.step.attempt)
        if ctx.step.attempt < 3:
            raise OSError("not yet")
        return "done"

    @app.workflow
    async def go() -> str:
        return await third_time()

    assert app.run(go) == "done"
    assert attempts == [1, 2, 3]
    assert row_types(conn) == ["first_attempt_failed", "attempt_failed", "last_attempt_completed"]


def test_the_policy_ends_with_the_last_error(dsn: str, conn: Connection) -> None:
    """When the attempts are used up, the workflow gets the error of the last one."""
    app = App(dsn)

    @app.step(retry=FAST)
    async def never() -> None:
        raise OSError(f"attempt {ctx.step.attempt}")

    @app.workflow
    async def go() -> None:
        await never()

    with pytest.raises(RunFailed, match="attempt 3"):
        app.run(go)
    assert row_types(conn) == ["first_attempt_failed", "attempt_failed", "last_attempt_failed"]


def test_sync_steps_are_tried_again_too(dsn: str) -> None:
    """The policy of a step in a thread is the same."""
    app = App(dsn)

    @app.step(retry=FAST)
    def second_time() -> int:
        if ctx.step.attempt < 2:
            raise OSError("not yet")
        return ctx.step.attempt

    @app.workflow
    async def go() -> int:
        return await second_time()

    assert app.run(go) == 2


def test_retry_after_of_an_error_sets_the_delay(dsn: str, conn: Connection) -> None:
    """An error that says when to come back is obeyed."""
    app = App(dsn)

    class BusyError(Exception):
        retry_after = 0.01

    @app.step(retry=Retry(max_attempts=2, initial="1h"))
    async def busy() -> str:
        if ctx.step.attempt == 1:
            raise BusyError
        return "done"

    @app.workflow
    async def go() -> str:
        return await busy()

    assert app.run(go) == "done"


def test_a_result_that_cannot_be_written_is_a_failure_and_not_tried_again(dsn: str) -> None:
    """A result that would not come back equal fails the step at once."""
    app = App(dsn)
    attempts: list[int] = []

    @app.step(retry=FAST)
    async def odd() -> Any:
        attempts.append(1)
        return object()

    @app.workflow
    async def go() -> None:
        await odd()

    with pytest.raises(RunFailed) as failed:
        app.run(go)
    assert isinstance(failed.value.__cause__, EncodeError)
    assert attempts == [1]


def test_a_step_that_takes_too_long_is_cancelled(dsn: str) -> None:
    """An async step is cancelled at its timeout, its cleanup runs, and the attempt has failed."""
    app = App(dsn)
    cleaned: list[int] = []

    @app.step(timeout="50ms", retry=FAST)
    async def hangs_once() -> int:
        try:
            if ctx.step.attempt == 1:
                await asyncio.sleep(60)
        finally:
            cleaned.append(ctx.step.attempt)
        return ctx.step.attempt

    @app.step(timeout="50ms")
    async def hangs() -> None:
        await asyncio.sleep(60)

    @app.workflow
    async def go() -> int:
        with pytest.raises(StepTimeout, match=r"longer than 0\.05 s"):
            await hangs()
        return await hangs_once()

    assert app.run(go) == 2
    assert cleaned == [1, 2]


def test_a_sync_step_that_takes_too_long_is_left_behind(dsn: str) -> None:
    """A thread cannot be stopped: at its timeout the attempt has failed, and what the thread says later is
    ignored.
    """
    app = App(dsn)
    came_back: list[int] = []
    late = threading.Event()

    @app.step(timeout="500ms", retry=FAST)
    def slow_once() -> int:
        attempt = ctx.step.attempt
        if attempt == 1:
            late.wait(20)
        came_back.append(attempt)
        return attempt

    @app.step
    async def let_it_speak() -> None:
        late.set()
        while len(came_back) < 2:
            await asyncio.sleep(0.005)

    @app.workflow
    async def go() -> int:
        result = await slow_once()
        await let_it_speak()
        await ctx.sleep(0.05)
        return result

    assert app.run(go) == 2
    assert came_back == [2, 1]


def test_a_run_that_waits_long_for_its_next_attempt_gives_its_slot_away(dsn: str, conn: Connection) -> None:
    """An attempt that is far away holds no lease; somebody else can be served meanwhile, and the policy's
    count is kept.
    """
    app = App(dsn)

    @app.step(retry=Retry(max_attempts=2, initial="1h", jitter=0))
    async def later() -> str:
        if ctx.step.attempt == 1:
            raise OSError("down for an hour")
        return f"attempt {ctx.step.attempt}"

    @app.workflow
    async def patient() -> str:
        return await later()

    @app.workflow
    async def other() -> int:
        return 1

    async def main() -> str:
        async with app.client() as client:
            async with app.worker(concurrency=1):
                waiting = await client.start(patient)
                assert await (await client.start(other)) == 1
                while (await waiting.get()).state != "scheduled":
                    await asyncio.sleep(0.01)
            an_hour_later(conn)
            # another worker: the coroutine is not warm, the journal says how many attempts there were
            async with app.worker():
                return await waiting.result(timeout=20)

    assert asyncio.run(main()) == "attempt 2"


@pytest.mark.parametrize("intent", [False, True])
def test_the_recorded_policy_governs_and_not_that_of_newer_code(
    dsn: str, conn: Connection, intent: bool
) -> None:
    """A step that was begun keeps the policy it was begun with, whatever the code says later."""
    attempts: list[int] = []

    def deploy(policy: Retry) -> App:
        app = App(dsn)

        @app.step(retry=policy, intent=intent)
        async def fail() -> None:
            attempts.append(ctx.step.attempt)
            raise OSError("down")

        @app.workflow
        async def go() -> None:
            await fail()

        return app

    async def main() -> None:
        old = deploy(Retry(max_attempts=2, initial="1h", jitter=0))
        async with old.client() as client:
            run = await client.start("go")
            async with old.worker():
                while (await run.get()).state != "scheduled":
                    await asyncio.sleep(0.01)
            an_hour_later(conn)
            async with deploy(Retry(max_attempts=5, initial="1ms")).worker():
                with pytest.raises(RunFailed, match="down"):
                    await run.result(timeout=20)

    asyncio.run(main())
    assert attempts == [1, 2]
    assert row_types(conn) == (
        ["step_started", "open_attempt_failed", "attempt_started", "open_step_failed"]
        if intent
        else ["first_attempt_failed", "last_attempt_failed"]
    )


def an_hour_later(conn: Connection) -> None:
    """Move what the database remembers into the past."""
    conn.execute("update durable._tasks set retry_at = retry_at - 3600000")
    conn.execute(
        "update durable._journal set data = jsonb_set(data::jsonb, '{retry_at}', "
        "to_jsonb((data::jsonb ->> 'retry_at')::bigint - 3600000))::text "
        "where type in ('first_attempt_failed', 'open_attempt_failed')"
    )


def test_a_step_that_raises_system_exit_fails_and_the_worker_lives(dsn: str) -> None:
    """A step cannot end the process."""
    app = App(dsn)

    @app.step
    async def leave() -> None:
        raise SystemExit(3)

    @app.step
    def leave_too() -> None:
        raise SystemExit(4)

    @app.workflow
    async def go() -> str:
        said = []
        for step in (leave, leave_too):
            try:
                await step()
            except BaseException as error:
                said.append(str(error))
        return " ".join(said)

    assert app.run(go) == "SystemExit: 3 SystemExit: 4"


def test_a_step_that_cancels_itself_fails(dsn: str) -> None:
    """A CancelledError that nobody asked for is a failure and not silence."""
    app = App(dsn)

    @app.step
    async def odd() -> None:
        raise asyncio.CancelledError

    @app.workflow
    async def go() -> None:
        await odd()

    with pytest.raises(RunFailed, match="cancelled itself"):
        app.run(go)


def test_a_poll_is_counted_over_workers(dsn: str, conn: Connection, pytestconfig: pytest.Config) -> None:
    """A step that fails again and again is tried as often as its policy allows, also where one worker after
    another replays what is left of its journal; and that is little."""
    number = 2000 if pytestconfig.getoption("--full") else 60
    ends_at = [number // 5, number // 2]
    app = App(dsn)
    attempts: list[int] = []
    rows: list[int] = []

    def count() -> int:
        found = conn.execute("select count(*) from durable._journal").fetchone()
        return int(str(found[0])) if found else 0

    async def play() -> str:
        reached = asyncio.Event()

        @app.step(retry=Retry(max_attempts=number, initial="1ms", backoff=1, jitter=0))
        async def poll() -> None:
            attempts.append(ctx.step.attempt)
            if ends_at and ctx.step.attempt >= ends_at[0]:
                del ends_at[0]
                reached.set()
            raise OSError(f"attempt {ctx.step.attempt}")

        @app.workflow
        async def go() -> None:
            await poll()

        async with app.client() as client:
            async with app.worker():
                run = await client.start(go)
                await reached.wait()
            rows.append(count())
            while ends_at:
                reached.clear()
                async with app.worker():
                    await reached.wait()
                rows.append(count())
            async with app.worker():
                with pytest.raises(RunFailed) as failed:
                    await run.result()
        return str(failed.value)

    assert f"attempt {number}" in asyncio.run(play())
    # an attempt may be made again where a worker ended
    assert sorted(set(attempts)) == list(range(1, number + 1))
    assert attempts == sorted(attempts)
    assert max(*rows, count()) <= 24
    assert conn.execute("select * from durable.check()").fetchall() == []
