"""The tree of shapes of an annotation.

Lives here: `shape_of`. May not: encoding and decoding (shapes.py, unions.py). The theory: an annotation is a
tree. A subtree that msgspec can handle alone is one leaf, `MsgspecShape`; only the nodes above other leaves
have shapes of their own.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Hashable
from enum import Enum
from typing import Any, Union, get_args, get_origin

from pyengine.core.values.hints import (
    DICTS,
    LISTS,
    SETS,
    bare,
    class_of,
    field_types,
    has_fields,
    identity,
    is_msgspec_native,
    is_named_tuple,
)
from pyengine.core.values.pydantic_models import is_constrained, is_model, is_special, model_of
from pyengine.core.values.shapes import (
    ArrayShape,
    DictShape,
    EnumShape,
    MsgspecShape,
    ObjectShape,
    PydanticShape,
    Shape,
    TupleShape,
)
from pyengine.core.values.unions import UnionShape


class _Builder:
    """Makes the shapes of one annotation; a class that holds itself is made once."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Shape] = {}

    def shape(self, annotation: Any) -> Shape:
        """Return the shape of an annotation.

        Raises:
            TypeError: it is not supported.
        """
        if is_constrained(annotation) or is_special(annotation):
            return PydanticShape(model_of(annotation))
        annotation = bare(annotation)
        cls, args = class_of(annotation), get_args(annotation)
        if is_model(cls):
            return PydanticShape(model_of(annotation))
        if is_msgspec_native(annotation):
            return MsgspecShape(annotation)
        known = self._made.get(identity(annotation))
        if known is not None:
            return known
        if isinstance(cls, type) and issubclass(cls, Enum):
            return EnumShape(cls)
        if cls in (Union, types.UnionType):
            return self._filled(annotation, UnionShape())
        if is_named_tuple(cls):
            hints = field_types(annotation)
            items = [self.shape(hints[name]) for name in cls._fields]
            return TupleShape(items, cls, len(items) - len(cls._field_defaults))
        if has_fields(cls):
            return self._filled(annotation, ObjectShape(cls))
        return self._container(annotation, cls, args)

    def _container(self, annotation: Any, cls: Any, args: tuple[Any, ...]) -> Shape:
        if cls is tuple and args[-1:] != (...,):
            return TupleShape([self.shape(one) for one in args], tuple)
        if cls in DICTS:
            key_shape = None if is_msgspec_native(args[0]) else self.shape(args[0])
            return DictShape(args[0], key_shape, self.shape(args[1]))
        if cls in (*LISTS, *SETS, tuple):
            make = cls if cls in (set, frozenset, tuple) else set if cls in SETS else list
            return ArrayShape(make, self.shape(args[0]))
        raise TypeError(f"{annotation!r} is not supported")

    def _member(self, annotation: Any) -> Shape:
        """Return the shape of a union's member, which must write all its fields to be recognised.

        msgspec alone leaves out a dataclass field that was missing when it decoded the value.
        """
        cls = class_of(annotation)
        if not dataclasses.is_dataclass(cls) or is_model(cls):
            return self.shape(annotation)
        known = self._made.get(identity(annotation))
        return known if known is not None else self._filled(annotation, ObjectShape(cls))

    def _filled(self, annotation: Any, shape: Any) -> Shape:
        self._made[identity(annotation)] = shape
        shape.fill(annotation, self._member if isinstance(shape, UnionShape) else self.shape)
        return typing.cast("Shape", shape)


def shape_of(annotation: Any) -> Shape | None:
    """Return the shape of an annotation; None if msgspec can handle it alone.

    Raises:
        TypeError: it is not supported.
        NameError: an annotation in it cannot be resolved.
    """
    if get_origin(annotation) is None and is_model(annotation):
        # pydantic decodes a model faster from the text itself
        return _Builder().shape(annotation)
    return None if is_msgspec_native(annotation) else _Builder().shape(annotation)
