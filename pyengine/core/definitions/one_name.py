"""One function under each name.

Lives here: `OneName`, which refuses a second function or error class of a name, unless it is the same one,
loaded again, and what workflow code defines. May not: finding functions (registry.py). The theory: two
functions are the same if the same lines made them, with the same values around them. A module that is
executed again (`importlib.reload`) makes each of its functions again, wherever they stand now, and so does
the cell of a notebook that is run again. But what a factory, or a decorator without `functools.wraps`, makes
under one name are several functions, and the last would run in place of all.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Hashable
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from pyengine.core.definitions.current_run import scope
from pyengine.core.rules import DEFINITIONS_RULES
from pyengine.errors import ForbiddenInWorkflow, InvalidRequest

_PLAIN: Final = (str, bytes, int, float, bool)
_OWN: Final = __name__.partition(".")[0]


class _Known(NamedTuple):
    fn: Callable[..., Any]
    spec: object  # a module gets another one when it is executed again
    place: str


class OneName:
    """Which function has which name."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Known] = {}

    def claim(self, name: Hashable, fn: Callable[..., Any], what: str) -> None:
        """Give a name to a function; the same one, loaded again, replaces what has it.

        Args:
            name: kind and name, and what else tells the names apart.
            fn: the function.
            what: the name in the error.

        Raises:
            InvalidRequest: another function has it.
            ForbiddenInWorkflow: workflow code defines it.
        """
        _refuse_in_workflow(what)
        module = sys.modules.get(getattr(fn, "__module__", None) or "")
        new = _Known(fn, getattr(module, "__spec__", None), _place_of_registration())
        known = self._known.get(name)
        if known is not None and not _again(known, new):
            raise _refusal(known, new, what)
        self._known[name] = new

    def claim_class(self, cls: type) -> None:
        """Give its name to an error class; one of a module or cell that is executed again replaces it.

        Raises:
            InvalidRequest: another class has it.
            ForbiddenInWorkflow: workflow code defines it.
        """
        _refuse_in_workflow(f"error {cls.__qualname__!r}")
        module, place = sys.modules.get(cls.__module__), _place_of_registration()
        name = ("error", cls.__module__, cls.__qualname__)
        new, known = _Known(cls, getattr(module, "__spec__", None), place), self._known.get(name)
        is_other = known is not None and known.fn is not cls and known.spec is new.spec
        in_cell = cls.__module__ == "__main__" and not place.startswith(
            f"{getattr(module, '__file__', None)},"
        )
        if known is not None and is_other and not in_cell:
            raise InvalidRequest(
                f"error {cls.__qualname__!r} is registered twice, at {known.place} and at {place}: "
                "the journal knows an error by its module and name",
                hint="what a factory makes needs a __qualname__ of its own, or one class and an attribute",
            )
        self._known[name] = new


def _again(known: _Known, new: _Known) -> bool:
    if known.fn is new.fn:
        return True
    if _names(known.fn) != _names(new.fn):
        return False
    return known.spec is not new.spec or _same(known.fn, new.fn, set())


def _same(a: Callable[..., Any], b: Callable[..., Any], seen: set[tuple[int, int]]) -> bool:
    """Whether two functions of one name are the same, if their module was executed once."""
    if getattr(a, "__self__", None) is not getattr(b, "__self__", None):
        return False
    a, b = _with_code(a), _with_code(b)
    if (code := _code(a)) is not _code(b):
        return _line(a) == _line(b) or (_in_cell(a) and _in_cell(b))
    if code is None or (id(a), id(b)) in seen:
        return True
    seen.add((id(a), id(b)))
    return all(_same_value(*pair, seen) for pair in zip(_around(a), _around(b), strict=True))


def _same_value(a: Any, b: Any, seen: set[tuple[int, int]]) -> bool:
    if a is b:
        return True
    if type(a) in _PLAIN:
        return type(a) is type(b) and bool(a == b)
    a, b = getattr(a, "fn", a), getattr(b, "fn", b)  # of a step or workflow
    return inspect.isroutine(a) and inspect.isroutine(b) and _names(a) == _names(b) and _same(a, b, seen)


def _around(fn: Any) -> list[Any]:
    """Return the values that a function has from where it was made: its cells and defaults."""
    by_name = fn.__kwdefaults__ or {}
    return [*map(_content, fn.__closure__ or ()), *(fn.__defaults__ or ()), *by_name.values()]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # it is assigned later


def _with_code(fn: Any) -> Any:
    return fn if _code(fn) is not None else inspect.unwrap(fn)


def _code(fn: Any) -> CodeType | None:
    code = getattr(fn, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _names(fn: Any) -> tuple[Any, Any]:
    return getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)


def _line(fn: Any) -> int | None:
    return None if (code := _code(fn)) is None else code.co_firstlineno


def _in_cell(fn: Any) -> bool:
    """Whether a function was typed into a notebook or at a prompt, so that it is in no file that runs."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    code = _code(fn)
    return fn.__module__ == "__main__" and code is not None and code.co_filename != script


def _refuse_in_workflow(what: str) -> None:
    """Refuse what workflow code defines, unless it imports the module that does."""
    within = scope.get()
    if within is None or within.run.rules < DEFINITIONS_RULES:
        return
    frame: FrameType | None = _registering()
    while frame is not None and not _is_own(frame):
        if frame.f_code.co_name == "<module>":
            return
        frame = frame.f_back
    raise ForbiddenInWorkflow(
        f"{what} is defined in workflow code, at {_place_of_registration()}: each run and each replay would "
        f"define another (run {within.run.id!r})",
        hint="define it at the top level of the module, and give it what it needs as arguments",
    )


def _place_of_registration() -> str:
    frame = _registering()
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}"


def _registering() -> FrameType:
    """Return the frame of the code that registers something."""
    frame = sys._getframe(1)
    while _is_own(frame) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _is_own(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == _OWN


def _refusal(known: _Known, new: _Known, what: str) -> InvalidRequest:
    a, b = known.fn, new.fn
    names = " and ".join(".".join(map(str, _names(one))) for one in (a, b))
    return InvalidRequest(
        f"{what} is registered twice: {names}, at {known.place} and at {new.place}", hint=_way_out(a, b)
    )


def _way_out(a: Any, b: Any) -> str:
    codes = _code(_with_code(a)), _code(_with_code(b))
    if codes[0] is not None and codes[0] is codes[1] and not hasattr(b, "__wrapped__"):
        return "write @functools.wraps(fn) in a decorator; what a factory makes needs a name=, f'pay_{kind}'"
    files = {None if code is None else code.co_filename for code in codes}
    modules = {_names(a)[0], _names(b)[0]}
    if len(files) == 1 and len(modules) == 2 and "__main__" in modules:
        (other,) = modules - {"__main__"}
        return (
            f"{other} was imported twice, as __main__ and as {other}: move these functions into a module of "
            "their own"
        )
    return "give one of them another name="
