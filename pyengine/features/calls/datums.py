"""Python values as datums, the typed values that identity is made of, and back.

Lives here: lowering a value, reading one, and its JSON with types. May not: connect, or guess: a type that
has no datum is refused, with its place, and nothing is pickled.

    None bool int float bytes str Uri     null bool i64 f64 bytes string uri
    list tuple                            list
    set frozenset                         set
    dict                                  map, whose keys may be any value

A ``Datum`` is canonical: texts are in Unicode form NFC, zero has no sign, there is one NaN, members of sets
and entries of maps are sorted by id. So equal ids mean equal values: ``1``, ``1.0`` and ``True`` are three.
A part may be in a value many times, and is one ``Datum`` and one object. So a small value can mean more than
there is memory for: what is unfolded is counted first.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import math
import re
import struct
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyengine.errors import DecodeError, EncodeError, PayloadTooLarge
from pyengine.features.calls.identity import NewObject, is_normal_uri, normalized_uri, object_id

MAX_SCALAR_BYTES = 1 << 20
MAX_DEPTH = 160
# of what is read, as the database has them (sql/logic/features/85_calls/11_unfolded.sql)
MAX_PARTS = 1_000_000
MAX_BYTES = 1 << 26
MAX_DEPTH_READ = 500
_NAN = bytes.fromhex("7ff8000000000000")
_EXACT = 1 << 53


class Uri(str):
    """A URI in normal form, for what lies outside: a file, an artifact, a function.

    Raises:
        EncodeError: it is not in normal form (``Uri.from_string`` makes it so), or its scheme is ``dml``,
            which is reserved.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Uri:
        """Check the normal form."""
        if not is_normal_uri(text):
            raise EncodeError(
                "the URI is not in normal form", where=repr(text[:80]), hint="Uri.from_string(...)"
            )
        if text.startswith("dml:"):
            raise EncodeError("URIs of the scheme dml are reserved", where=repr(text[:80]))
        return super().__new__(cls, text)

    @classmethod
    def from_string(cls, text: str) -> Uri:
        """Return any URI in normal form: lower case, escapes, dot segments."""
        return cls(normalized_uri(text))

    def __repr__(self) -> str:
        return f"Uri({str(self)!r})"


@dataclass(frozen=True, slots=True)
class Datum:
    """A value with its type, in canonical form.

    Args:
        sub: its type: null, bool, i64, f64, bytes, string, uri, list, set or map.
        scalar: its bytes, if it has no parts.
        parts: members of a list, or of a set by id; keys and values of a map in turn, by the id of the key.

    Attributes:
        id: the hash of all of it.
        count: how many parts it has, itself included, each as often as it is referred to.
        size: how many bytes these have.
        depth: how deep they are nested.
    """

    sub: str
    scalar: bytes | None = None
    # two of one id have the same; to compare or to show them would unfold them
    parts: tuple[Datum, ...] = field(default=(), compare=False, repr=False)
    id: bytes = field(init=False)
    count: int = field(init=False, compare=False)
    size: int = field(init=False, compare=False)
    depth: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        own = object_id("datum", self.sub, self.scalar, [part.id for part in self.parts])
        object.__setattr__(self, "id", own)
        object.__setattr__(self, "count", 1 + sum(part.count for part in self.parts))
        object.__setattr__(self, "size", len(self.scalar or b"") + sum(part.size for part in self.parts))
        object.__setattr__(self, "depth", max((part.depth + 1 for part in self.parts), default=0))

    def check(self, error: type[EncodeError | DecodeError]) -> None:
        """Return if it can be unfolded.

        Args:
            error: what is raised if it has too many parts or bytes, or is nested too deeply.
        """
        if self.count > MAX_PARTS:
            raise error(f"the value has more than {MAX_PARTS} parts", where="value")
        if self.size > MAX_BYTES:
            raise error(f"the texts and bytes of the value have more than {MAX_BYTES} bytes", where="value")
        if self.depth > MAX_DEPTH_READ:
            raise error(f"the value is nested deeper than {MAX_DEPTH_READ} levels", where="value")

    def objects(self) -> list[NewObject]:
        """Return the objects to put, each once, parts before what they are in."""
        found: dict[bytes, NewObject] = {}
        self._collect(found)
        return list(found.values())

    def _collect(self, found: dict[bytes, NewObject]) -> None:
        if self.id in found:
            return
        for part in self.parts:
            part._collect(found)
        found[self.id] = NewObject("datum", self.sub, self.scalar, tuple(part.id for part in self.parts))


