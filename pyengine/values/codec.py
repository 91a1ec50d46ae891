"""Values to JSON text and back, such that what comes back is equal to what went in.

Lives here: one value at a time, by its annotation (`TypeCodec`), the limits on its size (`Codec`), and
the hash that replay compares. Not here: signatures (definitions/signatures.py), exceptions
(exceptions.py), SQL, how the kinds of values are written (values_*.py). The theory: values are written and
read by type, so a dataclass, a datetime, a set or a model comes back as itself when the code declares it.
Where nothing is declared (no annotation, `Any`, a bare `list`) a value is accepted only if plain JSON gives
it back equal; all else would be one thing before a crash and another after it, and is refused with the advice
to annotate. Text is plain JSON, so that psql can read it.

Writing is split: `pack` is fast and unchecked and suffices to compare with the journal; `check` is what a
value passes before its text is recorded for the first time: it is read back and compared. Sets are written in
order, because their own order differs from process to process.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any

import msgspec

from pyengine.errors import DecodeError, EncodeError, PayloadTooLarge
from pyengine.values.depth import MAX_DEPTH, is_deep
from pyengine.values.exceptions import MAX_ERROR_BYTES, MIN_ERROR_BYTES, ExceptionCodec
from pyengine.values.hints import is_blind
from pyengine.values.paths import at, brief, difference, holds_non_finite, place
from pyengine.values.pydantic_models import read_unknown, said
from pyengine.values.shape_builder import shape_of
from pyengine.values.shapes import PLAIN, SORTED, SORTED_KINDS, kinds_of

__all__ = [
    "MAX_PAYLOAD_BYTES",
    "UNWRITABLE",
    "WARN_PAYLOAD_BYTES",
    "Codec",
    "TypeCodec",
    "input_hash",
    "pack_value",
    "refuse_deep",
    "refuse_non_finite",
    "refuse_nul",
    "type_codec",
    "unreadable",
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


UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError)
_UNREADABLE = (msgspec.ValidationError, msgspec.DecodeError, RecursionError)
# kinds of which another order of the same members is the same value, and is written in order by `SORTED`
_MAPPINGS = {"AnyType", "CustomType", "DictType", "TypedDictType"}


class TypeCodec:
    """Writes and reads the values of one annotation.

    Args:
        annotation: any type that msgspec or pydantic can read, any union of such; `Any` for plain JSON.

    Raises:
        DecodeError: values of this annotation can never be read back.
    """

    __slots__ = ("annotation", "blind", "flat", "loose", "own", "pack", "unpack")

    annotation: Any
    pack: Callable[[Any], bytes]
    """Fast and unchecked writing."""
    unpack: Callable[[str | bytes], Any]
    """Fast reading; raises what msgspec raises."""
    loose: bool
    """Whether the annotation leaves a part of the value undeclared."""
    own: bool
    """Whether a value must be written by `pack`, because an encoder for many cannot do it."""
    flat: bool
    """Whether the value is written alike by all encoders."""
    blind: bool
    """Whether `==` may overlook a NaN."""

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        try:
            shape = shape_of(annotation)
            kinds = kinds_of(annotation) if shape is None else set()
            self.blind = is_blind(annotation)
            decoder = msgspec.json.Decoder(annotation, dec_hook=read_unknown) if shape is None else None
        except (TypeError, NameError, RecursionError) as error:
            raise DecodeError(
                f"the annotation {annotation!r} is not supported: {error}",
                hint="declare a dataclass, a msgspec.Struct, a pydantic model or plain JSON types",
            ) from error
        self.own = shape is not None
        self.loose = "AnyType" in kinds
        self.flat = shape is None and kinds.isdisjoint(_MAPPINGS)
        if shape is not None:
            write = shape.write
            self.pack = lambda value: PLAIN.encode(write(value))
            self.unpack = shape.read
        elif decoder is not None:
            self.pack = PLAIN.encode if kinds.isdisjoint(SORTED_KINDS) else SORTED.encode
            self.unpack = _guarded(decoder.decode) if "PostInit" in kinds else decoder.decode

    def check(self, value: Any, packed: bytes, where: str) -> tuple[str, Any]:
        """Return the text and the value read back from it, if both say the same.

        Args:
            value: what was packed.
            packed: what `pack` made of it.
            where: named in the error, e.g. "result of step charge".

        Raises:
            EncodeError: the text would not give the value back; says at which place in the value.
        """
        refuse_deep(packed, where)
        text = packed.decode()
        try:
            back = self.unpack(packed)
        except _UNREADABLE as error:
            refuse_non_finite(value, where)
            raise EncodeError(
                f"{where} is a {type(value).__name__} and does not fit its annotation "
                f"{_shown(self.annotation)}: {error}",
                where=where,
            ) from None
        try:
            equal = bool(value == back)
        except Exception:  # boundary to user code: __eq__ may do anything
            equal = False
        if not equal:
            self._refuse_other(value, back, where)
        if self.blind and "null" in text:
            refuse_non_finite(value, where)
        # a backslash is found sooner, and is rare
        if "\\" in text and "\\u0000" in text:
            refuse_nul(text, where, value)
        return text, back

    def _refuse_other(self, value: Any, back: Any, where: str) -> None:
        """Refuse a value that its text does not give back."""
        refuse_non_finite(value, where)
        found = difference(value, back)
        if found is None:
            return
        path, mine, theirs = found
        shown, other = brief(mine), brief(theirs)
        if shown == other:
            shown, other = (
                f"{text}, a {type(one).__name__}" for text, one in ((shown, mine), (other, theirs))
            )
        hint = "annotate it with its exact type, or pass plain JSON (str keys, lists, numbers)"
        if not self.loose or path != "$":
            hint = (
                f"what {_shown(self.annotation)} declares is written, and no more: not what a subclass adds, "
                "not what is excluded or private, nothing that reading changes"
            )
        raise EncodeError(
            f"{where} ({shown}) would come back from the journal as {other}{at(path)}", where=where, hint=hint
        )


def _guarded(unpack: Callable[[str | bytes], Any]) -> Callable[[str | bytes], Any]:
    """Return reading of which users' code takes part, and may raise anything."""

    def guarded(text: str | bytes) -> Any:
        try:
            return unpack(text)
        except msgspec.DecodeError:
            raise
        except Exception as error:  # boundary to user code: __post_init__ may do anything
            raise msgspec.ValidationError(said(error)) from error

    return guarded


