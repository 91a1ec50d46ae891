"""Law: Python's door to durable promises answers as the older API, with records for answers and errors for
refusals, and a request may be sent twice."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from pyengine import App, Client
from pyengine.context import ctx
from pyengine.errors import (
    Conflict,
    EncodeError,
    InvalidRequest,
    NotAwaitable,
    NotFound,
    NotTargeted,
    RunFailed,
    Unavailable,
)
from pyengine.features.promises.client import Opaque, Promises
from pyengine.features.promises.records import PromiseConflict, PromiseRecord
from tests.support.clock import Clock

Connection = psycopg.Connection[tuple[Any, ...]]
Scenario = Callable[[Promises], Awaitable[None]]


def play(dsn: str, scenario: Scenario) -> None:
    """Run a scenario with a client of its own."""

    async def main() -> None:
        async with Client(dsn) as client:
            await scenario(door(client))

    asyncio.run(main())


def door(client: Client) -> Promises:
    """The promises of a client."""
    return client.promises


def test_create_and_get(dsn: str, conn: Connection, clock: Clock) -> None:
    """A promise carries a value, headers, tags, a deadline and its key, and psql reads the value."""

    async def scenario(promises: Promises) -> None:
        made = await promises.create(
            "p", {"n": [1, "two"]}, timeout="1h", idempotency_key="k", headers={"a": "b"}, tags={"c": "d"}
        )
        assert (made.id, made.state, made.pending, made.deduplicated) == ("p", "PENDING", True, False)
        assert (made.param, made.value, made.completed_on) == ({"n": [1, "two"]}, None, None)
        assert (made.param_headers, made.value_headers) == ({"codec": "json", "a": "b"}, {})
        assert (made.tags, made.idempotency_key_for_create) == ({"c": "d"}, "k")
        assert made.timeout == made.created_on + timedelta(hours=1)
        assert await promises.get("p") == made

    play(dsn, scenario)
    assert conn.execute("select param from durable.promises where id = 'p'").fetchone() == (
        {"n": [1, "two"]},
    )


@pytest.mark.parametrize(
    ("verb", "state"), [("resolve", "RESOLVED"), ("reject", "REJECTED"), ("cancel", "REJECTED_CANCELED")]
)
def test_completions(dsn: str, verb: str, state: str) -> None:
    """Each verb completes once: its key finds what it did, anything else is a conflict that carries the
    promise."""

    async def scenario(promises: Promises) -> None:
        await promises.create("p")
        complete: Any = getattr(promises, verb)
        done = await complete("p", 7, idempotency_key="u", headers={"a": "b"})
        assert (done.state, done.value, done.value_headers) == (state, 7, {"codec": "json", "a": "b"})
        assert (done.idempotency_key_for_complete, done.deduplicated) == ("u", False)
        assert done.completed_on is not None and done.completed_on >= done.created_on
        again = await complete("p", 8, idempotency_key="u", strict=True)
        assert (again.deduplicated, again.value) == (True, 7)
        other = promises.reject if verb == "resolve" else promises.resolve
        assert (await other("p", idempotency_key="u")).state == state
        for refused in (complete("p", 8), complete("p", 8, idempotency_key="v"), other("p", strict=True)):
            with pytest.raises(PromiseConflict, match=f"'p' is already {verb}") as caught:
                await refused
            assert caught.value.promise == await promises.get("p")

    play(dsn, scenario)


def test_conflicts_of_creations(dsn: str) -> None:
    """The same key finds its promise, strictly only while it is pending; no key and another one do not."""

    async def scenario(promises: Promises) -> None:
        await promises.create("p", 1, idempotency_key="k")
        again = await promises.create("p", 2, idempotency_key="k", strict=True)
        assert (again.deduplicated, again.param) == (True, 1)
        for key in (None, "l"):
            with pytest.raises(PromiseConflict, match="'p' is already pending"):
                await promises.create("p", idempotency_key=key)
        await promises.resolve("p")
        assert (await promises.create("p", idempotency_key="k")).state == "RESOLVED"
        with pytest.raises(Conflict, match="'p' is already resolved"):
            await promises.create("p", idempotency_key="k", strict=True)

    play(dsn, scenario)


def test_requests_without_keys_never_match(dsn: str) -> None:
    """Two requests without a key are two: the second one is a conflict."""

    async def scenario(promises: Promises) -> None:
        await promises.create("p")
        with pytest.raises(PromiseConflict):
            await promises.create("p")
        await promises.resolve("p")
        with pytest.raises(PromiseConflict):
            await promises.resolve("p")

    play(dsn, scenario)


def test_a_request_that_is_sent_twice(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the connection breaks after the commit, the request is sent again and finds that it was done by
    itself, with a key or without."""

    async def scenario(promises: Promises) -> None:
        broken = 0

        async def rows(procedure: Any, *values: Any) -> Any:
            nonlocal broken
            broken += 1
            await original(procedure, *values)
            return await original(procedure, *values)

        original = promises._transport.rows
        monkeypatch.setattr(promises._transport, "rows", rows)
        for key in (None, "k"):
            id_ = f"p-{key}"
            made = await promises.create(id_, 1, idempotency_key=key)
            assert (made.state, made.deduplicated) == ("PENDING", key is not None)
            done = await promises.resolve(id_, 2, idempotency_key=key, strict=True)
            assert (done.state, done.deduplicated) == ("RESOLVED", key is not None)
        assert broken == 4

    play(dsn, scenario)


