"""Law: no record names a file of ours. What the package exports is recorded under `pyengine`, by errors,
retry policies and unions alike, so that its files may move; and is found where nobody has imported it yet.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from dataclasses import dataclass

import pytest

import pyengine
from pyengine import EngineError, HttpResponse, RemoteError, Retry
from pyengine.core.definitions.retry import policy_text
from pyengine.core.values.codec import Codec
from pyengine.core.values.exceptions import ExceptionCodec
from pyengine.errors import recorded_module

ERRORS = [
    name
    for name in pyengine.__all__
    if inspect.isclass(found := getattr(pyengine, name)) and issubclass(found, Exception)
]
READ = """
import sys
from pyengine.core.values.exceptions import ExceptionCodec
print(type(ExceptionCodec().decode(sys.stdin.read())).__qualname__)
"""


@dataclass
class Other:
    """A second member."""

    body: str


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_recorded_under_the_package(name: str) -> None:
    """All but one that stands for a foreign error, which is handed on as what it was."""
    cls = getattr(pyengine, name)
    assert recorded_module(cls) == "pyengine"
    if cls is not RemoteError:
        record = json.loads(ExceptionCodec().encode(cls.__new__(cls, "no")))
        assert (record["module"], record["type"]) == ("pyengine", name)


@pytest.mark.parametrize("name", ["HttpError", "SqlError", "PromiseConflict", "NotFound"])
def test_it_is_found_without_an_import(name: str) -> None:
    """A process that never used the class reads it, and not a RemoteError."""
    record = {"module": "pyengine", "type": name, "message": "no", "args": ["no"]}
    found = subprocess.run(
        [sys.executable, "-c", READ], input=json.dumps(record), capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == [name], found.stderr


def test_a_class_of_the_user_keeps_its_module() -> None:
    """Whatever it is called."""
    assert recorded_module(type("NotFound", (EngineError,), {"__module__": "shop.errors"})) == "shop.errors"


def test_a_retry_policy_names_the_package() -> None:
    """In both of its lists."""
    text = policy_text(Retry(only=(pyengine.HttpError,), unless=(pyengine.Conflict, ValueError)))
    record = json.loads(text or "")
    assert record["only"] == ["pyengine.HttpError"]
    assert record["unless"] == ["pyengine.Conflict", "builtins.ValueError"]


def test_a_union_of_generics_names_the_package() -> None:
    """A member of which is written with its annotation."""
    union = tuple[HttpResponse, ...] | tuple[Other, ...]
    codec = Codec()
    empty: tuple[HttpResponse, ...] = ()
    text = json.dumps({"$type": "tuple[pyengine.HttpResponse, ...]", "value": []})
    assert codec.decode(text, union, where="here") == empty
