"""Content-addressed calls of workflows, with real workers: shared, failed, forced, cancelled, replayed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, TypeVar

import psycopg
import pytest

from pyengine import App, CallAborted, CallFailed, RunFailed, ctx
from pyengine.errors import InvalidRequest

T = TypeVar("T")
Connection = psycopg.Connection[Any]


class Kind(Enum):
    """Values that go by name."""

    RAIL = "rail"
    ROAD = "road"


@dataclass(frozen=True)
class Trip:
    """A record with parts that plain data does not have."""

    to: str
    at: datetime
    kind: Kind
    data: bytes = b""


class Lab:
    """Memo functions whose bodies are counted, and steered by the test.

    Attributes:
        ran: how often each body has run.
        failing: whether `risky` fails.
        delays: how long each run of `slow` takes, in order.
    """

    def __init__(self, dsn: str) -> None:
        self.app = app = App(dsn)
        self.ran: Counter[str] = Counter()
        self.failing = True
        self.delays: list[float] = []

        @app.memo(version="1")
        async def double(n: float) -> float:
            """Twice a number."""
            self.ran["double"] += 1
            return 2 * n

        @app.memo(version="1")
        def risky(n: int) -> str:
            """Fails as long as the test says so."""
            self.ran["risky"] += 1
            if self.failing:
                raise LookupError(f"no {n}")
            return "found"

        @app.memo(version="1")
        async def slow(n: int) -> int:
            """Takes its time, and returns which run it was."""
            self.ran["slow"] += 1
            number = self.ran["slow"]
            await asyncio.sleep(self.delays[number - 1] if number <= len(self.delays) else 0.3)
            return number

        self.double, self.risky, self.slow = double, risky, slow

    def run(self, body: Callable[[], Awaitable[T]]) -> T:
        """Run a test's body, which may take a minute."""

        async def main() -> T:
            async with asyncio.timeout(60):
                return await body()

        return asyncio.run(main())


async def waits(run: Any) -> None:
    """Wait until a run waits."""
    while (await run.get()).state != "waiting":
        await asyncio.sleep(0.02)


@pytest.fixture
def lab(dsn: str) -> Lab:
    """Memo functions on a database of their own."""
    return Lab(dsn)


@pytest.fixture
def rows(dsn: str) -> Callable[..., list[Any]]:
    """Asks the database of the test."""

    def ask(query: str, *values: Any) -> list[Any]:
        with psycopg.connect(dsn, autocommit=True) as conn:
            return conn.execute(query.encode(), values).fetchall()

    return ask


def test_s02_s05_results_are_shared(lab: Lab) -> None:
    """Within a run its pin answers, in another run the shared result; with "scope" another run runs it."""

    @lab.app.workflow
    async def go(cache: bool | str) -> list[Any]:
        first = ctx.call(lab.double, 4, cache=cache)  # type: ignore[arg-type]
        value = await first
        again = ctx.call(lab.double, 4)
        return [value, await again, (await first.outcome()).at, (await again.outcome()).at]

    assert lab.app.run(go, True) == [8, 8, "started", "pinned_hit"]
    assert lab.app.run(go, True) == [8, 8, "shared_hit", "pinned_hit"]
    assert lab.ran["double"] == 1
    assert lab.app.run(go, "scope") == [8, 8, "started", "pinned_hit"]
    assert lab.ran["double"] == 2


def test_s03_two_workflows_wait_for_one_attempt(lab: Lab, rows: Callable[..., list[Any]]) -> None:
    """One run of the body, both scopes pinned, both workflows have the same value."""

    @lab.app.workflow
    async def go() -> list[Any]:
        call = ctx.call(lab.slow, 1)
        return [await call, (await call.outcome()).exec_id]

    async def body() -> list[Any]:
        async with lab.app.worker():
            runs = [await lab.app.start(go) for _ in range(2)]
            return [await run.result() for run in runs]

    first, second = lab.run(body)
    assert first == second
    assert lab.ran["slow"] == 1
    assert rows("select count(*), count(distinct exec_id) from durable._pins") == [(2, 1)]
    assert rows("select count(*) from durable._call_attempts") == [(1,)]


