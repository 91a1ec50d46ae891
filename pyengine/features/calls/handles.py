"""A call inside a workflow: a step that begins it, and a promise that the run adopts if it is not answered.

Lives here: `begin`, and the handle that workflow code gets. May not: identity, the cache, attempts; those are
SQL. Design: the step records what the call found (a hit, an attempt that it joined or started), so a replay
finds the same whatever the cache holds by then. If it waits, the run adopts the promise of the attempt, and a
second step reads how that ended. A value that is large is read by a third step, only when it is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from pyengine.core.definitions.callees import CallOptions, CallOutcome
from pyengine.core.definitions.current_run import WorkflowRuntime, within_run
from pyengine.errors import InvalidRequest
from pyengine.features.calls.inputs import BoundCall, NodeSource, pending_nodes, resolved_input
from pyengine.features.calls.outcomes import call_error, read_outcome
from pyengine.features.calls.steps import BEGIN, CANCEL, RESULT, VALUE

R_co = TypeVar("R_co", covariant=True)

_CACHE = {True: "shared", "scope": "scope", False: "force"}

# two calls of one run may wait for one attempt, whose promise the run adopts once
_adopted: WeakKeyDictionary[WorkflowRuntime, dict[str, Any]] = WeakKeyDictionary()


def option_document(options: CallOptions) -> dict[str, Any]:
    """Return the options of a call as the JSON object that SQL takes; what is not given is left out.

    Raises:
        InvalidRequest: there is no such cache mode.
    """
    try:
        cache = _CACHE[options.cache]
    except (KeyError, TypeError):
        raise InvalidRequest(f'cache is True, "scope" or False, not {options.cache!r}') from None
    given = msgspec.structs.asdict(options) | {"cache": cache}
    if options.name is not None:
        # the adapter gets it too, and people find the attempt by it
        given["request"] = {**(options.request or {}), "name": options.name}
    return {name: value for name, value in given.items() if value is not None}


def begin(within: WorkflowRuntime, bound: BoundCall) -> Handle[Any]:
    """Begin a call: at once, or as soon as the calls among its inputs have ended."""
    return Handle(within, bound)


class Handle(NodeSource, Generic[R_co]):
    """A call that has begun."""

    def __init__(self, within: WorkflowRuntime, bound: BoundCall) -> None:
        self._within = within
        self._bound = bound
        self._options = option_document(bound.options)
        self._found: dict[str, Any] = {}
        self._value: asyncio.Future[Any] | None = None
        begun = None if self._waits() else self._begun()
        self._ended = asyncio.ensure_future(self._drive(begun))

    @property
    def node(self) -> str | None:
        """Id of its call node; None until the call is recorded."""
        return self._found.get("node")

    @property
    def function(self) -> str:
        """URI of the function."""
        return self._bound.function

    def done(self) -> bool:
        """Whether it has ended, according to this run's journal."""
        return self._ended.done()

    async def outcome(self) -> CallOutcome:
        """Wait for its end and return that as a value, also a failure."""
        outcome = await asyncio.shield(self._ended)
        if outcome.status != "ok":
            return outcome
        if self._value is None:
            self._value = asyncio.ensure_future(self._read(outcome))
        return msgspec.structs.replace(outcome, value=await asyncio.shield(self._value))

    def __await__(self) -> Generator[Any, None, R_co]:
        return self._result().__await__()

    async def _result(self) -> Any:
        outcome = await self.outcome()
        if outcome.status == "ok":
            return outcome.value
        raise call_error(outcome, self.function, self.node)

    def retry(self) -> Handle[R_co]:
        """Call it again as a new attempt, whose result replaces the pin of this one."""
        options = msgspec.structs.replace(self._bound.options, cache=False)
        return begin(self._within, msgspec.structs.replace(self._bound, options=options))

    async def cancel(self) -> bool:
        """Stop waiting for it here; return whether its attempt ended, as nothing else waits for it.

        Other calls of the same node wait on, those of this run and those of others in the same scope.
        """
        within = within_run("call().cancel()", "index.call().cancel()")
        found = self._found
        return bool(found) and bool(
            await within.call_step(CANCEL, (found["scope"], self.node, found["step"]), {})
        )

    # -- its life

    def _waits(self) -> bool:
        return any(not source.done() for one in self._bound.inputs for source in pending_nodes(one))

    def _begun(self) -> Any:
        """Take the call's number and return its step."""
        inputs = [resolved_input(one) for one in self._bound.inputs]
        return self._within.call_step(BEGIN, (self._bound.function, inputs, self._options), {})

    async def _drive(self, begun: Any) -> CallOutcome:
        if begun is None:
            for one in self._bound.inputs:
                for source in pending_nodes(one):
                    await source.settled()
            begun = self._begun()
        self._found = found = await begun
        if found.get("status") is None:
            await self._settled(found["promise"])
            asked = (found["execution_key"], found["node"], found["scope"])
            ended = await self._within.call_step(RESULT, asked, {})
            self._found = found = {**found, **ended}
        return read_outcome(found)

    async def settled(self) -> None:
        """Wait until it has a result that another call can have as its input.

        Raises:
            CallFailed: its work failed.
            CallAborted: it was given up.
        """
        outcome = await asyncio.shield(self._ended)
        if outcome.status != "ok":
            raise call_error(outcome, self.function, self.node)

    async def _settled(self, promise: str) -> None:
        """Wait for the promise of the attempt; how the attempt ended is read by a step of its own."""
        adopted = _adopted.setdefault(self._within, {})
        call = adopted.get(promise)
        if call is None:
            call = adopted[promise] = self._within.adopt(Any, promise)
        try:
            await asyncio.shield(call)
        except asyncio.CancelledError:
            raise
        except Exception:  # of any class that the promise was rejected with
            return

    async def _read(self, outcome: CallOutcome) -> Any:
        """Return the value: of the record, if it was small enough, else by a step."""
        if "value" in self._found:
            return self._bound.read(self._found["value"])
        return self._bound.read(await self._within.call_step(VALUE, (outcome.dag, self._found["scope"]), {}))

    def __repr__(self) -> str:
        return f"<call {self.function} {self.node or 'that waits for its inputs'}>"
