"""JSON objects out of the bytes of clients.

Lives here: `read_object`. May not: the meaning of an object. Design: a large text is looked through before
anything is made of it, because making costs ten times as much as looking: millions of small values, and a
break behind them, would keep all other clients waiting for nothing. While a large object is made, the
collector of cycles rests: it would visit all those values again and again.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import msgspec

__all__ = ["read_object"]

_LARGE_BYTES = 64 * 1024
_decoder = msgspec.json.Decoder(dict[str, Any])
_looker = msgspec.json.Decoder(msgspec.Raw)


def read_object(text: bytes) -> dict[str, Any] | None:
    """Return the object that a text is, or None if it is something else, or no JSON."""
    try:
        if len(text) <= _LARGE_BYTES:
            return _decoder.decode(text)
        # the look takes any bytes between quotation marks
        text.decode()
        _looker.decode(text)
        with _no_collection():
            return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