def test_two_calls_of_one_run_wait_for_one_attempt(lab: Lab) -> None:
    """The run adopts its promise once."""

    @lab.app.workflow
    async def go() -> list[int]:
        return await ctx.gather(*[ctx.call(lab.slow, 1) for _ in range(3)])

    assert lab.app.run(go) == [1, 1, 1]
    assert lab.ran["slow"] == 1


def test_s14_a_failure_is_a_result(lab: Lab, rows: Callable[..., list[Any]]) -> None:
    """Its promise is resolved, the error carries its document, and a second call in the scope has it."""

    @lab.app.workflow
    async def go() -> list[Any]:
        found = []
        for _ in range(2):
            try:
                await ctx.call(lab.risky, 5)
            except CallFailed as error:
                frame = error.error["stack"][-1]
                found.append([error.error["type"], error.error["message"], frame["function"], error.exec_id])
        outcome = await ctx.call(lab.risky, 5).outcome()
        return [*found, outcome.status]

    first, second, status = lab.app.run(go)
    assert first == second
    assert first[:3] == ["LookupError", "no 5", "risky"]
    assert status == "error"
    assert lab.ran["risky"] == 1
    assert rows("select state from durable._promises where id like 'call:%%'") == [("resolved",)]


def test_a_failure_that_leaves_the_workflow_keeps_its_class(lab: Lab) -> None:
    """The client reads a CallFailed with its attributes, and the next command."""

    @lab.app.workflow
    async def go() -> str:
        return await lab.risky(7)

    with pytest.raises(RunFailed) as found:
        lab.app.run(go)
    cause = found.value.__cause__
    assert isinstance(cause, CallFailed)
    assert cause.error["message"] == "no 7"
    assert cause.function == lab.risky.function
    assert cause.hint == f"pyengine call show {cause.node}"


def test_s15_failures_are_shared_only_on_request(lab: Lab) -> None:
    """Another scope tries again, unless it takes failures too."""

    @lab.app.workflow
    async def go(cache_errors: bool) -> str:
        return (await ctx.call(lab.risky, 1, cache_errors=cache_errors).outcome()).status

    assert [lab.app.run(go, False), lab.ran["risky"]] == ["error", 1]
    assert [lab.app.run(go, True), lab.ran["risky"]] == ["error", 1]
    assert [lab.app.run(go, False), lab.ran["risky"]] == ["error", 2]


def test_s16_a_retry_replaces_the_pin(lab: Lab, rows: Callable[..., list[Any]]) -> None:
    """Two execs of the node, two attempts, the pin is the newer one, and its history has both."""

    @lab.app.workflow
    async def go() -> list[Any]:
        call = ctx.call(lab.risky, 1)
        before = await call.outcome()
        await ctx.receive("mended", type=int)
        after = await call.retry().outcome()
        again = ctx.call(lab.risky, 1)
        return [before.status, after.status, await again, before.exec_id != after.exec_id]

    async def body() -> list[Any]:
        async with lab.app.worker():
            run = await lab.app.start(go)
            while not lab.ran["risky"]:
                await asyncio.sleep(0.02)
            lab.failing = False
            await run.signal("mended", 1)
            return await run.result()

    assert lab.run(body) == ["error", "ok", "found", True]
    assert rows("select count(*) from durable._objects where kind = 'exec'") == [(2,)]
    assert rows("select count(*) from durable._call_attempts") == [(2,)]
    assert rows("select count(*), max(version) from durable._pin_log") == [(2, 2)]
    assert rows("select e.sub from durable._pins p join durable._objects e on e.id = p.exec_id") == [("ok",)]


def test_retry_errors_tries_a_pinned_failure_again(lab: Lab) -> None:
    """And only a failure."""

    @lab.app.workflow
    async def go() -> list[str]:
        first = await ctx.call(lab.risky, 1, retry_errors=True).outcome()
        second = await ctx.call(lab.risky, 1, retry_errors=True).outcome()
        value = await ctx.call(lab.double, 1)
        again = await ctx.call(lab.double, 1, retry_errors=True)
        return [first.status, second.status, str(value), str(again)]

    assert lab.app.run(go) == ["error", "error", "2.0", "2.0"]
    assert lab.ran == {"risky": 2, "double": 1}


