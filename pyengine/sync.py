"""The client for blocking programs: Django, Flask, scripts, notebooks, threads.

    from pyengine.sync import Client

    with Client("postgresql://localhost/shop") as client:
        run = client.start("checkout", 42, id="order-42")
        print(run.result(timeout="1m"))

Lives here: `Client`, `SyncRun`, `Promises` and `Schedules`, whose verbs are derived from the asynchronous
ones of the same name, with signature, documentation and errors. May not: a verb of its own. Design: a verb
awaits its transport and nothing else (client/transport.py), and the one of client/psycopg_transport.py never
suspends. So the first `send` runs the coroutine of a verb to its end, without an event loop. A new verb is
added here as one line; a test fails until it is. Type checkers see the signature of
some verbs here too: mypy keeps only the first overload of a derived verb, and pyright takes the result of a
run for a run.

Threads may share a client. A forked process may use the client of its parent; it makes its own connections.
Inside an event loop these verbs work too, and block the loop. Steps that are plain functions may use them;
workflow code may not.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, Unpack, overload

from pyengine import clients as awaiting
from pyengine.core.client.psycopg_transport import PsycopgTransport
from pyengine.core.client.run import Run, SignalOptions
from pyengine.core.client.run_status import RunStatus
from pyengine.core.client.starts import StartOptions
from pyengine.core.definitions.bound_workflow import A, Accepts, B, BoundWorkflow, C, D, E
from pyengine.core.definitions.registry import Registry, Workflow
from pyengine.core.definitions.retry import Duration
from pyengine.core.definitions.signals import Signal
from pyengine.errors import EngineError
from pyengine.features.promises import client as awaiting_promises
from pyengine.features.schedules import client as awaiting_schedules

if TYPE_CHECKING:
    # as in client/client.py
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

__all__ = ["Client", "Promises", "Schedules", "SyncRun"]

P = ParamSpec("P")
V = TypeVar("V")
R = TypeVar("R")


def _driven(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that never suspends, and return its result.

    Raises:
        EngineError: it suspends.
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: R = stop.value
        return result
    coroutine.close()
    raise EngineError("a verb of the client waits for something else than its transport")


def _driven_items(items: AsyncGenerator[R, None]) -> Iterator[R]:
    """Iterate over an asynchronous generator that never suspends."""
    try:
        while True:
            try:
                yield _driven(items.__anext__())
            except StopAsyncIteration:
                return
    finally:
        _driven(items.aclose())


def _derive(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Return a blocking method that calls a verb of the inner object."""

    @functools.wraps(verb)
    def derived(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        answer = verb(self._inner, *args, **kwargs)
        if isinstance(answer, AsyncGenerator):
            return _driven_items(answer)
        if isinstance(answer, Coroutine):
            answer = _driven(answer)
        if isinstance(answer, Run):
            return SyncRun(answer)
        if isinstance(answer, list):
            return [SyncRun(one) if isinstance(one, Run) else one for one in answer]
        return answer

    return derived


@overload
def _of_client(
    verb: Callable[Concatenate[awaiting.ClientApi, P], Coroutine[Any, Any, Run[T]]],
) -> Callable[Concatenate[Client, P], SyncRun[T]]: ...
@overload
def _of_client(
    verb: Callable[Concatenate[awaiting.ClientApi, P], Coroutine[Any, Any, list[Run[T]]]],
) -> Callable[Concatenate[Client, P], list[SyncRun[T]]]: ...
@overload
def _of_client(
    verb: Callable[Concatenate[awaiting.ClientApi, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Client, P], R]: ...
@overload
def _of_client(
    verb: Callable[Concatenate[awaiting.ClientApi, P], AsyncIterator[R]],
) -> Callable[Concatenate[Client, P], Iterator[R]]: ...
def _of_client(verb: Any) -> Any:
    return _derive(verb)


def _handle_of_client(
    verb: Callable[Concatenate[awaiting.ClientApi, P], Run[T]],
) -> Callable[Concatenate[Client, P], SyncRun[T]]:
    return _derive(verb)


@overload
def _of_run(
    verb: Callable[Concatenate[Run[T], P], Coroutine[Any, Any, Run[T]]],
) -> Callable[Concatenate[SyncRun[T], P], SyncRun[T]]: ...
@overload
def _of_run(
    verb: Callable[Concatenate[Run[T], P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncRun[T], P], R]: ...
@overload
def _of_run(
    verb: Callable[Concatenate[Run[T], P], AsyncIterator[R]],
) -> Callable[Concatenate[SyncRun[T], P], Iterator[R]]: ...
def _of_run(verb: Any) -> Any:
    return _derive(verb)


def _of_promises(
    verb: Callable[Concatenate[awaiting_promises.Promises, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Promises, P], R]:
    return _derive(verb)


def _of_schedules(
    verb: Callable[Concatenate[awaiting_schedules.Schedules, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Schedules, P], R]:
    return _derive(verb)


class SyncRun(Generic[T]):
    """A handle of one run, as `pyengine.Run`, with blocking verbs.

    Args:
        inner: the asynchronous handle.
    """

    def __init__(self, inner: Run[T]) -> None:
        self._inner = inner

    @property
    def id(self) -> str:
        """Run id."""
        return self._inner.id

    @property
    def created(self) -> bool | None:
        """Whether this start created the run; None for a handle of an existing run."""
        return self._inner.created

    if TYPE_CHECKING:
        # a derivation keeps one signature, and `get` and `signal` have several
        @overload
        def get(self) -> RunStatus: ...
        @overload
        def get(self, name: str, type: type[V]) -> V | None: ...
        @overload
        def get(self, name: str, type: Any = ...) -> Any: ...
        def get(self, name: str | None = None, type: Any = Any) -> Any: ...

        def result(self, *, timeout: Duration | None = None) -> T: ...

        @overload
        def signal(self, signal: Signal[V], payload: V, **options: Unpack[SignalOptions]) -> int: ...
        @overload
        def signal(
            self, signal: Signal[None], payload: None = None, **options: Unpack[SignalOptions]
        ) -> int: ...
        @overload
        def signal(self, signal: str, payload: Any = None, **options: Unpack[SignalOptions]) -> int: ...
        def signal(self, signal: Any, payload: Any = None, **options: Any) -> int: ...
    else:
        result = _of_run(Run.result)
        get = _of_run(Run.get)
        signal = _of_run(Run.signal)
    watch = _of_run(Run.watch)
    why = _of_run(Run.why)
    cancel = _of_run(Run.cancel)
    pause = _of_run(Run.pause)
    resume = _of_run(Run.resume)
    redrive = _of_run(Run.redrive)
    reschedule = _of_run(Run.reschedule)
    fork = _of_run(Run.fork)
    as_of = _of_run(Run.as_of)

    def __repr__(self) -> str:
        return repr(self._inner)


class Promises:
    """Creates promises, completes them, and waits for them by callback, as `Client.promises`.

    Args:
        inner: the asynchronous promises.
    """

    def __init__(self, inner: awaiting_promises.Promises) -> None:
        self._inner = inner

    create = _of_promises(awaiting_promises.Promises.create)
    resolve = _of_promises(awaiting_promises.Promises.resolve)
    reject = _of_promises(awaiting_promises.Promises.reject)
    cancel = _of_promises(awaiting_promises.Promises.cancel)
    callback = _of_promises(awaiting_promises.Promises.callback)
    subscribe = _of_promises(awaiting_promises.Promises.subscribe)
    get = _of_promises(awaiting_promises.Promises.get)
    search = _of_promises(awaiting_promises.Promises.search)


class Schedules:
    """Creates, lists, pauses and deletes schedules, as `Client.schedules`.

    Args:
        inner: the asynchronous schedules.
    """

    def __init__(self, inner: awaiting_schedules.Schedules) -> None:
        self._inner = inner

    create = _of_schedules(awaiting_schedules.Schedules.create)
    get = _of_schedules(awaiting_schedules.Schedules.get)
    next = _of_schedules(awaiting_schedules.Schedules.next)
    pause = _of_schedules(awaiting_schedules.Schedules.pause)
    resume = _of_schedules(awaiting_schedules.Schedules.resume)
    trigger = _of_schedules(awaiting_schedules.Schedules.trigger)
    backfill = _of_schedules(awaiting_schedules.Schedules.backfill)
    instants = _of_schedules(awaiting_schedules.Schedules.instants)
    delete = _of_schedules(awaiting_schedules.Schedules.delete)
    list = _of_schedules(awaiting_schedules.Schedules.list)


class Client:
    """Starts runs, waits for them, and controls them, as `pyengine.Client`, with blocking verbs.

    Args:
        database: URL of the database. The first verb without `conn` connects to it.
        registry: code known here, `app.registry`: types of results by workflow name, and error classes.
        connections: the largest number of connections.

    Attributes:
        promises: creates and completes durable promises, and waits for them by callback.
        schedules: creates, lists, pauses and deletes schedules.

    `conn` of the verbs is a blocking connection: psycopg's, an SQLAlchemy Session or Connection over it, or
    Django's `connection`. Use the client in a `with` block, call `close` at the end, or share one in the
    whole process.
    """

    def __init__(self, database: str, *, registry: Registry | None = None, connections: int = 4) -> None:
        self._inner = awaiting.ClientApi(PsycopgTransport(database, connections), registry)
        self.promises = Promises(self._inner.promises)
        self.schedules = Schedules(self._inner.schedules)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    open = _of_client(awaiting.ClientApi.open)
    close = _of_client(awaiting.ClientApi.close)
    if TYPE_CHECKING:

        @overload
        def start(self, workflow: BoundWorkflow[T], /, **options: Unpack[StartOptions]) -> SyncRun[T]: ...
        @overload
        def start(self, workflow: Workflow[P, T], /, *args: P.args, **kwargs: P.kwargs) -> SyncRun[T]: ...
        @overload
        def start(self, workflow: Accepts[[], T], /, **options: Unpack[StartOptions]) -> SyncRun[T]: ...
        @overload
        def start(
            self, workflow: Accepts[[A], T], /, *args: *tuple[A], **options: Unpack[StartOptions]
        ) -> SyncRun[T]: ...
        @overload
        def start(
            self, workflow: Accepts[[A, B], T], /, *args: *tuple[A, B], **options: Unpack[StartOptions]
        ) -> SyncRun[T]: ...
        @overload
        def start(
            self, workflow: Accepts[[A, B, C], T], /, *args: *tuple[A, B, C], **options: Unpack[StartOptions]
        ) -> SyncRun[T]: ...
        @overload
        def start(
            self,
            workflow: Accepts[[A, B, C, D], T],
            /,
            *args: *tuple[A, B, C, D],
            **options: Unpack[StartOptions],
        ) -> SyncRun[T]: ...
        @overload
        def start(
            self,
            workflow: Accepts[[A, B, C, D, E], T],
            /,
            *args: *tuple[A, B, C, D, E],
            **options: Unpack[StartOptions],
        ) -> SyncRun[T]: ...
        @overload
        def start(
            self,
            workflow: str,
            /,
            *args: Any,
            id: str | None = ...,
            key: str | None = ...,
            queue: str | None = ...,
            version: str | None = ...,
            delay: Duration | None = ...,
            timeout: Duration | None = ...,
            priority: int = ...,
            tags: Mapping[str, str] | None = ...,
            conn: Any = ...,
            **kwargs: Any,
        ) -> SyncRun[Any]: ...
        def start(self, workflow: Any, /, *args: Any, **kwargs: Any) -> SyncRun[Any]: ...
    else:
        start = _of_client(awaiting.ClientApi.start)
    begin = _of_client(awaiting.ClientApi.begin)
    start_many = _of_client(awaiting.ClientApi.start_many)
    run = _handle_of_client(awaiting.ClientApi.run)
    get = _of_client(awaiting.ClientApi.get)
    get_value = _of_client(awaiting.ClientApi.get_value)
    watch = _of_client(awaiting.ClientApi.watch)
    why = _of_client(awaiting.ClientApi.why)
    why_all = _of_client(awaiting.ClientApi.why_all)
    why_many = _of_client(awaiting.ClientApi.why_many)
    list = _of_client(awaiting.ClientApi.list)
    if TYPE_CHECKING:

        @overload
        def signal(
            self, run_id: str, signal: Signal[V], payload: V, **options: Unpack[SignalOptions]
        ) -> int: ...
        @overload
        def signal(
            self, run_id: str, signal: Signal[None], payload: None = None, **options: Unpack[SignalOptions]
        ) -> int: ...
        @overload
        def signal(
            self, run_id: str, signal: str, payload: Any = None, **options: Unpack[SignalOptions]
        ) -> int: ...
        def signal(self, run_id: str, signal: Any, payload: Any = None, **options: Any) -> int: ...
    else:
        signal = _of_client(awaiting.ClientApi.signal)
    cancel = _of_client(awaiting.ClientApi.cancel)
    pause = _of_client(awaiting.ClientApi.pause)
    resume = _of_client(awaiting.ClientApi.resume)
    redrive = _of_client(awaiting.ClientApi.redrive)
    reschedule = _of_client(awaiting.ClientApi.reschedule)
    delete = _of_client(awaiting.ClientApi.delete)
    fork = _of_client(awaiting.ClientApi.fork)
    as_of = _of_client(awaiting.ClientApi.as_of)
    signal_many = _of_client(awaiting.ClientApi.signal_many)
    cancel_many = _of_client(awaiting.ClientApi.cancel_many)
    pause_many = _of_client(awaiting.ClientApi.pause_many)
    resume_many = _of_client(awaiting.ClientApi.resume_many)
    redrive_many = _of_client(awaiting.ClientApi.redrive_many)
    fork_many = _of_client(awaiting.ClientApi.fork_many)
    settle_many = _of_client(awaiting.ClientApi.settle_many)
