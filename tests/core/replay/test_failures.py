"""Exceptions come back as themselves where that is safe, else as RemoteError; writing one never fails."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import sys
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from pyengine import errors
from pyengine import errors as sqlstates
from pyengine.core.values import tracebacks
from pyengine.core.values.codec import Codec
from pyengine.core.values.error_describing import error_kind
from pyengine.core.values.error_records import traceback_of
from pyengine.core.values.exceptions import MAX_ERROR_BYTES, ExceptionCodec
from pyengine.errors import (
    EncodeError,
    EngineError,
    NondeterminismError,
    PayloadTooLarge,
    RemoteError,
    RunFailed,
)
from tests.support.tree import ROOT

ran: list[str] = []


class Plain(Exception):
    pass


class Carrying(Exception):
    """Its __init__ must not run when it is read back."""

    when: datetime

    def __init__(self, code: int, *, when: datetime) -> None:
        super().__init__(f"code {code}")
        ran.append("init")
        self.code = code
        self.when = when


@dataclass
class Declined(Exception):
    amount: int
    reason: str = "none"


class Odd(Exception):
    def __new__(cls, *args: Any) -> Odd:
        ran.append("new")
        return super().__new__(cls, *args)


class Nasty(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def through(error: BaseException, classes: Any = None) -> BaseException:
    """Write an error and read it back."""
    failures = ExceptionCodec(classes)
    return failures.decode(failures.encode(error))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        KeyError("k"),
        ZeroDivisionError(),
        FileNotFoundError(2, "no such file"),
        ExceptionGroup("two", [ValueError("a"), KeyError("b")]),
        Plain("a", 1, None),
        Declined(5, "poor"),
        EngineError("m", detail="d", hint="h"),
        PayloadTooLarge("m", size=3, limit=2, where="w"),
        RunFailed("m", run_id="r", workflow="w"),
    ],
)
def test_same_class_again(error: Exception) -> None:
    """Builtin, imported and our own errors come back as their own class with arguments and attributes."""
    back = through(error)
    assert type(back) is type(error) and str(back) == str(error)
    if not isinstance(error, ExceptionGroup):
        assert back.args == error.args and back.__dict__ == error.__dict__


def test_group_members() -> None:
    """The members of a group come back too."""
    back = through(ExceptionGroup("two", [ValueError("a"), ExceptionGroup("in", [KeyError("b")])]))
    assert isinstance(back, ExceptionGroup)
    assert [type(one) for one in back.exceptions] == [ValueError, ExceptionGroup]


def test_init_never_runs() -> None:
    """Attributes are put back by their annotations; no __init__ of a user's class runs."""
    error = Carrying(7, when=datetime(2026, 1, 2))
    ran.clear()
    back = through(error)
    assert isinstance(back, Carrying) and (back.code, back.when, back.args) == (
        7,
        datetime(2026, 1, 2),
        ("code 7",),
    )
    assert ran == []


def test_own_allocation_is_not_run() -> None:
    """A class that allocates its instances its own way stays foreign."""
    error = Odd("x")
    ran.clear()
    back = through(error)
    assert isinstance(back, RemoteError) and back.type == "Odd" and ran == []


def test_shape_that_does_not_fit() -> None:
    """An attribute of another type, or one that is missing, makes it foreign, with all its fields."""
    text = ExceptionCodec().encode(Declined(5))
    for change in ({"data": {"reason": "x"}}, {"data": {"amount": "many", "reason": "x"}}, {"args": 5}):
        back = ExceptionCodec().decode(json.dumps({**json.loads(text), **change}))
        assert isinstance(back, RemoteError) and back.type == "Declined" and back.module == __name__


def test_local_class_needs_registering() -> None:
    """A class inside a function is found only if it was registered: by module and name, or by name alone."""

    class Local(Exception):
        pass

    assert isinstance(through(Local("x")), RemoteError)
    classes = {(Local.__module__, Local.__qualname__): Local}
    assert type(through(Local("x"), classes)) is Local
    back = ExceptionCodec(classes).decode(json.dumps({"type": Local.__qualname__, "message": "from SQL"}))
    assert type(back) is Local and back.args == ("from SQL",)


def test_nothing_is_imported() -> None:
    """A module that is not imported stays so."""
    assert "this" not in sys.modules
    back = ExceptionCodec().decode('{"type": "Secret", "module": "this", "message": "m"}')
    assert isinstance(back, RemoteError) and "this" not in sys.modules
    for name in ("system", "SystemExit", "type", "StopIteration.x"):
        assert isinstance(
            ExceptionCodec().decode(json.dumps({"type": name, "module": "builtins"})), RemoteError
        )