def pack_value(codec: TypeCodec, value: Any, where: str) -> bytes:
    """Return the unchecked bytes of a value.

    Raises:
        EncodeError: the value cannot be written at all.
    """
    try:
        return codec.pack(value)
    except UNWRITABLE as error:
        raise unwritable(where, error, value) from error


def unwritable(where: str, error: Exception, value: Any) -> EncodeError:
    """Return the error for a value that could not be written; it names the place in the value."""
    reason = str(error)
    if isinstance(error, UnicodeError):
        reason = "a text holds half a surrogate pair"
    elif isinstance(error, RecursionError):
        return EncodeError(
            f"{where} cannot be written as JSON: it holds itself or is nested deeper than {MAX_DEPTH} levels",
            where=where,
        )
    return EncodeError(
        f"{where} cannot be written as JSON: {reason}{at(place(value, _fails))}",
        where=where,
        hint="pass data; connections, files, generators and objects with behaviour stay inside one step",
    )


def refuse_deep(packed: bytes, where: str) -> None:
    """Refuse JSON that is nested too deep for those who read it.

    Raises:
        EncodeError: naming where.
    """
    if len(packed) > 2 * MAX_DEPTH and is_deep(packed):
        raise EncodeError(
            f"{where} is nested deeper than {MAX_DEPTH} levels",
            where=where,
            hint="flatten it, or pass it as a text",
        )


def _fails(value: Any) -> bool:
    try:
        PLAIN.encode(value)
    except UNWRITABLE:
        return True
    return False