def datum_of(value: object) -> Datum:
    """Return the datum of a Python value.

    Raises:
        EncodeError: a part has no datum; ``where`` is its place, as in ``value['rows'][3]``. Or there
            are too many.
        PayloadTooLarge: a text or bytes with more than 1 MiB.
    """
    datum = _lower(value, "value", (), {})
    datum.check(EncodeError)
    return datum


def _lower(value: object, path: str, outer: tuple[int, ...], made: dict[int, Datum]) -> Datum:
    """Lower a value, each object in it once."""
    scalar = _SCALARS.get(type(value))
    if scalar is not None:
        return scalar(value, path)
    if id(value) not in made:
        made[id(value)] = _lower_parts(value, path, outer, made)
    return made[id(value)]


def _lower_parts(value: object, path: str, outer: tuple[int, ...], made: dict[int, Datum]) -> Datum:
    if id(value) in outer:
        raise EncodeError("the value contains itself", where=path)
    if len(outer) >= MAX_DEPTH:
        raise EncodeError(f"the value is nested deeper than {MAX_DEPTH} levels", where=path)
    within = (*outer, id(value))
    if isinstance(value, dict):
        pairs = [
            (
                _lower(key, f"{path}, key {key!r:.60}", within, made),
                _lower(entry, f"{path}[{key!r:.60}]", within, made),
            )
            for key, entry in value.items()
        ]
        return _map(pairs, path, EncodeError)
    if type(value) in (list, tuple):
        assert isinstance(value, list | tuple)
        items = (_lower(one, f"{path}[{n}]", within, made) for n, one in enumerate(value))
        return Datum("list", None, tuple(items))
    if type(value) in (set, frozenset):
        assert isinstance(value, set | frozenset)
        members = [_lower(one, f"{path}, member {one!r:.60}", within, made) for one in value]
        return _set(members, path, EncodeError)
    raise EncodeError(
        f"a {type(value).__module__}.{type(value).__qualname__} is no value of a call",
        where=path,
        hint="pass it as dict, list, str, int, float or bytes, or store it and pass its Uri",
    )


def _text(value: object, path: str) -> Datum:
    assert isinstance(value, str)
    text = unicodedata.normalize("NFC", value)
    if "\0" in text:
        raise EncodeError("a text has no NUL; bytes may have one", where=path)
    try:
        scalar = text.encode()
    except UnicodeEncodeError:
        raise EncodeError("a text has no lone surrogate", where=path) from None
    return _sized("uri" if isinstance(value, Uri) else "string", scalar, path)


def _sized(sub: str, scalar: bytes, path: str) -> Datum:
    if len(scalar) > MAX_SCALAR_BYTES:
        raise PayloadTooLarge(
            f"a {sub} of a call has at most {MAX_SCALAR_BYTES} bytes",
            size=len(scalar),
            limit=MAX_SCALAR_BYTES,
            where=path,
            hint="store it elsewhere and pass its Uri",
        )
    return Datum(sub, scalar)


def _integer(value: object, path: str) -> Datum:
    assert isinstance(value, int)
    if not -(1 << 63) <= value < 1 << 63:
        raise EncodeError("an integer of a call has 64 bits", where=path, hint="pass it as a text")
    return Datum("i64", struct.pack(">q", value))


def _number(value: object, path: str) -> Datum:
    assert isinstance(value, float)
    # adding zero takes the sign from a zero
    return Datum("f64", _NAN if math.isnan(value) else struct.pack(">d", value + 0.0))


