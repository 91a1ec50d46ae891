"""The calls of `ctx` to functions of other languages.

Lives here: `ctx.rpc`. May not: a decision; the call is made by the run that the code belongs to
(definitions/current_run.py). The theory: such a call is a promise whose target is the address of the other
side's processes; any client of the protocol can serve it.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast, overload

from pyengine.core.definitions.current_run import within_run
from pyengine.core.definitions.retry import Duration, time_left
from pyengine.core.workflow.handles import DurablePromise
from pyengine.features.remote.remote_calls import remote_param

T = TypeVar("T")


class ContextRpc:
    """The part of `ctx` that calls functions of other languages."""

    __slots__ = ()

    @overload
    def rpc(
        self,
        target: str,
        function: str,
        /,
        *args: Any,
        type: type[T],
        version: int = 1,
        timeout: Duration | None = None,
        large_integers: bool = False,
        **kwargs: Any,
    ) -> DurablePromise[T]: ...
    @overload
    def rpc(
        self,
        target: str,
        function: str,
        /,
        *args: Any,
        type: Any = Any,
        version: int = 1,
        timeout: Duration | None = None,
        large_integers: bool = False,
        **kwargs: Any,
    ) -> DurablePromise[Any]: ...
    def rpc(
        self,
        target: str,
        function: str,
        /,
        *args: Any,
        type: Any = Any,
        version: int = 1,
        timeout: Duration | None = None,
        large_integers: bool = False,
        **kwargs: Any,
    ) -> DurablePromise[Any]:
        """Call a function of a Resonate SDK: `receipt = await ctx.rpc("poll://any@billing", "charge", 42)`.

        Any worker of the group that has registered the function runs it, once for this call whatever happens
        to this worker. Give a timeout: nothing tells a group that nobody serves from a busy one, and a Python
        function that raises is tried again for a long time before its error is the answer.

        Args:
            target: address of the workers: "poll://any@group", or the group alone.
            function: its name there.
            args: its arguments, written as JSON.
            type: type of its result.
            version: its version there; 0 means the newest, in TypeScript only.
            timeout: awaiting it raises TimeoutError if it has not ended by then; None means no limit.
            large_integers: send integers above 2^53, which only Python reads.
            kwargs: its arguments by name, which TypeScript ignores, except those named here.

        Raises:
            InvalidRequest: a part of the call is wrong; nothing is recorded.
            EncodeError: an argument cannot be written as JSON.

        Raises (when awaited):
            RemoteError: the function raised; type, message and traceback are those of its error.
            RunCancelled: somebody cancelled the call.
            TimeoutError: it took too long.
        """
        within = within_run("rpc()", "a client of that SDK")
        param = remote_param(target, function, args, kwargs, version=version, large_integers=large_integers)
        timeout_ms = time_left(timeout, what="ctx.rpc", rules=within.run.rules)
        call = within.call_remote(
            function, target=target, param=param, annotation=type, timeout_ms=timeout_ms
        )
        return cast("DurablePromise[Any]", call)
