"""Models of pydantic, as pydantic itself encodes and decodes them.

Lives here: everything about pydantic. May not: an import of it. The theory: a value can only be a model if
user code has imported pydantic, so the library is looked up in `sys.modules` and never imported for it. The
text is pydantic's JSON form with field names, complete (with defaults, since code may change them) and
without computed fields. Decoding accepts field names and aliases, because people write arguments by hand.
Sets are sorted, since a call is recognised by its text and the order of a set differs from process to
process.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Annotated, Any, get_args, get_origin

import msgspec

_OLDEST = (2, 11)  # the first that accepts both field names and aliases
_SHOWN_ERRORS = 3


def is_model(cls: Any) -> bool:
    """Whether a class is a model or a dataclass of pydantic."""
    return isinstance(cls, type) and hasattr(cls, "__pydantic_validator__")


def is_special(cls: Any) -> bool:
    """Whether a class is no model, but only pydantic can decode it: a URL, a secret."""
    return (
        isinstance(cls, type)
        and not is_model(cls)
        and hasattr(cls, "__get_pydantic_core_schema__")
        and not issubclass(cls, msgspec.Struct)
        and not hasattr(cls, "__dataclass_fields__")
        and "pydantic" in sys.modules
    )


def is_constrained(annotation: Any) -> bool:
    """Whether an annotation has metadata of pydantic, such as Field(gt=0)."""
    if get_origin(annotation) is not Annotated or "pydantic" not in sys.modules:
        return False
    owners = {type(one).__module__.split(".")[0] for one in get_args(annotation)[1:]}
    return not owners.isdisjoint({"pydantic", "annotated_types"})


class Model:
    """Encodes and decodes the values of one annotation with pydantic.

    Args:
        annotation: a model, or any other annotation that pydantic supports.

    Raises:
        TypeError: pydantic does not support it, is missing, or is too old.
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
        """Return the JSON form of a value.

        Raises:
            TypeError: it cannot be encoded.
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
            ValueError: it does not fit; names the fields.
        """
        try:
            return self._load(text, by_alias=True, by_name=True)
        except RecursionError:
            raise
        except Exception as error:  # boundary to user code: validators may do anything
            raise ValueError(error_text(error)) from error


def _has_sets(schema: Any) -> bool:
    if isinstance(schema, dict):
        return schema.get("type") in ("set", "frozenset") or any(map(_has_sets, schema.values()))
    return isinstance(schema, list | tuple) and any(map(_has_sets, schema))


def _ordered(value: Any, found: Any) -> Any:
    """Return pydantic's JSON form of a value, with the lists of its sets sorted."""
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


def error_text(error: Exception) -> str:
    """Return the message of an error of users' code or of pydantic, in one line."""
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
    """Return the `Model` of an annotation, made once for each.

    Raises:
        TypeError: pydantic does not support it.
    """
    try:
        hash(annotation)
    except TypeError:
        return Model(annotation)
    return _cached(annotation)


def model_schema(annotation: Any) -> dict[str, Any]:
    """Return the JSON schema of what is read as a model; an empty one allows everything."""
    cls = get_origin(annotation) or annotation
    validators = cls.__pydantic_decorators__.model_validators.values()
    if any(one.info.mode != "after" for one in validators):
        # code of users may make a model of anything
        return {}
    adapter = sys.modules["pydantic"].TypeAdapter(annotation)
    schema: dict[str, Any] = adapter.json_schema(by_alias=False)
    if schema.get("type") not in ("object", "array") and "$ref" not in schema:
        # the root of a RootModel, for which pydantic reads a number from a text
        return {}
    _let_aliases(schema, cls)
    return schema


def _let_aliases(schema: dict[str, Any], cls: Any) -> None:
    """Change the schema of a model: a field that has an alias may be missing under its name."""
    fields = cls.__pydantic_fields__
    own = schema.get("$defs", {}).get(schema.get("$ref", "").rpartition("/")[2], schema)
    if "required" in own:
        named = (name for name in own["required"] if name in fields and fields[name].validation_alias is None)
        own["required"] = list(named)


def write_unknown(value: Any) -> Any:
    """Encode a value that msgspec does not know: a model of pydantic.

    Raises:
        TypeError: it is no model.
    """
    cls = type(value)
    if is_model(cls):
        return model_of(cls).write(value)
    raise TypeError(f"values of type {cls.__qualname__} cannot be written")


def read_unknown(annotation: Any, value: Any) -> Any:
    """Decode a type that msgspec does not know: a model of pydantic.

    Raises:
        TypeError: values of this type cannot be decoded.
        ValueError: the value does not fit.
    """
    if is_model(annotation):
        # from JSON text: in strict mode pydantic accepts a text as a date only in JSON
        return model_of(annotation).read(msgspec.json.encode(value))
    name = getattr(annotation, "__qualname__", annotation)
    raise TypeError(f"values of type {name} cannot be read back; use a dataclass or another plain type")