def test_payloads(dsn: str, conn: Connection) -> None:
    """Plain JSON comes back equal; opaque text is stored and shown as it is; nothing is nothing; what JSON
    cannot hold is refused."""

    async def scenario(promises: Promises) -> None:
        for number, value in enumerate((0, 1.5, "text", "", True, [], {"a": None}, ["ä"])):
            await promises.create(f"p{number}", value)
            assert (await promises.resolve(f"p{number}", value)).value == value
            assert (await promises.get(f"p{number}")).param == value
        raw = await promises.create("raw", Opaque("aGk="), headers={"encoding": "base64"})
        assert (raw.param, raw.param_data, raw.param_headers) == ("aGk=", "aGk=", {"encoding": "base64"})
        none = await promises.create("none")
        assert (none.param, none.param_data, none.param_headers) == (None, None, {})
        for wrong in (float("nan"), "\0", object(), {1: 2}):
            with pytest.raises(EncodeError, match="promise wrong"):
                await promises.create("wrong", wrong)
        with pytest.raises(NotFound):
            await promises.get("wrong")

    play(dsn, scenario)


def test_errors_as_values(dsn: str) -> None:
    """A rejection may carry an exception; a workflow that waits for the promise gets it."""
    app = App(dsn)

    @app.workflow
    async def waits() -> None:
        await ctx.promise(name="answer")

    async def main() -> None:
        async with app.worker(), app.client() as client:
            run = await client.start(waits, id="r")
            promises = door(client)
            async with asyncio.timeout(30):
                while not (await promises.search("r.*")).promises:
                    await asyncio.sleep(0.01)
            error = (await promises.reject("r.0", LookupError("nothing"))).value
            assert (error["type"], error["message"]) == ("LookupError", "nothing")
            with pytest.raises(RunFailed) as caught:
                await run
            assert isinstance(caught.value.__cause__, LookupError)

    asyncio.run(main())


def test_a_workflow_gets_the_value(dsn: str) -> None:
    """A promise of a workflow is completed through this door, whatever value it carries."""
    app = App(dsn)

    @app.workflow
    async def waits() -> Any:
        return [await ctx.promise(), await ctx.promise()]

    async def main() -> None:
        async with app.worker(), app.client() as client:
            run = await client.start(waits, id="r")
            promises = door(client)
            for child, value in enumerate(({"ok": True}, None)):
                async with asyncio.timeout(30):
                    while not (await promises.search(f"r.{child}")).promises:
                        await asyncio.sleep(0.01)
                await promises.resolve(f"r.{child}", value)
            assert await run == [{"ok": True}, None]

    asyncio.run(main())