def test_s17_a_forced_call_runs_once_for_its_step(lab: Lab, rows: Callable[..., list[Any]]) -> None:
    """A replay on another worker finds the step's own attempt; another step forces its own."""

    @lab.app.workflow
    async def go() -> list[int]:
        first = await ctx.call(lab.slow, 1, cache=False)
        await ctx.receive("go on", type=int)
        return [first, await ctx.call(lab.slow, 1, cache=False), await ctx.call(lab.slow, 1)]

    async def body() -> list[int]:
        async with lab.app.worker():
            run = await lab.app.start(go)
            while not rows("select 1 from durable._pins"):
                await asyncio.sleep(0.02)
        async with lab.app.worker():
            run = await lab.app.start(go, id=run.id)
            await run.signal("go on", 1)
            return await run.result()

    lab.delays = [0.0, 0.0]
    assert lab.run(body) == [1, 2, 2]
    assert lab.ran["slow"] == 2


@pytest.mark.parametrize("scope", [None, "exp-7"])
def test_s31_the_last_one_to_leave_ends_the_attempt(lab: Lab, scope: str | None) -> None:
    """While another run waits, in its own scope or in the same, the attempt goes on; then it is given up,
    and nothing is recorded.
    """
    lab.delays = [30.0]
    left: list[bool] = []

    @lab.app.workflow
    async def go() -> str:
        call = ctx.call(lab.slow, 1, scope=scope)
        await ctx.receive("leave", type=int)
        ended = await call.cancel()
        left.append(ended)
        try:
            return f"{ended} {await call}"
        except CallAborted as error:
            return f"{ended} {error.code}"

    async def body() -> list[str]:
        async with lab.app.worker():
            runs = [await lab.app.start(go) for _ in range(2)]
            while not lab.ran["slow"]:
                await asyncio.sleep(0.02)
            for run in runs:
                await waits(run)
            await runs[0].signal("leave", 1)
            while not left:
                await asyncio.sleep(0.02)
            await runs[1].signal("leave", 1)
            return [await run.result() for run in runs]

    assert lab.run(body) == ["False cancelled", "True cancelled"]
    assert lab.ran["slow"] == 1


def test_s34_a_call_waits_for_the_calls_among_its_inputs(lab: Lab) -> None:
    """Also within lists and maps; a failed input fails what depends on it, with its own error."""

    @lab.app.memo(version="1")
    async def add(parts: list[float], more: dict[str, float]) -> float:
        return sum(parts) + sum(more.values())

    @lab.app.workflow
    async def go() -> list[Any]:
        one, two = ctx.call(lab.double, 1), ctx.call(lab.double, 2)
        total = ctx.call(add, [one, two, 10], {"again": one})
        bad = ctx.call(lab.double, ctx.call(lab.risky, 3))
        try:
            await bad
        except CallFailed as error:
            return [await total, error.function]
        return []

    assert lab.app.run(go) == [18, lab.risky.function]
    assert lab.ran == {"double": 2, "risky": 1}


def test_s37_floats_go_to_the_function_and_back(lab: Lab) -> None:
    """As floats, with every bit."""

    @lab.app.memo(version="1")
    def same(values: list[Any]) -> list[Any]:
        return [*values, [type(one).__name__ for one in values]]

    given = [1e16, 5e-324, 1.0, 1, True, 0.1]

    @lab.app.workflow
    async def go() -> list[Any]:
        return await ctx.call(same, given)

    found = lab.app.run(go)
    assert found[:-1] == given
    assert found[-1] == ["float", "float", "float", "int", "bool", "float"]


