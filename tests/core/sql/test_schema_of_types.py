"""Law: the schema of a type that SQL compares never refuses what Python reads as that type."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pytest
from pydantic import AliasChoices, BaseModel, Field, HttpUrl, RootModel, model_validator
from pydantic.dataclasses import dataclass as validated

from pyengine.core.definitions.json_schema import json_schema
from pyengine.core.values.codec import TypeCodec
from tests.support.verbs import Connection

T = TypeVar("T")


@dataclass
class Order:
    n: int
    names: list[str] = field(default_factory=list)
    parent: Order | None = None


@dataclass
class Refund:
    n: int


class Plain(msgspec.Struct, rename="camel"):
    long_name: int
    more: str = ""


class Tagged(msgspec.Struct, tag=True):
    n: int


class OtherTagged(msgspec.Struct, tag=True):
    m: int


class Row(msgspec.Struct, array_like=True):
    n: int


class Named(TypedDict):
    n: int
    m: NotRequired[str]


class Pair(NamedTuple):
    n: int
    m: str = ""


class Colour(Enum):
    red = "r"
    blue = "b"


class Mixed(Enum):
    one = 1
    two = "2"


class Model(BaseModel):
    n: int
    m: str = ""


class Aliased(BaseModel):
    n: int = Field(alias="number")
    m: int = Field(validation_alias=AliasChoices("em", "emm"))


class Inner(BaseModel):
    model: Model
    models: list[Model] = []


class Anything(BaseModel):
    n: int

    @model_validator(mode="before")
    @classmethod
    def of_a_number(cls, value: Any) -> Any:
        """Take a number by itself."""
        return {"n": value} if isinstance(value, int) else value


class Page(BaseModel, Generic[T]):
    items: list[T]


class Names(RootModel[list[str]]):
    pass


class Count(RootModel[int]):
    pass


@validated
class Checked:
    n: int
    m: int = 0


@dataclass
class Holder:
    model: Annotated[int, Field(gt=0)]
    other: str = ""


TYPES: list[Any] = [
    *(Any, object, int, str, bool, float, None, bytes, Decimal, UUID, date, datetime, timedelta),
    *(list, dict, list[int], dict[str, int], set[int], tuple[int, str], tuple[int, ...], frozenset[str]),
    *(int | None, int | str, Literal["a", 1], Literal["a"] | None, Annotated[int, "text"]),
    *(Order, Refund, Plain, Tagged, Row, Named, Pair, Colour, Mixed, Model, Aliased, Inner, Anything),
    *(
        Page[int],
        Names,
        Count,
        Checked,
        Holder,
        HttpUrl,
        Annotated[int, Field(gt=0)],
        Annotated[str, Field()],
    ),
    *(Order | Refund, Order | None, Tagged | OtherTagged, Model | None, Model | str, Order | Model | int),
    *(
        list[Order | Refund],
        dict[str, Model],
        tuple[Model, int],
        dict[UUID, int],
        Decimal | None,
        datetime | str,
    ),
]
TEXTS = [
    *(
        "null",
        "true",
        "1",
        "-1",
        "1.5",
        "1e3",
        '""',
        '"a"',
        '"1"',
        '"r"',
        '"one"',
        '"red"',
        '"1.5"',
        '"YQ=="',
    ),
    *('"2020-01-01"', '"2020-01-01T00:00:00Z"', '"P1D"', '"https://example.com/"'),
    '"00000000-0000-0000-0000-000000000000"',
    *(
        "[]",
        "[1]",
        '["a"]',
        '[1, "a"]',
        "{}",
        '{"n": 1}',
        '{"n": 1, "m": 2}',
        '{"n": 1, "m": "a"}',
        '{"m": 1}',
    ),
    *('{"number": 1, "em": 2}', '{"n": 1, "emm": 2}', '{"longName": 1}', '{"items": [1]}', '{"a": 1}'),
    *('{"type": "Tagged", "n": 1}', '{"type": "OtherTagged", "m": 1}', '{"model": {"n": 1}}', '{"model": 1}'),
    *('{"$type": "Refund", "value": {"n": 1}}', '{"$type": "Order", "value": {"n": 1}}', '[{"n": 1}]'),
    *('{"a": {"n": 1}}', '[{"n": 1}, 1]', '{"00000000-0000-0000-0000-000000000000": 1}'),
]


def is_read(annotation: Any, text: str) -> bool:
    """Whether Python reads a text as this type."""
    try:
        TypeCodec(annotation).unpack(text)
    except msgspec.DecodeError:
        return False
    return True


def test_what_python_reads_is_not_refused(conn: Connection) -> None:
    """For every type and every text."""
    query = "select durable._schema_fault(%s::jsonb, %s::json)"
    refused, read = [], 0
    for annotation in TYPES:
        schema = json.dumps(json_schema(annotation))
        for text in TEXTS:
            (fault,) = conn.execute(query, (schema, text)).fetchone() or ("no row",)
            if is_read(annotation, text):
                read += 1
                if fault is not None:
                    refused.append(f"{annotation}: {text} {fault}: {schema}")
    assert not refused, "\n".join(refused)
    assert read > 3 * len(TYPES)


REFUSED: list[tuple[Any, str, str]] = [
    (bool, "1", "is of type number, not boolean"),
    (Order, '"a"', "is of type string, not object"),
    (Order, "{}", "lacks 'n'"),
    (Order | None, "1", "is of type number, not null or object"),
    (Plain, '{"long_name": 1}', "lacks 'longName'"),
    (Named, '{"m": "a"}', "lacks 'n'"),
    (Row, "{}", "is of type object, not array"),
    (Model, '{"m": "a"}', "lacks 'n'"),
    (Inner, '{"models": []}', "lacks 'model'"),
    (Page[int], "{}", "lacks 'items'"),
    (Holder, '{"other": "a"}', "lacks 'model'"),
    (Mixed, "1", "is of type number, not string"),
    (Order | Refund, "1", "is of type number, not object"),
    (list[Order | Refund], "{}", "is of type object, not array"),
    (Decimal, "true", "is of type boolean, not number or string"),
]


@pytest.mark.parametrize(("annotation", "text", "fault"), REFUSED)
def test_a_fault_is_seen(conn: Connection, annotation: Any, text: str, fault: str) -> None:
    """Another type and a missing key are seen in the schemas that Python makes, of every kind of type."""
    query = "select durable._schema_fault(%s::jsonb, %s::json)"
    assert conn.execute(query, (json.dumps(json_schema(annotation)), text)).fetchone() == (fault,)
    assert not is_read(annotation, text)


@pytest.mark.parametrize("annotation", [lambda: 0, Callable[[], int], type, "a name"])
def test_a_type_without_schema_allows_all(annotation: Any) -> None:
    """Where the type cannot be described, the schema allows everything."""
    assert json_schema(annotation) == {}