def test_stop_iteration_stays_foreign() -> None:
    """StopIteration cannot be raised into a coroutine, so it comes back as a foreign error."""
    assert isinstance(through(StopIteration(1)), RemoteError)


def test_causes() -> None:
    """Causes and contexts come back; a suppressed context does not; depth is bounded."""
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as error:
        back = through(error)
    assert isinstance(back.__cause__, KeyError)
    hidden = ValueError("outer")
    hidden.__context__, hidden.__suppress_context__ = KeyError("inner"), True
    assert through(hidden).__cause__ is None
    looped = ValueError("a")
    looped.__cause__ = KeyError("b")
    looped.__cause__.__cause__ = looped
    assert isinstance(through(looped), ValueError)


def test_foreign_errors_are_handed_on() -> None:
    """A RemoteError that is raised again is written as what it was at first."""
    record = {"type": "app.Broken", "module": "other", "message": "m", "data": {"a": 1}, "retryable": False}
    first = ExceptionCodec().decode(json.dumps(record))
    second = through(first)
    assert isinstance(second, RemoteError)
    assert (second.type, second.module, second.message, second.data, second.retryable) == (
        "app.Broken",
        "other",
        "m",
        {"a": 1},
        False,
    )


def test_degrading() -> None:
    """What cannot be written is written as its repr and flagged; the class survives that."""
    text = ExceptionCodec().encode(ValueError(object(), float("nan"), "a\0b\ud800"))
    record = json.loads(text)
    assert (
        record["lossy"] is True
        and record["args"][1] == {"$type": "float", "value": "nan"}
        and "\0" not in json.dumps(record, ensure_ascii=False)
    )
    assert isinstance(ExceptionCodec().decode(text), ValueError)
    assert type(through(Plain(object()))) is Plain
    assert json.loads(ExceptionCodec().encode(Nasty()))["message"] == "<Nasty>"
    deep: Any = []
    for _ in range(2000):
        deep = [deep]
    assert "lossy" in ExceptionCodec().encode(ValueError(deep))


def test_retryable_is_recorded() -> None:
    """An error that says that it is final is written as final."""
    error = Plain("x")
    error.retryable = False  # type: ignore[attr-defined]
    assert json.loads(ExceptionCodec().encode(error))["retryable"] is False
    assert json.loads(ExceptionCodec().encode(Plain("x")))["retryable"] is True


@pytest.mark.parametrize(
    ("text", "type_name", "message"),
    [
        (None, "Exception", "unknown error"),
        ("", "Exception", "unknown error"),
        ("plain text", "Exception", "plain text"),
        ('"a text"', "Exception", "a text"),
        ("[1,2]", "Exception", "[1,2]"),
        ('{"type": 5, "message": ["x"]}', "5", "['x']"),
        ('{"code": 1}', "Exception", "Exception"),
        ('{"type": "Timeout", "message": "the deadline passed"}', "Timeout", "the deadline passed"),
    ],
)
def test_foreign_error_records(text: str | None, type_name: str, message: str) -> None:
    """Whatever somebody else settled a promise with becomes an error that can be raised."""
    back = ExceptionCodec().decode(text)
    assert isinstance(back, RemoteError) and (back.type, back.message) == (type_name, message)


def test_written_by_sql() -> None:
    """A type and a message are enough for builtin classes and our own."""
    assert isinstance(ExceptionCodec().decode('{"type": "ValueError", "message": "m"}'), ValueError)
    back = ExceptionCodec().decode('{"type": "RunTimedOut", "message": "m"}')
    assert isinstance(back, errors.RunTimedOut) and back.run_id is None and back.message == "m"


def test_causes_within_the_engine_are_folded() -> None:
    """Of a value that cannot be written the code of the user is shown, and of the causes what they say; an
    error in the code of the engine itself keeps its frames."""
    with pytest.raises(EncodeError) as rejected:
        Codec().encode({"a": [object()]}, where="the arguments")
    assert rejected.value.__cause__ is not None
    text = traceback_of(json.loads(ExceptionCodec().encode(rejected.value)))
    assert "in test_causes_within_the_engine_are_folded" in text
    assert f"{type(rejected.value.__cause__).__qualname__}: " in text and "direct cause" in text
    assert "codec.py" not in text

    with pytest.raises(AttributeError) as bug:
        tracebacks.place_of(3)  # type: ignore[arg-type]
    broken = EngineError("broken")
    broken.__cause__ = bug.value.with_traceback(bug.tb.tb_next)
    assert "tracebacks.py" in traceback_of(json.loads(ExceptionCodec().encode(broken)))


