"""The hall of a house that has only the core: `App`, `Client` and `ctx` without any feature or door.

Lives here: what `style/test_core_alone.py` lays beside a copy of the core, as `pyengine/app.py`. May not: an
import of a feature or a door, or a name that the core does not need. Design: `App.run` is a worker and a
client, for the schema is there; it does not replay what it ran. `ctx` has what the core knows of a block that
asks, and of progress, without the features that have these.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Self

from pyengine.asks import Block

from pyengine.core.client.asyncpg_transport import AsyncpgTransport
from pyengine.core.client.client import CoreClient
from pyengine.core.client.run import Run
from pyengine.core.client.starts import Starts
from pyengine.core.database.connection import Database
from pyengine.core.database.listener import Listener
from pyengine.core.definitions.bound_workflow import BoundWorkflow
from pyengine.core.definitions.current_run import refuse_in_workflow, within_run
from pyengine.core.definitions.refusals import not_a_workflow
from pyengine.core.definitions.registry import Registry, Workflow, make_step, make_workflow
from pyengine.core.definitions.retry import Duration, parse_duration
from pyengine.core.replay.call_matcher import matcher_within
from pyengine.core.worker.worker import GRACE_S, Worker
from pyengine.core.workflow.context import CoreContext


class Context(CoreContext):
    """The core of `ctx`, with the calls of features by which tests reach what the core has for them."""

    __slots__ = ()

    def transaction(self, name: str) -> Block:
        """Ask the worker."""
        return Block(matcher_within("transaction()", "a connection of your own"), name)

    def progress(self, done: float, total: float | None = None) -> None:
        """Show progress."""
        within_run("progress()", "nothing").set_progress(done, total, None)


ctx = Context()


class Client(CoreClient):
    """The core of a client; a context manager, as `pyengine.clients.Client` is."""

    def __init__(
        self,
        database: Database | str,
        *,
        registry: Registry | None = None,
        listener: Listener | None = None,
        connections: int = 4,
    ) -> None:
        where = Database(database) if isinstance(database, str) else database
        super().__init__(AsyncpgTransport(where, listener or Listener(where), connections), registry)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Place:
    """The database, listener and client of an app in one event loop."""

    def __init__(self, app: App) -> None:
        self.users = 0
        self.database = Database(app.url, listen_url=app.listen_url)
        self.listener = Listener(self.database)
        self.client = Client(self.database, registry=app.registry, listener=self.listener)


class App(Starts):
    """Workflows and steps, and the database of their runs."""

    def __init__(self, database_url: str = "", *, listen_url: str | None = None) -> None:
        self.registry = Registry()
        self.use_database(database_url, listen_url=listen_url)
        self._places: dict[asyncio.AbstractEventLoop, _Place] = {}

    def use_database(self, url: str, *, listen_url: str | None = None) -> None:
        """Replace the database of the app."""
        self.url, self.listen_url = url, listen_url

    def step(self, fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Make a function a step; with or without options."""
        if fn is None:
            return lambda made: self.step(made, **options)
        known = {"name": None, "retry": None, "timeout": None, "intent": False, "on_interrupt": "retry"}
        return self.registry.add_step(make_step(fn, **{**known, **options}))

    def workflow(self, fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Make an async function a workflow; with or without options."""
        if fn is None:
            return lambda made: self.workflow(made, **options)
        known = {**dict.fromkeys(("name", "queue", "deadline", "retry", "signals")), "version": "1"}
        known |= {"any_signal": False, "home": self.registry}
        return self.registry.add_workflow(make_workflow(fn, **{**known, **options}))

    def error(self, cls: type[BaseException]) -> type[BaseException]:
        """Register an exception class."""
        return self.registry.add_error(cls)

    def run(self, workflow: Workflow[..., Any] | BoundWorkflow[Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a workflow in this process, and return its result."""
        if not isinstance(workflow, Workflow | BoundWorkflow):
            raise not_a_workflow(workflow, "app.run")

        async def main() -> Any:
            async with self.worker(), self.client() as client:
                return await (await client.begin(workflow, args, kwargs)).result()

        return asyncio.run(main())

    @contextlib.asynccontextmanager
    async def worker(self, *, grace: Duration = GRACE_S, **options: Any) -> AsyncIterator[Worker]:
        """Run a worker for the length of an `async with` block."""
        grace_s = parse_duration(grace, what="grace") / 1000
        async with (
            self._place() as place,
            Worker(
                self.registry, place.database, listener=place.listener, grace_s=grace_s, **options
            ) as worker,
        ):
            yield worker

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """Open a client for the length of an `async with` block."""
        async with self._place() as place:
            yield place.client

    async def begin(
        self,
        workflow: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] = MappingProxyType({}),
        **options: Any,
    ) -> Run[Any]:
        """Start a run within a block of this app."""
        refuse_in_workflow("app.start()", "ctx.start(workflow, ...), or await workflow(...) for its result")
        return await self._places[asyncio.get_running_loop()].client.begin(workflow, args, kwargs, **options)

    @contextlib.asynccontextmanager
    async def _place(self) -> AsyncIterator[_Place]:
        loop = asyncio.get_running_loop()
        place = self._places.setdefault(loop, _Place(self))
        place.users += 1
        try:
            await place.database.open()
            yield place
        finally:
            place.users -= 1
            if not place.users:
                del self._places[loop]
                await place.client.close()
