"""Values to JSON text and back, such that the decoded value equals the original.

Lives here: one value at a time, by its annotation (`TypeCodec`), the limits on its size (`Codec`), and the
input hash of a call. May not: signatures (definitions/signatures.py), exceptions (exceptions.py), SQL, the
kinds of values that msgspec cannot handle alone (shapes.py). The theory: values are encoded and decoded by
type, so a dataclass, a datetime, a set or a model comes back as itself if the code declares it. Without a
declaration (no annotation, `Any`, a bare `list`) a value is accepted only if plain JSON gives it back equal.
Any other value would be different after a crash, and is refused with the advice to annotate. The text is
plain JSON, so that psql can read it.

Encoding is split: `pack` is fast and unchecked, and suffices to compare a call with the journal. `check`
decodes the text and compares, before a value is recorded for the first time. Sets are written in a fixed
order, because their own order differs from process to process.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import sha256
from inspect import isawaitable
from typing import Any

import msgspec

from pyengine.core.values.depth import MAX_DEPTH, is_deep
from pyengine.core.values.error_access import class_name
from pyengine.core.values.exceptions import MAX_ERROR_BYTES, MIN_ERROR_BYTES, ExceptionCodec
from pyengine.core.values.hints import properties
from pyengine.core.values.likeness import is_plain, refuse_unlike, refuse_zone
from pyengine.core.values.paths import (
    PLAIN_JSON,
    at,
    brief,
    difference,
    holds_non_finite,
    innermost,
    instead_of_type,
    instead_of_value,
    place,
    same,
)
from pyengine.core.values.pydantic_models import error_text, read_unknown
from pyengine.core.values.shape_builder import shape_of
from pyengine.core.values.shapes import PLAIN, SORTED
from pyengine.errors import DecodeError, EncodeError, EngineError, PayloadTooLarge

logger = logging.getLogger("pyengine.codec")

WARN_PAYLOAD_BYTES = 1 << 20
MAX_PAYLOAD_BYTES = 64 << 20

# an escaped NUL: an odd number of backslashes before u0000
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def input_hash(name: str, param: str | bytes) -> str:
    """Return 16 hex digits of the hash of a call: its name and the JSON text of its arguments."""
    text = param.encode() if isinstance(param, str) else param
    return sha256(b"%b\0%b" % (name.encode(), text)).hexdigest()[:16]


UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError)
_UNREADABLE = (msgspec.ValidationError, msgspec.DecodeError, RecursionError)


class TypeCodec:
    """Encodes and decodes the values of one annotation.

    By a decoder of msgspec, as for an ordinary dataclass, if msgspec can handle the annotation alone; else by
    a shape (shapes.py).

    Args:
        annotation: any type that msgspec or pydantic can decode, any union of such; `Any` for plain JSON.

    Raises:
        DecodeError: values of this annotation cannot be decoded.
    """

    __slots__ = (
        "annotation",
        "blind",
        "defaults",
        "flat",
        "loose",
        "overlooks",
        "pack",
        "unpack",
        "untyped",
    )

    annotation: Any
    pack: Callable[[Any], bytes]
    """Encodes fast and unchecked."""
    unpack: Callable[[str | bytes], Any]
    """Decodes; raises the errors of msgspec."""
    loose: bool
    """Whether some part of the value has no declared type."""
    flat: bool
    """Whether all shared encoders give the same text."""
    blind: bool
    """Whether `==` may overlook a NaN."""
    overlooks: bool
    """Whether `==` may overlook a zone or a class."""
    untyped: bool
    """Whether a part of the value may have no declared class."""
    defaults: bool
    """Whether some part of the value has fields that may have their default."""

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        try:
            found = properties(annotation)
            shape = shape_of(annotation)
            decoder = msgspec.json.Decoder(annotation, dec_hook=read_unknown) if shape is None else None
        except (TypeError, NameError, RecursionError) as error:
            raise DecodeError(
                f"the annotation {annotation!r} is not supported: {error}",
                hint="declare a dataclass, a msgspec.Struct, a pydantic model or plain JSON types",
            ) from error
        self.blind = "blind" in found
        self.overlooks = not found.isdisjoint({"any", "times", "models"})
        self.untyped = not found.isdisjoint({"any", "models"})
        self.defaults = "defaults" in found
        self.loose = shape is None and "any" in found
        self.flat = shape is None and found.isdisjoint({"any", "mapping"})
        if shape is not None:
            write = shape.write
            self.pack = lambda value: PLAIN.encode(write(value))
            self.unpack = shape.read
        elif decoder is not None:
            self.pack = SORTED.encode if "ordered" in found else PLAIN.encode
            self.unpack = _guarded(decoder.decode) if "hook" in found else decoder.decode

    def check(self, value: Any, packed: bytes, where: str, *, exact: bool = False) -> tuple[str, Any]:
        """Return the text, and the value decoded from it, if that equals the original.

        Args:
            value: the original.
            packed: the result of `pack`.
            where: its name in errors, e.g. "result of step charge".
            exact: whether it must not be something else that is equal, either (likeness.py).

        Raises:
            EncodeError: the decoded value differs; names the path of the difference.
        """
        refuse_deep(packed, where)
        text = packed.decode()
        try:
            back = self.unpack(packed)
        except _UNREADABLE as error:
            refuse_non_finite(value, where)
            raise EncodeError(
                f"{where} is a {type(value).__name__} and does not fit its annotation "
                f"{_shown(self.annotation)}: {wrong_type(self.annotation, error)}",
                where=where,
            ) from None
        if not same(value, back):
            self._refuse_difference(value, back, where)
        if exact and self.overlooks and not is_plain(value):
            refuse_zone(value, where)
            if self.untyped:
                refuse_unlike(value, back, self.annotation, where)
        if self.blind and "null" in text:
            refuse_non_finite(value, where)
        # the search for one backslash is faster, and mostly suffices
        if "\\" in text and "\\u0000" in text:
            refuse_nul(text, where, value)
        return text, back

    def _refuse_difference(self, value: Any, back: Any, where: str) -> None:
        """Refuse a value that differs from the one decoded from its text."""
        refuse_non_finite(value, where)
        found = difference(value, back)
        if found is None:
            return
        path, mine, theirs = found
        if isinstance(mine, Mapping) and not isinstance(theirs, Mapping):
            verb, named = "return" if where.startswith("the result of") else "pass", type(theirs).__name__
            raise EncodeError(
                f"{where} is a {type(mine).__name__}; {verb} an object of {named}{at(path)}",
                where=where,
                hint=f"{named}(**fields), since the code gets such an object from the journal",
            )
        shown, other = brief(mine), brief(theirs)
        if shown == other:
            shown, other = (f"{shown}, a {type(one).__name__}" for one in (mine, theirs))
        hint = f"annotate it with its exact type, or pass {PLAIN_JSON}"
        if self.annotation is Any and where.startswith("the result of"):
            kind = type(mine).__name__
            hint = f"annotate the return type, so that it declares {kind}, or return {PLAIN_JSON}"
        elif self.annotation is not Any and (not self.loose or path != "$"):
            hint = instead_of_type(value, mine, theirs, _shown(self.annotation))
        raise EncodeError(
            f"{where} ({shown}) would come back from the journal as {other}{at(path)}", where=where, hint=hint
        )


def _guarded(unpack: Callable[[str | bytes], Any]) -> Callable[[str | bytes], Any]:
    """Return a decoder that runs users' code, with its errors as ValidationError."""

    def guarded(text: str | bytes) -> Any:
        try:
            return unpack(text)
        except msgspec.DecodeError:
            raise
        except Exception as error:  # boundary to user code: __post_init__ may do anything
            raise msgspec.ValidationError(error_text(error)) from error

    return guarded


