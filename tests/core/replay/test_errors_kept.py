"""Errors come back as themselves, with all that their text is made of, or as the nearest class that can."""

from __future__ import annotations

import enum
import json
import logging
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from pyengine import RemoteError, StepTimeout
from pyengine.core.values import error_describing
from pyengine.core.values.error_access import attributes_of, runs_code
from pyengine.core.values.exceptions import _UNKNOWN, MAX_ERROR_BYTES, ExceptionCodec


class Slotted(Exception):
    __slots__ = ("__code", "text")

    def __init__(self, code: int, text: str) -> None:
        self.__code, self.text = code, text

    def __str__(self) -> str:
        return f"{self.text} {self.__code}"


class NoSuper(Exception):
    def __init__(self, *, code: int) -> None:
        self.code = code


class Loose(Exception):
    thing: object
    call: Callable[[], None]
    nowhere: Nowhere  # type: ignore[name-defined]  # noqa: F821

    def __init__(self, thing: object) -> None:
        super().__init__("loose")
        self.thing = thing


class Missing(FileNotFoundError):
    def __init__(self, name: str) -> None:
        super().__init__(2, "No such file", name)


class Encoding(UnicodeDecodeError):
    pass


class Worded(ValueError):
    def __new__(cls, *args: object) -> Worded:
        return super().__new__(cls)

    def __str__(self) -> str:
        return "words of code 3"


class Real(float):
    pass


class Ratio(float, enum.Enum):
    HALF = 0.5


class Level(enum.IntEnum):
    LOW = 1


class Many(ExceptionGroup[Exception]):
    reason = "none"


class Base(LookupError):
    pass


class Needy(Base):
    """Its text needs what no journal keeps."""

    def __init__(self, socket: object) -> None:
        self.socket = socket

    def __str__(self) -> str:
        return f"needs {self.socket.fileno()}"  # type: ignore[attr-defined]


class Allocated(Base):
    def __new__(cls, *args: Any) -> Allocated:
        return super().__new__(cls, *args)


class Closed:
    def fileno(self) -> int:
        return 7


@dataclass
class Fields(Exception):
    when: datetime
    what: object = None


def through(error: BaseException, **kept: Any) -> BaseException:
    """Write an error and read it back."""
    codec = ExceptionCodec(**kept)
    return codec.decode(codec.encode(error))


def with_attribute(error: Exception, **attributes: Any) -> Exception:
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


def raised(body: Callable[[], Any]) -> Exception:
    try:
        body()
    except Exception as error:
        return error
    raise AssertionError


BERLIN = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)
CASES: list[Exception] = [
    ValueError(b"\xff\x00", bytearray(b"x"), (1, (2,)), {3, 4}, frozenset({"a"}), {1: "one"}, {"$type": "x"}),
    ValueError(BERLIN, datetime(2026, 1, 1, tzinfo=UTC), timedelta(days=2), Decimal("1.10")),
    ValueError(float("inf"), UUID(int=7), 10**40),
    ValueError(),
    KeyError("k", 1),
    raised(lambda: Path("/nowhere/at all").read_text()),
    OSError(17, "exists", "from", None, "to"),
    BlockingIOError(11, "later", 5),
    UnicodeDecodeError("utf-8", b"\xff\x00", 0, 1, "invalid start byte"),
    UnicodeEncodeError("ascii", "\xe9", 0, 1, "ordinal not in range"),
    raised(lambda: __import__("nowhere_at_all")),
    raised(lambda: [].nope),  # type: ignore[attr-defined]
    raised(lambda: undefined),  # type: ignore[name-defined]  # noqa: F821
    raised(lambda: compile("1 +", "file.py", "exec")),
    subprocess.CalledProcessError(3, ["false"], b"\xffout", b"err"),
    subprocess.TimeoutExpired("sleep", 1.5, output=b"so far"),
    json.JSONDecodeError("Expecting value", "{", 1),
    Slotted(7, "slotted"),
    NoSuper(code=7),
    Loose([1]),
    Loose("text"),
    Missing("x"),
    Encoding("utf-8", b"\xff", 0, 1, "bad"),
    Fields(BERLIN, [b"x"]),
    with_attribute(ValueError("x"), inner=OSError(2, "gone", "file"), raw=b"\x00"),
    ExceptionGroup("outer", [ExceptionGroup("inner", [Slotted(1, "a")]), KeyError(2)]),
    Many("many", [ValueError(1)]),
]


