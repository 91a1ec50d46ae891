"""Database functions from workflow code.

What lives here: the part of `ctx` that calls them, `ctx.sql`. What may not: a decision; that is the run's
(definitions/current_run.py). How such a step is defined stands in definitions/sql_steps.py.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar, overload

from pyengine.definitions.retry import Duration, Retry, optional_duration
from pyengine.definitions.sql_steps import sql_arguments, sql_step
from pyengine.workflow.context_waits import within_run

__all__ = ["ContextSql"]

T = TypeVar("T")


class ContextSql:
    """The part of `ctx` that calls database functions."""

    __slots__ = ()

    @overload
    def sql(
        self,
        function: str,
        /,
        *args: Any,
        type: type[T],
        retry: Retry | None = None,
        timeout: Duration | None = "30s",
        **kwargs: Any,
    ) -> Coroutine[None, None, T]: ...
    @overload
    def sql(
        self,
        function: str,
        /,
        *args: Any,
        type: Any = Any,
        retry: Retry | None = None,
        timeout: Duration | None = "30s",
        **kwargs: Any,
    ) -> Coroutine[None, None, Any]: ...
    def sql(
        self,
        function: str,
        /,
        *args: Any,
        type: Any = Any,
        retry: Retry | None = None,
        timeout: Duration | None = "30s",
        **kwargs: Any,
    ) -> Coroutine[None, None, Any]:
        """Call a database function as a step named like it, and return its result.

        What the function writes and the record of the step commit together or not at all, and only while
        this worker holds the run: so it happens exactly once. It takes one round trip. A serialization
        failure, a deadlock and a lost connection are no failures of the step: it is called again.

        Args:
            function: "schema.function", with argument types if several have that name.
            args: its arguments; Postgres converts each to its declared type. Write dates, decimals and uuids
                as such, arrays as lists, composite values as dicts or objects.
            type: type of the result as JSON: of a set a list, of a row a dict, of nothing None.
            retry: when a failed attempt is made again; None means never.
            timeout: limit of one attempt; None means no limit.
            kwargs: its arguments by name, except those named here, which can only go by position.

        Raises (when awaited):
            SqlError: the function raised it, or cannot be called so.
            StepTimeout: it took too long.
            InvalidRequest: an option is wrong; raised at once, nothing is recorded.
        """
        within = within_run("sql()", "a connection of your own")
        step = sql_step(function, retry, optional_duration(timeout, what="ctx.sql"), type)
        return within.call_step(step, *sql_arguments(step.name, args, kwargs))
