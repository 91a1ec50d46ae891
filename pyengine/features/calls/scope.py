"""Content-addressed calls without a workflow: an index, and the calls that are made in it.

Lives here: `Index` and `IndexCall`. May not: identity and the cache, which are SQL. The theory: an index
pins results under the nodes that they belong to. Nothing of a call is in this process, so it may end at any
moment: the attempt goes on, and an equal call later joins it or has its result.
"""

from __future__ import annotations

import uuid
from collections.abc import Generator, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from pyengine.core.client.transport import Transport
from pyengine.core.database.statements.procedures import Procedure
from pyengine.core.definitions.callees import CacheMode, CallOptions, CallOutcome
from pyengine.core.definitions.retry import Duration, optional_limit, waiting_time
from pyengine.core.process import clock
from pyengine.errors import InvalidRequest
from pyengine.features.calls.functions import Executable, Memo
from pyengine.features.calls.handles import option_document
from pyengine.features.calls.inputs import BoundCall, NodeSource, encode_input, pending_nodes, resolved_input
from pyengine.features.calls.outcomes import call_error, read_outcome
from pyengine.features.calls.statements.calls import (
    CALL,
    CALL_CANCEL,
    CALL_RESULT,
    CALL_VALUE,
    COMMIT_SCOPE,
    OPEN_SCOPE,
)
from pyengine.features.calls.steps import cache_switch

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Index:
    """An index: the results that are pinned under a name.

    Args:
        transport: the way to the database.
        name: its name.
        base: the head that a new index begins at.
    """

    def __init__(self, transport: Transport, name: str, base: str | None = None) -> None:
        self.name = name
        self._base = base
        self._transport = transport

    async def open(self) -> None:
        """Make it, if there is none of this name.

        Raises:
            NotFound: there is no such base.
        """
        await self._ask(OPEN_SCOPE, self.name, self._base)

    async def call(
        self,
        callee: Memo[..., T] | Executable,
        *args: Any,
        cache: CacheMode = True,
        share: bool | None = None,
        cache_errors: bool | None = None,
        retry_errors: bool = False,
        timeout: Duration | None = None,
        max_age: Duration | None = None,
        request: Mapping[str, Any] | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> IndexCall[T]:
        """Begin a call, once the calls among its arguments have ended; options as for `ctx.call`.

        Raises:
            InvalidRequest: an argument or option is wrong.
            CallFailed: a call among its arguments failed.
            CallAborted: a call among its arguments was given up.
        """
        if not isinstance(callee, Memo | Executable):
            raise InvalidRequest(f"index.call takes a memo function or an executable, not {callee!r}")
        options = CallOptions(
            cache=cache,
            scope=self.name,
            share=share,
            cache_errors=cache_errors,
            retry_errors=retry_errors,
            timeout_ms=optional_limit(timeout, what="index.call, timeout"),
            max_age_ms=optional_limit(max_age, what="index.call, max_age"),
            request=request,
            name=name,
        )
        return await self._begin(callee.bind_call(args, kwargs, options))

    async def commit(self, result: NodeSource | Any, *, name: str = "result") -> str:
        """Freeze the pins of the index into a commit with a DAG whose root is this result, and return its id.

        Args:
            result: a call of this index that has a result, or a value.
            name: the name of the DAG in the tree of the commit.

        Raises:
            Conflict: the head that it is based on has moved.
        """
        given = encode_input(result, "the result")
        for source in pending_nodes(given):
            await source.settled()
        root = msgspec.json.encode(resolved_input(given)).decode()
        return str(await self._ask(COMMIT_SCOPE, self.name, root, name))

    async def _begin(self, bound: BoundCall) -> IndexCall[Any]:
        for one in bound.inputs:
            for source in pending_nodes(one):
                await source.settled()
        # the same step if the statement has to be sent again
        step = str(uuid.uuid4()) if bound.options.cache is False or bound.options.retry_errors else None
        inputs = msgspec.json.encode([resolved_input(one) for one in bound.inputs]).decode()
        options = msgspec.json.encode(option_document(bound.options)).decode()
        found = await self._ask(CALL, bound.function, inputs, options, step, cache_switch())
        if found.get("status") is None:
            await self._transport.announce("durable_ready", with_commit=False)
        return IndexCall(self, bound, found)

    async def _ask(self, procedure: Procedure, *values: Any) -> Any:
        rows = await self._transport.rows(procedure, *values)
        text = rows[0]["answer"]
        return text if procedure is COMMIT_SCOPE or procedure is CALL_CANCEL else _read(text)


class IndexCall(NodeSource, Generic[T_co]):
    """A call in an index: await it, or `result`, for its value.

    Attributes:
        at: how the call found its result or attempt: pinned_hit, shared_hit, joined, started, ...
        execution_key: the attempt; None for a result that was there already.
    """

    def __init__(self, index: Index, bound: BoundCall, found: dict[str, Any]) -> None:
        self._index = index
        self._bound = bound
        self._found = found
        self.at: str = found["at"]
        self.execution_key: str | None = found.get("execution_key")

    @property
    def node(self) -> str:
        """Id of its call node."""
        return str(self._found["node"])

    @property
    def function(self) -> str:
        """URI of the function."""
        return self._bound.function

    def done(self) -> bool:
        """Whether it has ended, as far as this process has read."""
        return self._found.get("status") is not None

    async def status(self) -> str:
        """Return where it stands now: pending, ok, error or aborted."""
        await self._read_end()
        return self._found.get("status") or "pending"

    async def outcome(self, *, timeout: Duration | None = None) -> CallOutcome:
        """Wait for its end and return that as a value, also a failure.

        Args:
            timeout: how long to wait; None means without a limit.

        Raises:
            TimeoutError: it has not ended in time; its attempt goes on.
        """
        left_ms = waiting_time(timeout, what="the timeout of a call")
        until_s = None if left_ms is None else clock.monotonic() + left_ms / 1000
        while not self.done():
            left_s = None if until_s is None else max(0.0, until_s - clock.monotonic())
            try:
                await self._index._transport.ended(self._found["promise"], left_s)
            except TimeoutError:
                raise TimeoutError(
                    f"call {self.node} of {self.function} has not ended in time; its attempt goes on"
                ) from None
            await self._read_end()
        outcome = read_outcome(self._found)
        if outcome.status != "ok":
            return outcome
        if "value" in self._found:
            tagged = self._found["value"]
        else:
            tagged = await self._index._ask(CALL_VALUE, outcome.dag, self._index.name)
        return msgspec.structs.replace(outcome, value=self._bound.read(tagged))

    async def result(self, *, timeout: Duration | None = None) -> T_co:
        """Wait for its value.

        Args:
            timeout: how long to wait; None means without a limit.

        Raises:
            TimeoutError: it has not ended in time; its attempt goes on.
            CallFailed: the work failed; the failure is its result.
            CallAborted: the engine gave up; nothing is pinned.
        """
        outcome = await self.outcome(timeout=timeout)
        if outcome.status != "ok":
            raise call_error(outcome, self.function, self.node)
        value: T_co = outcome.value
        return value

    def __await__(self) -> Generator[Any, None, T_co]:
        return self.result().__await__()

    async def settled(self) -> None:
        """Wait until it has a result that another call can have as its input."""
        outcome = await self.outcome()
        if outcome.status != "ok":
            raise call_error(outcome, self.function, self.node)

    async def retry(self) -> IndexCall[T_co]:
        """Call it again as a new attempt, whose result replaces the pin of this one."""
        options = msgspec.structs.replace(self._bound.options, cache=False)
        return await self._index._begin(msgspec.structs.replace(self._bound, options=options))

    async def cancel(self) -> bool:
        """Give it up in this index, also for others that wait for it here; return whether its attempt ended.

        The attempt goes on as long as another index, or the scope of a run, waits for it.
        """
        return bool(await self._index._ask(CALL_CANCEL, self._index.name, self.node) == "cancelled")

    async def _read_end(self) -> None:
        if not self.done() and self.execution_key is not None:
            ended = await self._index._ask(CALL_RESULT, self.execution_key, self.node, self._index.name)
            self._found = {**self._found, **ended}

    def __repr__(self) -> str:
        return f"<call {self.node} of {self.function}>"


def _read(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