def test_s47_a_replay_has_what_its_journal_recorded(lab: Lab, rows: Callable[..., list[Any]]) -> None:
    """Whatever the cache holds by then."""

    @lab.app.workflow
    async def go() -> list[Any]:
        call = ctx.call(lab.double, 4)
        value = await call
        await ctx.receive("go on", type=int)
        return [value, (await call.outcome()).exec_id]

    async def body() -> list[Any]:
        async with lab.app.worker():
            run = await lab.app.start(go)
            while not rows("select 1 from durable._pins"):
                await asyncio.sleep(0.02)
        pinned = rows("select encode(exec_id, 'hex') from durable._pins")[0][0]
        rows("select durable.call_invalidate(%s)", lab.double.function)
        async with lab.app.worker():
            run = await lab.app.start(go, id=run.id)
            await run.signal("go on", 1)
            return [await run.result(), pinned]

    found, pinned = lab.run(body)
    assert found == [8, pinned]
    assert lab.ran["double"] == 1


def test_s51_a_step_whose_attempt_was_given_up_stays_so(lab: Lab, rows: Callable[..., list[Any]]) -> None:
    """Through a replay; the next step with the same call starts the next generation."""
    lab.delays = [30.0, 0.0]

    @lab.app.workflow
    async def go() -> list[Any]:
        try:
            await ctx.call(lab.slow, 1, timeout="1s")
        except CallAborted as error:
            code = error.code
        await ctx.receive("go on", type=int)
        return [code, await ctx.call(lab.slow, 1)]

    async def body() -> list[Any]:
        async with lab.app.worker():
            run = await lab.app.start(go)
            while not rows("select 1 from durable._promises where state = 'rejected_timedout'"):
                await asyncio.sleep(0.05)
            await waits(run)
        async with lab.app.worker():
            run = await lab.app.start(go, id=run.id)
            await run.signal("go on", 1)
            return await run.result()

    assert lab.run(body) == ["deadline", 2]
    assert rows("select generation from durable._call_attempts order by 1") == [(0,), (1,)]


def test_s52_forced_steps_keep_their_own_results(lab: Lab, rows: Callable[..., list[Any]]) -> None:
    """Though they end in reverse order; the scope's pin is the one that ended last."""
    lab.delays = [1.5, 0.0]

    @lab.app.workflow
    async def go() -> list[int]:
        first = ctx.call(lab.slow, 1, cache=False)
        await ctx.sleep("300ms")
        second = ctx.call(lab.slow, 1, cache=False)
        results = await ctx.gather(first, second)
        return [*results, await ctx.call(lab.slow, 1)]

    assert lab.app.run(go) == [1, 2, 1]
    assert rows("select max(version) from durable._pin_log") == [(2,)]


def test_what_is_not_shared_stays_in_its_scope(lab: Lab, rows: Callable[..., list[Any]]) -> None:
    """By an option of the call or of the function: another scope runs it, and joins nothing."""

    @lab.app.memo(version="1", share=False)
    async def own(n: int) -> int:
        lab.ran["own"] += 1
        return n

    @lab.app.workflow
    async def go() -> list[str | None]:
        found = [await ctx.call(lab.double, 4, share=False).outcome()]
        found += [await ctx.call(own, 1).outcome() for _ in range(2)]
        return [one.at for one in found]

    for _ in range(2):
        assert lab.app.run(go) == ["started", "started", "pinned_hit"]
    assert (lab.ran["double"], lab.ran["own"]) == (2, 2)
    assert rows("select count(*), count(distinct value_key), bool_or(share) from durable._call_attempts") == [
        (4, 4, False)
    ]


def test_values_have_the_annotated_types(lab: Lab, rows: Callable[..., list[Any]]) -> None:
    """Records, times and members of enumerations go in and come back, from a hit too, as typed datums."""

    @lab.app.memo(version="1")
    def delay(trip: Trip, by: timedelta) -> Trip:
        lab.ran["delay"] += 1
        assert isinstance(trip.kind, Kind)
        return Trip(trip.to, trip.at + by, trip.kind, trip.data + b"!")

    @lab.app.workflow
    async def go() -> list[bool]:
        trip = Trip("Rome", datetime(2026, 1, 31, tzinfo=UTC), Kind.RAIL, b"\x00\xff")
        later = Trip("Rome", datetime(2026, 1, 31, 1, tzinfo=UTC), Kind.RAIL, b"\x00\xff!")
        call = ctx.call(delay, trip, timedelta(hours=1))
        chained = await ctx.call(delay, call, timedelta(hours=-1))
        return [await call == later, (await call.outcome()).value == later, chained.at == trip.at]

    assert [lab.app.run(go), lab.app.run(go)] == [[True] * 3] * 2
    assert lab.ran["delay"] == 2
    assert rows("select count(*) from durable._objects where sub = 'bytes'") == [(3,)]


