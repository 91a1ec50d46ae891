"""Memo functions and executables: their identity, and how arguments become inputs."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from pyengine import App, ctx
from pyengine.core.database.connection import Database
from pyengine.core.database.pool import ConnectionPool
from pyengine.core.definitions.callees import CallOptions
from pyengine.errors import EncodeError, InvalidRequest
from pyengine.features.calls.contract import Done, Request
from pyengine.features.calls.datums import from_tagged, value_of
from pyengine.features.calls.functions import Memo
from pyengine.features.calls.inputs import NodeSource
from pyengine.features.calls.memo_runner import MemoRunner
from tests.support.tree import ROOT
from tests.support.typed import wrong_lines

NOWHERE = "postgresql://127.0.0.1:1/none"


@pytest.fixture
def app() -> App:
    """An app that never connects."""
    return App(NOWHERE)


def values(memo: Memo[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """The values of the inputs of a call."""
    bound = memo.bind_call(args, kwargs, CallOptions())
    return [value_of(from_tagged(one["datum"])) for one in bound.inputs if isinstance(one, dict)]


def test_the_uri_names_adapter_and_version(app: App) -> None:
    """The adapter is the function's name in lower case; the version is escaped."""

    @app.memo(version="2 b")
    def Featurize(raw: str) -> int:
        return len(raw)

    assert Featurize.function == "dml+exec://python.featurize/?version=2%20b"
    assert Featurize.adapter == "python.featurize"
    assert app.memos == {"python.featurize": Featurize}


def test_without_a_version_the_source_is_the_code(app: App) -> None:
    """The digest changes with the body and with what is included, not with the options of the decorator."""

    def helper(n: int) -> int:
        return n + 1

    def other(n: int) -> int:
        return n + 2

    def body(n: int) -> int:
        return n

    made = [
        app.memo(body, name="body", **options)
        for options in (
            {"hash_includes": [helper]},
            {"hash_includes": [helper], "timeout": "1h"},
            {"hash_includes": [other]},
            {"hash_includes": [helper, "v2"]},
        )
    ]
    uris = [one.function for one in made]
    assert uris[0] == uris[1]
    assert len(set(uris)) == 3
    assert all(uri.startswith("dml+exec://python.body/?source=") for uri in uris)


def test_a_missing_version_is_warned_of_once(app: App) -> None:
    """The warning names both ways out, at the place of the function."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")

        @app.memo
        def plain(n: int) -> int:
            return n

    assert [(one.filename, 'version="1"' in str(one.message)) for one in found] == [(__file__, True)]
    assert asyncio.run(_run(plain)) == 1


async def _run(memo: Memo[..., int]) -> int:
    return await memo(1)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", [StopIteration, SystemExit, ValueError])
def test_whatever_a_function_raises_is_its_result(
    app: App, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], is_async: bool
) -> None:
    """Also what no coroutine may raise, and what would end the process."""

    @app.memo(version="1")
    def fails() -> int:
        raise error("no")

    @app.memo(version="1", name="fails_too")
    async def fails_too() -> int:
        raise error("no")

    memo = fails_too if is_async else fails
    answer = asyncio.run(_executed(monkeypatch, memo))
    assert isinstance(answer, Done) and answer.outcome == "error"


def test_what_was_given_up_does_not_begin(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that waits for a thread is not called once its attempt was cancelled."""
    called, go_on = [], threading.Event()

    @app.memo(version="1")
    def waits(n: int) -> int:
        called.append(n)
        go_on.wait()
        return n

    async def main() -> None:
        runner = _runner(monkeypatch, waits, [[{"i64": 1}], [{"i64": 2}], [{"i64": 3}]])
        attempts = [asyncio.create_task(runner.execute("", _request(waits), lambda: True)) for _ in range(3)]
        while not called:
            await asyncio.sleep(0.01)
        attempts[1].cancel()
        go_on.set()
        await asyncio.wait(attempts)
        await runner.close()

    asyncio.run(main())
    assert called == [1, 3]


