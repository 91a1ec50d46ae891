"""Steps and workflows by name, and what their decorators refuse."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyengine.core.definitions.registry import Registry, make_step, make_workflow
from pyengine.core.definitions.retry import Retry
from pyengine.errors import InvalidRequest, NotFound
from tests.support.decorators import plainly


async def charge(amount: int) -> str:
    """Charge a card."""
    return f"charged {amount}"


async def checkout(order: int) -> int:
    """Sell something."""
    return order


def test_definitions() -> None:
    """Options end in the definition, durations in milliseconds; the wrapper keeps name and docstring."""
    step = make_step(charge, retry=Retry(), timeout="30s", on_interrupt="fail")
    one = step.definition
    assert (one.name, one.timeout_ms, one.on_interrupt, one.intent, one.is_async) == (
        "charge",
        30_000,
        "fail",
        True,
        True,
    )
    assert step.__name__ == "charge" and step.__doc__ == "Charge a card." and step.fn is charge
    assert repr(step) == "<step charge(amount: 'int') -> 'str'>"
    flow = make_workflow(checkout, version="3", queue="shop", deadline="30d").definition
    assert (flow.name, flow.version, flow.queue, flow.deadline_ms) == ("checkout", "3", "shop", 2_592_000_000)
    assert make_step(charge).definition.retry.max_attempts == 1


def sync_step(x: int) -> int:
    return x


async def generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: make_workflow(sync_step), "must be an async function"),  # type: ignore[arg-type]
        (lambda: make_workflow(generator), "generator"),  # type: ignore[arg-type]
        (lambda: make_step(generator), "generator"),
        (lambda: make_step(lambda x: x), "name="),
        (lambda: make_step(5), "function"),  # type: ignore[call-overload]
        (lambda: make_step(charge, name=""), "function with a name"),
        (lambda: make_workflow(checkout, queue="a/b"), "'a/b' is not a queue name"),
        (lambda: make_workflow(checkout, queue=""), "'' is not a queue name"),
        (lambda: make_workflow(checkout, deadline=0), "more than 0"),
        (lambda: make_step(charge, name="x" * 256), "255"),
        (lambda: make_step(charge, on_interrupt="maybe"), "on_interrupt"),  # type: ignore[call-overload]
        (lambda: make_step(charge, retry=3), "Retry"),  # type: ignore[call-overload]
        (lambda: make_step(charge, timeout="soon"), "step charge, timeout"),
        (lambda: make_workflow(checkout, version=""), "version"),
        (lambda: make_workflow(checkout, version=2), "version"),  # type: ignore[arg-type]
    ],
)
def test_refusals(make: Any, says: str) -> None:
    """A wrong option is refused where it is written, with the name of the function."""
    with pytest.raises(InvalidRequest, match=says):
        make()


def test_lookup() -> None:
    """Workflows are found by name and version; a miss lists what is near."""
    registry = Registry()
    registry.add_workflow(make_workflow(checkout))
    registry.add_workflow(make_workflow(checkout, version="2"))
    registry.add_workflow(make_workflow(checkout, name="refund", version="7"))
    registry.add_step(make_step(charge))
    assert registry.workflow("checkout").version == "1" and registry.workflow("checkout", "2").version == "2"
    assert registry.workflow("refund").version == "7" and registry.step("charge").fn is charge
    for name, version, hint in (
        ("chekout", None, "did you mean 'checkout'"),
        ("checkout", "9", "'1', '2'"),
        ("zzz", None, "known are 'checkout', 'refund'"),
    ):
        with pytest.raises(NotFound) as caught:
            registry.workflow(name, version)
        assert caught.value.hint is not None and hint in caught.value.hint
    with pytest.raises(NotFound, match="charg"):
        registry.step("charg")
    with pytest.raises(NotFound, match="none is registered"):
        Registry().workflow("x")
    assert [one.name for one in registry.workflows()] == ["checkout", "checkout", "refund"]
    assert [one.name for one in registry.steps()] == ["charge"]


def test_one_name_one_function() -> None:
    """A second function of the same name is refused; the same one again is not."""
    registry = Registry()
    registry.add_step(make_step(charge))
    registry.add_step(make_step(charge, timeout="1s"))
    assert registry.step("charge").timeout_ms == 1000
    with pytest.raises(InvalidRequest, match="registered twice"):
        registry.add_step(make_step(checkout, name="charge"))
    registry.add_workflow(make_workflow(checkout))
    with pytest.raises(InvalidRequest, match="version '1'"):
        registry.add_workflow(make_workflow(charge, name="checkout"))


def test_errors_of_policies_are_registered() -> None:
    """Classes that a retry policy names, and those added by hand, can be read back."""

    class Declined(Exception):
        pass

    registry = Registry()
    registry.add_step(make_step(charge, retry=Retry(unless=(Declined,))))
    assert registry.errors[__name__, Declined.__qualname__] is Declined
    assert registry.add_error(KeyError) is KeyError


def test_digest() -> None:
    """The digest changes with the code and with the loop, and with nothing else."""
    one = make_workflow(checkout).definition
    assert (
        one.digest("1") == make_workflow(checkout, name="other").definition.digest("1")
        and len(one.digest("1")) == 64
    )
    assert one.digest("1") != one.digest("2")
    assert one.digest("1") != make_workflow(charge).definition.digest("1")
    namespace: dict[str, Any] = {}
    exec("async def typed(): return 1", namespace)
    assert len(make_workflow(namespace["typed"]).definition.digest("1")) == 64


def test_calls_outside_of_a_workflow() -> None:
    """Outside a workflow steps and workflows are plain functions."""
    assert asyncio.run(make_step(charge)(5)) == "charged 5"
    assert asyncio.run(make_workflow(checkout)(order=5)) == 5
    assert asyncio.run(make_step(sync_step)(5)) == 5


class Bell:
    """An object that can be called."""

    async def __call__(self, n: int) -> int:
        return n


@pytest.mark.parametrize("make", [make_step, make_workflow])
@pytest.mark.parametrize(
    ("given", "says", "hint"),
    [
        (Bell(), "not an object of the class Bell", '(name="bell")(object.__call__)'),
        (
            functools.lru_cache(charge),
            "cannot be a cache of the async function charge",
            "leave functools",
        ),
        (make_step(charge), "and charge is <step charge(amount: 'int') -> 'str'> already", "(charge.fn)"),
        (functools.partial(charge, 3), "not a partial of charge", "write a function"),
        (Bell, "not the class Bell", "write a function"),
    ],
)
def test_what_is_no_function(make: Any, given: Any, says: str, hint: str) -> None:
    """Whatever else can be called is refused where it is registered, with the way out."""
    with pytest.raises(InvalidRequest) as caught:
        make(given, name="bell")
    assert says in caught.value.message and hint in (caught.value.hint or "")


def test_ways_out() -> None:
    """A method of an object that can be called is a step; a plain decorator is, around a workflow, named."""
    assert asyncio.run(make_step(Bell().__call__, name="bell")(5)) == 5
    assert asyncio.run(make_step(plainly(charge))(5)) == "charged 5"
    with pytest.raises(InvalidRequest, match="must be an async function") as caught:
        make_workflow(plainly(charge))
    assert "the decorator between is not: write `async def wrapper" in (caught.value.hint or "")
    with pytest.raises(InvalidRequest, match="step dir: its parameters are not known"):
        make_step(dir)


def test_parameters_of_any_name() -> None:
    """Those that methods of the engine have too, such as self, are given by name as well."""

    async def odd(*, self: int, fn: int) -> int:
        return self + fn

    assert make_workflow(odd).bind(self=1, fn=2).kwargs == {"self": 1, "fn": 2}
    assert asyncio.run(make_workflow(odd)(self=1, fn=2)) == asyncio.run(make_step(odd)(self=1, fn=2)) == 3
    assert asyncio.run(make_step(lambda *, self, fn: self + fn, name="sum")(self=1, fn=2)) == 3


class Shop:
    """Functions of an object."""

    def __init__(self, city: str) -> None:
        self.city = city

    async def charge(self, amount: int) -> str:
        return f"charged {amount} in {self.city}"

    @classmethod
    async def close(cls, day: int) -> str:
        return f"{cls.__name__} closed on {day}"

    @staticmethod
    async def add(a: int, b: int) -> int:
        return a + b


def test_methods_of_objects() -> None:
    """A method of an object, or of a class, is a step or workflow under a name that is given; its first
    argument is no part of the call."""
    step = make_step(Shop("Bern").charge, name="shop.charge")
    assert repr(step) == "<step shop.charge(amount: 'int') -> 'str'>"
    assert step.definition.signature.pack((5,), {}) == b"[5]"
    assert asyncio.run(step(5)) == "charged 5 in Bern"
    assert asyncio.run(make_workflow(Shop("Bern").charge, name="shop.charge")(5)) == "charged 5 in Bern"
    assert asyncio.run(make_step(Shop.close, name="shop.close")(5)) == "Shop closed on 5"
    for function in (Shop.add, Shop.__dict__["add"]):
        assert asyncio.run(make_step(function)(1, 2)) == 3


@pytest.mark.parametrize(
    ("fn", "says", "hint"),
    [
        (Shop("Bern").charge, "step Shop.charge is a method; its name in the journal must be given", ""),
        (Shop.close, "step Shop.close is a method; its name in the journal must be given", ""),
        (
            Shop.charge,
            "step Shop.charge is a method, and here is no object to call it on",
            'where the object is: app.step(name="shop.charge")(object.charge); or make it a @staticmethod',
        ),
        (Shop.__dict__["close"], "step Shop.close is a method, and here is no object to call it on", ""),
    ],
)
def test_methods_that_are_refused(fn: Any, says: str, hint: str) -> None:
    """Without a name, or where the class is defined and no object exists, each with its sentence."""
    with pytest.raises(InvalidRequest) as caught:
        make_step(fn)
    assert caught.value.message == says
    assert caught.value.hint is not None and hint in caught.value.hint


def test_methods_of_two_objects() -> None:
    """Under one name only one object serves."""
    registry = Registry()
    bern, rome = Shop("Bern"), Shop("Rome")
    for _ in range(2):
        registry.add_step(make_step(bern.charge, name="shop.charge"))
    with pytest.raises(InvalidRequest, match="registered twice"):
        registry.add_step(make_step(rome.charge, name="shop.charge"))


def cell(text: str, name: str, file: str) -> Any:
    """The function of this name that a cell of a notebook defines."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, file, "exec"), namespace)
    return namespace[name]