_SCALARS: dict[type, Callable[[object, str], Datum]] = {
    type(None): lambda value, path: Datum("null"),
    bool: lambda value, path: Datum("bool", b"\1" if value else b"\0"),
    int: _integer,
    float: _number,
    bytes: lambda value, path: _sized("bytes", bytes(value), path),  # type: ignore[call-overload]
    bytearray: lambda value, path: _sized("bytes", bytes(value), path),  # type: ignore[call-overload]
    str: _text,
    Uri: _text,
}


def _set(members: Sequence[Datum], path: str, error: type[EncodeError | DecodeError]) -> Datum:
    by_id = {member.id: member for member in members}
    if len(by_id) < len(members):
        raise error("two members of the set are equal as values of a call", where=path)
    return Datum("set", None, tuple(by_id[key] for key in sorted(by_id)))


def _map(pairs: Sequence[tuple[Datum, Datum]], path: str, error: type[EncodeError | DecodeError]) -> Datum:
    by_key = {key.id: (key, value) for key, value in pairs}
    if len(by_key) < len(pairs):
        raise error("two keys of the map are equal as values of a call", where=path)
    return Datum("map", None, tuple(part for key in sorted(by_key) for part in by_key[key]))


def value_of(datum: Datum) -> Any:
    """Return the Python value of a datum: lists for lists, dicts for maps; as keys and members tuples and
    frozensets.

    Raises:
        DecodeError: Python cannot tell two keys or members apart, as 1 and True, or cannot hash one. Or it
            has too many parts, or is nested too deeply.
    """
    datum.check(DecodeError)
    with _within_the_stack(DecodeError):
        return _raise(datum, "value", hashable=False)


def _raise(datum: Datum, path: str, *, hashable: bool) -> Any:
    if datum.sub not in ("list", "set", "map"):
        return _python_scalar(datum)
    if datum.sub == "list":
        items = [_raise(part, f"{path}[{n}]", hashable=hashable) for n, part in enumerate(datum.parts)]
        return tuple(items) if hashable else items
    if datum.sub == "set":
        members = [_raise(part, f"{path}, a member", hashable=True) for part in datum.parts]
        found: Any = frozenset(members) if hashable else set(members)
        count = len(members)
    elif hashable:
        raise DecodeError("a map is no key of a dict and no member of a set", where=path)
    else:
        keys = [_raise(part, f"{path}, a key", hashable=True) for part in datum.parts[::2]]
        values = zip(keys, datum.parts[1::2], strict=True)
        found = {key: _raise(part, f"{path}[{key!r:.60}]", hashable=False) for key, part in values}
        count = len(keys)
    if len(found) < count:
        raise DecodeError("two keys or members are equal in Python, as 1 and True are", where=path)
    return found


def _python_scalar(datum: Datum) -> Any:
    scalar = datum.scalar or b""
    match datum.sub:
        case "null":
            return None
        case "bool":
            return scalar == b"\1"
        case "i64":
            return struct.unpack(">q", scalar)[0]
        case "f64":
            return struct.unpack(">d", scalar)[0]
        case "bytes":
            return scalar
        case "uri":
            return str.__new__(Uri, scalar.decode())
        case _:
            return scalar.decode()


def to_tagged(datum: Datum) -> dict[str, Any]:
    """Return a datum as JSON with its types, as ``durable.datum_put`` takes it.

    Raises:
        EncodeError: it has too many parts, or is nested too deeply.
    """
    datum.check(EncodeError)
    with _within_the_stack(EncodeError):
        return _to_tagged(datum)


def _to_tagged(datum: Datum) -> dict[str, Any]:
    parts = datum.parts
    if datum.sub == "map":
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return {"map": [[_to_tagged(key), _to_tagged(value)] for key, value in pairs]}
    if datum.sub in ("list", "set"):
        return {datum.sub: [_to_tagged(part) for part in parts]}
    value = _python_scalar(datum)
    if isinstance(value, bytes):
        value = base64.b64encode(value).decode()
    elif isinstance(value, float):
        value = "NaN" if math.isnan(value) else repr(value).replace("inf", "Infinity")
    elif isinstance(value, int) and abs(value) >= _EXACT:
        value = str(value)
    return {datum.sub: value if not isinstance(value, Uri) else str(value)}


