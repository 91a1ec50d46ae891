"""The JSON schema of an annotation, for senders that are not Python.

Lives here: `json_schema`. May not: refuse a value; `TypeCodec` (values/codec.py) reads it whole, SQL compares
its type and keys. The theory: a schema may allow too much, never too little. It describes the JSON that the
codec reads, which is more than that it writes: a decimal as a number, a model by its aliases. Where that is
not known, it allows everything.
"""

from __future__ import annotations

import types
from enum import Enum
from typing import Any, Union, get_args

import msgspec

from pyengine.core.values.hints import bare, class_of, is_msgspec_native
from pyengine.core.values.pydantic_models import is_constrained, is_model, is_special, model_schema
from pyengine.core.values.shape_builder import shape_of
from pyengine.core.values.shapes import ArrayShape, DictShape, ObjectShape, TupleShape

_TOP_MAX = 4000
_BRIEF = ("title", "type", "enum", "required")


def json_schema(annotation: Any) -> dict[str, Any]:
    """Return the JSON schema of what is read as an annotation; an empty one allows everything."""
    try:
        return _schema(annotation)
    except Exception:  # boundary to user code: a type may describe itself, and fail
        return {}


def top_schema(annotation: Any) -> str | None:
    """Return what a schema says of the whole value, its type and keys, as JSON text; None for nothing."""
    schema = json_schema(annotation)
    found = schema if "anyOf" in schema else _brief(schema)
    text = msgspec.json.encode(found).decode()
    return text if found and len(text) <= _TOP_MAX else None


def _schema(annotation: Any) -> dict[str, Any]:
    if is_constrained(annotation) or is_special(annotation):
        # pydantic reads a number from a text, and an instant from a number
        return {}
    annotation = bare(annotation)
    cls = class_of(annotation)
    if is_model(cls):
        return model_schema(annotation)
    if is_msgspec_native(annotation):
        found = msgspec.json.schema(annotation, schema_hook=lambda _: {})
        return _with_optional_tag(_with_numbers(found), cls)
    if isinstance(cls, type) and issubclass(cls, Enum):
        return {"enum": list(cls.__members__)}
    if cls in (Union, types.UnionType):
        # a member that looks like another one is written with its name
        named = {"type": "object", "required": ["$type", "value"]}
        return {"anyOf": [*(_brief(json_schema(one)) for one in get_args(annotation)), named]}
    return _of_shape(shape_of(annotation))


def _of_shape(shape: object) -> dict[str, Any]:
    """Return the schema of a type that msgspec cannot handle alone, without those of its parts."""
    if isinstance(shape, ObjectShape):
        return {
            "type": "object",
            "properties": {key: {} for _, key, _, _ in shape.fields},
            "required": [key for _, key, _, optional in shape.fields if not optional],
        }
    if isinstance(shape, ArrayShape | TupleShape):
        return {"type": "array"}
    return {"type": "object"} if isinstance(shape, DictShape) else {}


def _brief(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema by itself, without definitions that others may have under the same name."""
    if "anyOf" in schema:
        return {}
    top = schema.get("$defs", {}).get(schema.get("$ref", "").rpartition("/")[2], schema)
    return {name: top[name] for name in _BRIEF if name in top}


def _with_numbers(schema: Any) -> Any:
    """Return a schema in which a decimal may be a number, as msgspec reads it."""
    if isinstance(schema, list):
        return [_with_numbers(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {name: _with_numbers(one) for name, one in schema.items()}
    if changed.get("format") == "decimal":
        changed["type"] = ["string", "number"]
    return changed


def _with_optional_tag(schema: dict[str, Any], cls: Any) -> dict[str, Any]:
    """Return the schema of a type; a struct outside of a union is read without its tag too."""
    config = getattr(cls, "__struct_config__", None)
    if config is not None and config.tag is not None:
        own = schema["$defs"][schema["$ref"].rpartition("/")[2]]
        own["required"] = [name for name in own.get("required", ()) if name != config.tag_field]
    return schema