def test_exception_notes_and_traceback() -> None:
    """Notes come back, and the traceback is kept as text, bounded."""
    try:
        raise ValueError("x")
    except ValueError as error:
        error.add_note("look here")
        record, back = json.loads(ExceptionCodec().encode(error)), through(error)
    assert back.__notes__ == ["look here"]
    assert "test_exception_notes_and_traceback" in record["traceback"]
    assert len(json.loads(ExceptionCodec().encode(ValueError("x" * 99_999)))["traceback"]) <= 16_000


@pytest.mark.parametrize("filler", ["x", "\x01", "\u20ac", '"'])
def test_an_error_that_weighs_too_much_is_cut(filler: str) -> None:
    """Over the limit message and traceback are cut and say so; arguments, data and cause are dropped."""
    error = ValueError(filler * 5000, {"more": filler * 5000})
    error.__cause__ = KeyError("inner")
    error.add_note("look here")
    text = ExceptionCodec(max_bytes=2000).encode(error)
    record = json.loads(text)
    assert len(text.encode()) <= 2000 and record["lossy"] is True
    assert record.keys() == {"type", "module", "message", "kind", "traceback", "retryable", "lossy"}
    assert "[cut: it had " in record["message"] and "[cut: it had " in record["traceback"]
    assert type(ExceptionCodec().decode(text)) is ValueError
    assert json.loads(ExceptionCodec().encode(error))["cause"]["type"] == "KeyError"


def test_no_error_weighs_more_than_a_mebibyte() -> None:
    """Without another limit an error of 30 MB is written as one of less than 1 MiB, however it carries it."""
    group = ExceptionGroup("many", [ValueError("y" * 3_000_000) for _ in range(10)])
    for error in (ValueError("x" * 30_000_000), Declined(5, "x" * 30_000_000), group):
        assert len(ExceptionCodec().encode(error)) <= MAX_ERROR_BYTES
    assert isinstance(through(group), RemoteError)


def test_errors_can_be_pickled() -> None:
    """Every error of the tree survives pickle with its attributes."""
    for name in errors.__all__:
        cls = getattr(errors, name)
        if isinstance(cls, type):
            one = cls("m")
            back = pickle.loads(pickle.dumps(one))
            assert type(back) is cls and back.args == one.args and back.__dict__ == one.__dict__
    error = NondeterminismError("m", run_id="r", child=3, neighbours=("a",))
    assert pickle.loads(pickle.dumps(error)).neighbours == ("a",)


def test_attributes_are_those_that_a_class_declares() -> None:
    """A class has the attributes of its bases too, each with its default, and takes no other."""
    assert vars(errors.RunTimedOut("m", run_id="r")) == {
        "detail": None,
        "hint": None,
        "run_id": "r",
        "workflow": None,
    }
    with pytest.raises(TypeError, match="StepTimeout has no attribute run_id"):
        errors.StepTimeout("m", run_id="r")


def test_sqlstates() -> None:
    """SQLSTATE, class and code table agree; a dead connection is Unavailable, the rest an EngineError."""
    assert {code: cls.sqlstate for code, cls in sqlstates.ERROR_CODES.items()} == {
        c: c for c in sqlstates.ERROR_CODES
    }
    assert sorted(sqlstates.ERROR_CODES) == [f"WF{n:03}" for n in range(1, 17)]
    for code, cls in sqlstates.ERROR_CODES.items():
        error = sqlstates.from_sqlstate(code, "m", "d", "h")
        assert type(error) is cls and str(error) == "m\ndetail: d\nhint: h"
    for code in ("08006", "57P01", "53300"):
        assert isinstance(sqlstates.from_sqlstate(code, "m"), errors.Unavailable)
    assert (
        type(sqlstates.from_sqlstate("23505", "m")) is type(sqlstates.from_sqlstate(None, "m")) is EngineError
    )
    assert str(errors.LeaseLost()) == "Another worker holds the task now; this one must drop it."


def failed(cause: BaseException | None) -> RunFailed:
    """A run that failed because of something."""
    error = RunFailed("m", run_id="r")
    error.__cause__ = cause
    return error


class Late(TimeoutError):
    """A user's own."""


