"""Runs that are asked to end: who hears of it, what may still be done, what happens when nobody listens."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import psycopg
import pytest

from pyengine import App, Retry, Worker, ctx
from pyengine.core.database.connection import Database
from pyengine.errors import RunCancelled
from tests.core.worker.test_lost import until
from tests.support.turns import Send, carries, intercept

CANCELLED = ["execution_started", "cancel_requested", "execution_cancelled"]
Connection = psycopg.Connection[tuple[object, ...]]


def cancel(conn: Connection, run_id: str, **options: Any) -> str:
    """Ask a run to end, as people do in psql."""
    more = "".join(f", {name} => %({name})s" for name in options)
    row = conn.execute(f"select durable.cancel(%(id)s{more})", {"id": run_id, **options}).fetchone()  # type: ignore[arg-type]
    assert row is not None
    return str(row[0])


def types(conn: Connection, run_id: str, leave_out: tuple[str, ...] = ()) -> list[str]:
    """The row types of the journal of a run, in order."""
    heads = "durable._journal j join durable._executions h using (execution)"
    query = f"select j.type from {heads} where h.id = %s order by j.execution, j.seq"
    rows = conn.execute(query.encode(), (run_id,))
    return [str(row[0]) for row in rows if row[0] not in leave_out]


def state(conn: Connection, run_id: str) -> str:
    """State of a run as people see it."""
    row = conn.execute("select state from durable.runs where id = %s", (run_id,)).fetchone()
    assert row is not None
    return str(row[0])


async def happens(event: threading.Event) -> None:
    """Wait for something that a thread does."""
    while not event.is_set():
        await asyncio.sleep(0.005)


async def cancelled(run: Any) -> RunCancelled:
    """Wait for the end of a run, which must be a cancelled one."""
    with pytest.raises(RunCancelled) as ended:
        await run.result(timeout=20)
    return ended.value


def test_a_running_step_is_cancelled(dsn: str, conn: Connection) -> None:
    """The request reaches an async step that is under way, through the turn; the run ends as cancelled."""
    app = App(dsn)
    seen: list[str] = []

    @app.step
    async def slow() -> None:
        seen.append("began")
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    @app.workflow
    async def go() -> None:
        await slow()

    async def main() -> None:
        async with app.client() as client, app.worker():
            run = await client.start(go, id="r")
            while not seen:
                await asyncio.sleep(0.005)
            assert cancel(conn, "r", reason='"enough"') == "cancelling"
            await cancelled(run)

    asyncio.run(main())
    assert seen == ["began", "cancelled"]
    assert types(conn, "r", leave_out=("step_started",)) == CANCELLED
    assert state(conn, "r") == "cancelled"


def test_a_sync_step_sees_it_in_its_token(dsn: str, conn: Connection) -> None:
    """A thread cannot be stopped; its token tells that nobody waits any more."""
    app = App(dsn)
    began, ended = threading.Event(), threading.Event()

    @app.step
    def busy() -> str:
        assert not ctx.step.cancelled
        began.set()
        while not ctx.step.cancelled:
            time.sleep(0.005)
        ended.set()
        return "nobody reads this"

    @app.workflow
    async def go() -> str:
        return await busy()

    async def main() -> None:
        async with app.client() as client, app.worker():
            run = await client.start(go, id="r")
            await happens(began)
            cancel(conn, "r")
            await cancelled(run)
            await happens(ended)

    asyncio.run(main())
    assert types(conn, "r", leave_out=("step_started",)) == CANCELLED


@pytest.mark.parametrize("way", ["given up", "timed out", "lost", "stopped"])
def test_the_token_tells_whenever_nobody_wants_the_outcome(dsn: str, conn: Connection, way: str) -> None:
    """A call that was given up, an attempt that timed out, a lease that was lost, a worker that stops."""
    if way == "lost":  # the next renewal tells of it
        conn.execute("select durable.set_setting('lease_ttl_ms', '200')")
    app = App(dsn)
    began, ended = threading.Event(), threading.Event()

    def body() -> None:
        if began.is_set():
            return
        began.set()
        while not ctx.step.cancelled:
            time.sleep(0.005)
        ended.set()

    busy = app.step(body, name="busy") if way != "timed out" else app.step(timeout="50ms", name="busy")(body)

    @app.workflow
    async def go() -> str:
        try:
            async with asyncio.timeout(0.05 if way == "given up" else None):
                await busy()
        except Exception as error:
            return type(error).__name__
        return "done"

    async def main() -> str:
        async with app.client() as client:
            run = await client.start(go)
            async with app.worker():
                await happens(began)
                if way == "lost":
                    with conn.transaction():  # no renewal comes between, nor word that one was missed
                        conn.execute("select from durable._workers for update")
                        conn.execute("update durable._tasks set expires_at = 0")
                        conn.execute("select durable.tick_v1(100)")
                if way != "stopped":
                    await happens(ended)
                    return await run.result(timeout=20)
            await happens(ended)
            async with app.worker():
                return await run.result(timeout=20)

    expected = {"given up": "TimeoutError", "timed out": "StepTimeout"}
    assert asyncio.run(main()) == expected.get(way, "done")


@pytest.mark.parametrize("way", ["suspended", "retrying", "held"])
def test_a_run_that_waits_is_woken_into_its_end(dsn: str, conn: Connection, way: str) -> None:
    """Whatever a run waits for (a timer, its next attempt far away or near), it ends at once."""
    app = App(dsn)

    @app.step(retry=Retry(initial="1h" if way == "retrying" else "4s", jitter=0))
    async def fail() -> None:
        raise OSError("down")

    @app.workflow
    async def go() -> None:
        if way == "suspended":
            await ctx.sleep("1h")
        await fail()

    async def main() -> None:
        async with app.client() as client, app.worker():
            run = await client.start(go, id="r")
            if way == "held":
                await until(conn, "exists (select from durable._journal where type = 'first_attempt_failed')")
            else:
                while (await run.get()).state not in ("waiting", "scheduled"):
                    await asyncio.sleep(0.005)
            assert cancel(conn, "r") == "cancelling"
            await cancelled(run)

    asyncio.run(main())
    assert state(conn, "r") == "cancelled"


@pytest.mark.parametrize("force", [False, True])
def test_a_run_that_never_ran_ends_without_a_worker(dsn: str, conn: Connection, force: bool) -> None:
    """There is nothing to clean up after, so nobody has to run it."""
    app = App(dsn)

    @app.workflow
    async def go() -> None:
        raise AssertionError("it ran")

    async def main() -> None:
        async with app.client() as client:
            run = await client.start("go", id="r", conn=None)
            assert cancel(conn, "r", force=force) == "cancelled"
            async with app.worker():
                await cancelled(run)

    asyncio.run(main())


@pytest.mark.session("a hint tells of the cancellation within its grace")
def test_when_the_grace_is_over_the_run_ends_without_its_code(dsn: str, conn: Connection) -> None:
    """A clean-up that does not come to an end is cut off: the run is cancelled, the worker fenced, its step
    cancelled, and nothing that it says later is recorded.
    """
    app = App(dsn)
    did: list[str] = []

    @app.step
    async def slow() -> None:
        did.append("slow")
        await asyncio.sleep(600)

    @app.step
    async def undo() -> str:
        did.append("undo")
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            did.append("cut off")
            raise
        return "undone"

    @app.workflow
    async def go() -> str:
        try:
            await slow()
        except asyncio.CancelledError:
            async with ctx.shield():
                return await undo()
        return ""

    async def main() -> None:
        async with app.client() as client, app.worker():
            run = await client.start(go, id="r")
            while not did:
                await asyncio.sleep(0.005)
            cancel(conn, "r", grace="1500 milliseconds")
            await cancelled(run)
            while did[-1] != "cut off":
                await asyncio.sleep(0.005)

    asyncio.run(main())
    assert did[0] == "slow" and did[-1] == "cut off"
    assert types(conn, "r", leave_out=("step_started", "open_attempt_failed")) == CANCELLED


def test_children_end_with_their_parent_unless_they_are_abandoned(dsn: str, conn: Connection) -> None:
    """A request reaches the child runs too, except those that were started to outlive it."""
    app = App(dsn)
    began: list[str] = []

    @app.step
    async def slow(name: str) -> None:
        began.append(name)
        await asyncio.sleep(600)

    @app.workflow
    async def child(name: str) -> None:
        await slow(name)

    @app.workflow
    async def parent() -> None:
        ctx.start(child, "detached", detached=True)
        await child("bound")

    async def main() -> None:
        async with app.client() as client, app.worker():
            run = await client.start(parent, id="r")
            while len(began) < 2:
                await asyncio.sleep(0.005)
            cancel(conn, "r")
            await cancelled(run)
            await cancelled(client.run("r.1"))
            assert state(conn, "r.0") == "running"

    asyncio.run(main())


def test_without_hints_a_request_arrives_all_the_same(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a pooler nobody can be told; a worker asks for its runs by itself."""
    plain = Database.open

    async def pooled(self: Database) -> None:
        await plain(self)
        self.pooled = True

    monkeypatch.setattr(Database, "open", pooled)
    app = App(dsn)
    began: list[int] = []

    @app.step
    async def slow() -> None:
        began.append(1)
        await asyncio.sleep(600)

    @app.workflow
    async def go() -> None:
        await slow()

    async def main() -> None:
        async with app.client() as client, app.worker():
            run = await client.start(go, id="r")
            while not began:
                await asyncio.sleep(0.005)
            cancel(conn, "r")
            await cancelled(run)

    asyncio.run(main())