def test_a_cell_that_is_run_again() -> None:
    """A changed cell replaces its function: wherever it stands now, whatever it does. Another function is
    refused as everywhere, and so are two of one name in a script."""
    registry = Registry()
    for n, text in enumerate(("async def f(): return 1", "# more\nasync def f(): return 2")):
        fn = cell(text, "f", f"<cell-{n}>")
        registry.add_step(make_step(fn))
        registry.add_workflow(make_workflow(fn))
        assert registry.step("f").fn is registry.workflow("f").fn is fn
    other = cell("async def g(): return 1", "g", "<cell-9>")
    with pytest.raises(InvalidRequest, match=r"registered twice: __main__\.f and __main__\.g"):
        registry.add_step(make_step(other, name="f"))


def test_two_functions_of_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one name in one file: the second would hide the first, which is a mistake."""
    monkeypatch.setattr("__main__.__file__", "/scripts/job.py", raising=False)
    registry = Registry()
    registry.add_step(make_step(cell("async def f(): return 1", "f", "/scripts/job.py")))
    with pytest.raises(InvalidRequest, match=r"registered twice: __main__\.f and __main__\.f"):
        registry.add_step(make_step(cell("\n\nasync def f(): return 2", "f", "/scripts/job.py")))


def test_the_retry_of_a_workflow_does_not_pause() -> None:
    """A workflow fails after its last attempt; what is no policy is refused."""
    assert make_workflow(checkout, retry=Retry(max_attempts=2)).definition.retry.max_attempts == 2
    assert make_workflow(checkout).definition.retry.max_attempts == 1
    with pytest.raises(InvalidRequest, match="only the retry of a step"):
        make_workflow(checkout, retry=Retry(on_exhausted="pause"))
    with pytest.raises(InvalidRequest, match="retry is a Retry"):
        make_workflow(checkout, retry=3)  # type: ignore[arg-type]