KINDS: list[tuple[object, str]] = [
    (ValueError("x"), "UserError"),
    (Plain("x"), "UserError"),
    (errors.InvalidRequest("x"), "UserError"),
    (errors.EncodeError("x"), "UserError"),
    (errors.DecodeError("x"), "UserError"),
    (errors.ForbiddenInWorkflow("x"), "UserError"),
    (errors.NotFound("x"), "UserError"),
    (errors.StepTimeout("x"), "Timeout"),
    (errors.RunTimedOut("x"), "Timeout"),
    (TimeoutError("x"), "Timeout"),
    (Late("x"), "Timeout"),
    (errors.RunCancelled("x"), "Cancelled"),
    (asyncio.CancelledError(), "Cancelled"),
    (NondeterminismError("x"), "Nondeterminism"),
    (errors.StepInterrupted("x"), "Trap"),
    (errors.Unavailable("x"), "Trap"),
    (errors.SchemaMismatch("x"), "Trap"),
    (EngineError("x"), "Trap"),
    (SystemExit(1), "Trap"),
    (failed(None), "UserError"),
    (failed(errors.StepTimeout("x")), "Timeout"),
    (failed(failed(errors.StepInterrupted("x"))), "Trap"),
    (ExceptionGroup("g", [errors.StepTimeout("x"), TimeoutError()]), "Timeout"),
    (ExceptionGroup("g", [errors.StepTimeout("x"), ValueError()]), "UserError"),
    (RemoteError("x", type="Broken", module="other"), "UserError"),
    (RemoteError("x", type="Timeout"), "Timeout"),
    (None, "Uncategorized"),
    ("a text", "Uncategorized"),
    ([1], "Uncategorized"),
    ({"code": 1}, "Uncategorized"),
    ({"type": "Rejected"}, "Uncategorized"),
    ({"type": "ValueError"}, "UserError"),
    ({"type": "Interrupted"}, "Timeout"),
    ({"type": "Crashed"}, "Trap"),
    ({"type": "Timeout", "kind": "Cancelled"}, "Cancelled"),
    ({"type": "Timeout", "kind": "of its own"}, "Timeout"),
    ({"type": ["x"], "kind": ["Trap"]}, "Uncategorized"),
]


@pytest.mark.parametrize(("error", "kind"), KINDS)
def test_kinds(error: object, kind: str) -> None:
    """Every error, and every record of one, has one of six kinds: who has to act on it."""
    assert error_kind(error) == kind
    if isinstance(error, BaseException):
        assert json.loads(ExceptionCodec().encode(error))["kind"] == kind


def test_a_kind_is_handed_on() -> None:
    """What comes back as a foreign error, and fails another run, keeps the kind that it was recorded with."""
    record = json.loads(ExceptionCodec().encode(Late("x")))
    back = ExceptionCodec().decode(json.dumps({**record, "module": "nowhere", "bases": []}))
    assert isinstance(back, RemoteError) and error_kind(back) == "Timeout"
    assert json.loads(ExceptionCodec().encode(failed(back)))["kind"] == "Timeout"
    assert json.loads(ExceptionCodec().encode(back))["kind"] == "Timeout"
    for free in ('{"code": 1}', '"sorry"', "not JSON", None):
        assert error_kind(ExceptionCodec().decode(free)) == "Uncategorized"


def test_rows_without_a_kind() -> None:
    """An error that was written before there were kinds is read as before; its type tells its kind."""
    record = json.loads(ExceptionCodec().encode(errors.StepTimeout("m", step="s", timeout_ms=3)))
    del record["kind"]
    back = ExceptionCodec().decode(json.dumps(record))
    assert isinstance(back, errors.StepTimeout) and back.timeout_ms == 3
    assert error_kind(record) == error_kind(back) == "Timeout"


def test_causes_that_go_round() -> None:
    """A run that failed because of itself has a kind, too."""
    one, other = failed(None), failed(None)
    one.__cause__, other.__cause__ = other, one
    assert error_kind(one) == "UserError"


def test_the_schema_has_the_same_table() -> None:
    """The function of the schema that gives old records a kind agrees with ours, name by name."""
    source = (ROOT / "sql/logic/core/10_base/70_payloads.sql").read_text()
    body = source.split("_error_kind(p_type text)", 1)[1].split("end\n$$", 1)[0]
    rows = re.findall(r"when p_type[^']*?(?:= |in \()(.*?)\)? then '(\w+)'", body)
    names = [(name, kind) for listed, kind in rows for name in re.findall(r"'(\w+)'", listed)]
    assert len(names) >= 11
    for name, kind in names:
        assert (name, error_kind({"type": name})) == (name, kind)


@pytest.mark.parametrize("depth", [3_000, 200_000])
def test_no_record_fails_the_decoder(depth: int) -> None:
    """A chain of causes that no engine has written is an error like any other."""
    record = '{"type": "ValueError", "message": "x", "cause": ' * depth + "null" + "}" * depth
    assert isinstance(ExceptionCodec().decode(record), RemoteError)