def pack_value(codec: TypeCodec, value: Any, where: str) -> bytes:
    """Return the unchecked bytes of a value.

    Raises:
        EncodeError: the value cannot be encoded at all.
    """
    try:
        return codec.pack(value)
    except UNWRITABLE as error:
        raise unwritable(where, error, value) from error


def unwritable(where: str, error: Exception, value: Any) -> EncodeError:
    """Return the error for a value that cannot be encoded; it names the path within the value."""
    reason = str(error)
    if isinstance(error, UnicodeError):
        reason = "a text holds half a surrogate pair"
    elif isinstance(error, RecursionError):
        return EncodeError(
            f"{where} cannot be written as JSON: it holds itself or is nested deeper than {MAX_DEPTH} levels",
            where=where,
        )
    path, part = innermost(value, _fails)
    if isawaitable(part):
        return EncodeError(
            f"{where} is {brief(part)}, which was not awaited{at(path)}",
            where=where,
            hint="write await before the call, to get its result",
        )
    return EncodeError(
        f"{where} cannot be written as JSON: {reason}{at(path)}",
        where=where,
        hint=instead_of_value(part),
    )


def refuse_deep(packed: bytes, where: str) -> None:
    """Refuse JSON that is nested too deep for its readers.

    Raises:
        EncodeError: it is refused; names `where`.
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
        EncodeError: it is refused; names `where`.
    """
    if _NUL.search(text):
        path = at(place(value, _has_nul))
        raise EncodeError(f"{where} holds a NUL character, which Postgres cannot store{path}", where=where)


