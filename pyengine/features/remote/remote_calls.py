"""Calls of functions in other languages: `ctx.rpc`.

Lives here: the text of a call, and the check of its parts. May not: an address that is resolved,
the base64 around it (the schema does both). The theory: the other side reads JSON by the rules of its
language, so arguments are JSON that every language reads alike: no NaN, and no integer that JavaScript cuts
unless the caller says that the other side can read it.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from pyengine.core.values.codec import UNWRITABLE, refuse_deep, refuse_non_finite, unwritable
from pyengine.core.values.shapes import PLAIN
from pyengine.core.values.texts import is_text
from pyengine.errors import InvalidRequest

# the schema has the complete rule, and halts a run that asks for another address
_TARGET = re.compile(r"(?i:poll|https?|sql)://\S+|[^/@:\s]+")
_SAFE_INTEGER = (1 << 53) - 1
_NAME_BYTES_MAX = 256
_TARGET_BYTES_MAX = 1024
_VERSION_MAX = (1 << 31) - 1


def remote_param(
    target: str,
    function: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    version: int,
    large_integers: bool,
) -> str:
    """Return the JSON text of a call, after checking its parts.

    Raises:
        InvalidRequest: target, name or version is wrong, or an integer is too large for other languages.
        EncodeError: an argument cannot be written as JSON.
    """
    subject = f"ctx.rpc: {function!r}"
    _check_text(target, _TARGET_BYTES_MAX, "the target", '"poll://any@billing", or its group alone')
    if not _TARGET.fullmatch(target):
        raise InvalidRequest(f"ctx.rpc: {target!r} is no address", hint='write "poll://any@group"')
    _check_text(function, _NAME_BYTES_MAX, "the function", "its name where it is registered")
    if type(version) is not int or not 0 <= version <= _VERSION_MAX:
        raise InvalidRequest(
            f"{subject}: version {version!r} is no version",
            hint="a whole number; 0 means the newest, in TypeScript only",
        )
    call: dict[str, Any] = {"func": function, "args": list(args), "version": version}
    if kwargs:
        call["kwargs"] = kwargs
    where = f"an argument of {subject}"
    refuse_non_finite(call, where)
    try:
        packed = PLAIN.encode(call)
    except UNWRITABLE as error:
        raise unwritable(where, error, call) from error
    refuse_deep(packed, where)
    if not large_integers and _has_large_integer(msgspec.json.decode(packed)):
        raise InvalidRequest(
            f"{subject}: an integer above 2^53 loses digits in other languages",
            hint="send it as a text, or say large_integers=True if the function is written in Python",
        )
    return packed.decode()


def _check_text(text: object, bytes_max: int, what: str, hint: str) -> None:
    if not is_text(text, bytes_max):
        raise InvalidRequest(f"ctx.rpc: {text!r} is not {what} of a call", hint=hint)


def _has_large_integer(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_large_integer, value.values()))
    if isinstance(value, list):
        return any(map(_has_large_integer, value))
    return type(value) is int and abs(value) > _SAFE_INTEGER
