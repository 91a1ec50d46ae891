"""Errors made again from what a journal holds of them.

Lives here: `make`, which allocates an error of one class and puts its parts back, as pickle does; and under
which names classes are recorded and found, those of the main program too. May not: the record
(exceptions.py), the forms of parts (error_values.py). The theory: no `__init__`, `__new__` or `__setattr__`
of a user runs, since they may want what no journal has. So a class whose allocation is its own cannot be
made, nor one whose text needs a part that was lost; then its base class is tried.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import PurePath
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, get_type_hints

import msgspec

from pyengine.core.values.error_access import (
    arguments_of,
    asked,
    attributes_of,
    class_module,
    class_name,
    classes_of,
    dict_of,
    set_arguments,
    slots_of,
)
from pyengine.core.values.pydantic_models import read_unknown
from pyengine.errors import EngineError, recorded_module

_MAIN = "__main__"
_BASES_MAX = 8
_TOO_GENERAL: tuple[type, ...] = (Exception, BaseException, EngineError, object)
_FIELDS = (MemberDescriptorType, GetSetDescriptorType)
# what Python keeps of an AttributeError is the object that lacks it
_NO_FIELDS = frozenset({"obj"})


class Unfit(Exception):
    """An error cannot be made of this class; the message says why."""


def main_name() -> str:
    """Return the name under which other processes import the main program, if it has one."""
    main = sys.modules.get(_MAIN)
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None and spec.name:
        return str(spec.name)
    return PurePath(file).stem if isinstance(file, str) and file.endswith(".py") else _MAIN


def error_module(cls: type) -> str:
    """Return the module under which an error class is recorded."""
    module = recorded_module(cls)
    return main_name() if module == _MAIN else module


def bases_of(cls: type) -> list[list[str]]:
    """Return module and name of the classes that an error class derives from, but for those of any error."""
    listed = [one for one in classes_of(cls)[1:] if one not in _TOO_GENERAL]
    return [[asked(partial(error_module, one), ""), class_name(one)] for one in listed[:_BASES_MAX]]


def modules_named(name: str) -> Iterator[Any]:
    """Yield the imported modules that a recorded name may stand for: that one; the main program, or the one
    module of a package whose file the main program was when it recorded the name.
    """
    if name in sys.modules:
        yield sys.modules[name]
    if main_name() in (name, name.rpartition(".")[2]):
        yield sys.modules[_MAIN]
    if "." not in name:
        named = [one for known, one in tuple(sys.modules.items()) if known.endswith(f".{name}")]
        if len(named) == 1:
            yield named[0]


def found_class(
    known: Mapping[tuple[str, str], type[BaseException]], module: str, name: str
) -> type[BaseException] | None:
    """Return the error class of a recorded name, without importing anything."""
    found: Any = known.get((module, name))
    for one in modules_named(module) if found is None else ():
        found = one
        for part in name.split("."):
            found = getattr(found, part, None)
        if isinstance(found, type):
            break
    if found is BaseExceptionGroup:
        return BaseExceptionGroup
    # StopIteration cannot be raised into a coroutine
    usable = isinstance(found, type) and issubclass(found, Exception) and found is not StopIteration
    return found if usable else None


def fields_of(error: BaseException) -> dict[str, Any]:
    """Return what Python keeps of an error beside its arguments, such as the file name of an OSError."""
    found: dict[str, Any] = {}
    given = arguments_of(error)
    for name, field in _fields(type(error)).items():
        value = asked(lambda field=field: field.__get__(error), None)  # type: ignore[misc]
        if value is not None and not any(value is one for one in given) and name not in _NO_FIELDS:
            found[name] = value
    return found


def _fields(cls: type) -> dict[str, Any]:
    return {
        name: one
        for owner in classes_of(cls)
        if class_module(owner) == "builtins" and owner not in (BaseException, BaseExceptionGroup, object)
        for name, one in vars(owner).items()
        if type(one) in _FIELDS and not name.startswith("__")
    }


def make(
    cls: type[BaseException],
    args: list[Any],
    data: dict[str, Any],
    fields: dict[str, Any],
    *,
    declared: frozenset[str],
    lost: frozenset[str],
    members: list[BaseException],
) -> BaseException:
    """Return an error with its parts.

    Args:
        cls: its class.
        args: its arguments; a part that was lost is a text.
        data: its attributes, without those that were lost.
        fields: what Python keeps of it.
        declared: names of attributes that only their annotations can read.
        lost: names of attributes that were lost.
        members: its members, if it is a group.

    Raises:
        Unfit: it cannot be made.
    """
    base: Any = next(one for one in classes_of(cls) if class_module(one) == "builtins")
    if cls.__new__ is not base.__new__:
        raise Unfit("it is allocated by a __new__ of its own")
    try:
        if issubclass(cls, BaseExceptionGroup):
            error: BaseException = base.__new__(cls, str(args[0]) if args else "", members)
        elif cls is base:
            error = cls(*args)
        else:
            error = base.__new__(cls, *args)
            if base is not Exception:
                base.__init__(error, *args)
            set_arguments(error, tuple(args))
        own = _fields(cls)
        for name, value in fields.items():
            if name in own:
                own[name].__set__(error, value)
        slots = slots_of(cls)
        for name, value in _fitted(cls, data, declared).items():
            if name in slots:
                slots[name].__set__(error, value)
            else:
                dict_of(error)[name] = value
    except (TypeError, ValueError, AttributeError, msgspec.ValidationError) as problem:
        raise Unfit(str(problem)) from problem
    _refuse_unusable(cls, error, lost)
    return error


def _refuse_unusable(cls: type, error: BaseException, lost: frozenset[str]) -> None:
    has = attributes_of(error).keys() | lost
    required = asked(lambda: list[str](getattr(cls, "__dataclass_fields__", ())), list[str]())
    for name in required:
        if name not in has and not hasattr(cls, name):
            raise Unfit(f"nothing is recorded of its field {name}")
    if not asked(lambda: isinstance(str(error), str), False):
        raise Unfit("its text needs what cannot be recorded")


def _fitted(cls: type, data: dict[str, Any], declared: frozenset[str]) -> dict[str, Any]:
    """Return attributes as their annotations say.

    Raises:
        msgspec.ValidationError: one does not fit.
    """
    hints: dict[str, Any] = asked(lambda: get_type_hints(cls), {})
    found = dict(data)
    for name, value in data.items():
        if name in hints and (name in declared or _is_plain(value)):
            try:
                found[name] = msgspec.convert(value, hints[name], str_keys=True, dec_hook=read_unknown)
            except (TypeError, NameError, msgspec.ValidationError) as problem:
                says_nothing = not isinstance(problem, msgspec.ValidationError) or isinstance(
                    problem.__cause__, TypeError
                )
                # an annotation that declares nothing, such as object
                if name in declared or not says_nothing:
                    raise
    return found


def _is_plain(value: Any) -> bool:
    return value is None or type(value) in (bool, int, float, str, list, dict)