def _has_nul(value: Any) -> bool:
    return not _fails(value) and _NUL.search(PLAIN.encode(value).decode()) is not None


def refuse_non_finite(value: Any, where: str) -> None:
    """Refuse NaN and the infinities, which JSON lacks; msgspec would encode them as null.

    Raises:
        EncodeError: it is refused; names `where`.
    """
    if holds_non_finite(value):
        path = at(place(value, holds_non_finite))
        raise EncodeError(f"{where} holds NaN or Infinity, which JSON cannot say{path}", where=where)


_DECLARED_OTHERWISE = (
    "it was written when the code declared another type: let the new one read both (a default for "
    "a new field, a union with the old type), or raise the version of the workflow"
)


def unreadable(
    where: str, annotation: Any, error: Exception, *, hint: str = _DECLARED_OTHERWISE
) -> DecodeError:
    """Return the error for a recorded text that does not fit the annotation."""
    return DecodeError(
        f"{where} does not fit its annotation {_shown(annotation)}: {error}", where=where, hint=hint
    )


def wrong_type(annotation: Any, error: Exception) -> str:
    """Return what is wrong with a text that does not fit an annotation; it names the declared class."""
    text = str(error)
    whole = isinstance(annotation, type) and "at `$" not in text
    return text.replace("Expected `object`", f"Expected `{_shown(annotation)}`") if whole else text


def _shown(annotation: Any) -> str:
    name = annotation.__qualname__ if isinstance(annotation, type) else None
    return name or str(annotation).replace("typing.", "")


_CODECS_MAX = 4096
_cached_codec = lru_cache(maxsize=_CODECS_MAX)(TypeCodec)
_unhashed: dict[int, TypeCodec] = {}
_ANY = TypeCodec(Any)


def type_codec(annotation: Any) -> TypeCodec:
    """Return the codec of an annotation, made once for each."""
    if annotation is Any:
        return _ANY
    try:
        # List[int] and list[int] are equal and share a codec, which is harmless
        return _cached_codec(annotation)
    except TypeError:
        # unhashable, e.g. Annotated[int, {...}]: found by its id; the codec keeps it alive
        known = _unhashed.get(id(annotation))
        if known is None:
            if len(_unhashed) >= _CODECS_MAX:
                _unhashed.clear()
            known = _unhashed[id(annotation)] = TypeCodec(annotation)
        return known