def facts(error: BaseException) -> Any:
    """All that an error is made of."""
    fields = ("errno", "filename", "filename2", "name", "path", "object", "start", "lineno", "text")
    held = {name: one for name, one in attributes_of(error).items() if not name.startswith("__py")}
    return (
        type(error),
        str(error),
        repr(error),
        {name: getattr(error, name, None) for name in fields},
        {name: facts(one) if isinstance(one, Exception) else one for name, one in held.items()},
        [facts(one) for one in getattr(error, "exceptions", ())],
    )


@pytest.mark.parametrize("error", CASES, ids=lambda error: type(error).__name__)
def test_the_same_again(error: Exception) -> None:
    """Class, text, arguments and attributes are the same; also when it is recorded once more."""
    back = through(error)
    assert facts(back) == facts(error)
    assert facts(through(back)) == facts(error)


def test_notes_and_causes() -> None:
    """Both are kept, through several levels."""
    error, cause = ValueError("x"), Slotted(1, "cause")
    error.add_note("a note")
    error.__cause__, cause.__cause__ = cause, KeyError(3)
    back = through(error)
    assert back.__notes__ == ["a note"] and back.__cause__ is not None
    assert (str(back.__cause__), repr(back.__cause__.__cause__)) == ("cause 1", "KeyError(3)")


def test_numbers_and_keys_of_derived_classes() -> None:
    """A subclass of a text or number is that; a key of a dict is what it was."""
    for value in (
        *(Real(1.5), [Real(2.5)], {Real(1.0)}, Ratio.HALF, {Real(1.5): 1}, {1: "a"}, {(1, 2): 3}, {None: 1}),
        *({b"x": 1}, {Level.LOW: 1}, {frozenset({1}): 1}, {"$type": 1}, {True: 1, "a": {2: 3}}),
    ):
        back = through(with_attribute(ValueError(value), held=value))
        assert back.args == (value,) and vars(back)["held"] == value
    assert type(vars(through(with_attribute(ValueError(), held=Real(1.5))))["held"]) is float