async def _executed(monkeypatch: pytest.MonkeyPatch, memo: Memo[..., Any]) -> Any:
    runner = _runner(monkeypatch, memo, [[]])
    executed = await runner.execute("", _request(memo), lambda: True)
    await runner.close()
    return executed.answer


def _runner(monkeypatch: pytest.MonkeyPatch, memo: Memo[..., Any], inputs: list[Any]) -> MemoRunner:
    """A runner with one thread, whose attempts have these inputs, one after the other."""

    async def rows(pool: object, *given: object) -> list[list[bytes]]:
        return [[json.dumps(inputs.pop(0)).encode()]]

    monkeypatch.setattr(ConnectionPool, "rows", rows)
    return MemoRunner({memo.adapter: memo}, Database(NOWHERE), threads=1)


def _request(memo: Memo[..., Any]) -> Request:
    return Request(node="", inputs=[], execution_uuid="", execution_key="00", function=memo.function)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"name": "läuft", "version": "1"}, "no name"),
        ({"name": "a/b", "version": "1"}, "no name"),
        ({"name": "x" * 58, "version": "1"}, "no name"),
        ({"version": ""}, "version is a text"),
        ({"version": 2}, "version is a text"),
        ({"version": "1", "ignore": ["m"]}, "no parameter 'm'"),
        ({"version": "1", "hash_includes": ["x"]}, "leave one out"),
        ({"hash_includes": [3]}, "cannot be read"),
    ],
)
def test_wrong_options_are_refused(app: App, options: dict[str, Any], part: str) -> None:
    """Each with the next thing to do, and nothing is registered."""

    def body(n: int) -> int:
        return n

    with pytest.raises(InvalidRequest, match=part):
        app.memo(**options)(body)
    assert app.memos == {}


def test_a_name_belongs_to_one_function(app: App) -> None:
    """A second function of the same name is refused."""

    def one(n: int) -> int:
        return n

    def two(n: int) -> int:
        return n

    app.memo(name="same", version="1")(one)
    with pytest.raises(InvalidRequest, match="registered twice"):
        app.memo(name="same", version="1")(two)


def test_arguments_become_inputs_in_the_order_of_parameters(app: App) -> None:
    """However they are given, with defaults, and without those that are ignored."""

    @app.memo(version="1", ignore=["verbose"])
    def every(a: int, /, b: int = 2, *rest: int, verbose: bool = False, c: int = 3, **more: int) -> int:
        return a

    assert values(every, 1) == [1, 2, 3, {}]
    assert values(every, 1, 7, 8, 9, c=4, z=5) == [1, 7, 8, 9, 4, {"z": 5}]
    assert values(every, 1, c=3, b=2, verbose=True) == [1, 2, 3, {}]
    bound = every.bind_call((1,), {"verbose": True}, CallOptions(request={"queue": "spot"}))
    assert bound.options.request is not None
    assert set(bound.options.request) == {"queue", "ignored"}
    assert every.arguments([1, 7, 8, 9, 4, {"z": 5}], {"verbose": True}) == (
        (1, 7, 8, 9),
        {"verbose": True, "c": 4, "z": 5},
    )
    with pytest.raises(InvalidRequest, match="missing a required"):
        values(every)
    assert every.arguments([1, 7, 4, {}], {}) == ((1, 7), {"verbose": False, "c": 4})
    with pytest.raises(InvalidRequest, match="not 1 inputs"):
        every.arguments([1], {})


def test_s37_floats_stay_floats(app: App) -> None:
    """1e16, the smallest float, NaN and -0.0 come back as floats; 1, 1.0 and True are three values."""

    @app.memo(version="1")
    def each(*n: Any) -> int:
        return len(n)

    given = [1e16, 5e-324, float("nan"), float("inf"), -0.0, 1, 1.0, True, 2**63 - 1]
    found = values(each, *given)
    assert [type(one) for one in found] == [type(one) for one in given]
    assert [repr(one) for one in found] == [repr(one) if one else "0.0" for one in given]


