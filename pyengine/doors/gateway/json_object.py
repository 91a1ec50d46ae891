"""JSON out of the bytes of clients.

Lives here: `read_parts`, `read_value`, `read_object`. May not: the meaning of a value. Design: a large text
is looked through before anything is made of it, because making costs ten times as much as looking: millions
of small values, and a break behind them, would keep all other clients waiting for nothing. The parts of an
object are found in the same way, without making any. While a large value is made, the collector of cycles
rests: it would visit all those values again and again.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

Parts = TypeVar("Parts", bound=msgspec.Struct)

_BLANKS = b" \t\r\n"
_LARGE_BYTES = 64 * 1024
_decoder = msgspec.json.Decoder(Any)
_looker = msgspec.json.Decoder(msgspec.Raw)


def read_parts(text: bytes | msgspec.Raw, form: type[Parts]) -> Parts | None:
    """Return the parts of an object that a form names, each as its JSON; None if the text is no object.

    No value is made: the largest text costs no memory, and the tenth of the time of reading it.

    Args:
        text: the JSON.
        form: a struct whose fields are `msgspec.Raw`; what it does not name is passed over.
    """
    try:
        return msgspec.json.decode(text, type=form)
    except (msgspec.DecodeError, RecursionError):
        return None


def read_value(text: bytes | msgspec.Raw) -> Any:
    """Return the value that a text is.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        view = memoryview(text)
        if len(view) <= _LARGE_BYTES:
            return _decoder.decode(view)
        # the look takes any bytes between quotation marks
        str(view, "utf-8")
        _looker.decode(view)
        with _no_collection():
            return _decoder.decode(view)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_object(text: bytes) -> dict[str, Any] | None:
    """Return the object that a text is, or None if it is something else, or no JSON."""
    # what is no object is not made at all
    if text.lstrip(_BLANKS)[:1] != b"{":
        return None
    try:
        value = read_value(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