def test_deadlines(dsn: str) -> None:
    """A deadline is a span from the database's now, an instant, or never; what is over is timed out, and an
    answer is too late, whether strict or not; a cancellation changes nothing."""

    async def scenario(promises: Promises) -> None:
        assert (await promises.create("never")).timeout is None
        instant = datetime(2999, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
        assert (await promises.create("instant", timeout=instant)).timeout == instant
        past = await promises.create("past", timeout=datetime(2001, 1, 1, tzinfo=UTC))
        assert (past.state, past.completed_on) == ("REJECTED_TIMEDOUT", past.timeout)
        assert past.created_on == past.timeout
        late = await promises.cancel("past")
        assert (late.state, late.value, late.deduplicated) == ("REJECTED_TIMEDOUT", None, True)
        for answer in (promises.resolve, promises.reject):
            with pytest.raises(
                PromiseConflict, match="'past' has timed out: this answer is too late"
            ) as told:
                await answer("past", 1, idempotency_key="k")
            assert told.value.promise.completed_on == past.timeout
        with pytest.raises(PromiseConflict, match="already timedout"):
            await promises.resolve("past", 1, strict=True)
        with pytest.raises(InvalidRequest, match="without a time zone"):
            await promises.create("naive", timeout=datetime(2999, 1, 1))

    play(dsn, scenario)


def test_missing_promises(dsn: str) -> None:
    """Nothing is completed, awaited or read that is not there."""

    async def scenario(promises: Promises) -> None:
        for request in (
            promises.get("p"),
            promises.resolve("p"),
            promises.reject("p"),
            promises.cancel("p"),
            promises.subscribe("p", "g"),
            promises.callback("c", "p", "q", "g"),
        ):
            with pytest.raises(NotFound, match="'p'"):
                await request

    play(dsn, scenario)


def test_callbacks(dsn: str) -> None:
    """A callback is registered once, under its id, at one address, unless the promise is completed."""

    async def scenario(promises: Promises) -> None:
        await promises.create("root", tags={"resonate:target": "g"})
        await promises.create("leaf")
        made = await promises.callback(
            "c", "leaf", "root", {"type": "poll", "data": {"group": "g", "id": "w"}}
        )
        assert made.callback is not None and made.promise.pending
        found = (made.callback.id, made.callback.promise_id, made.callback.root_promise_id)
        assert (*found, made.callback.recv) == ("c", "leaf", "root", "poll://any@g/w")
        assert made.callback.timeout is None
        again = await promises.callback("c", "leaf", "root", "g", timeout="1h")
        assert again.callback is not None and again.callback.id == "c" and again.promise.pending
        timed = await promises.callback("d", "leaf", "root", "http://h/x", timeout="1h")
        assert timed.callback is not None and timed.callback.timeout is not None
        await promises.resolve("leaf", 5)
        late = await promises.callback("e", "leaf", "root", "g")
        assert (late.callback, late.promise.value) == (None, 5)
        with pytest.raises(NotTargeted):
            await promises.callback("f", "root", "leaf", "g")
        for recv in ("a b", {"type": "poll"}, 7):
            with pytest.raises(InvalidRequest, match=r"its receiver, .*, cannot be routed"):
                await promises.callback("g", "root", "root2", recv)  # type: ignore[arg-type]

    play(dsn, scenario)


def test_subscriptions(dsn: str, conn: Connection) -> None:
    """Who subscribes is told at its own address; a local step of a run is nobody else's to wait for."""
    conn.execute("select durable.start('w', id => 'r')")

    async def scenario(promises: Promises) -> None:
        await promises.create("p")
        assert (await promises.subscribe("p", "poll://g:w")).pending
        assert (await promises.subscribe("p", "poll://g:w")).deduplicated
        await promises.cancel("p")
        assert (await promises.subscribe("p", "poll://g:v")).state == "REJECTED_CANCELED"

    play(dsn, scenario)
    assert conn.execute("select address from durable._unblocks").fetchall() == [("poll://uni@g/w",)]


def test_search(dsn: str) -> None:
    """Pages in the order of ids, by pattern, state and tags."""

    async def scenario(promises: Promises) -> None:
        for number in range(5):
            await promises.create(f"a{number}", tags={"even": str(number % 2 == 0)})
        await promises.create("b")
        await promises.cancel("a3")

        async def ids(*pattern: str, **options: Any) -> list[str]:
            return [each.id for each in (await promises.search(*pattern, **options)).promises]

        assert await ids("a*") == ["a0", "a1", "a2", "a3", "a4"]
        assert await ids(state="REJECTED") == ["a3"]
        assert await ids("a*", tags={"even": "True"}) == ["a0", "a2", "a4"]
        first = await promises.search(limit=4)
        assert ([each.id for each in first.promises], first.cursor) == (["a0", "a1", "a2", "a3"], "a3")
        rest = await promises.search(limit=4, cursor=first.cursor)
        assert ([each.id for each in rest.promises], rest.cursor) == (["a4", "b"], None)
        with pytest.raises(InvalidRequest, match="there is no state 'pending'"):
            await promises.search(state="pending")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="1 to 1000 records, not 0"):
            await promises.search(limit=0)

    play(dsn, scenario)


