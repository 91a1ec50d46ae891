"""Steps and workflows as callables, and the registry that finds them by name.

Lives here: `Step` and `Workflow`, the typed callables around a definition (definition.py), and the
`Registry` that finds them. May not: a decision about a run. A call inside a workflow goes to the replay
machine (current_run.py); outside one it just runs the function, so unit tests need no engine.
"""

from __future__ import annotations

import asyncio
import difflib
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

from pyengine.core.definitions.bound_workflow import BoundWorkflow
from pyengine.core.definitions.code_check import CodeCheck, Hazard
from pyengine.core.definitions.current_run import scope
from pyengine.core.definitions.definition import Home, OnInterrupt, StepDef, WorkflowDef
from pyengine.core.definitions.local_errors import local_errors, warn_of_inner_errors
from pyengine.core.definitions.nested_calls import warn_of_nested
from pyengine.core.definitions.one_name import OneName
from pyengine.core.definitions.queues import check_queue
from pyengine.core.definitions.refusals import hint_for_sync, refuse_no_function
from pyengine.core.definitions.retry import (
    NO_RETRY,
    Duration,
    Retry,
    not_a_retry,
    optional_duration,
    optional_limit,
)
from pyengine.core.definitions.signals import ReceivedSignals, Signal
from pyengine.core.definitions.signatures import Signature
from pyengine.core.values.texts import is_text
from pyengine.errors import InvalidRequest, NotFound, recorded_module

# Calls return Coroutine[None, None, R]: with Any as the second argument, type checkers cannot distinguish the
# overloads of gather.
P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D", bound="StepDef | WorkflowDef")
E = TypeVar("E", bound=BaseException)


BUILT_IN_STEPS = frozenset({"http"})
"""Reserved names: readers of the journal show steps of these names as a kind of their own."""
NAME_BYTES = 255
"""The longest name of a step."""


class _Decorated(Generic[D]):
    """A callable around a definition."""

    __name__: str

    def __init__(self, definition: D) -> None:
        self.definition = definition
        self.fn = definition.fn
        functools.update_wrapper(cast("Callable[..., Any]", self), definition.fn)

    @property
    def name(self) -> str:
        """Its name in the journal."""
        return self.definition.name


class Step(_Decorated[StepDef], Generic[P, R]):
    """A step: called like the function it wraps, recorded when the caller is a workflow.

    The call takes its number in the journal at once; awaiting it gives the recorded result. Like a coroutine,
    the call can be awaited, gathered, or given to `asyncio.create_task`. Outside a workflow the function just
    runs, a sync one in a thread.
    """

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[None, None, R]:
        """Call the step.

        Raises:
            InvalidRequest: the arguments do not fit its signature.
            EncodeError: an argument cannot be recorded.
        """
        within = scope.get()
        if within is not None:
            return within.call_step(self.definition, args, kwargs)
        warn_of_nested("step", self.definition.name)
        if self.definition.is_async:
            return cast("Coroutine[None, None, R]", self.fn(*args, **kwargs))
        return call_plain(self.fn, args, kwargs)

    def __repr__(self) -> str:
        return f"<step {self.definition.name}{self.definition.signature}>"


class Workflow(_Decorated[WorkflowDef], Generic[P, R]):
    """A workflow: called inside another workflow it is a child run; outside one the function just runs."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[None, None, R]:
        """Call the workflow.

        Raises:
            InvalidRequest: the arguments do not fit its signature.
            EncodeError: an argument cannot be recorded.
        """
        within = scope.get()
        if within is not None:
            call = within.call_workflow(self.definition, args, kwargs)
            call.set_place(2)
            return cast("Coroutine[None, None, R]", call)
        warn_of_nested("workflow", self.definition.name)
        return self.fn(*args, **kwargs)

    def bind(self, /, *args: P.args, **kwargs: P.kwargs) -> BoundWorkflow[R]:
        """Return the workflow with its arguments, to start it: `client.start(checkout.bind(3), id="c3")`.

        Type checkers see each argument, and the options of the start apart from them.

        Raises:
            InvalidRequest: the arguments do not fit its signature.
        """
        self.definition.signature.bind(args, kwargs)
        return BoundWorkflow(self.definition, args, kwargs)

    def __repr__(self) -> str:
        return f"<workflow {self.definition.name}{self.definition.signature}>"


async def call_plain(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return what a plain function returns in a thread, or what that gives if it can be awaited."""
    value = await asyncio.to_thread(fn, *args, **kwargs)
    return await value if inspect.isawaitable(value) else value


