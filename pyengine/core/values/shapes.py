"""Shapes: encoding and decoding of values whose annotation msgspec cannot handle alone, one class a kind.

Lives here: the shapes, and the two encoders. May not: limits, equality, errors of the engine (codec.py). The
theory: a shape decodes JSON text, and returns for encoding an object that msgspec can encode. So no part of a
value is encoded or decoded twice, and everything that msgspec can handle is left to it (`MsgspecShape`).

An ordinary dataclass has no shape: `TypeCodec` (codec.py) decodes it with a `msgspec.json.Decoder`.
`ObjectShape` serves members of unions, and classes for which `is_msgspec_native` (hints.py) is false.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NoReturn, Protocol

import msgspec

from pyengine.core.values.hints import field_types, properties
from pyengine.core.values.pydantic_models import Model, error_text, read_unknown, write_unknown

PLAIN = msgspec.json.Encoder(enc_hook=write_unknown)
SORTED = msgspec.json.Encoder(enc_hook=write_unknown, order="deterministic")

Text = str | bytes | msgspec.Raw
_str = msgspec.json.Decoder(str).decode
_list_of_raw = msgspec.json.Decoder(list[msgspec.Raw]).decode
_dict_of_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Shape(Protocol):
    """Encodes and decodes the values of one annotation."""

    def write(self, value: Any) -> Any:
        """Return an object that msgspec encodes; a value of another type is returned unchanged."""

    def read(self, text: Text) -> Any:
        """Return the value of a JSON text; raises msgspec.ValidationError."""


def _invalid(error: Exception, label: str = "") -> NoReturn:
    """Raise an error again as a ValidationError, with the label put before its path."""
    message, _, path = str(error).rpartition(" - at `$")
    message, path = (message, path[:-1]) if message else (str(error), "")
    raise msgspec.ValidationError(f"{message} - at `${label}{path}`" if label + path else message) from error


def read_part(shape: Shape, text: Text, label: str) -> Any:
    """Return a part of a value; an error names its path, which begins with `label`."""
    try:
        return shape.read(text)
    except msgspec.ValidationError as error:
        _invalid(error, label)


class MsgspecShape:
    """A type that msgspec handles alone."""

    def __init__(self, annotation: Any) -> None:
        self.read: Callable[[Any], Any] = msgspec.json.Decoder(annotation, dec_hook=read_unknown).decode
        self._sorted = "ordered" in properties(annotation)

    def write(self, value: Any) -> Any:
        """Return the value, or its text if it holds something to be sorted."""
        return msgspec.Raw(SORTED.encode(value)) if self._sorted else value


class PydanticShape:
    """A type that pydantic handles."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def write(self, value: Any) -> Any:
        """Return pydantic's text."""
        return msgspec.Raw(SORTED.encode(self._model.write(value)))

    def read(self, text: Text) -> Any:
        """Return the value that pydantic decodes."""
        try:
            return self._model.read(bytes(text) if isinstance(text, msgspec.Raw) else text)
        except ValueError as error:
            _invalid(error)


class EnumShape:
    """An enumeration whose values are not all texts or all integers; its members go by name."""

    def __init__(self, cls: type[Enum]) -> None:
        self._cls = cls

    def write(self, value: Any) -> Any:
        """Return the name of a member."""
        return value.name if isinstance(value, self._cls) else value

    def read(self, text: Text) -> Any:
        """Return a member."""
        name = _str(text)
        if name not in self._cls.__members__:
            raise msgspec.ValidationError(f"Invalid enum name {name!r}")
        return self._cls[name]


class ArrayShape:
    """A list or set of one type."""

    def __init__(self, make: Any, item: Shape) -> None:
        self._make, self._item = make, item

    def write(self, value: Any) -> Any:
        """Return a list; that of a set is in order."""
        if not isinstance(value, self._make):
            return value
        written = [self._item.write(one) for one in value]
        return sorted(written, key=PLAIN.encode) if self._make in (set, frozenset) else written

    def read(self, text: Text) -> Any:
        """Return a list, set or tuple."""
        found = (read_part(self._item, one, f"[{n}]") for n, one in enumerate(_list_of_raw(text)))
        try:
            return self._make(found)
        except TypeError as error:
            # an item that is not hashable
            _invalid(error)


class TupleShape:
    """A tuple, or NamedTuple, with a type for each place."""

    def __init__(self, items: list[Shape], make: Any, required: int | None = None) -> None:
        self._items, self._make = items, make
        self._required = len(items) if required is None else required

    def write(self, value: Any) -> Any:
        """Return a list."""
        if type(value) is not self._make or len(value) != len(self._items):
            return value
        return [item.write(one) for item, one in zip(self._items, value, strict=True)]

    def read(self, text: Text) -> Any:
        """Return a tuple."""
        raw = _list_of_raw(text)
        if not self._required <= len(raw) <= len(self._items):
            raise msgspec.ValidationError(f"Expected `array` of length {len(self._items)}, got {len(raw)}")
        pairs = zip(self._items, raw, strict=False)
        found = [read_part(item, one, f"[{n}]") for n, (item, one) in enumerate(pairs)]
        return tuple(found) if self._make is tuple else self._make(*found)


