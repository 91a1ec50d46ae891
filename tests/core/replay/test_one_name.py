"""One function under each name: what is the same one, loaded again, and what is another."""

from __future__ import annotations

import builtins
import functools
import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pyengine import App
from pyengine.core.definitions.registry import Registry, make_step, make_workflow
from pyengine.errors import InvalidRequest

Function = Callable[..., Any]


def bare(fn: Function) -> Function:
    """A decorator without functools.wraps."""

    async def wrapper(n: int) -> Any:
        return await fn(n)

    return wrapper


def wrapped(fn: Function) -> Function:
    """A decorator with it."""

    @functools.wraps(fn)
    async def wrapper(*args: Any) -> Any:
        return await fn(*args)

    return wrapper


def by_closure(kind: str) -> Function:
    async def handle(n: int) -> str:
        return f"{kind} {n}"

    return handle


def by_default(kind: str) -> Function:
    async def handle(n: int, kind: str = kind) -> str:
        return f"{kind} {n}"

    return handle


def by_keyword(kind: str) -> Function:
    async def handle(n: int, *, kind: str = kind) -> str:
        return f"{kind} {n}"

    return handle


def by_helper(kind: str) -> Function:
    helper = by_closure(kind)

    async def handle(n: int) -> Any:
        return await helper(n)

    return handle


def by_step(kind: str) -> Function:
    helper = make_step(by_closure(kind))

    async def handle(n: int) -> Any:
        return await helper(n)

    return handle


def recursive(kind: str) -> Function:
    async def handle(n: int) -> Any:
        return kind if n == 0 else await handle(n - 1)

    return handle


def cached(kind: str) -> Function:
    @functools.lru_cache
    def handle(n: int) -> str:
        return f"{kind} {n}"

    return handle


FACTORIES = [by_closure, by_default, by_keyword, by_helper, by_step, recursive, cached]


async def charge(n: int) -> str:
    """A function that decorators get."""
    return f"charged {n}"


async def refund(n: int) -> str:
    """Another one."""
    return f"refunded {n}"


def as_step(fn: Function, registry: Registry) -> None:
    registry.add_step(make_step(fn))


def as_workflow(fn: Function, registry: Registry) -> None:
    registry.add_workflow(make_workflow(fn))


@pytest.mark.parametrize(
    ("make", "register"),
    [
        (make, register)
        for make in FACTORIES
        for register in (as_step, as_workflow)
        if not (make is cached and register is as_workflow)
    ],
)
def test_a_factory(make: Function, register: Callable[[Function, Registry], None]) -> None:
    """Two functions that differ in a value from where they were made are two; with equal values they are
    one."""
    registry = Registry()
    register(make("a"), registry)
    register(make("a"), registry)
    with pytest.raises(InvalidRequest, match="registered twice") as caught:
        register(make("b"), registry)
    assert "name=" in (caught.value.hint or "")


def test_a_bare_decorator() -> None:
    """Its functions have one name. The error says where each was registered, and what to write."""
    registry = Registry()
    registry.add_workflow(make_workflow(bare(charge)))
    with pytest.raises(InvalidRequest) as caught:
        registry.add_workflow(make_workflow(bare(refund)))
    lines = re.findall(r"test_one_name\.py, line (\d+)", caught.value.message)
    assert len(lines) == 2 and int(lines[1]) == int(lines[0]) + 2
    assert "@functools.wraps(fn)" in (caught.value.hint or "")
    for fn in (bare(charge), wrapped(charge), wrapped(refund)):
        as_workflow(fn, registry)
    assert [one.name for one in registry.workflows()] == ["wrapper", "charge", "refund"]


def test_a_decorator_hides_no_second_function() -> None:
    """Two of one name in one file are a mistake under a decorator too."""
    registry, names = Registry(), {"__name__": "shop"}
    registry.add_step(make_step(wrapped(made("async def f(): return 1", names))))
    with pytest.raises(InvalidRequest, match=r"shop\.f and shop\.f") as caught:
        registry.add_step(make_step(wrapped(made("\n\nasync def f(): return 2", names))))
    assert caught.value.hint == "give one of them another name="