def _plain(fn: Any, name: object, what: str) -> Any:
    """Return the function itself, of a static method too.

    Raises:
        InvalidRequest: it is a method without an object to call it on, or without a name of its own.
    """
    if isinstance(fn, staticmethod):
        return fn.__func__
    called = getattr(fn, "__qualname__", "")
    owner, _, last = called.rpartition(".")
    right = f'app.{what}(name="{owner.rpartition("<locals>.")[2].lower()}.{last}")(object.{last})'
    if inspect.ismethod(fn):
        if name is None:
            raise InvalidRequest(
                f"{what} {called} is a method; its name in the journal must be given", hint=right
            )
    elif isinstance(fn, classmethod) or (owner and not owner.endswith("<locals>") and _takes_self(fn)):
        raise InvalidRequest(
            f"{what} {called} is a method, and here is no object to call it on",
            hint=f"where the object is: {right}; or make it a @staticmethod",
        )
    return fn


def _takes_self(fn: Callable[..., Any]) -> bool:
    code = getattr(fn, "__code__", None)
    return code is not None and code.co_varnames[: code.co_argcount][:1] in (("self",), ("cls",))


def _checked_name(fn: object, name: object, what: str) -> str:
    refuse_no_function(fn, what)
    chosen = getattr(fn, "__name__", None) if name is None else name
    if not callable(fn) or not isinstance(chosen, str) or not chosen:
        raise InvalidRequest(f"a {what} is a function with a name, not {fn!r}")
    if not is_text(chosen, NAME_BYTES) or chosen == "<lambda>":
        raise InvalidRequest(
            f"{chosen!r} is no name for a {what}", hint=f"@{what}(name=...), {NAME_BYTES} bytes at most"
        )
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise InvalidRequest(f"{what} {chosen} is a generator; return a list, or call one step for each item")
    return chosen


@overload
def make_step(
    fn: Callable[P, Coroutine[Any, Any, R]],
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    intent: bool = False,
    on_interrupt: OnInterrupt = "retry",
) -> Step[P, R]: ...
@overload
def make_step(
    fn: Callable[P, R],
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    intent: bool = False,
    on_interrupt: OnInterrupt = "retry",
) -> Step[P, R]: ...
def make_step(
    fn: Callable[..., Any],
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    intent: bool = False,
    on_interrupt: OnInterrupt = "retry",
) -> Step[Any, Any]:
    """Return the step around a function.

    Args:
        fn: sync or async function; sync ones run in a thread. A method of an object needs a name.
        name: its name in the journal; the function's name by default.
        retry: when a failed attempt is made again; None means never.
        timeout: limit of one attempt.
        intent: record the attempt before it begins.
        on_interrupt: "fail" if an attempt cut off by a crash must not be made again.

    Raises:
        InvalidRequest: an option is wrong.
    """
    fn = _plain(fn, name, "step")
    chosen = _checked_name(fn, name, "step")
    if on_interrupt not in ("retry", "fail"):
        raise InvalidRequest(f'step {chosen}: on_interrupt is "retry" or "fail", not {on_interrupt!r}')
    if retry is not None and not isinstance(retry, Retry):
        raise not_a_retry(f"step {chosen}", retry)
    return Step(
        StepDef(
            fn=fn,
            name=chosen,
            retry=retry or NO_RETRY,
            timeout_ms=optional_duration(timeout, what=f"step {chosen}, timeout"),
            intent=intent or on_interrupt == "fail",
            on_interrupt=on_interrupt,
            is_async=inspect.iscoroutinefunction(fn),
            signature=Signature(fn, f"step {chosen}"),
            key=chosen.encode() + b"\0",
        )
    )


