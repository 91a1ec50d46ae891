"""The part of `App` for content-addressed calls: memo functions, executables, and indexes.

Lives here: `AppCalls`. May not: any of the work, which is in calls/. Nothing of calls/ is imported before it
is used, so an app without such calls does not pay for them.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from pyengine.clients import Client
from pyengine.core.database.connection import Database
from pyengine.core.database.listener import Listener
from pyengine.core.definitions.callees import CallOptions
from pyengine.core.definitions.one_name import OneName
from pyengine.core.definitions.refusals import refuse_class
from pyengine.core.definitions.retry import Duration, optional_limit

if TYPE_CHECKING:
    from pyengine.features.calls.adapter_worker import AdapterWorker, Executor
    from pyengine.features.calls.exchange import Remote
    from pyengine.features.calls.functions import Executable, Memo
    from pyengine.features.calls.scope import Index

__all__ = ["AppCalls", "Programs"]

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """The adapters that a worker of an app serves beside its functions.

    Args:
        adapters: `name`, a program on the PATH, or `name=/path/to/program`.
        time_limit_s: of one poll.
        env: names of environment variables that they get too.
        max_procs: polls at a time, and memo functions.
        inline_inputs: they get the values of inputs, not only their ids.
    """

    adapters: Sequence[str] = ()
    time_limit_s: float = 60.0
    env: Sequence[str] = ()
    max_procs: int = 16
    inline_inputs: bool = False

    def executor(self) -> Executor:
        """Return what runs them.

        Raises:
            InvalidRequest: one is no name, or its path is not absolute.
        """
        from pyengine.features.calls.adapter_process import Adapter, Limits
        from pyengine.features.calls.program_executor import ProgramExecutor

        served = [Adapter.parse(one) for one in self.adapters]
        return ProgramExecutor(served, limits=Limits(time_s=self.time_limit_s), passed=self.env)


class AppCalls(ABC):
    """Content-addressed calls of an app.

    Attributes:
        memos: its memo functions, by the name under which workers serve them.
    """

    memos: dict[str, Memo[..., Any]]
    _memo_names: OneName

    @abstractmethod
    def client(self) -> AbstractAsyncContextManager[Client]:
        """Open a client for the length of an `async with` block."""

    @contextlib.asynccontextmanager
    async def _serving_calls(
        self, database: Database, listener: Listener, threads: int | None, programs: Programs | None = None
    ) -> AsyncIterator[Sequence[AdapterWorker]]:
        """Serve the memo functions and programs, if there are any; the block gets what does it."""
        given = programs or Programs()
        if not self.memos and not given.adapters:
            yield ()
            return
        from pyengine.features.calls.adapter_worker import AdapterWorker
        from pyengine.features.calls.memo_runner import MemoRunner

        executors: list[Executor] = [MemoRunner(self.memos, database, threads or 16)] if self.memos else []
        executors += [given.executor()] if given.adapters else []
        # as with steps: a worker that stops cancels what runs
        async with AdapterWorker(
            executors,
            database,
            max_polls=given.max_procs,
            inline_inputs=given.inline_inputs,
            grace_s=0.0,
            listener=listener,
        ) as worker:
            yield (worker,)

    @overload
    def memo(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Memo[P, R]: ...
    @overload
    def memo(self, fn: Callable[P, R], /) -> Memo[P, R]: ...
    @overload
    def memo(
        self,
        fn: None = None,
        /,
        *,
        name: str | None = None,
        version: str | None = None,
        ignore: Sequence[str] = (),
        hash_includes: Sequence[Any] = (),
        share: bool = True,
        cache_errors: bool = False,
        max_age: Duration | None = None,
        timeout: Duration | None = None,
    ) -> _MemoDecorator: ...
    def memo(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        version: str | None = None,
        ignore: Sequence[str] = (),
        hash_includes: Sequence[Any] = (),
        share: bool = True,
        cache_errors: bool = False,
        max_age: Duration | None = None,
        timeout: Duration | None = None,
    ) -> Any:
        """Make a function a memo: an equal call in any workflow has one result; with or without options.

        Its identity is its name, its version and its arguments, whatever app it is in: two apps on one
        database name their different functions apart. Workers of this app run it.

        Args:
            fn: an async function, or a plain one, which runs in a thread. Its annotations count as those of a
                step do; without them it takes and returns plain data.
            name: its name, in lower case; the function's name by default.
            version: names its code: raise it when results change. None means a digest of its source.
            ignore: parameters that are no part of the identity, such as verbose.
            hash_includes: functions, classes, modules and texts whose source is part of the digest.
            share: False if results are for one scope alone.
            cache_errors: whether other scopes may use its failures.
            max_age: older results of other scopes are not used.
            timeout: an attempt that takes longer is given up.

        Raises:
            InvalidRequest: an option is wrong, or another memo has that name.
        """
        from pyengine.features.calls.functions import make_memo

        refuse_class(self, "memo")
        options = CallOptions(
            share=share,
            cache_errors=cache_errors,
            max_age_ms=optional_limit(max_age, what="memo, max_age"),
            timeout_ms=optional_limit(timeout, what="memo, timeout"),
        )

        def decorate(fn: Callable[..., Any]) -> Memo[..., Any]:
            made: Memo[..., Any] = make_memo(
                fn, name=name, version=version, ignore=ignore, hash_includes=hash_includes, options=options
            )
            self._memo_names.claim(made.adapter, made.fn, f"memo {made.name!r}")
            self.memos[made.adapter] = made
            return made

        return decorate if fn is None else decorate(fn)

    def executable(self, function: str, **config: Any) -> Executable:
        """Name a program that an adapter runs: `train = app.executable("dml+exec://batch/train", gpu=1)`.

        Args:
            function: its URI, in normal form; the host is the name of the adapter.
            config: its configuration: a map, which is the first input, and so part of the identity.

        Raises:
            InvalidRequest: it is no such URI, or the configuration is no plain data.
        """
        from pyengine.features.calls.functions import Executable

        return Executable(function, config)

    @contextlib.asynccontextmanager
    async def index(self, name: str, *, base: str | None = None) -> AsyncIterator[Index]:
        """Open an index, which pins results without a workflow: `async with app.index("exp-7") as index:`.

        Args:
            name: its name; calls of workflows with `scope=name` use the same one.
            base: the head that a new index begins at, and that `commit` forwards.

        Raises:
            Unavailable: the database cannot be reached.
            SchemaMismatch: its schema does not fit.
            NotFound: there is no such base.
        """
        from pyengine.features.calls.scope import Index

        async with self.client() as client:
            index = Index(client._transport, name, base)
            await index.open()
            yield index

    @contextlib.asynccontextmanager
    async def remote(self, url: str) -> AsyncIterator[Remote]:
        """Open a remote, to exchange results: `async with app.remote(url) as r: await r.pull("main")`.

        Args:
            url: `file:///a/folder`, or `postgresql://...` for the database of another installation.

        Raises:
            InvalidRequest: the URL is neither.
            Unavailable: a database cannot be reached.
            SchemaMismatch: its schema does not fit.
        """
        from pyengine.features.calls.exchange import DatabasePlace, FolderPlace, Remote
        from pyengine.features.calls.remotes import FileRemote

        is_database = url.startswith(("postgresql://", "postgres://"))
        folder = None if is_database else FolderPlace(FileRemote(url))
        async with self.client() as client:
            here = DatabasePlace(client._transport)
            if folder is not None:
                yield Remote(here, folder)
                return
            async with Client(url) as other:
                yield Remote(here, DatabasePlace(other._transport))


class _MemoDecorator(Protocol):
    """The type of `@app.memo(...)`."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Memo[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Memo[P, R]: ...
