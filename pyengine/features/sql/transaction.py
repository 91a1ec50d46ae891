"""`Transaction`: the user's own rows and the journal in one commit.

Lives here: `tx` of `async with ctx.transaction() as tx`. May not: a connection; statements are requested in
transaction_log.py, and a worker's connection answers them (sql/transaction_runner.py). The theory: the
block of code is one call of the run. The outcomes of its statements stand in the call's journal row, which is
written by the commit that makes the user's rows visible, under the fence of the lease. So a replay runs the
block again and finds the same outcomes, and a worker that lost its lease cannot commit. Starts, signals and
settlements are done at the end, where all locks can be taken in their one order; so their errors are raised
when the block is left.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import PurePath
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NoReturn,
    ParamSpec,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from pyengine.core.client.arguments import named_input
from pyengine.core.definitions.bound_workflow import A, Accepts, B, BoundWorkflow, C, D, E
from pyengine.core.definitions.queues import check_queue
from pyengine.core.definitions.refusals import name_options
from pyengine.core.definitions.registry import Workflow
from pyengine.core.definitions.retry import Duration, time_left, waiting_time
from pyengine.core.definitions.signals import Signal
from pyengine.core.replay.asks import AskKind
from pyengine.core.replay.call_matcher import CallMatcher
from pyengine.core.values.texts import is_text
from pyengine.errors import EngineError, InvalidRequest
from pyengine.features.sql.sql_values import Record, read_records, read_value
from pyengine.features.sql.transaction_log import TransactionLog, subject_of, transactions_of

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=Callable[..., Coroutine[Any, Any, Any]])

_ID_BYTES_MAX = 512


class StartedOptions(TypedDict, total=False):
    """The options of a start in a transaction; `Transaction.start` says what they are."""

    id: str | None
    queue: str | None
    version: str | None
    delay: Duration | None
    timeout: Duration | None
    priority: int


_START_OPTIONS = frozenset(StartedOptions.__annotations__)


def _to_be_awaited(method: M) -> M:
    """Keep what a call of the method returns until it begins, so that the block's end finds a lost one."""

    @wraps(method)
    def call(self: Transaction, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        made, caller = method(self, *args, **kwargs), sys._getframe(1)
        place = f"{PurePath(caller.f_code.co_filename).name}, line {caller.f_lineno}"
        self._made = [*self._lost(), (method.__name__, place, made)]
        return made

    return cast("M", call)


class Transaction:
    """A transaction of the database, in which a workflow writes rows of its own.

    Methods named like those of an asyncpg connection do the same; rows are `Record`s. Statements run one
    after the other. An error of the database leaves the transaction unusable, as always in Postgres; use
    `savepoint` around what may fail.
    """

    def __init__(self, matcher: CallMatcher, name: str, timeout_ms: int) -> None:
        self._transactions = transactions_of(matcher)
        self._codec = matcher.codec
        self._run_id = matcher.run.id
        self._rules = matcher.run.rules
        self._exact = matcher.run.exact
        self._name = name
        self._timeout_ms = timeout_ms
        self._log: TransactionLog | None = None
        self._left = False
        self._savepoints = 0
        self._made: list[tuple[str, str, Coroutine[Any, Any, Any]]] = []
        self._first_error: BaseException | None = None

    @property
    def _subject(self) -> str:
        return subject_of(self._name)

    async def __aenter__(self) -> Self:
        if self._log is not None or self._left:
            raise InvalidRequest(
                f"{self._subject} was entered before", hint="call ctx.transaction() for each block"
            )
        self._log = await self._transactions.begin(self._name, self._timeout_ms)
        return self

    if not TYPE_CHECKING:  # type checkers find it by themselves

        def __enter__(self) -> NoReturn:
            raise InvalidRequest(
                f"{self._subject} was entered by `with`",
                hint="async with ctx.transaction() as tx: ...",
            )

        def __exit__(self, *raised: object) -> None: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        log, self._left = self._log, True
        assert log is not None
        try:
            lost = self._lost() if error is None and log.may_roll_back else []
            if error is not None or lost:
                await self._transactions.ask(log, "rollback")
                if lost:
                    raise self._forgotten(lost)
                return
            try:
                await self._transactions.ask(log, "commit")
            except EngineError as refused:
                refused.add_note(f"{self._subject} of run {self._run_id} was rolled back")
                raise
        finally:
            self._transactions.leave(log)

    # -- rows

    @_to_be_awaited
    async def execute(self, query: str, *args: Any) -> str:
        """Run a statement and return its tag, such as "UPDATE 3".

        Args:
            query: one statement, with $1, $2, ... for the arguments.
            args: its arguments.

        Raises:
            asyncpg.PostgresError: by SQLSTATE, such as asyncpg.UniqueViolationError.
            InvalidRequest: it would end the transaction.
        """
        return str(await self._ask("execute", query, args))

    @_to_be_awaited
    async def executemany(self, query: str, args: Iterable[Sequence[Any]]) -> None:
        """Run a statement once for each sequence of arguments.

        Raises:
            asyncpg.PostgresError, InvalidRequest: as `execute`.
        """
        await self._ask("executemany", query, ([tuple(one) for one in args],))

    @_to_be_awaited
    async def fetch(self, query: str, *args: Any) -> list[Record]:
        """Run a statement and return its rows.

        Raises:
            asyncpg.PostgresError, InvalidRequest: as `execute`.
            EncodeError: a column is of a type that the journal has no form for.
        """
        return read_records(await self._ask("fetch", query, args))

    @_to_be_awaited
    async def fetchrow(self, query: str, *args: Any) -> Record | None:
        """Run a statement and return its first row, or None if it returns none.

        Raises:
            asyncpg.PostgresError, InvalidRequest, EncodeError: as `fetch`.
        """
        rows = await self.fetch(query, *args)
        return rows[0] if rows else None

    @_to_be_awaited
    async def fetchval(self, query: str, *args: Any) -> Any:
        """Run a statement and return the first column of its first row, or None if it returns none.

        Raises:
            asyncpg.PostgresError, InvalidRequest, EncodeError: as `fetch`.
        """
        return read_value(await self._ask("fetchval", query, args))

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Roll back the statements inside if an error leaves the block; the transaction goes on."""
        self._savepoints += 1
        name = f"pyengine_{self._savepoints}"
        await self.execute(f"savepoint {name}")
        try:
            yield
        except BaseException:
            await self.execute(f"rollback to savepoint {name}")
            self._first_error = None
            raise
        await self.execute(f"release savepoint {name}")

    # -- the engine

    @overload
    async def start(self, workflow: BoundWorkflow[Any], /, **options: Unpack[StartedOptions]) -> str: ...
    @overload
    async def start(self, workflow: Workflow[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> str: ...
    @overload
    async def start(self, workflow: Accepts[[], Any], /, **options: Unpack[StartedOptions]) -> str: ...
    @overload
    async def start(
        self, workflow: Accepts[[A], Any], /, *args: *tuple[A], **options: Unpack[StartedOptions]
    ) -> str: ...
    @overload
    async def start(
        self, workflow: Accepts[[A, B], Any], /, *args: *tuple[A, B], **options: Unpack[StartedOptions]
    ) -> str: ...
    @overload
    async def start(
        self, workflow: Accepts[[A, B, C], Any], /, *args: *tuple[A, B, C], **options: Unpack[StartedOptions]
    ) -> str: ...
    @overload
    async def start(
        self,
        workflow: Accepts[[A, B, C, D], Any],
        /,
        *args: *tuple[A, B, C, D],
        **options: Unpack[StartedOptions],
    ) -> str: ...
    @overload
    async def start(
        self,
        workflow: Accepts[[A, B, C, D, E], Any],
        /,
        *args: *tuple[A, B, C, D, E],
        **options: Unpack[StartedOptions],
    ) -> str: ...
    @overload
    async def start(
        self,
        workflow: str,
        /,
        *args: Any,
        id: str | None = ...,
        queue: str | None = ...,
        version: str | None = ...,
        delay: Duration | None = ...,
        timeout: Duration | None = ...,
        priority: int = ...,
        **kwargs: Any,
    ) -> str: ...
    @_to_be_awaited
    async def start(self, workflow: Any, /, *args: Any, **kwargs: Any) -> str:
        """Start a run when the transaction commits, and return its id.

        This run does not wait for it; `ctx.promise(id=...)` does, afterwards.

        Args:
            workflow: the workflow, with its arguments if it is bound; or its name.
            args: its arguments.
            kwargs: its arguments by name, except those named like these options:
            id: id of the run; by default one derived from this transaction.
            queue, version, delay, timeout, priority: as for `Client.start`.

        Raises:
            InvalidRequest, EncodeError: the arguments do not fit.
            RunConflict, NotFound: raised when the block is left.
        """
        options: Any = {name: kwargs.pop(name) for name in _START_OPTIONS & kwargs.keys()}
        try:
            return self._start(workflow, args, kwargs, **options)
        except InvalidRequest as error:
            name_options(error, kwargs, "tx.start", StartedOptions.__annotations__)
            raise

    def _start(
        self,
        workflow: Workflow[..., Any] | BoundWorkflow[Any] | str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        id: str | None = None,
        queue: str | None = None,
        version: str | None = None,
        delay: Duration | None = None,
        timeout: Duration | None = None,
        priority: int = 0,
    ) -> str:
        log = self._open("start")
        if isinstance(workflow, BoundWorkflow):
            args, kwargs = workflow.arguments(args, kwargs)
        definition = workflow.definition if isinstance(workflow, Workflow | BoundWorkflow) else None
        text = self._input(workflow, args, kwargs)
        if queue is not None:
            check_queue(queue, what="tx.start")
        deadline_ms = time_left(timeout, what="tx.start", rules=self._rules)
        if definition is not None and timeout is None:
            deadline_ms = definition.deadline_ms
        run_id = self._new_id(log) if id is None else id
        for told in (run_id, version or "1", workflow if isinstance(workflow, str) else "w"):
            _check_text("start", told)
        log.effects.append(
            {
                "do": "start",
                "workflow": workflow if isinstance(workflow, str) else workflow.name,
                "args": text,
                "id": run_id,
                "queue": queue or (definition.queue if definition is not None else None) or "default",
                "version": version or (definition.version if definition is not None else "1"),
                "delay": waiting_time(delay, what="tx.start", rules=self._rules),
                "timeout": deadline_ms,
                "priority": priority,
                "any_workflow": definition is not None,
            }
        )
        return run_id

    def _input(self, workflow: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the JSON text of the arguments of a workflow, or of the name of one."""
        if isinstance(workflow, Workflow | BoundWorkflow):
            return workflow.definition.signature.encode(args, kwargs, exact=self._exact)
        if isinstance(workflow, str) and not (args and kwargs):
            return named_input(self._codec, args, kwargs)
        raise InvalidRequest(
            f"tx.start takes a workflow, or the name of one, not {workflow!r}",
            hint="give the arguments of a workflow named by a text all by position, or all by name",
        )

    @overload
    async def signal(
        self, run_id: str, signal: Signal[T], payload: T, *, dedup: str | None = None
    ) -> None: ...
    @overload
    async def signal(
        self, run_id: str, signal: Signal[None], payload: None = None, *, dedup: str | None = None
    ) -> None: ...
    @overload
    async def signal(
        self, run_id: str, signal: str, payload: Any = None, *, dedup: str | None = None
    ) -> None: ...
    @_to_be_awaited
    async def signal(
        self, run_id: str, signal: Signal[Any] | str, payload: Any = None, *, dedup: str | None = None
    ) -> None:
        """Send a signal when the transaction commits.

        Args:
            run_id: run id.
            signal: the signal, or its name.
            payload: its payload.
            dedup: deduplication key: a second signal with the same key is ignored.

        Raises:
            EncodeError: the payload does not fit the signal's type.
            NotFound, Conflict: there is no such run, or it has ended; raised when the block is left.
            NotFound, InvalidRequest: its workflow receives no such signal; likewise.
        """
        log = self._open("signal")
        sent = signal if isinstance(signal, Signal) else Signal(signal)
        _check_text("signal", run_id)
        _check_text("signal", dedup or "")
        where = f"the payload of signal {sent.name} to run {run_id}"
        if isinstance(signal, Signal):
            text = self._codec.encode(payload, signal.annotation, where=where, exact=self._exact)
        else:
            text = self._codec.encode_undeclared(payload, where=where, exact=self._exact)
        log.effects.append({"do": "signal", "id": run_id, "name": sent.name, "payload": text, "key": dedup})

    @_to_be_awaited
    async def resolve(self, promise_id: str, value: Any = None) -> None:
        """Settle a promise with a value when the transaction commits.

        Args:
            promise_id: its id.
            value: plain JSON, or an object of the type that waits.

        Raises:
            EncodeError: the value cannot be recorded.
            NotFound: there is no such promise; raised when the block is left.
            Conflict: it has another outcome already; raised when the block is left.
        """
        where = f"the value of promise {promise_id}"
        text = self._codec.encode_undeclared(value, where=where, exact=self._exact)
        self._settle("resolved", promise_id, text)

    @_to_be_awaited
    async def reject(self, promise_id: str, error: BaseException | str) -> None:
        """Settle a promise with an error when the transaction commits.

        Args:
            promise_id: its id.
            error: the error, or its message.

        Raises:
            NotFound, Conflict: as `resolve`.
        """
        problem = EngineError(error) if isinstance(error, str) else error
        self._settle("rejected", promise_id, self._codec.encode_error(problem))

    def _settle(self, state: Literal["resolved", "rejected"], promise_id: str, text: str) -> None:
        log = self._open(verb := "resolve" if state == "resolved" else "reject")
        _check_text(verb, promise_id)
        log.effects.append({"do": "settle", "id": promise_id, "state": state, "value": text})

    def _new_id(self, log: TransactionLog) -> str:
        """Return an id that is unique to this start and the same at every replay."""
        number = sum(one["do"] == "start" for one in log.effects)
        made = f"{self._run_id}:{log.child}-{number}"
        if len(made.encode()) > _ID_BYTES_MAX:
            raise InvalidRequest(
                f"run {self._run_id}: its id is too long to derive another one", hint="give tx.start an id"
            )
        return made

    # -- asking

    def _open(self, verb: str) -> TransactionLog:
        if self._log is None or self._left:
            when = "before it began" if self._log is None else "after its end"
            raise InvalidRequest(
                f"{self._subject}: tx.{verb} was used {when}",
                hint="inside: async with ctx.transaction() as tx",
            )
        return self._log

    async def _ask(self, kind: AskKind, query: str, args: tuple[Any, ...]) -> Any:
        log = self._open(kind)
        if not str(query).strip() or not is_text(str(query)):
            raise InvalidRequest(f"tx.{kind} takes the text of a statement, not {query!r}")
        if log.ask is not None:
            raise InvalidRequest(
                f"{self._subject}: another statement is running", hint="await one after the other"
            )
        try:
            return await self._transactions.ask(log, kind, query, args)
        except Exception as error:
            self._explain(error, query)
            raise

    def _explain(self, error: Exception, query: str) -> None:
        """Add to an error of the database what it does not say itself."""
        state = getattr(error, "sqlstate", None)
        if state == "25P02" and self._first_error is not None:  # in_failed_sql_transaction
            error.__cause__ = self._first_error
            error.add_note("hint: a statement failed before; put one that may into async with tx.savepoint()")
        elif state == "42601" and "%" in query:  # syntax_error
            error.add_note("hint: the arguments of a statement are $1, $2, ..., not %s")
        self._first_error = self._first_error or error

    # -- calls that nobody awaited

    def _lost(self) -> list[tuple[str, str, Coroutine[Any, Any, Any]]]:
        return [one for one in self._made if inspect.getcoroutinestate(one[2]) == inspect.CORO_CREATED]

    def _forgotten(self, lost: list[tuple[str, str, Coroutine[Any, Any, Any]]]) -> InvalidRequest:
        for _, _, made in lost:
            made.close()
        verb, place, _ = lost[0]
        return InvalidRequest(
            f"{self._subject}: tx.{verb} was called and not awaited ({place}); nothing was committed",
            hint=f"write await tx.{verb}(...)",
        )


def _check_text(verb: str, text: object) -> None:
    if not is_text(text):
        raise InvalidRequest(f"tx.{verb}: {text!r} cannot be stored", hint="a text without NUL")