def test_malformed_arguments(dsn: str) -> None:
    """A malformed request is refused, and nothing is made of it."""

    async def scenario(promises: Promises) -> None:
        for request in (
            promises.create(""),
            promises.create("p", idempotency_key=""),
            promises.create("p", headers={"a": 1}),  # type: ignore[dict-item]
            promises.create("p", tags={"a": 1}),  # type: ignore[dict-item]
            promises.create("p", tags={"resonate:target": "a b"}),
            promises.create("p\0"),
            promises.create("p", timeout="soon"),
        ):
            with pytest.raises(InvalidRequest):
                await request
        assert (await promises.search()).promises == ()

    play(dsn, scenario)


def test_a_step_of_a_run_is_not_awaitable(dsn: str) -> None:
    """A local step can be read, and neither awaited nor completed by others."""
    app = App(dsn)

    @app.step
    async def five() -> int:
        return 5

    @app.workflow
    async def counts() -> int:
        return await five()

    async def main() -> None:
        async with app.worker(), app.client() as client:
            await (await client.start(counts, id="r"))
            promises = door(client)
            assert (await promises.get("r.0")).value == 5
            with pytest.raises(NotAwaitable):
                await promises.subscribe("r.0", "g")
            with pytest.raises(PromiseConflict):
                await promises.reject("r.0")

    asyncio.run(main())


def test_the_error_survives_pickling(dsn: str) -> None:
    """A conflict goes through pickle with the promise that it carries."""

    async def scenario(promises: Promises) -> None:
        record = await promises.create("p")
        with pytest.raises(PromiseConflict) as caught:
            await promises.create("p")
        back = pickle.loads(pickle.dumps(caught.value))
        assert isinstance(back.promise, PromiseRecord)
        assert (str(back), back.promise) == (str(caught.value), record)

    play(dsn, scenario)


def test_a_database_that_is_down() -> None:
    """A database that cannot be reached is Unavailable, as everywhere."""

    async def scenario(promises: Promises) -> None:
        with pytest.raises(Unavailable):
            await promises.get("p")

    play_unopened("postgresql://nobody@127.0.0.1:1/none", scenario)


def play_unopened(dsn: str, scenario: Scenario) -> None:
    """Run a scenario with a client that has not looked at its database yet."""

    async def main() -> None:
        client = Client(dsn)
        try:
            await scenario(door(client))
        finally:
            await client.close()

    asyncio.run(main())
