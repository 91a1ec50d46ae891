"""The part of `App` for content-addressed calls: memo functions, executables, and indexes.

Lives here: `AppCalls`. May not: any of the work, which is in calls/. Nothing of calls/ is imported before it
is used, so an app without such calls does not pay for them.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from pyengine.client.client import Client
from pyengine.database.connection import Database
from pyengine.database.listener import Listener
from pyengine.definitions.callees import CallOptions
from pyengine.definitions.registry import refuse_second
from pyengine.definitions.retry import Duration, optional_limit

if TYPE_CHECKING:
    from pyengine.calls.functions import Executable, Memo
    from pyengine.calls.scope import Index

__all__ = ["AppCalls"]

P = ParamSpec("P")
R = TypeVar("R")


class AppCalls(ABC):
    """Content-addressed calls of an app.

    Attributes:
        memos: its memo functions, by the name under which workers serve them.
    """

    memos: dict[str, Memo[..., Any]]

    @abstractmethod
    def client(self) -> AbstractAsyncContextManager[Client]:
        """Open a client for the length of an `async with` block."""

    @contextlib.asynccontextmanager
    async def _serving_calls(
        self, database: Database, listener: Listener, threads: int | None
    ) -> AsyncIterator[None]:
        """Serve the memo functions, if there are any."""
        if not self.memos:
            yield
            return
        from pyengine.calls.adapter_worker import AdapterWorker
        from pyengine.calls.memo_runner import MemoRunner

        runner = MemoRunner(self.memos, database, threads or 16)
        # as with steps: a worker that stops cancels what runs
        async with AdapterWorker([runner], database, grace_s=0.0, listener=listener):
            yield

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

        Its identity is its name, its version and its arguments. Workers of this app run it.

        Args:
            fn: an async function, or a plain one, which runs in a thread; it takes and returns plain data.
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
        from pyengine.calls.functions import make_memo

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
            known = self.memos.setdefault(made.adapter, made)
            refuse_second(known.fn, made.fn, f"memo {made.name!r}")
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
        from pyengine.calls.functions import Executable

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
        from pyengine.calls.scope import Index

        async with self.client() as client:
            index = Index(client._transport, name, base)
            await index.open()
            yield index


class _MemoDecorator(Protocol):
    """The type of `@app.memo(...)`."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Memo[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Memo[P, R]: ...