def make_workflow(
    fn: Callable[P, Coroutine[Any, Any, R]],
    *,
    name: str | None = None,
    version: str = "1",
    queue: str | None = None,
    deadline: Duration | None = None,
    retry: Retry | None = None,
    signals: Iterable[Signal[Any] | str] | None = None,
    any_signal: bool = False,
    home: Home | None = None,
) -> Workflow[P, R]:
    """Return the workflow around an async function.

    Args:
        fn: the async function.
        name: the name by which runs are started; the function's name by default.
        version: raise it when existing runs must stay with the old code.
        queue: queue of its runs.
        deadline: limit of a whole run.
        retry: when a failed run is tried again from its beginning; None means never.
        signals: signals that it receives, besides those that its code names, and no others.
        any_signal: accept signals of every name.
        home: the registry of its app.

    Raises:
        InvalidRequest: an option is wrong, or the function is not async.
    """
    fn = _plain(fn, name, "workflow")
    chosen = _checked_name(fn, name, "workflow")
    if not inspect.iscoroutinefunction(fn):
        raise InvalidRequest(f"workflow {chosen} must be an async function", hint=hint_for_sync(fn, chosen))
    given: object = version
    if not (isinstance(given, str) and given):
        raise InvalidRequest(f'workflow {chosen}: version is a text such as "2", not {version!r}')
    if retry is not None and not isinstance(retry, Retry):
        raise not_a_retry(f"workflow {chosen}", retry)
    if retry is not None and retry.on_exhausted == "pause":
        raise InvalidRequest(
            f'workflow {chosen}: only the retry of a step has on_exhausted="pause"',
            hint="a workflow fails after its last attempt",
        )
    return Workflow(
        WorkflowDef(
            fn=fn,
            name=chosen,
            version=version,
            queue=None if queue is None else check_queue(queue, what=f"workflow {chosen}"),
            deadline_ms=optional_limit(deadline, what=f"workflow {chosen}, deadline"),
            retry=retry or NO_RETRY,
            signals=_declared_signals(chosen, signals),
            any_signal=any_signal,
            signature=Signature(fn, f"workflow {chosen}"),
            home=home,
        )
    )


def _declared_signals(
    workflow: str, signals: Iterable[Signal[Any] | str] | None
) -> tuple[Signal[Any], ...] | None:
    if signals is None:
        return None
    if isinstance(signals, str | Signal):
        raise InvalidRequest(
            f"workflow {workflow}: signals is a list, not {signals!r}", hint="signals=[approve]"
        )
    return tuple(one if isinstance(one, Signal) else Signal(one) for one in signals)


def _declared(workflow: WorkflowDef) -> ReceivedSignals:
    """Return the signals that a workflow declares; one that declares none may receive any."""
    return ReceivedSignals(
        types={signal.name: signal.annotation for signal in workflow.signals or ()},
        any=workflow.any_signal or workflow.signals is None,
    )


