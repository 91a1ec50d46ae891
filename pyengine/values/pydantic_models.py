"""Models of pydantic, as pydantic itself writes and reads them.

Lives here: all that knows of pydantic. Not here: importing it. The theory: a value can only be a
model if its code has imported pydantic, so the library is looked up in `sys.modules` and is never loaded on
its account. What pydantic writes is its JSON form with field names, complete (defaults too, since code may
change them) and without computed fields; what it reads may use field names or aliases, because people write
arguments by hand. Sets are put in order, since a call is recognised by its text and the order of a set
differs from process to process.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Annotated, Any, get_args, get_origin

import msgspec

__all__ = [
    "Model",
    "is_constrained",
    "is_model",
    "is_special",
    "model_of",
    "read_unknown",
    "said",
    "write_unknown",
]

_OLDEST = (2, 11)  # the first that reads field names and aliases alike
_SHOWN_ERRORS = 3


def is_model(cls: Any) -> bool:
    """Tell whether a class is a model or a dataclass of pydantic."""
    return isinstance(cls, type) and hasattr(cls, "__pydantic_validator__")


def is_special(cls: Any) -> bool:
    """Tell whether a class is no model, but one that only pydantic can read: a URL, a secret."""
    return (
        isinstance(cls, type)
        and not is_model(cls)
        and hasattr(cls, "__get_pydantic_core_schema__")
        and not issubclass(cls, msgspec.Struct)
        and not hasattr(cls, "__dataclass_fields__")
        and "pydantic" in sys.modules
    )


def is_constrained(annotation: Any) -> bool:
    """Tell whether an annotation says more than its type does, in words of pydantic: Field(gt=0)."""
    if get_origin(annotation) is not Annotated or "pydantic" not in sys.modules:
        return False
    owners = {type(word).__module__.split(".")[0] for word in get_args(annotation)[1:]}
    return not owners.isdisjoint({"pydantic", "annotated_types"})


class Model:
    """Writes and reads the values of one annotation by means of pydantic.

    Args:
        annotation: a model, or any other annotation that pydantic can read.

    Raises:
        TypeError: pydantic cannot read it, is not there, or is too old.
    """

    __slots__ = ("_dump", "_has_sets", "_load")

    def __init__(self, annotation: Any) -> None:
        pydantic = sys.modules.get("pydantic")
        version = getattr(pydantic, "VERSION", "0.0")
        if pydantic is None or tuple(int(one) for one in version.split(".")[:2]) < _OLDEST:
            raise TypeError(f"pydantic {version} is there, 2.11 or newer is needed")
        try:
            if is_model(annotation) and not annotation.__pydantic_complete__:
                rebuild = getattr(annotation, "model_rebuild", None)
                if rebuild is not None:
                    rebuild()
                else:
                    pydantic.dataclasses.rebuild_dataclass(annotation)
            adapter = pydantic.TypeAdapter(annotation)
            adapter.rebuild()
            self._has_sets = _has_sets(adapter.core_schema)
            self._dump = adapter.serializer.to_python
            self._load = adapter.validator.validate_json
        except (pydantic.PydanticUserError, NameError) as error:
            raise TypeError(str(error).splitlines()[0]) from error

    def write(self, value: Any) -> Any:
        """Return what stands for a value in JSON.

        Raises:
            TypeError: it cannot be written.
        """
        try:
            found = self._dump(value, mode="json", by_alias=False, round_trip=True, warnings=False)
        except UnicodeDecodeError as error:
            raise TypeError(
                "pydantic writes bytes as UTF-8 text and these are none; set ser_json_bytes and "
                'val_json_bytes to "base64" in model_config'
            ) from error
        except (RecursionError, UnicodeEncodeError):
            raise
        except Exception as error:  # boundary to user code: serializers may do anything
            raise TypeError(str(error)) from error
        return _ordered(value, found) if self._has_sets else found

    def read(self, text: str | bytes) -> Any:
        """Return the value of a JSON text.

        Raises:
            ValueError: it does not fit; says what and where.
        """
        try:
            return self._load(text, by_alias=True, by_name=True)
        except RecursionError:
            raise
        except Exception as error:  # boundary to user code: validators may do anything
            raise ValueError(said(error)) from error


def _has_sets(schema: Any) -> bool:
    if isinstance(schema, dict):
        return schema.get("type") in ("set", "frozenset") or any(map(_has_sets, schema.values()))
    return isinstance(schema, list | tuple) and any(map(_has_sets, schema))


def _ordered(value: Any, found: Any) -> Any:
    """Return what pydantic wrote, with the lists that stand for sets in order."""
    if isinstance(found, list) and isinstance(value, list | tuple | set | frozenset):
        inner = found
        if len(value) == len(found):
            inner = [_ordered(part, one) for part, one in zip(value, found, strict=True)]
        return sorted(inner, key=msgspec.json.encode) if isinstance(value, set | frozenset) else inner
    if isinstance(found, dict):
        if isinstance(value, Mapping):
            if len(value) != len(found):
                return found
            pairs = zip(value.values(), found.items(), strict=True)
            return {name: _ordered(part, one) for part, (name, one) in pairs}
        return {name: _ordered(getattr(value, name, None), one) for name, one in found.items()}
    root = getattr(value, "root", None)
    return found if root is None else _ordered(root, found)


def said(error: Exception) -> str:
    """Return what an error of users' code or of pydantic says, in one line."""
    listed = getattr(error, "errors", None)
    if listed is None or not hasattr(error, "error_count"):
        return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    found = listed(include_url=False, include_input=False, include_context=False)
    lines = []
    for one in found[:_SHOWN_ERRORS]:
        loc = ".".join(map(str, one["loc"]))
        lines.append(f"{loc}: {one['msg']}" if loc else one["msg"])
    more = len(found) - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more > 0 else "")


@lru_cache(maxsize=4096)
def _cached(annotation: Hashable) -> Model:
    return Model(annotation)


def model_of(annotation: Any) -> Model:
    """Return what writes and reads an annotation, made once for each.

    Raises:
        TypeError: pydantic cannot read it.
    """
    try:
        hash(annotation)
    except TypeError:
        return Model(annotation)
    return _cached(annotation)


def write_unknown(value: Any) -> Any:
    """Write what msgspec does not know: models of pydantic.

    Raises:
        TypeError: it is none.
    """
    cls = type(value)
    if is_model(cls):
        return model_of(cls).write(value)
    raise TypeError(f"values of type {cls.__qualname__} cannot be written")


def read_unknown(annotation: Any, value: Any) -> Any:
    """Read what msgspec does not know: models of pydantic.

    Raises:
        TypeError: values of this type cannot be read.
        ValueError: the value does not fit.
    """
    if is_model(annotation):
        # as text: in strict mode pydantic takes a text for a date only if it knows that it reads JSON
        return model_of(annotation).read(msgspec.json.encode(value))
    name = getattr(annotation, "__qualname__", annotation)
    raise TypeError(f"values of type {name} cannot be read back; use a dataclass or another plain type")
