"""A registration warns of what a replay cannot repeat: every such line, and nothing else."""

from __future__ import annotations

import contextlib
import importlib.util
import linecache
import sys
import warnings
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

from pyengine import App, DeterminismWarning
from pyengine.core.definitions import function_source as source
from pyengine.core.loop.event_loop import DeterministicLoop
from pyengine.core.loop.restrictions import LOOP_METHODS
from pyengine.features.checks import rules
from pyengine.features.checks.hazards import hazards_of

HERE = Path(__file__).parent
GUILTY, INNOCENT = HERE / "guilty_workflows.py", HERE / "innocent_workflows.py"


def imported(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, list[warnings.WarningMessage]]:
    """Import a file as a new module; return it, and its warnings."""
    spec = importlib.util.spec_from_file_location(f"corpus_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        spec.loader.exec_module(module)
    return module, caught


def test_innocent_workflows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workflows as people write them give no warning."""
    module, caught = imported(INNOCENT, monkeypatch)
    assert [(one.lineno, str(one.message)) for one in caught] == []
    assert len(list(module.app.registry.workflows())) == 51


def test_every_guilty_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line that a replay cannot repeat has its warning, with action and alternative; no other."""
    _, caught = imported(GUILTY, monkeypatch)
    expected = {
        number: line.partition("# guilty: ")[2].split(" … ")
        for number, line in enumerate(GUILTY.read_text(encoding="utf-8").splitlines(), 1)
        if "# guilty: " in line
    }
    found: dict[int, list[str]] = {}
    for one in caught:
        assert one.category is DeterminismWarning and one.filename == str(GUILTY)
        found.setdefault(one.lineno, []).append(str(one.message))
    assert sorted(found) == sorted(expected)
    for line, (action, instead) in expected.items():
        assert any(action in text and f"use instead: {instead}" in text for text in found[line]), found[line]


def registered(name: str, lines: str, monkeypatch: pytest.MonkeyPatch) -> list[warnings.WarningMessage]:
    """Register the workflow of a source that is no file, as a notebook does; return the warnings."""
    text = f"from pyengine import App\napp = App()\n{lines}"
    monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(True), name))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(compile(text, name, "exec"), {"__name__": "cell"})
    return caught


CELL = "import time\n@app.workflow\nasync def w():\n    return time.time()\n"


def test_the_whole_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning names workflow, call, alternative, and how to silence it."""
    [one] = registered("<cell 1>", CELL, monkeypatch)
    assert (one.filename, one.lineno) == ("<cell 1>", 6)
    assert str(one.message) == (
        "workflow w calls time.time(): a replay cannot repeat it; use instead: ctx.now() "
        "(`# durable: ok` on the line silences this)"
    )


def test_a_cell_that_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another source under the same name is read again."""
    assert len(registered("<cell 2>", CELL, monkeypatch)) == 1
    assert registered("<cell 2>", CELL.replace("time.time()", "1"), monkeypatch) == []


def test_no_source_no_warning() -> None:
    """Code without a source, or whose source is another one by now, is passed over."""
    scope: dict[str, Any] = {"__name__": "nowhere"}
    exec("import time\nasync def w():\n    return time.time()", scope)
    assert hazards_of(scope["w"]) == [] and hazards_of(len) == []
    moved = hazards_of.__code__.replace(co_name="other")
    assert source.source_of(FunctionType(moved, {})) is None


def test_the_source_does_not_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was edited since, and is half a text, gives no warning and no error."""
    monkeypatch.setitem(linecache.cache, "<half>", (4, None, ["def (\n"], "<half>"))
    assert hazards_of(FunctionType(CELL_CODE.replace(co_filename="<half>"), {})) == []


def test_python_itself_fails_to_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 may raise SystemError where several threads parse at once: that refuses no workflow."""

    def fails(text: str) -> None:
        raise SystemError("AST constructor recursion depth mismatch")

    monkeypatch.setattr(source, "_sources", {})
    monkeypatch.setattr(source.ast, "parse", fails)
    assert hazards_of(registered) == []