def made(text: str, names: dict[str, Any], file: str = "shop.py") -> Function:
    exec(compile(text, file, "exec"), names)
    function: Function = names["f"]
    return function


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes and loads a module with a registry of this test; again, if it is loaded already."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    registry = Registry()
    main = ModuleType("plugin_registry")
    vars(main).update(registry=registry, make_step=make_step, wrapped=wrapped, bare=bare)
    monkeypatch.setitem(sys.modules, "plugin_registry", main)
    yielded: list[ModuleType] = []

    def load(text: str) -> Registry:
        (tmp_path / "plugged.py").write_text("from plugin_registry import *\n" + text)
        importlib.invalidate_caches()
        if yielded:
            importlib.reload(yielded[0])
        else:
            yielded.append(importlib.import_module("plugged"))
        return registry

    yield load
    sys.modules.pop("plugged", None)


@pytest.mark.parametrize("decorator", ["", "wrapped"])
def test_a_reload(plugin: Any, decorator: str) -> None:
    """Executes the module again: its functions replace those that it had, wherever they stand now. Two of one
    name in it are refused, before and after."""
    step = f"registry.add_step(make_step({decorator}(f)))\n"
    for n in range(3):
        text = "\n" * n + f"async def f(): return {n}\n" + step
        registry = plugin(text)
        assert registry.step("f").fn.__qualname__ == "f"
        body = getattr(registry.step("f").fn, "__wrapped__", registry.step("f").fn)
        assert body.__code__.co_consts[1:] == (n,) or n in body.__code__.co_consts
    with pytest.raises(InvalidRequest, match=r"plugged\.f and plugged\.f"):
        plugin(text + "async def f(): return 9\n" + step)


def test_a_module_that_is_imported_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a script and by its name: the error names both, and the way out."""
    monkeypatch.setattr("__main__.__file__", "shop.py", raising=False)
    registry = Registry()
    registry.add_step(make_step(made("async def f(): return 1", {"__name__": "__main__"})))
    with pytest.raises(InvalidRequest, match=r"__main__\.f and shop\.f") as caught:
        registry.add_step(make_step(made("async def f(): return 1", {"__name__": "shop"})))
    assert (caught.value.hint or "").startswith("shop was imported twice, as __main__ and as shop: move")


def test_a_cell_with_a_bare_decorator() -> None:
    """A cell that is run again replaces its function; a second function under the decorator is refused."""
    registry = Registry()
    for n in range(2):
        cell = made(f"async def f(): return {n}", {"__name__": "__main__"}, f"<cell-{n}>")
        registry.add_step(make_step(bare(cell)))
    other = made("async def g(): return 3\nf = g", {"__name__": "__main__"}, "<cell-9>")
    with pytest.raises(InvalidRequest, match="registered twice"):
        registry.add_step(make_step(bare(other)))


def error_of(app: App, name: str) -> type[Exception]:
    """A factory of error classes."""

    @app.error
    class Refused(Exception):
        kind = name

    return Refused


def test_two_error_classes_of_a_name() -> None:
    """Of a factory, the second is refused with both places; a class that is registered again is not."""
    app = App()
    first = error_of(app, "a")
    assert app.error(first) is first
    with pytest.raises(
        InvalidRequest, match=r"'error_of.<locals>.Refused' is registered twice, at .*, line \d+"
    ):
        error_of(app, "b")
    assert app.registry.errors[first.__module__, first.__qualname__] is first
    error_of(App(), "b")


def test_an_error_class_is_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reload its module has another class of the name."""
    app = App()
    (tmp_path / "our_errors.py").write_text("class Refused(Exception): ...\napp and app.error(Refused)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(builtins, "app", app, raising=False)
    module = importlib.import_module("our_errors")
    before = module.Refused
    module = importlib.reload(module)
    del sys.modules["our_errors"]
    assert app.registry.errors["our_errors", "Refused"] is module.Refused is not before
