"""Law: the signals of a workflow are those that its code names, wherever it receives them; where its code
receives what cannot be seen, no name is refused."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from pyengine import InvalidRequest, JoinSet, Signal, ctx
from pyengine.core.definitions.registry import Registry, make_step, make_workflow
from pyengine.features.checks.received_signals import received_signals
from tests.features.replay import received
from tests.features.replay.received import begin_elsewhere, wait_elsewhere

approve = Signal[bool]("approve")
decline = Signal("decline", str)
BY_KIND = {"yes": approve, "no": decline}
NAME = "named"
OPEN = "any other"


@make_step
async def price(n: int) -> int:
    return n


@make_workflow
async def child(n: int) -> int:
    return int(await ctx.receive("of_the_child"))


async def none(n: int) -> int:
    return await price(n) + await child(n)


async def by_object(n: int) -> bool:
    return await ctx.receive(approve, timeout="1d")


async def by_name(n: int) -> int:
    return await ctx.receive("count", type=int) + int(await ctx.receive("plain"))


async def by_name_and_position(n: int) -> int:
    return await ctx.receive("count", int)


async def by_constant(n: int) -> Any:
    return await ctx.receive(NAME)


async def made_in_place(n: int) -> int:
    return await ctx.receive(Signal("count", int)) + await ctx.receive(Signal[int]("more"))


async def by_local_name(n: int) -> bool:
    signal = approve
    return await ctx.receive(signal)


async def by_table(n: int) -> Any:
    return await _wait(BY_KIND["yes" if n else "no"])


async def _wait(signal: Signal[Any]) -> Any:
    return await ctx.receive(signal)


async def by_helper(n: int) -> bool:
    return await _approved()


async def _approved() -> bool:
    return await _really_approved()


async def _really_approved() -> bool:
    return await ctx.receive(approve)


async def by_inner(n: int) -> bool:
    async def inner() -> bool:
        return await ctx.receive(approve)

    return await inner()


def _waiting_for(signal: Signal[Any]) -> Callable[[], Any]:
    async def wait() -> Any:
        return await ctx.receive(signal)

    return wait


wait_for_approve, wait_for_decline = _waiting_for(approve), _waiting_for(decline)


async def by_functions_of_one_code(n: int) -> Any:
    return await wait_for_approve() or await wait_for_decline()


def _after(signal: Signal[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(code: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(code)
        async def wrapper(*args: Any) -> Any:
            await ctx.receive(signal)
            return await code(*args)

        return wrapper

    return decorate


@_after(approve)
async def by_decorator(n: int) -> Any:
    return await ctx.receive(decline)


async def by_another_module(n: int) -> int:
    return await wait_elsewhere()


async def by_attribute(n: int) -> int:
    return await received.wait_elsewhere()


async def by_returned_receive(n: int) -> int:
    return await begin_elsewhere()


async def by_object_of_another_module(n: int) -> int:
    return await received.desk.wait()


async def by_class_of_another_module(n: int) -> int:
    return await received.Desk().wait()


async def in_parallel(n: int) -> Any:
    first = await ctx.gather(ctx.receive(approve), _wait_for_decline())
    task = asyncio.create_task(wait_elsewhere())
    return first, await asyncio.wait_for(task, 5)


async def _wait_for_decline() -> str:
    return await ctx.receive(decline)


async def with_handles(n: int) -> Any:
    tasks: JoinSet[int] = ctx.join_set()
    tasks.submit(price(n))
    async with ctx.transaction() as tx, ctx.shield(), asyncio.timeout(5):
        await tx.execute("select 1")
    handle = ctx.start(child, n)
    async for one in tasks:
        n += one
    return await tasks.all(), await handle, await ctx.receive(approve)


async def by_formatted_name(n: int) -> Any:
    return await ctx.receive(f"approve-{n}")


async def by_parameter(n: str) -> Any:
    return await ctx.receive(n)


async def by_alias(n: int) -> Any:
    receive = ctx.receive
    return await receive(approve)


async def by_callable(n: Callable[[], Any]) -> Any:
    return await n()


async def by_method_of_parameter(n: Any) -> Any:
    return await n.wait_for_approval()


async def by_table_of_functions(n: str) -> Any:
    return await received.handlers[n]()


async def in_parallel_by_callables(n: list[Callable[[], Any]]) -> Any:
    return await ctx.gather(*[one() for one in n], ctx.receive(approve))


CASES: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (none, {}),
    (by_object, {"approve": bool}),
    (by_name, {"count": int, "plain": Any}),
    (by_name_and_position, {"count": int}),
    (by_constant, {"named": Any}),
    (made_in_place, {"count": int, "more": int}),
    (by_local_name, {"approve": bool}),
    (by_table, {"approve": bool, "decline": str, OPEN: True}),
    (by_helper, {"approve": bool}),
    (by_inner, {"approve": bool}),
    (by_functions_of_one_code, {"approve": bool, "decline": str}),
    (by_decorator, {"approve": bool, "decline": str}),
    (by_another_module, {"elsewhere": int}),
    (by_attribute, {"elsewhere": int}),
    (by_returned_receive, {"elsewhere": int}),
    (by_object_of_another_module, {"desk": int}),
    (by_class_of_another_module, {"desk": int}),
    (in_parallel, {"approve": bool, "decline": str, "elsewhere": int}),
    (with_handles, {"approve": bool}),
    (by_formatted_name, {OPEN: True}),
    (by_parameter, {OPEN: True}),
    (by_alias, {"approve": bool, OPEN: True}),
    (by_callable, {OPEN: True}),
    (by_method_of_parameter, {OPEN: True}),
    (by_table_of_functions, {OPEN: True}),
    (in_parallel_by_callables, {"approve": bool, OPEN: True}),
]


@pytest.mark.parametrize(("code", "signals"), CASES, ids=lambda one: getattr(one, "__name__", ""))
def test_signals_are_found(code: Callable[..., Any], signals: dict[str, Any]) -> None:
    """What the code of a workflow names is found with its type; what it hides opens the set."""
    found = received_signals(make_workflow(code).definition)
    assert found.types | ({OPEN: True} if found.any else {}) == signals


def test_declared_signals_close_the_set() -> None:
    """signals= adds to what the code names and closes the set; any_signal opens it."""
    declared = make_workflow(by_parameter, signals=[approve, "more"]).definition
    found = received_signals(declared)
    assert (found.types, found.any) == ({"approve": bool, "more": Any}, False)
    opened = received_signals(make_workflow(by_object, signals=[decline], any_signal=True).definition)
    assert (opened.types, opened.any) == ({"approve": bool, "decline": str}, True)
    with pytest.raises(InvalidRequest, match="signals is a list"):
        make_workflow(by_object, signals=approve)  # type: ignore[arg-type]


def test_two_types_of_a_name_are_none() -> None:
    """A name that is received as two types has no type."""
    found = received_signals(make_workflow(by_object, signals=[Signal("approve", int)]).definition)
    assert found.types == {"approve": Any}


def test_a_registration_has_schemas() -> None:
    """Workers register names with JSON schemas."""
    found = received_signals(make_workflow(by_name).definition)
    assert found.registration() == {"types": {"count": {"type": "integer"}, "plain": {}}, "any": False}


def test_a_registry_finds_them_again_after_a_change() -> None:
    """The signals are found once, and again if the workflow is registered again."""
    registry = Registry(received=received_signals)
    for _ in range(2):
        workflow = registry.add_workflow(make_workflow(by_object)).definition
        assert registry.signals(workflow) is registry.signals(workflow)
    assert registry.signal_types("approve") == [bool]
    assert registry.signal_types("decline") == []


def test_code_without_source_that_receives_is_open() -> None:
    """Code that has no file is open if it receives, else it receives nothing."""
    for text, is_open in (("await ctx.receive('a')", True), ("await ctx.sleep(1)", False)):
        names: dict[str, Any] = {"ctx": ctx}
        exec(f"async def typed(n):\n    {text}", names)
        assert received_signals(make_workflow(names["typed"]).definition).any is is_open