CELL_CODE = test_no_source_no_warning.__code__


def test_filters_work_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    """`error` makes the registration fail, `ignore` silences all, `default` shows a line once."""
    text = f"from pyengine import App\napp = App()\n{CELL}"
    monkeypatch.setitem(linecache.cache, "<cell 3>", (len(text), None, text.splitlines(True), "<cell 3>"))
    code = compile(text, "<cell 3>", "exec")
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeterminismWarning)
        with pytest.raises(DeterminismWarning, match="time"):
            exec(code, {"__name__": "cell"})
    scope = {"__name__": "cell"}
    for action, times in (("ignore", 0), ("default", 1)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter(action, DeterminismWarning)  # type: ignore[arg-type]
            exec(code, scope)
            exec(code, scope)
        assert len(caught) == times


def test_hostile_objects_are_not_asked() -> None:
    """Objects of users may do anything when they are asked; the check does not ask them."""

    class Lazy:
        """Fails whatever is asked of it."""

        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            raise AssertionError

    settings: Any = Lazy()

    async def code() -> Any:
        settings.CACHE["a"] = settings.now()
        settings.items.append(1)
        settings()
        return sorted([1], key=settings)

    assert hazards_of(code) == []


def test_a_file_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many workflows a module registers, its source is parsed one time; few files are kept."""
    monkeypatch.setattr(source, "_sources", {})
    parsed: list[str] = []
    monkeypatch.setattr(source.ast, "parse", lambda text: parsed.append(text) or ORIGINAL_PARSE(text))
    imported(INNOCENT, monkeypatch)
    assert len(parsed) == 1
    for number in range(20):
        registered(f"<cell 1{number}>", CELL, monkeypatch)
    assert len(source._sources) <= 8


ORIGINAL_PARSE = source.ast.parse


def test_steps_and_memos_are_not_checked() -> None:
    """Only workflows are; what a step or a memo does is recorded."""
    import time

    app = App()
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        @app.step
        async def step() -> float:
            return time.time()

        @app.memo(version="1")
        async def memo() -> float:
            return time.time()

        @app.workflow
        async def calls_them() -> float:
            return await step() + await ctx_call(memo)

    assert step.name == "step" and memo.name == "memo" and calls_them.name == "calls_them"


async def ctx_call(memo: Any) -> float:
    """Call what is given."""
    return float(await memo())


def test_one_table() -> None:
    """The loop refuses each method of the table, and each call in it is one of Python's."""
    for names in LOOP_METHODS.values():
        for name in names.split():
            assert rules.instead_of_loop_method(name) is not None
            assert getattr(DeterministicLoop, name).__qualname__ == name
    for name in [*rules._by_name, *rules.ATTRIBUTES]:
        module = name.removesuffix(".*").rpartition(".")[0]
        newer = name in ("uuid.uuid6", "uuid.uuid7", "uuid.uuid8")
        if module.split(".")[0] in sys.stdlib_module_names and not newer and not name.endswith(".*"):
            with contextlib.suppress(ModuleNotFoundError):  # the method of a class
                getattr(importlib.import_module(module), name.rpartition(".")[2], None)
            assert rules._loaded(name.split(".")) is not None, name


def test_methods_that_change_or_touch_files_are_those_of_python() -> None:
    """A method is one of them if what cannot be changed, or is no path of a machine, does not have it."""
    assert {"append", "rotate", "update", "popitem", "subtract"} <= rules.MUTATING_METHODS
    assert not {"copy", "count", "get", "items", "union"} & rules.MUTATING_METHODS
    assert {"read_text", "is_fifo", "replace", "walk"} <= rules.PATH_METHODS
    assert not {"as_posix", "absolute", "joinpath", "with_suffix"} & rules.PATH_METHODS
