"""The transactions and the calls of database functions of `ctx`.

Lives here: `ctx.transaction` and `ctx.sql`. May not: a decision; both ask the run that the code belongs to
(definitions/current_run.py).
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar, overload

from pyengine.core.definitions.current_run import within_run
from pyengine.core.definitions.retry import Duration, Retry, optional_duration, parse_duration
from pyengine.core.definitions.services import sql_arguments
from pyengine.core.replay.call_matcher import matcher_within
from pyengine.core.values.texts import is_text
from pyengine.errors import InvalidRequest
from pyengine.features.sql.sql_steps import sql_step
from pyengine.features.sql.transaction import Transaction

T = TypeVar("T")


class ContextSql:
    """The part of `ctx` that writes rows of the user's own, and calls functions of the database."""

    __slots__ = ()

    def transaction(
        self, name: str = "transaction", *, timeout: Duration = "30s"
    ) -> AbstractAsyncContextManager[Transaction]:
        """Write rows of your own: `async with ctx.transaction() as tx: await tx.execute(...)`.

        The rows, the run's journal and the effects of tx.start, tx.signal and tx.resolve are committed
        together or not at all, exactly once, even if the worker crashes. An error that leaves the block rolls
        back. The block is one call of the run: a replay runs it again with the recorded results. It also runs
        again after a conflict with another transaction (SQLSTATE 40...). While it is open the run does
        nothing else, so no step, child run, timer or signal is allowed inside.

        Args:
            name: a label for people.
            timeout: from its begin to its commit.

        Raises (when entered or left):
            InvalidRequest: another transaction of the run is open.
            asyncpg.PostgresError: the commit failed, such as by a deferred constraint.
            StepTimeout: it took too long.
        """
        matcher = matcher_within("transaction()", "a connection of your own")
        timeout_ms = parse_duration(timeout, what="ctx.transaction")
        if not timeout_ms:
            raise InvalidRequest("ctx.transaction: a timeout is more than 0")
        if not is_text(name, 200):
            raise InvalidRequest(
                f"{name!r} is not the name of a transaction", hint="a text of 1 to 200 bytes, no NUL"
            )
        return Transaction(matcher, name, timeout_ms)

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

        The writes of the function and the record of the step commit together or not at all, and only while
        this worker has the lease, so they happen exactly once. A call takes one round trip. After a
        serialization failure, a deadlock or a lost connection the function is called again; these are no
        failures of the step.

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
