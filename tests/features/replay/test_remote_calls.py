"""ctx.rpc: what is asked of the database, what is refused before anything is recorded, and what the code sees
of the answer, live and in a replay."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyengine import ctx
from pyengine.core.definitions.signatures import Signature
from pyengine.core.protocol.commands import CallRemote
from pyengine.core.values.codec import input_hash
from pyengine.errors import EncodeError, InvalidRequest, RemoteError, RunCancelled
from pyengine.features.remote.remote_calls import remote_param
from tests.core.replay.memory_run import Done, MemoryRun, workflow

PARAM = '{"func":"charge","args":[42,"eur"],"version":1}'


async def charging() -> Any:
    """Calls a function and answers what it got."""
    call = ctx.rpc("poll://any@billing", "charge", 42, "eur", timeout="1m")
    try:
        return [call.id, await call]
    except (RemoteError, RunCancelled, TimeoutError) as error:
        return [type(error).__name__, str(error)]


def test_the_command_of_a_call() -> None:
    """Target, function and arguments as the code wrote them; the hash is of function and arguments."""
    run = MemoryRun(workflow(charging))
    assert run.moves.commands == (
        CallRemote(
            child=0,
            name="charge",
            target="poll://any@billing",
            hash=input_hash("charge", PARAM),
            param=PARAM,
            timeout_ms=60_000,
        ),
    )


def error(**fields: Any) -> str:
    """An error as the database hands it out."""
    return json.dumps(fields)


@pytest.mark.parametrize(
    ("done", "result"),
    [
        (Done(0, {"paid": True}), ["run-1.0", {"paid": True}]),
        (
            Done(0, error=error(type="TypeError", module="resonate", message="bad", traceback="at x")),
            ["RemoteError", "TypeError: bad"],
        ),
        (
            Done(0, error=error(type="Cancelled", message="no")),
            ["RunCancelled", "call run-1.0 of charge was cancelled"],
        ),
        (Done(0, error=error(type="Timeout")), ["TimeoutError", "remote call run-1.0 timed out"]),
    ],
)
def test_the_answer_of_a_call(done: Done, result: Any) -> None:
    """A value, or an error by its kind; a replay sees the same."""
    run = MemoryRun(workflow(charging))
    run.turn(done)
    assert run.value == result


def test_data_of_an_error_without_a_class() -> None:
    """JSON that was thrown is on the error."""

    async def code() -> Any:
        try:
            await ctx.rpc("g", "f")
        except RemoteError as error:
            return error.data

    run = MemoryRun(workflow(code))
    run.turn(Done(0, error=error(type="Rejected", module="resonate", message="x", data={"code": 7})))
    assert run.value == {"code": 7}


def call(*args: Any, target: Any = "poll://any@g", function: Any = "f", **options: Any) -> dict[str, Any]:
    """The call as the other side reads it."""
    param = remote_param(
        target,
        function,
        args,
        options.pop("kwargs", {}),
        version=options.pop("version", 1),
        large_integers=options.pop("large", False),
    )
    read: dict[str, Any] = json.loads(param)
    assert read["func"] == function
    return read


def test_names_are_sent_only_if_there_are_any() -> None:
    """TypeScript drops them without a word."""
    assert call(1) == {"func": "f", "args": [1], "version": 1}
    assert call(kwargs={"a": 1}, version=0) == {"func": "f", "args": [], "version": 0, "kwargs": {"a": 1}}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [float("-inf")]}, object()])
def test_what_json_cannot_say_is_refused(value: Any) -> None:
    """Before anything is recorded."""
    with pytest.raises(EncodeError):
        call(value)


@pytest.mark.parametrize("value", [1 << 53, -(1 << 60), {"a": [1 << 53]}])
def test_large_integers_are_refused_unless_asked_for(value: Any) -> None:
    """Other languages would cut their digits."""
    with pytest.raises(InvalidRequest, match="loses digits"):
        call(value)
    assert call(value, large=True)["args"] == [value]


@pytest.mark.parametrize(
    "wrong",
    [
        {"target": ""},
        {"target": None},
        {"target": "no where"},
        {"target": "tcp://x"},
        {"function": ""},
        {"function": "f" * 257},
        {"function": 7},
        {"version": -1},
        {"version": True},
        {"version": "1"},
    ],
)
def test_a_malformed_call_is_refused(wrong: dict[str, Any]) -> None:
    """The error names the part."""
    with pytest.raises(InvalidRequest, match=r"ctx\.rpc"):
        call(**wrong)


def test_calls_are_made_in_workflows_only() -> None:
    """Elsewhere the SDK's own client calls."""
    with pytest.raises(InvalidRequest, match="outside a workflow"):
        ctx.rpc("g", "f")


def takes(a: int, b: int = 2, *rest: int, c: int = 3, **extra: int) -> list[Any]:
    """A function with every kind of parameter."""
    return [a, b, rest, c, extra]


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ('{"*": [1], "c": 9}', [1, 2, (), 9, {}]),
        ('{"*": [1, 5, 6, 7], "c": 9, "d": 4}', [1, 5, (6, 7), 9, {"d": 4}]),
        ('{"*": [], "a": 1}', [1, 2, (), 3, {}]),
    ],
)
def test_arguments_by_position_and_by_name(text: str, result: list[Any]) -> None:
    """A caller in another language mixes them."""
    args, kwargs = Signature(takes, "takes").decode(text)
    assert takes(*args, **kwargs) == result


def test_an_argument_that_is_given_twice() -> None:
    """By position and by name."""
    with pytest.raises(InvalidRequest):
        Signature(takes, "takes").decode('{"*": [1], "a": 1}')