@pytest.mark.parametrize("value", [2**63, object(), "\ud800", "a\0b", {1, "é", "e\u0301"}])
def test_what_is_no_plain_data_is_refused(app: App, value: Any) -> None:
    """With the place of the value; nothing is sent."""

    @app.memo(version="1")
    def each(n: Any) -> int:
        return 1

    with pytest.raises(EncodeError, match="argument 'n' of memo each"):
        values(each, [{"deep": value}])


class Known(NodeSource):
    """A call that has ended."""

    node = "ab" * 32

    def done(self) -> bool:
        """It has."""
        return True

    async def settled(self) -> None:
        """Nothing to wait for."""


def test_calls_within_containers_are_inputs(app: App) -> None:
    """A list or map that holds a call is a node of its own; a plain one is a value."""
    use = app.executable("dml+exec://batch/use")
    bound = use.bind_call(([1, Known()], {"k": Known()}, [1, 2]), {}, CallOptions())
    kinds = [next(iter(one)) for one in bound.inputs if isinstance(one, dict)]
    assert kinds == ["list", "map", "datum"]


def test_the_configuration_is_the_first_input(app: App) -> None:
    """And so part of the identity; by name there is nothing else."""
    train = app.executable("dml+exec://batch/train", gpu=1, image="img")
    bound = train.bind_call((5,), {}, CallOptions())
    assert [value_of(from_tagged(one["datum"])) for one in bound.inputs if isinstance(one, dict)] == [
        {"gpu": 1, "image": "img"},
        5,
    ]
    with pytest.raises(InvalidRequest, match="by position"):
        train.bind_call((), {"n": 1}, CallOptions())


@pytest.mark.parametrize("uri", ["batch/train", "dml+exec://Batch/train", "dml:x", "dml+exec://b/%7e", ""])
def test_s35_a_uri_is_in_its_normal_form(app: App, uri: str) -> None:
    """Everything else is refused."""
    with pytest.raises((InvalidRequest, EncodeError)):
        app.executable(uri)


def test_calls_belong_into_workflows() -> None:
    """Elsewhere the error names the index."""
    train = App(NOWHERE).executable("dml+exec://batch/train")
    with pytest.raises(InvalidRequest, match=r"ctx\.call\(\) was used outside"):
        ctx.call(train, 1)


def test_an_app_without_such_calls_imports_none_of_it() -> None:
    """But their part of `ctx`; neither does a worker."""
    code = (
        "import sys, pyengine, pyengine.app, pyengine.core.worker.worker, pyengine.context;"
        "print([name for name in sys.modules if name.startswith('pyengine.features.calls')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "['pyengine.features.calls', 'pyengine.features.calls.context']"


SAMPLE = """
from typing import Any, assert_type

from pyengine import App, ctx

app = App()
train = app.executable("dml+exec://batch/train", gpu=1)


@app.memo(version="1")
async def count(text: str) -> int:
    return len(text)


@app.memo(version="1")
def double(n: int) -> list[int]:
    return [n, n]


@app.workflow
async def go() -> int:
    handle = ctx.call(count, "a", cache=False)
    assert_type(await handle, int)
    assert_type(await ctx.call(double, handle), list[int])
    assert_type(await double(3), list[int])
    assert_type(await ctx.call(train, handle), Any)
    await double("x")
    return await count("b")


async def outside() -> None:
    async with app.index("exp") as index:
        call = await index.call(double, 3)
        assert_type(await call.result(timeout=3), list[int])
        assert_type(await call, list[int])
"""


def test_types_are_preserved(tmp_path: Path) -> None:
    """A call knows the type of its function's result; a wrong argument is an error on its line."""
    line = SAMPLE.splitlines().index('    await double("x")') + 1
    assert wrong_lines(tmp_path, {"sample": SAMPLE}) == {"sample": [line]}
