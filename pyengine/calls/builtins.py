"""Builtins: functions over lists, sets and maps that run in process, as the database runs them.

Lives here: what each builtin gives for datums. May not: record anything; ``durable.builtin`` runs the same
function in the database, puts its exec and pins it. Equal values have equal ids, so nothing here compares
bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from pyengine.calls.datums import Datum, datum_of, value_of
from pyengine.errors import NoRoute

__all__ = ["SIGNATURES", "run_builtin"]

SIGNATURES = {
    "list/construct": ("any*",),
    "list/append": ("list", "any*"),
    "list/concat": ("list*",),
    "list/get": ("list", "i64"),
    "list/length": ("list",),
    "set/construct": ("any*",),
    "set/union": ("set*",),
    "set/contains": ("set", "any"),
    "set/length": ("set",),
    "map/construct": ("any*",),
    "map/set": ("map", "any", "any"),
    "map/get": ("map", "any"),
    "map/contains": ("map", "any"),
    "map/keys": ("map",),
    "map/length": ("map",),
}
"""Types of the arguments; one with a star, which is the last, stands for any number."""


def run_builtin(function: str, inputs: Sequence[Datum]) -> tuple[str, Datum]:
    """Return the status, ok or error, and the datum that a builtin gives for these inputs.

    Args:
        function: its name, as in ``list/get``, or its URI, ``dml://list/get``.
        inputs: the values.

    Raises:
        NoRoute: there is no such builtin.
    """
    name = function.removeprefix("dml://")
    if name not in SIGNATURES:
        raise NoRoute(f"there is no builtin {function!r}", hint=f"there are {', '.join(SIGNATURES)}")
    flaw = _argument_flaw(SIGNATURES[name], [each.sub for each in inputs])
    if flaw:
        return _error("TypeError", f"{name} {flaw}")
    if name in ("map/construct", "map/set"):
        return _map(name, inputs)
    found = _PARTS[name](inputs)
    if found is not None:
        return "ok", found
    kind = "KeyError" if name == "map/get" else "IndexError"
    return _error(kind, f"{name}: there is no such member")


def _error(kind: str, message: str) -> tuple[str, Datum]:
    return "error", datum_of({"message": message, "type": kind, "origin": "dml"})


def _argument_flaw(signature: Sequence[str], subs: Sequence[str]) -> str:
    """How types of arguments differ from a signature; empty: they do not."""
    varies = signature[-1].endswith("*")
    if len(subs) < len(signature) - varies or (len(subs) > len(signature) and not varies):
        return f"takes {', '.join(signature)}, got {len(subs)} arguments"
    for place, sub in enumerate(subs):
        wanted = signature[min(place, len(signature) - 1)].rstrip("*")
        if wanted not in ("any", sub):
            return f"argument {place + 1} is a {sub}, not a {wanted}"
    return ""


def _map(name: str, inputs: Sequence[Datum]) -> tuple[str, Datum]:
    if name == "map/set":
        first, key, value = inputs
        pairs = [pair for pair in _pairs(first.parts) if pair[0].id != key.id] + [(key, value)]
    else:
        pairs = _pairs(inputs)
    by_key = {key.id: (key, value) for key, value in pairs}
    if len(by_key) < len(pairs) or (name == "map/construct" and len(inputs) % 2):
        return _error("ValueError", f"{name} takes pairs of keys and values, no key twice")
    return "ok", Datum("map", None, tuple(part for key in sorted(by_key) for part in by_key[key]))


def _pairs(parts: Sequence[Datum]) -> list[tuple[Datum, Datum]]:
    return list(zip(parts[::2], parts[1::2], strict=False))


def _set(members: Sequence[Datum]) -> Datum:
    by_id = {member.id: member for member in members}
    return Datum("set", None, tuple(by_id[key] for key in sorted(by_id)))


def _bool(value: bool) -> Datum:
    return Datum("bool", b"\1" if value else b"\0")


def _length(count: int) -> Datum:
    return Datum("i64", struct.pack(">q", count))


def _member(given: Sequence[Datum]) -> Datum | None:
    parts, place = given[0].parts, value_of(given[1])
    return parts[place] if -len(parts) <= place < len(parts) else None


def _entry(given: Sequence[Datum]) -> Datum | None:
    return next((value for key, value in _pairs(given[0].parts) if key.id == given[1].id), None)


def _has(parts: Sequence[Datum], wanted: Datum) -> Datum:
    return _bool(any(part.id == wanted.id for part in parts))


def _all_parts(given: Sequence[Datum]) -> tuple[Datum, ...]:
    return tuple(part for one in given for part in one.parts)


_PARTS: dict[str, Callable[[Sequence[Datum]], Datum | None]] = {
    "list/construct": lambda given: Datum("list", None, tuple(given)),
    "list/append": lambda given: Datum("list", None, (*given[0].parts, *given[1:])),
    "list/concat": lambda given: Datum("list", None, _all_parts(given)),
    "list/get": _member,
    "list/length": lambda given: _length(len(given[0].parts)),
    "set/construct": _set,
    "set/union": lambda given: _set(_all_parts(given)),
    "set/contains": lambda given: _has(given[0].parts, given[1]),
    "set/length": lambda given: _length(len(given[0].parts)),
    "map/get": _entry,
    "map/contains": lambda given: _has(given[0].parts[::2], given[1]),
    "map/keys": lambda given: Datum("list", None, given[0].parts[::2]),
    "map/length": lambda given: _length(len(given[0].parts) // 2),
}
