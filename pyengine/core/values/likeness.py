"""The parts of a value that `==` does not compare with its copy: the zone of a time, a class not declared.

Lives here: the search for such a part, and its refusal. May not: what differs (paths.py), encoding and
decoding (codec.py). The theory: JSON has the offset of a time and not its zone, so two days later a copy may
be an hour off. A declared type is what comes back, whatever was given for it: an int for a member of an
IntEnum. Where none is declared the copy is plain JSON, so a class that derives from it is lost.

A time without a zone is not looked at, although its `fold` is lost: `datetime.now()` sets it during one hour
of the year, and a program must not fail in that hour alone (decisions/0124).
"""

from __future__ import annotations

import contextlib
import typing
from collections.abc import Mapping
from datetime import datetime, time
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, get_args, get_origin

from pyengine.core.values.error_access import asked
from pyengine.core.values.hints import bare, class_of, field_types, has_fields
from pyengine.core.values.paths import at, key_label, parts, place, same
from pyengine.core.values.pydantic_models import is_model
from pyengine.errors import EncodeError

ATOMS = frozenset({type(None), bool, int, float, str, bytes})
"""Classes of which `==` overlooks nothing."""
_ARRAYS = (list, tuple, set, frozenset)
# path, part of the value, part of its copy
Found = tuple[str, Any, Any] | None


def refuse_zone(value: Any, where: str) -> None:
    """Refuse a value that holds a time whose zone has another offset on other days.

    Raises:
        EncodeError: it is refused; names `where` and the place within.
    """
    zoned = _zoned(value)
    if zoned is not None:
        path = place(value, lambda part: _zoned(part) is not None)
        raise EncodeError(
            f"{where} holds a time in {zoned.tzinfo}, of which only the offset would come back{at(path)}",
            where=where,
            hint="give it in UTC, value.astimezone(UTC), and the name of its zone beside it; "
            "with PGTZ=UTC psycopg reads times in UTC",
        )


def refuse_unlike(value: Any, back: Any, annotation: Any, where: str) -> None:
    """Refuse a value that is equal to its copy, and yet something else.

    Raises:
        EncodeError: it is refused; names `where` and the place within.
    """
    found: Found = None
    # nested by some hundred levels, or what an `__eq__` leaves out has other parts: it stays as it was
    with contextlib.suppress(RecursionError, LookupError, ValueError):
        found = _unlike(value, back, annotation)
    if found is not None:
        path, mine, theirs = found
        name, plain = type(mine).__name__, type(theirs).__name__
        raise EncodeError(
            f"{where} holds a {name}, and a {plain} would come back from the journal{at('$' + path)}",
            where=where,
            hint=f"annotate it with its type, or give {plain}(value)",
        )


def _zoned(value: Any) -> datetime | time | None:
    """Return a time in a value whose zone has another offset on other days."""
    # a value may hold itself in a field that is not written
    todo, seen = [value], set[int]()
    while todo:
        one = todo.pop()
        cls = type(one)
        if cls in ATOMS or id(one) in seen:
            continue
        seen.add(id(one))
        if cls in _ARRAYS:
            todo.extend(one)
        elif cls is dict:
            todo.extend(one)
            todo.extend(one.values())
        elif isinstance(one, datetime | time):
            zone = one.tzinfo
            if zone is not None and asked(lambda zone=zone: zone.utcoffset(None), None) is None:  # type: ignore[misc]
                return one
        else:
            if isinstance(one, Mapping):
                todo.extend(one)
            todo.extend(part for _, part in parts(one) or ())
    return None


def _unlike(value: Any, back: Any, annotation: Any) -> Found:
    """Return the first part that has another class in the copy, of those that have no declared type."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    annotation = bare(annotation)
    cls, args = class_of(annotation), get_args(annotation)
    if annotation is Any or annotation is object:
        return _other_class(value, back)
    if cls in (typing.Union, UnionType):
        held = next((one for one in args if class_of(bare(one)) is type(back)), None)
        return None if held is None else _unlike(value, back, held)
    if not isinstance(cls, type) or type(value) in ATOMS:
        return None
    if has_fields(cls) or is_model(cls) or hasattr(cls, "__attrs_attrs__"):
        return _in_fields(value, back, annotation)
    if isinstance(value, Mapping) and isinstance(back, Mapping):
        key, item = args if len(args) == 2 else (Any, Any)
        return _in_dict(value, back, key, item)
    if isinstance(value, set | frozenset) and isinstance(back, set | frozenset):
        copies = {one: one for one in back}
        return _in_array(value, [copies[one] for one in value], args)
    if isinstance(value, list | tuple) and isinstance(back, list | tuple):
        return _in_array(value, back, args)
    return None


def is_plain(value: Any) -> bool:
    """Whether a value is made of plain JSON alone."""
    todo = [value]
    while todo:
        one = todo.pop()
        cls = type(one)
        if cls is dict:
            if not all(type(key) is str for key in one):
                return False
            todo.extend(one.values())
        elif cls is list:
            todo.extend(one)
        elif cls not in ATOMS:
            return False
    return True


def _other_class(value: Any, back: Any) -> Found:
    if is_plain(value):
        return None
    cls = type(value)
    if cls is not type(back):
        # what an `__eq__` of a class leaves out is no concern of ours
        return ("", value, back) if same(value, back) else None
    if cls is dict:
        return _in_dict(value, back, Any, Any)
    return _in_array(value, back, ()) if cls is list else None


def _in_dict(value: Mapping[Any, Any], back: Mapping[Any, Any], key: Any, item: Any) -> Found:
    keys = {one: one for one in back} if key is Any else {}
    for name, mine in value.items():
        if key is Any and type(name) is not str and type(keys[name]) is not type(name):
            return f"[{name!r}]", name, keys[name]
        theirs = back[name]
        if type(mine) in ATOMS and type(mine) is type(theirs):
            continue
        found = _unlike(mine, theirs, item) if item is not Any else _other_class(mine, theirs)
        if found is not None:
            return key_label(name) + found[0], *found[1:]
    return None


def _in_array(value: Any, back: Any, args: tuple[Any, ...]) -> Found:
    each = len(args) == len(value) and args[-1:] != (...,)
    for number, (mine, theirs) in enumerate(zip(value, back, strict=True)):
        if type(mine) in ATOMS and type(mine) is type(theirs):
            continue
        item = args[number] if each else args[0] if args else Any
        found = _unlike(mine, theirs, item) if item is not Any else _other_class(mine, theirs)
        if found is not None:
            return f"[{number}]{found[0]}", *found[1:]
    return None


def _in_fields(value: Any, back: Any, annotation: Any) -> Found:
    try:
        hints = _hints(annotation)
    except TypeError:
        # unhashable, e.g. a class of Annotated[int, {...}]
        hints = _hints.__wrapped__(annotation)
    theirs = dict(parts(back) or ())
    for label, mine in parts(value) or ():
        # what a model has besides its fields has no declared type
        found = _unlike(mine, theirs.get(label, mine), hints.get(label[1:], Any))
        if found is not None:
            return label + found[0], *found[1:]
    return None


@lru_cache(maxsize=1024)
def _hints(annotation: Any) -> dict[str, Any]:
    fields = getattr(annotation, "__pydantic_fields__", None)
    if fields is None:
        return field_types(annotation)
    found = {name: field.annotation for name, field in fields.items()}
    # a root has no label
    return {"": found["root"]} if [*found] == ["root"] else found