def test_an_error_is_not_described_within_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that is the cause of its members is described once, and so is each of them; errors to which
    many ways lead are described no more than so often.
    """
    described: list[BaseException] = []

    def traceback_text(error: BaseException, *, fold: bool = False) -> str:
        described.append(error)
        return ""

    monkeypatch.setattr(error_describing, "traceback_text", traceback_text)
    members = [ValueError(n) for n in range(12)]
    group = ExceptionGroup("all", members)
    for one in members:
        one.__cause__ = group
    own = with_attribute(ValueError("own"), held=group)
    own.held.add_note("x")
    own.__cause__ = KeyError("k")
    own.__cause__.__cause__ = own
    back = through(group)
    assert len(described) == 13
    assert [one.args for one in back.exceptions] == [(n,) for n in range(12)]
    assert isinstance(through(own).__cause__, KeyError) and through(own).__cause__.__cause__ is None
    described.clear()
    for _ in range(6):
        group = ExceptionGroup("many ways", [ValueError(n) for n in range(6)])
        for one in group.exceptions:
            one.__cause__ = own
        own = group
    through(own)
    assert len(described) <= error_describing.ERRORS_MAX


def test_python_looks_into_objects() -> None:
    """A traceback suggests names, for which Python looks into an object: not in the loop of a worker."""
    assert runs_code(AttributeError("x", name="x", obj=Closed()))
    assert runs_code(NameError("x", name="x"))
    assert not runs_code(AttributeError("x")) and not runs_code(ModuleNotFoundError("x", name="x"))


def test_a_timeout_by_sql() -> None:
    """One that SQL has recorded is a TimeoutError, as any other."""
    back = ExceptionCodec().decode('{"type": "StepTimeout", "message": "late"}')
    assert isinstance(back, StepTimeout) and isinstance(back, TimeoutError) and back.message == "late"
    assert type(back).__name__ == "StepTimeout"


def test_a_part_that_is_lost_is_absent() -> None:
    """The class stays, other attributes too; the journal shows people the `repr` of what is lost."""
    error = with_attribute(NoSuper(code=1), connection=Closed())
    text = ExceptionCodec().encode(error)
    assert json.loads(text)["lost"] == ["connection"] and "Closed object" in text
    back = through(error)
    assert isinstance(back, NoSuper) and back.code == 1 and not hasattr(back, "connection")
    assert str(through(ValueError(Closed()))).startswith("<tests.")


def test_the_text_stays_with_a_base_class() -> None:
    """An error that comes back as one of a base class says what it said."""
    back = through(Worded("code", 3))
    assert type(back) is ValueError and str(back) == "words of code 3"


def test_the_nearest_class(caplog: pytest.LogCaptureFixture) -> None:
    """A class that cannot be made, or is not known, becomes the nearest that it derives from; a line says
    why, once. When it is recorded again it is what it was.
    """
    codec = ExceptionCodec()
    for error in (Needy(Closed()), Allocated("a"), Allocated("b")):
        with caplog.at_level(logging.WARNING, logger="pyengine.codec"):
            back = codec.decode(codec.encode(error))
        assert type(back) is Base
        assert json.loads(codec.encode(back))["type"] == type(error).__qualname__
    assert [line.count(" came back ") for line in caplog.messages] == [1, 1]
    assert "its text needs what cannot be recorded" in caplog.text

    class Local(Base):
        pass

    assert type(through(Local("x"))) is Base
    assert type(through(type("Own", (Exception,), {})("x"))) is RemoteError


def test_classes_of_the_main_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of `python shop.py` is found where `shop` or `pkg.shop` is imported, and the other way."""
    main = ModuleType("__main__")
    main.__file__ = "/srv/pkg/shop.py"
    declined = type("Declined", (Exception,), {"__module__": "__main__"})
    main.Declined = declined  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", main)
    text = ExceptionCodec().encode(declined("x"))
    assert json.loads(text)["module"] == "shop" and type(ExceptionCodec().decode(text)) is declined
    in_package = text.replace('"shop"', '"pkg.shop"')
    assert type(ExceptionCodec().decode(in_package)) is declined
    for name in ("shop", "pkg.shop"):
        with monkeypatch.context() as patch:
            there = ModuleType(name)
            there.Declined = type("Declined", (Exception,), {"__module__": name})  # type: ignore[attr-defined]
            patch.setitem(sys.modules, name, there)
            patch.setitem(sys.modules, "__main__", ModuleType("__main__"))
            assert type(ExceptionCodec().decode(text)) is there.Declined