class DictShape:
    """A dict.

    Args:
        key: annotation of its keys, if msgspec can write them as keys.
        key_shape: else how they are written, as texts.
        value: shape of its values.
    """

    def __init__(self, key: Any, key_shape: Shape | None, value: Shape) -> None:
        pairs: Any = types.GenericAlias(dict, (key if key_shape is None else str, msgspec.Raw))
        self._pairs: Callable[[Any], dict[Any, Any]] = msgspec.json.Decoder(pairs).decode
        self._key, self._value = key_shape, value

    def write(self, value: Any) -> Any:
        """Return a dict."""
        if not isinstance(value, Mapping):
            return value
        name = self._key.write if self._key is not None else _same
        return {name(key): self._value.write(one) for key, one in value.items()}

    def read(self, text: Text) -> Any:
        """Return a dict."""
        read: dict[Any, Any] = {}
        for key, one in self._pairs(text).items():
            if self._key is not None:
                key = read_part(self._key, msgspec.json.encode(key), "[...]")
            read[key] = read_part(self._value, one, "[...]")
        return read


def _same(key: Any) -> Any:
    return key


def _may_miss(cls: Any, name: str, hint: Any) -> bool:
    # `__required_keys__` is wrong where annotations are texts
    declared = {typing.Required: False, typing.NotRequired: True}
    return declared.get(typing.get_origin(hint), name not in cls.__required_keys__)


def _has_default(one: dataclasses.Field[Any]) -> bool:
    nothing = dataclasses.MISSING
    return not one.init or one.default is not nothing or one.default_factory is not nothing


class ObjectShape:
    """A dataclass, Struct or TypedDict that msgspec cannot handle alone, or that is a member of a union."""

    def __init__(self, cls: Any) -> None:
        self._cls = self._make = cls
        self._is_dict = typing.is_typeddict(cls)
        self._tag: dict[str, Any] = {}
        self._closed = False
        # name, key in JSON, shape, whether it may be missing
        self.fields: list[tuple[str, str, Shape, bool]] = []

    def fill(self, annotation: Any, shape: Callable[[Any], Shape]) -> None:
        """Set the shapes of the fields; after the constructor, since a class may hold itself."""
        cls, hints = self._cls, field_types(annotation)
        if self._is_dict:
            self.fields = [
                (name, name, shape(hint), _may_miss(cls, name, hint)) for name, hint in hints.items()
            ]
        elif issubclass(cls, msgspec.Struct):
            config = cls.__struct_config__
            self._tag = {} if config.tag is None else {config.tag_field: config.tag}
            self._closed = config.forbid_unknown_fields
            self.fields = [
                (one.name, one.encode_name, shape(hints[one.name]), not one.required)
                for one in msgspec.structs.fields(cls)
            ]
        else:
            if any(isinstance(hint, dataclasses.InitVar) for hint in hints.values()):
                raise TypeError("dataclasses with `InitVar` fields are not supported")
            self._make = self._make_dataclass
            self.fields = [
                (one.name, one.name, shape(hints[one.name]), _has_default(one))
                for one in dataclasses.fields(cls)
            ]

    def write(self, value: Any) -> Any:
        """Return a dict by field."""
        if self._is_dict and type(value) is dict:
            shapes = {name: shape for name, _, shape, _ in self.fields}
            return {key: shapes[key].write(one) if key in shapes else one for key, one in value.items()}
        if type(value) is not self._cls:
            return value
        written = dict(self._tag)
        for name, key, shape, _ in self.fields:
            one = getattr(value, name, msgspec.UNSET)
            if one is not msgspec.UNSET:
                written[key] = shape.write(one)
        return written

    def read(self, text: Text) -> Any:
        """Return an instance."""
        raw = _dict_of_raw(text)
        for key, tag in self._tag.items():
            if key in raw and msgspec.json.decode(raw.pop(key)) != tag:
                raise msgspec.ValidationError(f"Expected `{tag}` - at `$.{key}`")
        found = {}
        for name, key, shape, optional in self.fields:
            if key in raw:
                found[name] = read_part(shape, raw.pop(key), f".{key}")
            elif not optional:
                raise msgspec.ValidationError(f"Object missing required field `{key}`")
        if raw and self._closed:
            raise msgspec.ValidationError(f"Object contains unknown field `{next(iter(raw))}`")
        try:
            return self._make(**found)
        except Exception as error:  # boundary to user code: __post_init__ may do anything
            raise msgspec.ValidationError(error_text(error)) from error

    def _make_dataclass(self, **found: Any) -> Any:
        """Return a dataclass, made as pickle and msgspec do: its `__init__` may take other arguments."""
        made = self._cls.__new__(self._cls)
        for one in dataclasses.fields(self._cls):
            if one.name in found:
                object.__setattr__(made, one.name, found[one.name])
            elif one.default is not dataclasses.MISSING:
                object.__setattr__(made, one.name, one.default)
            elif one.default_factory is not dataclasses.MISSING:
                object.__setattr__(made, one.name, one.default_factory())
        after = getattr(made, "__post_init__", None)
        if after is not None:
            after()
        return made
