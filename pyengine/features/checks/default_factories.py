"""The functions that make the values of fields that a call of a class leaves out.

Lives here: `factories_of`, for dataclasses, pydantic models and structs. May not: what such a function does
(hazards.py). The theory: workflow code that makes an object runs them, though its own lines do not show it.
"""

from __future__ import annotations

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
    fields: Any = inspect.getattr_static(cls, "__dataclass_fields__", None)
    if fields is None:
        fields = inspect.getattr_static(cls, "__pydantic_fields__", None)
    if fields is None and issubclass(cls, msgspec.Struct):
        fields = {one.name: one for one in msgspec.structs.fields(cls)}
    if not isinstance(fields, dict):
        return
    for name, one in list(fields.items())[given:]:
        factory = getattr(one, "default_factory", None)
        if name not in names and callable(factory):
            yield name, factory
