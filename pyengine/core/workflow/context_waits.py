"""The waits of `ctx`: for all, for any, one after the other, join sets, and rows of tables.

Lives here: the part of `ctx` that waits for several calls at once, or for a row. May not: a decision; every
method calls the run that the code belongs to (definitions/current_run.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

import msgspec

from pyengine.core.definitions.bound_workflow import A, B, C, D
from pyengine.core.definitions.current_run import within_run
from pyengine.core.definitions.retry import Duration, waiting_time
from pyengine.core.workflow.handles import DurablePromise
from pyengine.core.workflow.mapping import start_lanes
from pyengine.errors import InvalidRequest

if TYPE_CHECKING:
    from pyengine.core.replay.join_sets import JoinSet

T = TypeVar("T")

_encode_key = msgspec.json.Encoder(order="sorted", decimal_format="number").encode


def _key_text(key: Mapping[str, Any]) -> str:
    try:
        if key and all(isinstance(column, str) for column in key):
            return _encode_key(dict(key)).decode()
        reason = "a key names columns and their values"
    except (AttributeError, TypeError, ValueError) as error:
        reason = str(error)
    raise InvalidRequest(f"ctx.until: {key!r} is not a key: {reason}", hint='key={"id": 42}')


class ContextWaits:
    """The part of `ctx` that waits for several calls, and for rows."""

    __slots__ = ()

    @overload
    def until(
        self,
        table: str,
        watch: str,
        /,
        *,
        key: Mapping[str, Any],
        timeout: Duration | None = None,
        type: type[T],
    ) -> DurablePromise[T]: ...
    @overload
    def until(
        self, table: str, watch: str, /, *, key: Mapping[str, Any], timeout: Duration | None = None
    ) -> DurablePromise[Any]: ...
    def until(
        self,
        table: str,
        watch: str,
        /,
        *,
        key: Mapping[str, Any],
        timeout: Duration | None = None,
        type: Any = Any,
    ) -> DurablePromise[Any]:
        """Wait for a row of a table of yours: `order = await ctx.until("orders", "paid", key={"id": 42})`.

        The table's owner defined "paid" with `durable.watch`. The wait ends at once if the row satisfies the
        condition, else at the commit that makes it do so. A waiting run uses no worker.

        Args:
            table: its name as it was watched, with or without its schema.
            watch: name of the condition.
            key: a value for each column of the watch's key: int, str, bool, Decimal, UUID, date or Enum.
            timeout: TimeoutError is raised if there is no such row by then; None means no limit.
            type: type of the row; a dict of its columns by default. Columns are written as `to_jsonb` does.

        Raises (when awaited):
            NotFound: there is no such watch, or it or its table was dropped meanwhile.
            InvalidRequest: the key does not fit the watch; or at once, if it is not a valid key.
            Conflict: the condition cannot be evaluated.
        """
        within = within_run("until()", "a query")
        if not table or not watch:
            raise InvalidRequest(
                "ctx.until: table and watch are names", hint='ctx.until("orders", "paid", key={"id": 42})'
            )
        return cast(
            "DurablePromise[Any]",
            within.make_promise(
                type,
                timeout_ms=waiting_time(timeout, what="ctx.until", rules=within.run.rules),
                name=f"{table}.{watch}",
                key=_key_text(key),
            ),
        )

    @overload
    def gather(self, a: Awaitable[A], b: Awaitable[B], /) -> Awaitable[tuple[A, B]]: ...
    @overload
    def gather(self, a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], /) -> Awaitable[tuple[A, B, C]]: ...
    @overload
    def gather(
        self, a: Awaitable[A], b: Awaitable[B], c: Awaitable[C], d: Awaitable[D], /
    ) -> Awaitable[tuple[A, B, C, D]]: ...
    @overload
    def gather(
        self, *awaitables: Awaitable[T], return_exceptions: Literal[False] = ...
    ) -> Awaitable[list[T]]: ...
    @overload
    def gather(
        self, *awaitables: Awaitable[T], return_exceptions: bool
    ) -> Awaitable[list[T | BaseException]]: ...
    def gather(self, *awaitables: Awaitable[Any], return_exceptions: bool = False) -> Awaitable[Any]:
        """Wait for all of these and return their results as a list, in the order given.

        Unlike `asyncio.gather` it always waits for every one, then raises the first error in that order. A
        run that waits for many children or promises is woken once, not once for each.

        Args:
            awaitables: steps, child runs, promises, sleeps, coroutines.
            return_exceptions: put errors in the list instead of raising.
        """
        within = within_run("gather()", "asyncio.gather()")
        return within.gather(awaitables, return_exceptions=return_exceptions)

    @overload
    def map(
        self,
        call: Callable[[A], Awaitable[T]],
        items: Iterable[A],
        /,
        *,
        concurrency: int | None = 10,
        progress: bool = False,
        return_exceptions: Literal[False] = ...,
    ) -> Awaitable[list[T]]: ...
    @overload
    def map(
        self,
        call: Callable[[A], Awaitable[T]],
        items: Iterable[A],
        /,
        *,
        concurrency: int | None = 10,
        progress: bool = False,
        return_exceptions: bool,
    ) -> Awaitable[list[T | BaseException]]: ...
    def map(
        self,
        call: Callable[[Any], Awaitable[Any]],
        items: Iterable[Any],
        /,
        *,
        concurrency: int | None = 10,
        progress: bool = False,
        return_exceptions: bool = False,
    ) -> Awaitable[list[Any]]:
        """Make one call for each item, some at a time, and return the results in the order of the items.

            thumbnails = await ctx.map(resize, pictures, concurrency=20, progress=True)

        As with `gather` every call ends, also if some fail; then the first error in the order of the items is
        raised. Steps wake nothing. A run that waits for child runs is woken once, when all have ended, with
        `concurrency=None`; with a limit it is woken whenever some have ended, to start the next ones.

        Args:
            call: a step, a workflow, or an async function of steps.
            items: its arguments, in an order that is the same at every replay.
            concurrency: how many calls are under way at a time; None means all.
            progress: show how many calls have ended, by `ctx.progress`.
            return_exceptions: put errors in the list instead of raising.

        Raises:
            InvalidRequest: the items are a set, or the concurrency is no number above 0.
        """
        within = within_run("map()", "asyncio.gather()")
        if isinstance(items, set | frozenset):
            raise InvalidRequest(
                "ctx.map: a set has another order at every replay", hint="sorted(items), or a list"
            )
        if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
            raise InvalidRequest(f"ctx.map: concurrency is a number above 0, not {concurrency!r}")
        listed = list(items)
        total = len(listed)
        if not progress and (concurrency is None or concurrency >= total):
            calls = tuple([call(item) for item in listed])
            return within.gather(calls, return_exceptions=return_exceptions, mapped=[])
        lanes, outcomes = start_lanes(
            call,
            listed,
            lanes=total if concurrency is None else concurrency,
            done=lambda ended: within.set_progress(ended, total, None) if progress else None,
        )
        return within.gather(lanes, return_exceptions=return_exceptions, mapped=outcomes)

    def first(self, *awaitables: Awaitable[T]) -> Awaitable[tuple[int, T]]:
        """Wait for any of these and return (its index, its result); the others go on.

        Raises:
            InvalidRequest: nothing was given.
        """
        within = within_run("first()", "asyncio.wait()")
        if not awaitables:
            raise InvalidRequest("ctx.first: nothing was given to wait for")
        return within.first(awaitables)

    def as_completed(self, *awaitables: Awaitable[T]) -> Iterator[Coroutine[None, None, T]]:
        """Iterate over awaitables of results, in the order in which they complete."""
        return within_run("as_completed()", "asyncio.as_completed()").as_completed(awaitables)

    def join_set(self) -> JoinSet[Any]:
        """Make a set of steps, child runs and promises whose results come in the order of completion.

        `tasks.submit(call)` for each; then `await tasks.next()`, `async for result in tasks`, or
        `await tasks.all()`.
        """
        return cast("JoinSet[Any]", within_run("join_set()", "asyncio.TaskGroup()").join_set())