def refuse_nul(text: str, where: str, value: Any = None) -> None:
    """Refuse a text with a NUL character, which Postgres cannot hold.

    Raises:
        EncodeError: naming where.
    """
    if _NUL.search(text):
        path = at(place(value, _has_nul))
        raise EncodeError(f"{where} holds a NUL character, which Postgres cannot store{path}", where=where)


def _has_nul(value: Any) -> bool:
    return not _fails(value) and _NUL.search(PLAIN.encode(value).decode()) is not None


def refuse_non_finite(value: Any, where: str) -> None:
    """Refuse NaN and the infinities, which JSON cannot say; msgspec would write them as null.

    Raises:
        EncodeError: naming where.
    """
    if holds_non_finite(value):
        path = at(place(value, holds_non_finite))
        raise EncodeError(f"{where} holds NaN or Infinity, which JSON cannot say{path}", where=where)


def unreadable(where: str, annotation: Any, error: Exception) -> DecodeError:
    """Return the error for a recorded text that does not fit the annotation by which it is read."""
    return DecodeError(
        f"{where} does not fit its annotation {_shown(annotation)}: {error}",
        where=where,
        hint="it was written when the code declared another type: let the new one read both (a default for "
        "a new field, a union with the old type), or raise the version of the workflow",
    )


def _shown(annotation: Any) -> str:
    name = annotation.__qualname__ if isinstance(annotation, type) else None
    return name or str(annotation).replace("typing.", "")


_MOST_CODECS = 4096
_cached_codec = lru_cache(maxsize=_MOST_CODECS)(TypeCodec)
_unhashed: dict[int, TypeCodec] = {}
_ANY = TypeCodec(Any)


def type_codec(annotation: Any) -> TypeCodec:
    """Return the codec of an annotation, made once for each."""
    if annotation is Any:
        return _ANY
    try:
        # typed lookups: List[int] and list[int] are equal but harmlessly so; 1 and True cannot be annotations
        return _cached_codec(annotation)
    except TypeError:
        # unhashable, e.g. Annotated[int, {...}]: known by its id, which stays since the codec keeps it alive
        known = _unhashed.get(id(annotation))
        if known is None:
            if len(_unhashed) >= _MOST_CODECS:
                _unhashed.clear()
            known = _unhashed[id(annotation)] = TypeCodec(annotation)
        return known


class Codec:
    """Values and errors to text and back, within limits.

    Args:
        errors: exception classes by (module, qualified name) that may be read back besides builtin and
            imported ones.
        warn_bytes: a larger text is logged.
        max_bytes: a larger text is refused; one of an error is cut.

    Attributes:
        noted_bytes: no text of this length or a smaller one is logged or refused.
    """

    def __init__(
        self,
        errors: Mapping[tuple[str, str], type[BaseException]] | None = None,
        *,
        warn_bytes: int = WARN_PAYLOAD_BYTES,
        max_bytes: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        self.failures = ExceptionCodec(
            errors, max_bytes=min(max(max_bytes, MIN_ERROR_BYTES), MAX_ERROR_BYTES)
        )
        self.warn_bytes = warn_bytes
        self.max_bytes = max_bytes
        self.noted_bytes = min(warn_bytes, max_bytes)

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
        return self.write(type_codec(annotation), value, where)

    def write(self, codec: TypeCodec, value: Any, where: str) -> str:
        """Return the JSON text of a value by its codec; otherwise like `encode`."""
        try:
            packed = codec.pack(value)
        except UNWRITABLE as error:
            raise unwritable(where, error, value) from error
        if len(packed) > self.noted_bytes:
            self.check_size(len(packed), where)
        return codec.check(value, packed, where)[0]

    def decode(self, text: str, annotation: Any = Any, *, where: str) -> Any:
        """Return the value of a JSON text.

        Raises:
            DecodeError: the text is not JSON or does not fit the annotation.
        """
        try:
            return type_codec(annotation).unpack(text)
        except _UNREADABLE as error:
            raise unreadable(where, annotation, error) from error

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
