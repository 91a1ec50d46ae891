"""`App`: the entry point for Python.

Lives here: the decorators, and the shortest ways to run, start and serve workflows. May not: any of the work,
which is in clients.py and worker/worker.py. Design: importing costs nothing, so an `App` is only a
registry and the address of a database; connections, threads and servers start with the first verb. Without a
URL the embedded Postgres runs as long as this process uses it. `run` is for development and scripts: it
installs the schema, and runs a worker and a client until the workflow has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, overload

from pyengine.app_calls import AppCalls, Programs
from pyengine.app_runtime import AppRuntime, Runtimes
from pyengine.clients import Client
from pyengine.core.client.run import Run
from pyengine.core.client.starts import StartOptions, Starts
from pyengine.core.definitions.bound_workflow import BoundWorkflow
from pyengine.core.definitions.current_run import refuse_in_workflow
from pyengine.core.definitions.definition import OnInterrupt
from pyengine.core.definitions.one_name import OneName
from pyengine.core.definitions.refusals import name_options, not_a_workflow, refuse_class
from pyengine.core.definitions.registry import Registry, Step, Workflow, make_step, make_workflow
from pyengine.core.definitions.retry import Duration, Retry
from pyengine.core.definitions.signals import Signal
from pyengine.core.process.blocks import block
from pyengine.core.worker.worker import GRACE_S, Worker
from pyengine.doors.program.foreground import ServingProcess, grace_seconds, runner, serve
from pyengine.doors.program.here_and_now import ended_here
from pyengine.errors import InvalidRequest, RunFailed
from pyengine.extensions import extensions
from pyengine.features.checks.development import DevelopmentChecks, check_finished, observing
from pyengine.features.checks.received_signals import received_signals
from pyengine.features.checks.warning import DETERMINISM
from pyengine.features.dependencies.dependencies import (
    Dependencies,
    check_dependencies,
    current_dependencies,
    open_dependencies,
)
from pyengine.features.progress.live_bar import following
from pyengine.features.schedules.app_schedules import AppSchedules

__all__ = ["App"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

_KEPT_WITHIN_S = 60.0


class App(AppCalls, AppSchedules, Starts):
    """Workflows and steps, and the database of their runs.

    Args:
        database_url: postgresql://...; None means PYENGINE_DATABASE_URL, DATABASE_URL, else the embedded
            Postgres.
        data_dir: folder of the embedded Postgres.
        listen_url: URL of the same database without its pooler, for hints and presence; None means
            PYENGINE_LISTEN_URL, else polling does all behind a pooler.
        deps: what steps use beside their arguments, by name: values, or functions that make them, which a
            worker calls before its first step. A function with a `yield` closes the value behind it.

    Attributes:
        registry: its workflows, steps and error classes.
        deps: as above; a test may replace one before it starts a worker.
    """

    def __init__(
        self,
        database_url: str | None = None,
        *,
        data_dir: Path | str | None = None,
        listen_url: str | None = None,
        deps: Mapping[str, Any] | None = None,
    ) -> None:
        self.registry = Registry([DETERMINISM], received_signals)
        self.memos = {}
        self._memo_names = OneName()
        self.schedules = {}
        self.registry.extensions = extensions(self.registry, self.schedules)
        self.deps = check_dependencies(deps)
        self._database_url: str | None
        self._data_dir: Path | None
        self._listen_url: str | None
        self.use_database(database_url, data_dir=data_dir, listen_url=listen_url)
        self._places = Runtimes()

    def use_database(
        self,
        url: str | None = None,
        *,
        data_dir: Path | str | None = None,
        listen_url: str | None = None,
    ) -> None:
        """Replace the database of the app; open connections are not affected.

        Args:
            url: postgresql://...; None means as for `App()`.
            data_dir: folder of the embedded Postgres.
            listen_url: the same database without its pooler; None means as for `App()`.
        """
        self._database_url = url
        self._listen_url = listen_url
        self._data_dir = None if data_dir is None else Path(data_dir)

    # -- decorators

    @overload
    def step(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def step(self, fn: Callable[P, R], /) -> Step[P, R]: ...
    @overload
    def step(
        self,
        fn: None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        intent: bool = False,
        on_interrupt: OnInterrupt = "retry",
    ) -> _StepDecorator: ...
    def step(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        intent: bool = False,
        on_interrupt: OnInterrupt = "retry",
    ) -> Any:
        """Make a function a step; with or without options.

        Args:
            fn: an async function, or a plain one, which runs in a thread.
            name: its name in the journal; the function's name by default.
            retry: the retries of a failed attempt; None means none.
            timeout: limit of one attempt.
            intent: record an attempt before it begins.
            on_interrupt: "fail" if an attempt interrupted by a crash must not be repeated.

        Raises:
            InvalidRequest: an option is wrong, or another step has that name.
        """
        refuse_class(self, "step")

        def decorate(fn: Callable[..., Any]) -> Step[..., Any]:
            made: Step[..., Any] = make_step(
                fn, name=name, retry=retry, timeout=timeout, intent=intent, on_interrupt=on_interrupt
            )
            return self.registry.add_step(made)

        return decorate if fn is None else decorate(fn)

    @overload
    def workflow(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def workflow(
        self,
        fn: None = None,
        /,
        *,
        name: str | None = None,
        version: str = "1",
        queue: str | None = None,
        deadline: Duration | None = None,
        retry: Retry | None = None,
        signals: Iterable[Signal[Any] | str] | None = None,
        any_signal: bool = False,
    ) -> _WorkflowDecorator: ...
    def workflow(
        self,
        fn: Callable[..., Coroutine[Any, Any, Any]] | None = None,
        /,
        *,
        name: str | None = None,
        version: str = "1",
        queue: str | None = None,
        deadline: Duration | None = None,
        retry: Retry | None = None,
        signals: Iterable[Signal[Any] | str] | None = None,
        any_signal: bool = False,
    ) -> Any:
        """Make an async function a workflow; with or without options.

        Args:
            fn: the function.
            name: its name; the function's name by default.
            version: only workers that know this version run it.
            queue: queue of its runs.
            deadline: a run that takes longer times out, all its attempts together.
            retry: when a failed run is tried again from its beginning, under the same id; None means never.
            signals: signals that it receives, besides those that its code names; a signal of another name is
                refused. Without this list none is refused if its code receives names that cannot be seen in
                it, such as that of a variable.
            any_signal: accept signals of every name.

        Raises:
            InvalidRequest: an option is wrong, or another workflow has that name and version.
        """
        refuse_class(self, "workflow")

        def decorate(fn: Callable[..., Coroutine[Any, Any, Any]]) -> Workflow[..., Any]:
            made: Workflow[..., Any] = make_workflow(
                fn,
                name=name,
                version=version,
                queue=queue,
                deadline=deadline,
                retry=retry,
                signals=signals,
                any_signal=any_signal,
                home=self.registry,
            )
            return self.registry.add_workflow(made)

        return decorate if fn is None else decorate(fn)

    def error(self, cls: type[E]) -> type[E]:
        """Register an exception class, which is then decoded as itself; usable as a decorator.

        Raises:
            InvalidRequest: another class of its module has its name, such as one of the same factory.
        """
        return self.registry.register_error(cls)

    # -- verbs

    @overload
    def run(self, workflow: BoundWorkflow[R], /, *, progress: bool = False) -> R: ...
    @overload
    def run(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def run(self, workflow: Workflow[..., R] | BoundWorkflow[R], /, *args: Any, **kwargs: Any) -> R:
        """Run a workflow here and now and return its result: for development, scripts and tests.

        Installs the schema, runs a worker in this process until the run has ended, and stops it. No other
        worker of the database executes the run or its child runs while this process lives. Then the journal
        is replayed once, as another worker would do after a crash. Ctrl-C leaves the run where it is, for the
        next worker, and says so.

        Args:
            workflow: the workflow.
            args: its arguments.
            kwargs: its arguments by name; and `progress=True`, to show its progress on the terminal
                (`ctx.progress`). If the workflow has a parameter of that name, or for type checkers:
                `app.run(workflow.bind(...), progress=True)`.

        Raises:
            RunFailed: the workflow failed; its error is the cause.
            NondeterminismError: the replay went another way than the run.
            InvalidRequest: called inside an event loop, where `await app.start(...)` belongs.
        """
        name = getattr(workflow, "name", "workflow")
        refuse_in_workflow("app.run()", f"await {name}(...), a child run")
        _refuse_loop("app.run")
        if not isinstance(workflow, Workflow | BoundWorkflow):
            raise not_a_workflow(workflow, "app.run")
        if self.registry.workflow(workflow.name, workflow.definition.version) is not workflow.definition:
            raise InvalidRequest(f"workflow {workflow.name!r} belongs to another App")

        is_bound = isinstance(workflow, BoundWorkflow)
        is_option = is_bound or not workflow.definition.signature.takes("progress")
        shown = bool(is_option and kwargs.pop("progress", False))

        async def main() -> R:
            async with self._place(install=True) as place:
                return await self._run(place, workflow, args, kwargs, shown=shown)

        with runner() as loop:
            return loop.run(main())

    async def _run(
        self,
        place: AppRuntime,
        workflow: Workflow[..., R] | BoundWorkflow[R],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        shown: bool,
    ) -> R:
        """Run a workflow, and replay it."""
        left: list[str] = []
        ended: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        deadline_ms = workflow.definition.deadline_ms
        delay_s = _KEPT_WITHIN_S if deadline_ms is None else min(_KEPT_WITHIN_S, deadline_ms / 2000)
        async with self._serving(place, {"make_runs": observing(left.append), "keeps": True}) as worker:
            # nobody else may claim it meanwhile
            try:
                run: Run[R] = await place.client.begin(workflow, args, kwargs, delay=delay_s)
            except InvalidRequest as error:
                name_options(error, kwargs, "app.run", ["progress (app.start has id, key, ...)"])
                raise
            await worker.keep(run.id)
            try:
                async with following(run, workflow.name) if shown else contextlib.nullcontext():
                    ended.set_result(await ended_here(run, workflow.name))
            except RunFailed as error:
                ended.set_exception(error)
        # outside of the `except`: errors of the replayed code would get this one as their context
        found = await check_finished(place.database, self.registry, run.id, left)
        failure = ended.exception()
        if failure is not None and found is not None:
            failure.add_note(str(found))
        elif found is not None:
            raise found
        return ended.result()

    def serve(self, *, wait: bool = True, **options: Any) -> None:
        """Run a worker until SIGINT or SIGTERM; takes the options of `worker`.

        The first signal stops it in an orderly way, a second one ends the process at once.

        Args:
            wait: wait for a database that cannot be reached at the start.
            options: as for `worker`.

        Raises:
            Unavailable: the database cannot be reached, and `wait` is false.
            SchemaMismatch: its schema does not fit.
        """
        _refuse_loop("app.serve")

        with ServingProcess() as process, contextlib.ExitStack() as at_end:
            # runs free their objects by themselves; frequent collections took a fifth of the time
            at_end.callback(gc.set_threshold, *gc.get_threshold())
            gc.set_threshold(50_000, 20, 50)
            grace_s = grace_seconds(options.get("grace", GRACE_S))
            process.run(serve(lambda: self.worker(**options), wait=wait, grace_s=grace_s))

    @block("app.worker()")
    async def worker(
        self,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int | None = None,
        step_concurrency: int = 1000,
        threads: int = 16,
        grace: Duration = GRACE_S,
        adapters: Sequence[str] | Programs = (),
        dev: bool = False,
    ) -> AsyncIterator[Worker]:
        """Run a worker for the length of an `async with` block.

        Args:
            queues: the queues to serve; None means "default" and every queue that a workflow here names.
            concurrency: runs at a time; None means the setting max_in_flight of the database.
            step_concurrency: async steps at a time.
            threads: sync steps at a time.
            grace: how long its stop waits for steps that must not be cut off (`on_interrupt="fail"`), and for
                those that clean up after they were cancelled; all other work is given back at once.
            adapters: adapters to serve too: `name`, a program on the PATH, or `name=/path/to/program`.
            dev: replay each run whenever it suspends or ends, and log what a replay cannot repeat; slow.

        Raises:
            Unavailable: the database cannot be reached.
            SchemaMismatch: its schema does not fit.
        """
        programs = adapters if isinstance(adapters, Programs) else Programs(adapters=adapters)
        options: dict[str, Any] = {
            "queues": queues,
            "concurrency": concurrency,
            "step_concurrency": step_concurrency,
            "threads": threads,
            "grace_s": grace_seconds(grace),
        }
        async with contextlib.AsyncExitStack() as block:
            place = await block.enter_async_context(self._place())
            if dev:
                checks = DevelopmentChecks(place.database, self.registry)
                await block.enter_async_context(checks)
                options["make_runs"] = observing(checks.left, warm=False)
            yield await block.enter_async_context(self._serving(place, options, programs))

    @block("app.client()")
    async def client(self) -> AsyncIterator[Client]:
        """Open a client for the length of an `async with` block; it shares the connections of this app.

        Raises:
            Unavailable: the database cannot be reached.
            SchemaMismatch: its schema does not fit.
        """
        async with self._place() as place:
            yield place.client

    @block("app.dependencies()")
    async def dependencies(self) -> AsyncIterator[Dependencies]:
        """Open the dependencies of the app for plain calls of its steps, as tests make them."""
        before = current_dependencies.get()
        async with open_dependencies(self.deps) as opened:
            current_dependencies.set(opened)
            try:
                yield opened
            finally:
                current_dependencies.set(before)

    async def begin(
        self,
        workflow: Workflow[..., T] | BoundWorkflow[T] | str,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] = MappingProxyType({}),
        **options: Unpack[StartOptions],
    ) -> Run[T]:
        """Start a run like `start`, with arguments whose names may be names of options too.

        The connections stay open until `close`, or until the last `worker` or `client` block of this event
        loop ends; those of `start` too.
        """
        refuse_in_workflow("app.start()", "ctx.start(workflow, ...), or await workflow(...) for its result")
        if not isinstance(workflow, Workflow | BoundWorkflow | str):
            raise not_a_workflow(workflow, "app.start")
        place = self._here()
        await place.open(install=False)
        return await place.client.begin(workflow, args, kwargs, **options)

    async def close(self) -> None:
        """Close what `start` opened in this event loop."""
        place = self._places.get()
        if place is not None and not place.users:
            self._places.remove()
            await place.close()

    # -- places

    def _here(self) -> AppRuntime:
        return self._places.here(
            lambda: AppRuntime(self.registry, self._database_url, self._data_dir, self._listen_url)
        )

    @contextlib.asynccontextmanager
    async def _place(self, *, install: bool = False) -> AsyncIterator[AppRuntime]:
        refuse_in_workflow("app.client() or app.worker()", "a step")
        place = self._here()
        place.users += 1
        try:
            await place.open(install=install)
            yield place
        finally:
            place.users -= 1
            await self.close()

    @contextlib.asynccontextmanager
    async def _serving(
        self, place: AppRuntime, options: dict[str, Any], programs: Programs | None = None
    ) -> AsyncIterator[Worker]:
        async with (
            open_dependencies(self.deps) as opened,
            Worker(
                self.registry,
                place.database,
                listener=place.listener,
                extensions=extensions(self.registry, self.schedules, opened),
                **options,
            ) as worker,
            self._serving_calls(place.database, place.listener, options.get("threads"), programs) as calls,
        ):
            try:
                yield worker
            finally:
                # none of them waits for what the other has to wait for
                await asyncio.gather(worker.stop(), *(one.stop() for one in calls))


class _StepDecorator(Protocol):
    """The type of `@app.step(...)`."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Step[P, R]: ...


class _WorkflowDecorator(Protocol):
    """The type of `@app.workflow(...)`."""

    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...


def _refuse_loop(verb: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidRequest(
        f"{verb} starts an event loop of its own and cannot be called inside one",
        hint="use: async with app.worker(): run = await app.start(workflow, ...); await run",
    )