def from_tagged(tagged: object) -> Datum:
    """Return the datum of JSON with types.

    Raises:
        DecodeError: it is not of this form; ``where`` is the place, as in ``$[0].value``. Or it is nested too
            deeply.
    """
    with _within_the_stack(DecodeError):
        return _tagged(tagged, "$")


def _tagged(tagged: object, path: str) -> Datum:
    if not isinstance(tagged, dict) or len(tagged) != 1:
        raise DecodeError("a value is an object with its type as the one member", where=path)
    ((sub, content),) = tagged.items()
    if sub in ("list", "set") and isinstance(content, list):
        parts = [_tagged(one, f"{path}[{n}]") for n, one in enumerate(content)]
        return _set(parts, path, DecodeError) if sub == "set" else Datum("list", None, tuple(parts))
    if sub == "map" and isinstance(content, list):
        if any(not isinstance(pair, list) or len(pair) != 2 for pair in content):
            raise DecodeError("a map is a list of pairs", where=path)
        pairs = [
            (_tagged(key, f"{path}[{n}].key"), _tagged(value, f"{path}[{n}].value"))
            for n, (key, value) in enumerate(content)
        ]
        return _map(pairs, path, DecodeError)
    try:
        return _lower(_read_scalar(sub, content), path, (), {})
    except (ValueError, OverflowError, binascii.Error, EncodeError) as error:
        raise DecodeError(f"{content!r:.60} is no {sub}", where=path, detail=str(error)) from None


def _read_scalar(sub: str, content: object) -> object:
    """A scalar as Python has it; ValueError if it is none."""
    if sub == "null" and content is None:
        return None
    if sub == "bool" and isinstance(content, bool):
        return content
    if sub in ("i64", "f64") and isinstance(content, int | float | str) and not isinstance(content, bool):
        return _read_number(sub, str(content))
    if sub == "bytes" and isinstance(content, str):
        return base64.b64decode(content, validate=True)
    if sub == "string" and isinstance(content, str):
        return content
    if sub == "uri" and isinstance(content, str):
        return Uri(content)
    raise ValueError(f"a value of type {sub} is not written so")


def _read_number(sub: str, text: str) -> int | float:
    if sub == "i64" and re.fullmatch(r"-?[0-9]+", text):
        return int(text)
    if sub == "f64" and re.fullmatch(r"-?[0-9]+(?:[.][0-9]*)?(?:[eE][+-]?[0-9]+)?|NaN|-?Infinity", text):
        number = float(text)
        # too small a number would become zero
        is_zero = re.fullmatch(r"-?[0.]*(?:[eE].*)?", text) is not None
        if text[-1] in "Ny" or (math.isfinite(number) and (number != 0 or is_zero)):
            return number
    raise ValueError(f"{text!r:.60} is no {sub}, or outside its range")


def from_objects(id_: bytes, objects: Mapping[bytes, NewObject]) -> Datum:
    """Return the datum with this id from objects that were read.

    Raises:
        DecodeError: a part is missing or no datum, or an id is not that of its content. Or it has too many
            parts, or is nested too deeply.
    """
    with _within_the_stack(DecodeError):
        datum = _from_objects(id_, objects, {})
    datum.check(DecodeError)
    return datum


def _from_objects(id_: bytes, objects: Mapping[bytes, NewObject], made: dict[bytes, Datum]) -> Datum:
    """Read a datum, each object once."""
    if id_ in made:
        return made[id_]
    found = objects.get(id_)
    if found is None or found.kind != "datum":
        raise DecodeError("the object is missing or no datum", where=id_.hex())
    datum = Datum(found.sub, found.scalar, tuple(_from_objects(ref, objects, made) for ref in found.refs))
    if datum.id != id_:
        raise DecodeError("the id is not that of its content", where=id_.hex())
    return made.setdefault(id_, datum)


@contextlib.contextmanager
def _within_the_stack(error: type[EncodeError | DecodeError]) -> Iterator[None]:
    """Make an error of a value of what Python's stack is too small for."""
    try:
        yield
    except RecursionError:
        raise error("the value is nested deeper than Python can follow", where="value") from None