class Codec:
    """Encodes and decodes values and errors, within limits.

    Args:
        errors: exception classes by (module, qualified name) that may be decoded, besides builtin and
            imported ones.
        warn_bytes: a larger text is logged.
        max_bytes: a larger text is refused; the text of an error is cut.
        worker: id of the worker that records errors.

    Attributes:
        unchecked_bytes: a text of this length or less passes both limits.
    """

    def __init__(
        self,
        errors: Mapping[tuple[str, str], type[BaseException]] | None = None,
        *,
        warn_bytes: int = WARN_PAYLOAD_BYTES,
        max_bytes: int = MAX_PAYLOAD_BYTES,
        worker: str | None = None,
    ) -> None:
        self.failures = ExceptionCodec(
            errors, max_bytes=min(max(max_bytes, MIN_ERROR_BYTES), MAX_ERROR_BYTES), worker=worker
        )
        self.warn_bytes = warn_bytes
        self.max_bytes = max_bytes
        self.unchecked_bytes = min(warn_bytes, max_bytes)

    def encode(self, value: Any, annotation: Any = Any, *, where: str, exact: bool = True) -> str:
        """Return the JSON text of a value.

        Args:
            value: the value.
            annotation: its declared type.
            where: its name in errors, e.g. "result of step charge of run order-42".
            exact: whether it must not come back as something else that is equal, either.

        Raises:
            EncodeError: the value decoded from the text would differ.
            PayloadTooLarge: the text is too long.
        """
        return self.write(type_codec(annotation), value, where, exact=exact)

    def encode_undeclared(self, value: Any, *, where: str, exact: bool = True) -> str:
        """Return the JSON text of a value whose reader declares its type elsewhere: plain JSON, or an object
        of a class with fields, by that class.

        Raises:
            EncodeError, PayloadTooLarge: as `encode`.
        """
        try:
            # a member of an IntEnum may be one again for its reader
            return self.write(_ANY, value, where, exact=False)
        except EncodeError as error:
            if not isinstance(value, Mapping):
                with contextlib.suppress(DecodeError, EncodeError):
                    text = self.encode(value, type(value), where=where, exact=exact)
                    if text.startswith("{"):
                        return text
            error.hint = error.hint and "its reader's type is not known here: write it as that type's JSON"
            raise

    def write(self, codec: TypeCodec, value: Any, where: str, *, exact: bool = True) -> str:
        """Return the JSON text of a value of a codec; otherwise as `encode`."""
        try:
            packed = pack_value(codec, value, where)
            if len(packed) > self.unchecked_bytes:
                self.check_size(len(packed), where)
            return codec.check(value, packed, where, exact=exact)[0]
        except (EngineError, MemoryError):
            # what there is no memory for now, there may be later
            raise
        except BaseException as error:  # boundary to user code: the classes of a value may do anything
            name = class_name(type(error))
            raise EncodeError(
                f"{where} cannot be written as JSON: it raises {name} when it is looked at", where=where
            ) from None

    def write_only(self, value: Any, where: str, *, exact: bool = True) -> str:
        """Return the JSON text of a value that is read as JSON only.

        Args:
            value: the value.
            where: its name in errors.
            exact: whether what JSON cannot say is refused, and not written as null.

        Raises:
            EncodeError: it cannot be written.
            PayloadTooLarge: the text is too long.
        """
        try:
            packed = SORTED.encode(value)
        except UNWRITABLE as error:
            raise unwritable(where, error, value) from error
        if len(packed) > self.unchecked_bytes:
            self.check_size(len(packed), where)
        refuse_deep(packed, where)
        text = packed.decode()
        if exact and "null" in text:
            refuse_non_finite(value, where)
        refuse_nul(text, where, value)
        return text

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
        """Refuse a text of `size` bytes that is over the limit; log a large one.

        Raises:
            PayloadTooLarge: it is over the limit; names `where`.
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
            fields = {"event": "payload_large", "where": where, "size": size, "warn_bytes": self.warn_bytes}
            logger.warning(
                f"{where} is {size} bytes long; from {self.warn_bytes} on (payload_warn_bytes) "
                "store it elsewhere and pass a reference",
                extra=fields,
            )

    def encode_error(self, error: BaseException, *, rules: int | None = None, **origin: str | int) -> str:
        """Return the JSON text of an error; never fails.

        Args:
            error: the error.
            rules: of its run; None if it has none.
            origin: the run, step and attempt that raised it.
        """
        return self.failures.encode(error, rules=rules, **origin)

    def decode_error(self, text: str | None) -> BaseException:
        """Return the error of a JSON text: of its own class if that is known, else a RemoteError."""
        return self.failures.decode(text)