class Registry:
    """The steps, workflows and error classes of an application, by name.

    Args:
        checks: of the code of workflows, when they are registered.
        received: the signals that a workflow receives; those that it declares by default.

    Attributes:
        errors: error classes, by module and name.
        extensions: what features add to a worker that gets no other (worker/extensions.py); None: nothing,
            so it executes workflows and steps, and says nothing of calls that no code awaits.
    """

    def __init__(
        self,
        checks: Sequence[CodeCheck] = (),
        received: Callable[[WorkflowDef], ReceivedSignals] = _declared,
    ) -> None:
        self._checks, self._receives = tuple(checks), received
        self._names = OneName()
        self._steps: dict[str, StepDef] = {}
        self._workflows: dict[tuple[str, str], WorkflowDef] = {}
        self._received: dict[tuple[str, str], ReceivedSignals] = {}
        self.errors: dict[tuple[str, str], type[BaseException]] = {}
        self.extensions: object = None

    def add_step(self, step: Step[P, R]) -> Step[P, R]:
        """Register a step, and the error classes that its retry policy names or that are local to its place.

        Raises:
            InvalidRequest: another function, or the engine, has that name.
        """
        definition = step.definition
        if definition.name in BUILT_IN_STEPS:
            hint = f'@app.step(name="my_{definition.name}")'
            raise InvalidRequest(f"the step name {definition.name!r} belongs to ctx.http", hint=hint)
        self._names.claim(definition.name, definition.fn, f"step {definition.name!r}")
        self._steps[definition.name] = definition
        self._add_errors(definition.retry, definition.fn)
        warn_of_inner_errors(definition.fn, f"step {definition.name}")
        return step

    def add_workflow(self, workflow: Workflow[P, R]) -> Workflow[P, R]:
        """Register a workflow, and warn of what its code does that a replay cannot repeat.

        Raises:
            InvalidRequest: another function has that name and version.
        """
        definition = workflow.definition
        at = (definition.name, definition.version)
        self._names.claim(at, definition.fn, f"workflow {at[0]!r}, version {at[1]!r},")
        self._workflows[at] = definition
        self._add_errors(definition.retry, definition.fn)
        self._received.pop(at, None)
        for check in self._checks:
            check.warn_of(definition.fn, definition.name)
        return workflow

    def register_error(self, cls: type[E]) -> type[E]:
        """Let an exception class that was declared be read back by its module and name.

        Raises:
            InvalidRequest: another class that was declared has both.
        """
        self._names.claim_class(cls)
        return self.add_error(cls)

    def add_error(self, cls: type[E]) -> type[E]:
        """Let an exception class be read back from the journal by its module and name."""
        self.errors[recorded_module(cls), cls.__qualname__] = cls
        return cls

    def _add_errors(self, retry: Retry, fn: Callable[..., Any]) -> None:
        for cls in (*retry.only, *retry.unless, *local_errors(fn)):
            self.add_error(cls)

    def find(self, name: str, version: str | None = None) -> WorkflowDef | None:
        """Return a workflow by name, or None; without a version: version "1", or the only one."""
        if version is not None:
            return self._workflows.get((name, version))
        versions = self._versions(name)
        return versions.get("1") or (next(iter(versions.values())) if len(versions) == 1 else None)

    def _versions(self, name: str) -> dict[str, WorkflowDef]:
        return {version: one for (named, version), one in self._workflows.items() if named == name}

    def workflow(self, name: str, version: str | None = None) -> WorkflowDef:
        """Return a workflow by name, as `find`.

        Raises:
            NotFound: there is none; the message lists similar names.
        """
        if (found := self.find(name, version)) is not None:
            return found
        if versions := self._versions(name):
            raise NotFound(
                f"workflow {name!r} has no version {version or '1'!r}", hint=_listed(sorted(versions))
            )
        raise NotFound(
            f"no workflow is named {name!r}", hint=_near(name, {key[0] for key in self._workflows})
        )

    def step(self, name: str) -> StepDef:
        """Return a step by name.

        Raises:
            NotFound: there is none; the message lists similar names.
        """
        if name not in self._steps:
            raise NotFound(f"no step is named {name!r}", hint=_near(name, set(self._steps)))
        return self._steps[name]

    def workflows(self) -> Iterator[WorkflowDef]:
        """Return all workflows, in the order of registration."""
        return iter(self._workflows.values())

    def hazards(self, function: Callable[..., Any]) -> Sequence[Hazard]:
        """Return what the checks find in the code of a workflow, in order."""
        return [hazard for check in self._checks for hazard in check.hazards_of(function)]

    def signals(self, workflow: WorkflowDef) -> ReceivedSignals:
        """Return the signals that a workflow receives."""
        at = (workflow.name, workflow.version)
        received = self._received.get(at)
        if received is None:
            received = self._received[at] = self._receives(workflow)
        return received

    def signal_types(self, name: str) -> list[Any]:
        """Return the types that a signal has in the workflows that receive it."""
        received = [self.signals(one).types for one in self.workflows()]
        return [types[name] for types in received if name in types]

    def queues(self) -> list[str]:
        """Return "default" and the queues that workflows name: those of a worker that is given none."""
        return sorted({"default", *(one.queue for one in self.workflows() if one.queue is not None)})

    def steps(self) -> Iterator[StepDef]:
        """Return all steps, in the order of registration."""
        return iter(self._steps.values())


def _near(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.5)
    if near:
        return f"did you mean {_listed(near)}?"
    return (
        f"known are {_listed(sorted(known)[:10])}" if known else "none is registered; is its module imported?"
    )


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names))
