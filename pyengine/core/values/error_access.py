"""Looks at errors of users, which may do anything when they are looked at.

Lives here: what an error holds (arguments, attributes, cause, members), read from where Python keeps it, so
that no property and no `__getattr__` of its class runs; `asked`, for what only its class can say; and
`runs_code`, whether it has to be asked at all. May not: what is recorded of it (exceptions.py). The theory:
an attempt that has ended must have an outcome, so nothing on the way to it may raise because of the error
that it is about. A look that does not end needs a thread (core/worker/failures.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MemberDescriptorType, TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

_DEPTH_MAX = 8
_PARTS_MAX = 100
_ATOMS = frozenset({type(None), bool, int, float, str, bytes})
# members of a class that run when an error is described
_ASKED = frozenset(
    {
        *("__str__", "__repr__", "__getattr__", "__getattribute__", "__notes__", "__class__", "exceptions"),
        *("__cause__", "__context__", "__suppress_context__", "__traceback__", "retryable", "retry_after"),
    }
)
_base: dict[str, Any] = dict(vars(BaseException))
_type: dict[str, Any] = dict(vars(type))

RECORDED = "__pyengine_recorded__"
"""Name of the attribute by which an error keeps what a journal holds about its origin."""


def asked(ask: Callable[[], T], otherwise: T) -> T:
    """Return what a look at an object of a user gives, or something else if it raises anything."""
    try:
        return ask()
    except BaseException:  # boundary to user code: it may raise SystemExit, too
        return otherwise


def class_name(cls: type) -> str:
    """Return the qualified name of a class, whatever its metaclass does."""
    return str(_type["__qualname__"].__get__(cls))


def class_module(cls: type) -> str:
    """Return the module of a class, whatever its metaclass does."""
    return asked(lambda: str(_type["__module__"].__get__(cls)), "")


def classes_of(cls: type) -> tuple[type, ...]:
    """Return a class and all that it derives from, the nearest first, whatever its metaclass does."""
    found: tuple[type, ...] = _type["__mro__"].__get__(cls)
    return found


def is_a(error: object, *classes: type) -> bool:
    """Whether an object is of one of these classes, whatever it says of itself."""
    derives = classes_of(type(error))
    return any(one is cls for cls in classes for one in derives)


def arguments_of(error: BaseException) -> tuple[Any, ...]:
    """Return the arguments of an error."""
    found: tuple[Any, ...] = _base["args"].__get__(error)
    return found


def set_arguments(error: BaseException, args: tuple[Any, ...]) -> None:
    """Set the arguments of an error."""
    _base["args"].__set__(error, args)


def attributes_of(error: BaseException) -> dict[str, Any]:
    """Return the attributes of an error: those of its `__dict__` and of its slots."""
    found = {name: one for name, one in dict_of(error).items() if type(name) is str}
    for name, slot in slots_of(type(error)).items():
        value = asked(lambda slot=slot: slot.__get__(error), found)  # type: ignore[misc]
        if value is not found:
            found[name] = value
    return found


def dict_of(error: BaseException) -> dict[Any, Any]:
    """Return the `__dict__` of an error."""
    found: dict[Any, Any] = _base["__dict__"].__get__(error)
    return found


def slots_of(cls: type) -> dict[str, MemberDescriptorType]:
    """Return the slots of a class of users, by name."""
    return {
        name: one
        for owner in reversed(classes_of(cls))
        if class_module(owner) != "builtins"
        for name, one in vars(owner).items()
        if type(one) is MemberDescriptorType
    }


def is_retryable(error: BaseException) -> bool:
    """Whether an error does not say that another attempt is of no use."""
    return asked(lambda: getattr(error, "retryable", True) is not False, True)


def cause_of(error: BaseException) -> BaseException | None:
    """Return the error from which an error was raised, or during which it was, unless that is suppressed."""
    cause: BaseException | None = _base["__cause__"].__get__(error)
    if cause is None and not _base["__suppress_context__"].__get__(error):
        cause = _base["__context__"].__get__(error)
    return cause


def set_cause(error: BaseException, cause: BaseException | None) -> None:
    """Set the error from which an error was raised."""
    _base["__cause__"].__set__(error, cause)


def traceback_of(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error."""
    found: TracebackType | None = _base["__traceback__"].__get__(error)
    return found


def members_of(error: BaseException) -> tuple[BaseException, ...]:
    """Return the members of a group; none if the error is no group."""
    if not is_a(error, BaseExceptionGroup):
        return ()
    found: tuple[BaseException, ...] = vars(BaseExceptionGroup)["exceptions"].__get__(error)
    return found


def leaves_of(error: BaseException, depth: int = 0) -> Iterator[BaseException]:
    """Yield the errors in a group and in groups within it; the error itself if it is no group."""
    members = members_of(error) if depth < _DEPTH_MAX else ()
    if not members:
        yield error
    for one in members:
        yield from leaves_of(one, depth + 1)


def runs_code(error: BaseException) -> bool:
    """Whether code of users may run when an error is described; also if that takes long to find out."""
    todo, seen = [error], 0
    while todo:
        one = todo.pop()
        seen += 1
        if seen > _PARTS_MAX or _class_runs_code(type(one)):
            return True
        if _has_suggestions(one):
            return True
        held = [*arguments_of(one), *(value for name, value in dict_of(one).items() if name != RECORDED)]
        members = members_of(one)
        if not all(_is_data(value, members) for value in held) or slots_of(type(one)):
            return True
        todo += members
        if (cause := cause_of(one)) is not None:
            todo.append(cause)
    return False


def _has_suggestions(error: BaseException) -> bool:
    """Whether Python looks into an object for a name like the one that is missing, for the traceback."""
    if is_a(error, AttributeError):
        return _field(AttributeError, "obj", error) is not None
    if is_a(error, NameError):
        return _field(NameError, "name", error) is not None
    return is_a(error, ImportError) and _field(ImportError, "name_from", error) is not None


def _field(cls: type, name: str, error: BaseException) -> Any:
    # `name_from` came with Python 3.12
    return vars(cls)[name].__get__(error) if name in vars(cls) else None


def _is_data(value: Any, members: tuple[BaseException, ...]) -> bool:
    if type(value) in (list, tuple):
        return len(value) <= _PARTS_MAX and all(
            type(one) in _ATOMS or any(one is member for member in members) for one in value
        )
    return type(value) in _ATOMS


def _class_runs_code(cls: type) -> bool:
    if type(cls) is not type:
        return True
    # classes of the package answer without doing anything
    ours = ("builtins", "pyengine")
    owners = [one for one in classes_of(cls) if class_module(one).split(".")[0] not in ours]
    defined = [vars(one).get(name) for one in owners for name in _ASKED]
    return any(type(one) not in _ATOMS for one in defined)
