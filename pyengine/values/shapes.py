"""Values whose annotation msgspec cannot read alone: how each kind of them is written and read.

Lives here: the shapes, and the encoders that all writing uses. Not here: limits, equality, errors of
the engine (codec.py). The theory: a shape reads JSON text and writes what msgspec can encode; so no part of a
value is written or read twice, and whatever msgspec understands is left to it (`Native`).
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NoReturn, Protocol

import msgspec

from pyengine.values.hints import field_types
from pyengine.values.pydantic_models import Model, read_unknown, said, write_unknown

__all__ = [
    "PLAIN",
    "SORTED",
    "SORTED_KINDS",
    "Enumerated",
    "Fields",
    "Fixed",
    "Foreign",
    "Keyed",
    "Listed",
    "Native",
    "Shape",
    "Text",
    "kinds_of",
    "read_part",
]

PLAIN = msgspec.json.Encoder(enc_hook=write_unknown)
SORTED = msgspec.json.Encoder(enc_hook=write_unknown, order="deterministic")
# what is written in order: sets have none of their own; of models it shall not matter who comes first
SORTED_KINDS = {"SetType", "FrozenSetType", "CustomType"}

Text = str | bytes | msgspec.Raw
_str = msgspec.json.Decoder(str).decode
_list_of_raw = msgspec.json.Decoder(list[msgspec.Raw]).decode
_dict_of_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Shape(Protocol):
    """Writes and reads the values of one annotation."""

    def write(self, value: Any) -> Any:
        """Return what msgspec writes for a value; a value of another type is returned as it is."""

    def read(self, text: Text) -> Any:
        """Return the value of a JSON text; raises msgspec.ValidationError."""


def _misfit(error: Exception, label: str = "") -> NoReturn:
    """Raise an error once more, as that of a part of something."""
    what, _, path = str(error).rpartition(" - at `$")
    what, path = (what, path[:-1]) if what else (str(error), "")
    raise msgspec.ValidationError(f"{what} - at `${label}{path}`" if label + path else what) from error


def read_part(shape: Shape, text: Text, label: str) -> Any:
    """Return a part of a value; an error says that it stands at `label`."""
    try:
        return shape.read(text)
    except msgspec.ValidationError as error:
        _misfit(error, label)


def kinds_of(annotation: Any) -> set[str]:
    """Return the names of all kinds of type that msgspec sees in an annotation.

    "PostInit" is among them if reading runs code of users.
    """
    kinds: set[str] = set()
    seen: set[int] = set()
    info = msgspec.inspect.type_info(annotation)
    todo: list[Any] = [info]
    while todo:
        node = todo.pop()
        if isinstance(node, tuple | list):
            todo.extend(node)
        elif isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field) and id(node) not in seen:
            seen.add(id(node))
            kinds.add(type(node).__name__)
            if hasattr(getattr(node, "cls", None), "__post_init__"):
                kinds.add("PostInit")
            todo.extend(getattr(node, name) for name in node.__struct_fields__)
    return kinds


class Native:
    """What msgspec writes and reads alone."""

    def __init__(self, annotation: Any) -> None:
        self.read: Callable[[Any], Any] = msgspec.json.Decoder(annotation, dec_hook=read_unknown).decode
        self._sorted = not kinds_of(annotation).isdisjoint(SORTED_KINDS)

    def write(self, value: Any) -> Any:
        """Return the value, or its text if something in it must be put in order."""
        return msgspec.Raw(SORTED.encode(value)) if self._sorted else value


class Foreign:
    """What pydantic writes and reads."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def write(self, value: Any) -> Any:
        """Return the text of what pydantic writes."""
        return msgspec.Raw(SORTED.encode(self._model.write(value)))

    def read(self, text: Text) -> Any:
        """Return what pydantic reads."""
        try:
            return self._model.read(bytes(text) if isinstance(text, msgspec.Raw) else text)
        except ValueError as error:
            _misfit(error)


class Enumerated:
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


class Listed:
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
            # what cannot stand in a set
            _misfit(error)


class Fixed:
    """A tuple, or NamedTuple, with a type for each place."""

    def __init__(self, items: list[Shape], make: Any, fewest: int | None = None) -> None:
        self._items, self._make = items, make
        self._fewest = len(items) if fewest is None else fewest

    def write(self, value: Any) -> Any:
        """Return a list."""
        if type(value) is not self._make or len(value) != len(self._items):
            return value
        return [item.write(one) for item, one in zip(self._items, value, strict=True)]

    def read(self, text: Text) -> Any:
        """Return a tuple."""
        raw = _list_of_raw(text)
        if not self._fewest <= len(raw) <= len(self._items):
            raise msgspec.ValidationError(f"Expected `array` of length {len(self._items)}, got {len(raw)}")
        pairs = zip(self._items, raw, strict=False)
        found = [read_part(item, one, f"[{n}]") for n, (item, one) in enumerate(pairs)]
        return tuple(found) if self._make is tuple else self._make(*found)


class Keyed:
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
    # the class itself does not know when its annotations are texts
    said = {typing.Required: False, typing.NotRequired: True}
    return said.get(typing.get_origin(hint), name not in cls.__required_keys__)


def _has_default(one: dataclasses.Field[Any]) -> bool:
    nothing = dataclasses.MISSING
    return not one.init or one.default is not nothing or one.default_factory is not nothing


class Fields:
    """A class with fields: dataclass, Struct, TypedDict."""

    def __init__(self, cls: Any) -> None:
        self._cls = self._make = cls
        self._is_dict = typing.is_typeddict(cls)
        self._tag: dict[str, Any] = {}
        self._closed = False
        # name, key in JSON, shape, whether it may be missing
        self.fields: list[tuple[str, str, Shape, bool]] = []

    def fill(self, annotation: Any, shape: Callable[[Any], Shape]) -> None:
        """Take the shapes of the fields; later than the rest, since a class may hold itself."""
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
            self._make = self._revived
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
            raise msgspec.ValidationError(said(error)) from error

    def _revived(self, **found: Any) -> Any:
        """Return a dataclass as pickle and msgspec make it: an `__init__` may take other arguments."""
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
