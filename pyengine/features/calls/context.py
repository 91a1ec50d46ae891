"""The content-addressed calls of `ctx`.

Lives here: `ctx.call`. May not: a decision; the callee (calls/) makes the call. The theory: a call is
identified by its function and its inputs, so an equal call anywhere runs once, and its result is a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pyengine.core.definitions.callees import CacheMode, Callee, CallHandle, CallOptions
from pyengine.core.definitions.current_run import within_run
from pyengine.core.definitions.retry import Duration, optional_limit
from pyengine.errors import InvalidRequest

T = TypeVar("T")


class ContextCalls:
    """The part of `ctx` that calls functions by content."""

    __slots__ = ()

    def call(
        self,
        callee: Callee[T],
        *args: Any,
        cache: CacheMode = True,
        scope: str | None = None,
        share: bool | None = None,
        cache_errors: bool | None = None,
        retry_errors: bool = False,
        timeout: Duration | None = None,
        max_age: Duration | None = None,
        request: Mapping[str, Any] | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> CallHandle[T]:
        """Begin a content-addressed call: `model = await ctx.call(train, features)`.

        A result that exists for the same function and inputs answers it; an attempt that runs is joined; else
        an attempt starts. A handle may be an argument of another call, which then waits for it. The run
        records what it found, so a replay finds the same.

        Args:
            callee: a function with @app.memo, or an executable.
            args: its arguments: plain data, `Uri`, or handles of other calls.
            cache: False runs it again; "scope" uses no results of other scopes.
            scope: name of the index that pins the result; by default that of the run at the root of this one.
            share: False if no other scope may use the result or join the attempt; the callee's by default.
            cache_errors: True if other scopes may use a failure; the callee's by default.
            retry_errors: True if a failure that is pinned in this scope is tried again.
            timeout: deadline of an attempt that starts; it is given up then.
            max_age: older results of other scopes are not used.
            request: goes to the adapter, such as {"queue": "spot"}, and is no part of the identity.
            name: a label for people, which the adapter gets in its request too.
            kwargs: its arguments by name, except those named here, which can only go by position.

        Raises:
            InvalidRequest: an argument or option is wrong; nothing is recorded.

        Raises (when awaited):
            CallFailed: the work failed; the failure is its result, and pinned.
            CallAborted: the engine gave up; nothing is pinned, and the next call starts again.
        """
        within = within_run("call()", "async with app.index(name) as index: await index.call(...)")
        if not hasattr(callee, "begin_call"):
            raise InvalidRequest(
                f"ctx.call takes a memo function or an executable, not {callee!r}",
                hint='decorate it with @app.memo, or make it with app.executable("dml+exec://...")',
            )
        options = CallOptions(
            cache=cache,
            scope=scope,
            share=share,
            cache_errors=cache_errors,
            retry_errors=retry_errors,
            timeout_ms=optional_limit(timeout, what="ctx.call, timeout"),
            max_age_ms=optional_limit(max_age, what="ctx.call, max_age"),
            request=request,
            name=name,
        )
        return callee.begin_call(within, args, kwargs, options)