def test_a_call_has_a_label(lab: Lab, rows: Callable[..., list[Any]]) -> None:
    """In the journal, in the views, and in the request of its adapter; it is no part of the identity."""

    @lab.app.workflow
    async def go(name: str) -> str | None:
        return (await ctx.call(lab.double, 2, name=name).outcome()).at

    assert [lab.app.run(go, "first"), lab.app.run(go, "second")] == ["started", "shared_hit"]
    assert rows("select name from durable.calls") == [("first",)]
    assert rows("select name from durable.call_attempts") == [("first",)]
    named = "select payload #>> '{result,name}' from durable.journal_events where name = 'durable.call_v1'"
    assert [row[0] for row in rows(named) if row[0]] == ["first", "second"]


def test_what_is_no_part_of_the_identity_goes_beside(lab: Lab) -> None:
    """An ignored argument reaches the body and does not make another call."""
    seen = []

    @lab.app.memo(version="1", ignore=["verbose"])
    def quiet(n: int, verbose: bool = False) -> int:
        seen.append((n, verbose))
        return n

    @lab.app.workflow
    async def go() -> list[int]:
        return [await quiet(1, verbose=True), await quiet(1, verbose=False), await quiet(1)]

    assert lab.app.run(go) == [1, 1, 1]
    assert seen == [(1, True)]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("switch", "runs"), [("off", 4), ("refresh", 4), pytest.param("on", 1, marks=pytest.mark.full)]
)
def test_the_cache_is_off_by_a_switch(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, switch: str, runs: int
) -> None:
    """Without any change of code; a result that was refreshed is shared afterwards."""
    monkeypatch.setenv("PYENGINE_CALL_CACHE", switch)

    @lab.app.workflow
    async def go() -> list[float]:
        return [await lab.double(1), await lab.double(1)]

    assert [lab.app.run(go), lab.app.run(go)] == [[2, 2], [2, 2]]
    assert lab.ran["double"] == runs
    monkeypatch.delenv("PYENGINE_CALL_CACHE")
    lab.app.run(go)
    assert lab.ran["double"] == runs + (switch == "off")


def test_large_values_come_when_they_are_asked_for(lab: Lab, rows: Callable[..., list[Any]]) -> None:
    """A value that is only an input of another call is never in the journal of the run."""

    @lab.app.memo(version="1")
    def big(n: int) -> str:
        return "x" * n

    @lab.app.memo(version="1")
    def length(text: str) -> int:
        return len(text)

    @lab.app.workflow
    async def go() -> int:
        return await ctx.call(length, ctx.call(big, 200_000))

    @lab.app.workflow
    async def read() -> int:
        return len(await ctx.call(big, 200_000))

    assert lab.app.run(go) == 200_000
    assert rows("select count(*) from durable._journal where octet_length(data) > 100000") == [(0,)]
    assert lab.app.run(read) == 200_000


def test_wrong_calls_are_refused(lab: Lab) -> None:
    """At once, in the code that makes them."""

    @lab.app.workflow
    async def go(kind: str) -> Any:
        if kind == "step":
            return await ctx.call(len, [1])  # type: ignore[arg-type]
        if kind == "cache":
            return await ctx.call(lab.double, 1, cache="maybe")  # type: ignore[arg-type]
        if kind == "route":
            return await ctx.call(lab.app.executable("s3://nothing/here"), 1)
        return await ctx.call(lab.double, object())

    for kind, part in {"step": "takes a memo", "cache": "True", "value": "object", "route": "s3:"}.items():
        with pytest.raises(RunFailed) as found:
            lab.app.run(go, kind)
        assert part in str(found.value.__cause__), kind
        assert kind in ("value", "route") or isinstance(found.value.__cause__, InvalidRequest)