def test_a_first_form_of_the_main_program(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client finds its class, as that of another record; where code is replayed the log says why not."""
    main = ModuleType("__main__")
    main.__file__ = "/srv/shop.py"
    declined = type("Declined", (Exception,), {"__module__": "__main__"})
    main.Declined = declined  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", main)
    text = '{"type": "Declined", "module": "shop", "message": "x", "args": ["x"]}'
    replays, client = ExceptionCodec(), ExceptionCodec()
    client.replays = False
    assert type(client.decode(text)) is declined and not caplog.messages
    assert type(replays.decode(text)) is RemoteError
    (told,) = caplog.messages
    assert told.endswith("shop.Declined came back from the journal as pyengine.RemoteError: " + _UNKNOWN)


def test_a_timeout_is_a_timeout_error() -> None:
    """That of a step is caught by `except TimeoutError`, except where a journal of 0.1 has it."""
    error = StepTimeout("too long", step="s", timeout_ms=1)
    back = through(error)
    assert isinstance(back, StepTimeout) and isinstance(back, TimeoutError)
    assert (str(back), type(back).__name__, back.step) == ("too long", "StepTimeout", "s")
    again = pickle.loads(pickle.dumps(back))
    assert type(again) is type(back) and again.step == "s"
    old = ExceptionCodec().decode(ExceptionCodec().encode(error, rules=3))
    assert type(old) is StepTimeout and not isinstance(old, TimeoutError)


def test_journals_of_before() -> None:
    """A run that was born under older rules has its errors as it had them, recorded or to come."""
    codec = ExceptionCodec()
    for error in (subprocess.CalledProcessError(3, "x", b"out"), with_attribute(NoSuper(code=1), c=Closed())):
        text = codec.encode(error, rules=3)
        assert "form" not in json.loads(text)
        assert isinstance(codec.decode(text), RemoteError)
    file = codec.decode(codec.encode(FileNotFoundError(2, "No such file", "x"), rules=1))
    assert str(file) == "[Errno 2] No such file"
    assert codec.decode(codec.encode(ValueError((1, 2)), rules=3)).args == ([1, 2],)


def test_a_large_part_costs_no_more_than_the_limit() -> None:
    """The text is bounded, whatever its parts are."""
    error = subprocess.CalledProcessError(1, "x", b"\xff" * (2 * MAX_ERROR_BYTES))
    text = ExceptionCodec().encode(error)
    assert len(text) <= MAX_ERROR_BYTES
    back = ExceptionCodec().decode(text)
    assert isinstance(back, subprocess.CalledProcessError) and back.returncode == 1
    assert not hasattr(back, "output")


class Held(Exception):
    __slots__ = ("conn",)

    def __init__(self) -> None:
        super().__init__("held")
        self.conn = object()


class Declaring(Exception):
    part: Part

    def __init__(self, part: Part) -> None:
        super().__init__("declared")
        self.part = part


class Derived(Declaring):
    pass


@dataclass
class Part:
    n: int


def test_the_first_form_has_no_slots() -> None:
    """A slot that no journal keeps makes no other class of an error in a run of the first rules."""
    codec = ExceptionCodec()
    assert type(codec.decode(codec.encode(Held(), rules=3))) is Held


def test_attributes_of_base_classes_are_declared_too() -> None:
    """They come back by the annotation of the class that has it."""
    codec = ExceptionCodec()
    error = codec.decode(codec.encode(Derived(Part(3))))
    assert type(error) is Derived and error.part == Part(3)


@pytest.mark.parametrize("rules", [3, None])
def test_a_number_that_python_does_not_write(rules: int | None) -> None:
    """Encoding goes on, whatever arguments and attributes hold."""
    error = ValueError(10**5000, 2**4000)
    error.size = [10**5000]  # type: ignore[attr-defined]
    codec = ExceptionCodec()
    found = codec.decode(codec.encode(error, rules=rules))
    assert isinstance(found, ValueError) and 2**4000 in codec.decode(codec.encode(KeyError(2**4000))).args


def test_an_error_that_is_recorded_twice_is_of_both_places() -> None:
    """What came back as its base class is handed on as it was, with the place where it is recorded again."""
    codec = ExceptionCodec()
    kept = codec.decode(codec.encode(Needy(object())))
    assert type(kept) is Base
    places = [json.loads(codec.encode(kept, step=step))["origin"]["step"] for step in ("a", "b")]
    assert places == ["a", "b"]


def test_where_code_of_users_runs() -> None:
    """It is found behind a long row of causes, and in a class that hides what it is."""
    error: BaseException = Talking()
    for n in range(12):
        outer = ValueError(n)
        outer.__cause__ = error
        error = outer
    assert runs_code(error)
    assert runs_code(Masked())
    assert not runs_code(ValueError("plain"))


class Talking(Exception):
    def __str__(self) -> str:
        return "talks"


class Masked(Exception):
    @property
    def __class__(self) -> type:  # type: ignore[override]
        return ValueError