def test_a_request_in_any_gap_between_turns_ends_the_run(dsn: str, conn: Connection) -> None:
    """Right before whichever turn the request comes: no step begins after the worker has heard of it, the
    clean-up is made exactly once, and the run is cancelled.
    """
    app = App(dsn)
    cleaned: list[str] = []

    @app.step
    async def step(n: int) -> int:
        return n

    @app.step
    async def clean() -> None:
        cleaned.append(ctx.run_id)

    @app.workflow
    async def go() -> int:
        try:
            total = await step(1) + await step(2)
            await asyncio.gather(ctx.sleep(0.01), step(3))
            return total + await step(4)
        except asyncio.CancelledError:
            async with ctx.shield():
                await ctx.sleep(0.01)
                await clean()
            raise

    async def live(gap: int) -> tuple[int, str]:
        turns, run_id = 0, f"r{gap}"

        async def watch(send: Send, sent: tuple[Any, ...]) -> Any:
            nonlocal turns
            if carries(sent):
                turns += 1
                if turns == gap:
                    cancel(conn, run_id, grace="1 hour")
            return await send()

        undo = intercept(watch)
        try:
            async with Worker(app.registry, dsn), app.client() as client:
                run = await client.start(go, id=run_id)
                while (ended := (await run.get()).state) not in ("completed", "cancelled"):
                    await asyncio.sleep(0.005)
        finally:
            undo()
        return turns, ended

    gap, ended = 1, "cancelled"
    while ended == "cancelled":
        turns, ended = asyncio.run(live(gap))
        gap += 1
        assert turns < 30
    assert ended == "completed" and gap > 5
    expected = [f"r{n}" for n in range(1, gap - 1)]
    assert cleaned == expected
