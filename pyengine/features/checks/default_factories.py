"""The functions that make the values of fields that a call of a class leaves out.

Lives here: `factories_of`, for dataclasses, pydantic models and structs. May not: what such a function does
(hazards.py), annotations, which may name what is defined later. The theory: workflow code that makes an
object runs them, though its own lines do not show it. Of an `__init__` of the user nothing is known.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import msgspec


def factories_of(cls: type, given: int, names: set[str | None]) -> Iterator[tuple[str, Any]]:
    """Yield name and factory of each field that a call leaves out.

    Args:
        cls: the class that is called.
        given: how many arguments by position it is given.
        names: the names of the others.
    """
    if dataclasses.is_dataclass(cls):
        found = _of_dataclass(cls, given)
    elif issubclass(cls, msgspec.Struct):
        found = _of_struct(cls, given)
    else:
        found = _of_model(cls, names)
    for name, factory in found:
        if name not in names and callable(factory):
            yield name, factory


def _of_dataclass(cls: type, given: int) -> Iterator[tuple[str, Any]]:
    code = getattr(inspect.getattr_static(cls, "__init__"), "__code__", None)
    if code is None or code.co_filename != "<string>":
        return
    for one in dataclasses.fields(cls):
        if one.init and not one.kw_only:
            given -= 1
            if given >= 0:
                continue
        yield one.name, one.default_factory


def _of_struct(cls: type[msgspec.Struct], given: int) -> Iterator[tuple[str, Any]]:
    fields, defaults = cls.__struct_fields__, cls.__struct_defaults__
    made = [None] * (len(fields) - len(defaults)) + [getattr(one, "factory", None) for one in defaults]
    yield from list(zip(fields, made, strict=True))[given:]


def _of_model(cls: type, names: set[str | None]) -> Iterator[tuple[str, Any]]:
    fields: Any = inspect.getattr_static(cls, "__pydantic_fields__", None)
    module = getattr(inspect.getattr_static(cls, "__init__"), "__module__", "")
    if not isinstance(fields, dict) or not str(module).startswith("pydantic"):
        return
    for name, one in fields.items():
        if names.isdisjoint((one.alias, one.validation_alias)):
            yield name, one.default_factory
