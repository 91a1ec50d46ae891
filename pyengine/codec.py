"""Values to JSON text and back, such that what comes back is equal to what went in.

What lives here: one value at a time, by its annotation (`TypeCodec`), the limits on its size (`Codec`), and
the hash that replay compares. What may not: signatures (signatures.py), exceptions (failures.py), SQL. The
theory: msgspec writes and reads by type, so a dataclass, a datetime or a set comes back as itself when the
code declares it. Where nothing is declared (no annotation, `Any`, a bare `list`) a value is accepted only if
plain JSON gives it back equal; all else would be one thing before a crash and another after it, and is
refused with the advice to annotate. Text is plain JSON, so that psql can read it.

Writing is split: `pack` is fast and unchecked and suffices to compare with the journal; `check` is what a
value passes before its text is recorded for the first time. Sets are written sorted, because their order
differs from process to process. (A set inside a pydantic model is not: pydantic writes those; use a list
there.)
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any

import msgspec

from pyengine.errors import DecodeError, EncodeError, PayloadTooLarge
from pyengine.failures import MAX_ERROR_BYTES, MIN_ERROR_BYTES, Failures

__all__ = [
    "MAX_PAYLOAD_BYTES",
    "WARN_PAYLOAD_BYTES",
    "Codec",
    "TypeCodec",
    "input_hash",
    "pack_value",
    "refuse_unreadable",
    "type_codec",
    "unwritable",
]

logger = logging.getLogger("pyengine.codec")

WARN_PAYLOAD_BYTES = 1 << 20
MAX_PAYLOAD_BYTES = 64 << 20

# an escaped NUL: an odd number of backslashes before u0000
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def input_hash(name: str, param: str | bytes) -> str:
    """Return 16 hex digits that stand for a call: its name and the JSON text of its arguments."""
    text = param.encode() if isinstance(param, str) else param
    return sha256(b"%b\0%b" % (name.encode(), text)).hexdigest()[:16]


def _write_unknown(value: Any) -> Any:
    """Write what msgspec does not know: pydantic models, if their library is there."""
    dump = getattr(type(value), "model_dump", None)
    if dump is not None:
        return dump(value, mode="json")
    raise TypeError(f"values of type {type(value).__qualname__} cannot be written")


def _read_unknown(annotation: Any, value: Any) -> Any:
    validate = getattr(annotation, "model_validate", None)
    if validate is not None:
        return validate(value)
    name = getattr(annotation, "__qualname__", annotation)
    raise TypeError(f"values of type {name} cannot be read back; use a dataclass or another plain type")


_PLAIN = msgspec.json.Encoder(enc_hook=_write_unknown)
_SORTED = msgspec.json.Encoder(enc_hook=_write_unknown, order="deterministic")


class TypeCodec:
    """Writes and reads the values of one annotation.

    Args:
        annotation: any type that msgspec or pydantic can read; `Any` for plain JSON values.

    Raises:
        DecodeError: values of this annotation can never be read back.
    """

    __slots__ = ("annotation", "loose", "pack", "unpack")

    annotation: Any
    pack: Callable[[Any], bytes]
    """Fast and unchecked writing."""
    unpack: Callable[[str | bytes], Any]
    """Fast reading; raises what msgspec raises."""
    loose: bool
    """Whether the annotation leaves a part of the value undeclared."""

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        try:
            self.unpack = msgspec.json.Decoder(annotation, dec_hook=_read_unknown).decode
            kinds = _kinds(msgspec.inspect.type_info(annotation))
        except (TypeError, NameError) as error:
            raise DecodeError(f"the annotation {annotation!r} is not supported: {error}") from error
        self.loose = "AnyType" in kinds
        unordered = not kinds.isdisjoint({"SetType", "FrozenSetType", "CustomType"})
        self.pack = _SORTED.encode if unordered else _PLAIN.encode

    def check(self, value: Any, packed: bytes, where: str) -> tuple[str, Any]:
        """Return the text and the value read back from it, if both say the same.

        Args:
            value: what was packed.
            packed: what `pack` made of it.
            where: named in the error, e.g. "result of step charge".

        Raises:
            EncodeError: the text would not give the value back.
        """
        text = packed.decode()
        refuse_unreadable(value, text, where)
        try:
            back = self.unpack(packed)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise EncodeError(
                f"{where} is a {type(value).__name__} and does not fit its annotation "
                f"{_shown(self.annotation)}: {error}",
                where=where,
            ) from None
        if self.loose and not _same(value, back):
            raise EncodeError(
                f"{where} ({_brief(value)}) would come back from the journal as {_brief(back)}",
                where=where,
                hint="annotate it with its exact type, or pass plain JSON (str keys, lists, numbers)",
            )
        return text, back


def pack_value(codec: TypeCodec, value: Any, where: str) -> bytes:
    """Return the unchecked bytes of a value.

    Raises:
        EncodeError: the value cannot be written at all.
    """
    try:
        return codec.pack(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise unwritable(where, error) from error


def unwritable(where: str, error: Exception) -> EncodeError:
    """Return the error for a value that could not be written."""
    reason = "a text holds half a surrogate pair" if isinstance(error, UnicodeError) else str(error)
    return EncodeError(f"{where} cannot be written as JSON: {reason}", where=where)


def refuse_unreadable(value: Any, text: str, where: str) -> None:
    """Refuse what JSON or Postgres cannot hold: NaN, Infinity, NUL.

    Raises:
        EncodeError: naming where.
    """
    if "\\u0000" in text and _NUL.search(text):
        raise EncodeError(f"{where} holds a NUL character, which Postgres cannot store", where=where)
    # msgspec writes NaN and the infinities as null
    if "null" in text and _has_non_finite(msgspec.to_builtins(value, enc_hook=_write_unknown)):
        raise EncodeError(f"{where} holds NaN or Infinity, which JSON cannot say", where=where)


def _has_non_finite(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(map(_has_non_finite, value.values()))
    return isinstance(value, list | tuple | set | frozenset) and any(map(_has_non_finite, value))


def _same(value: Any, back: Any) -> bool:
    try:
        return bool(value == back)
    except Exception:  # boundary to user code: __eq__ may do anything
        return False


def _kinds(info: Any) -> set[str]:
    """Return the names of all kinds of type inside a msgspec type description."""
    kinds: set[str] = set()
    seen: set[int] = set()
    todo = [info]
    while todo:
        node = todo.pop()
        if isinstance(node, tuple | list):
            todo.extend(node)
        elif isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field) and id(node) not in seen:
            seen.add(id(node))
            kinds.add(type(node).__name__)
            todo.extend(getattr(node, name) for name in node.__struct_fields__)
    return kinds


def _shown(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_cached_codec = lru_cache(maxsize=4096)(TypeCodec)
_ANY = TypeCodec(Any)


def type_codec(annotation: Any) -> TypeCodec:
    """Return the codec of an annotation, made once for each."""
    if annotation is Any:
        return _ANY
    try:
        # typed lookups: List[int] and list[int] are equal but harmlessly so; 1 and True cannot be annotations
        return _cached_codec(annotation)
    except TypeError:
        # an unhashable annotation, e.g. Annotated[int, {...}]
        return TypeCodec(annotation)


class Codec:
    """Values and errors to text and back, within limits.

    Args:
        errors: exception classes by (module, qualified name) that may be read back besides builtin and
            imported ones.
        warn_bytes: a larger text is logged.
        max_bytes: a larger text is refused; one of an error is cut.
    """

    def __init__(
        self,
        errors: Mapping[tuple[str, str], type[BaseException]] | None = None,
        *,
        warn_bytes: int = WARN_PAYLOAD_BYTES,
        max_bytes: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        self.failures = Failures(errors, max_bytes=min(max(max_bytes, MIN_ERROR_BYTES), MAX_ERROR_BYTES))
        self.warn_bytes = warn_bytes
        self.max_bytes = max_bytes

    def encode(self, value: Any, annotation: Any = Any, *, where: str) -> str:
        """Return the JSON text of a value.

        Args:
            value: what to write.
            annotation: its declared type.
            where: named in errors, e.g. "result of step charge of run order-42".

        Raises:
            EncodeError: the text would not give the value back.
            PayloadTooLarge: the text is too long.
        """
        codec = type_codec(annotation)
        packed = pack_value(codec, value, where)
        self.check_size(len(packed), where)
        return codec.check(value, packed, where)[0]

    def decode(self, text: str, annotation: Any = Any, *, where: str) -> Any:
        """Return the value of a JSON text.

        Raises:
            DecodeError: the text is not JSON or does not fit the annotation.
        """
        try:
            return type_codec(annotation).unpack(text)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise DecodeError(
                f"{where} does not fit its annotation {_shown(annotation)}: {error}", where=where
            ) from error

    def check_size(self, size: int, where: str) -> None:
        """Refuse a text of `size` bytes if it is over the limit, log it if it is large.

        Raises:
            PayloadTooLarge: naming where.
        """
        if size > self.max_bytes:
            raise PayloadTooLarge(
                f"{where} is {size} bytes long, {self.max_bytes} are allowed",
                size=size,
                limit=self.max_bytes,
                where=where,
                hint="store it elsewhere (a table, an object store) and pass a reference",
            )
        if size > self.warn_bytes:
            logger.warning(
                "payload.large", extra={"where": where, "size": size, "warn_bytes": self.warn_bytes}
            )

    def encode_error(self, error: BaseException) -> str:
        """Return the JSON text of an error; never fails."""
        return self.failures.encode(error)

    def decode_error(self, text: str | None) -> BaseException:
        """Return the error of a JSON text: of its own class if that is known, else RemoteError."""
        return self.failures.decode(text)
