"""Law: a body of a user's function begins in few places, and each asks whether its lease is known to hold.

`LeaseTerms.may_begin` answers. A place that forgets to ask begins what another worker may have begun already.
"""

from __future__ import annotations

import ast

import pytest

from tests.support.tree import Module, modules

# where functions are called, or programs begun, and in which functions that may be
PLACES = {
    "pyengine/core/worker/step_runner.py": {"_execute", "_thread_body"},
    "pyengine/core/worker/run_driver.py": {"drive"},
    "pyengine/features/calls/memo_runner.py": {"begin"},
    "pyengine/features/calls/adapter_process.py": {"poll"},
}
UNLEASED = {
    "pyengine/core/definitions/registry.py": "called by the user's own code, outside of workflows",
    "pyengine/features/calls/functions.py": "likewise",
    "pyengine/core/replay/machine.py": "driven by RunDriver.drive, and by checks, which hold no lease",
    "pyengine/features/checks/replay_check.py": "repeats a journal, and executes no step",
}
# a second replay, to compare it with the one before
REPEATS = {"replay_again"}
FOLDERS = (
    "pyengine/core/worker/",
    "pyengine/features/calls/",
    "pyengine/core/replay/",
    "pyengine/core/definitions/",
)


def _begins(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    name, holder = node.func.attr, ast.unparse(node.func.value)
    drives = name == "advance" and (holder.endswith("replay") or holder == "other")
    return name == "fn" or name.startswith("create_subprocess") or drives


def _asks(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1].lstrip("_") == "may_begin"


def bodies(module: Module) -> list[tuple[str, bool]]:
    """The functions of a module in which bodies begin, and whether each asks before."""
    found = []
    for function in module.functions:
        inner = {
            id(node)
            for one in ast.walk(function)
            if one is not function and isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
            for node in ast.walk(one)
        }
        own = [node for node in ast.walk(function) if id(node) not in inner]
        lines = [node.lineno for node in own if _begins(node) and isinstance(node, ast.Call)]
        asked = [node.lineno for node in own if _asks(node) and isinstance(node, ast.Call)]
        if lines:
            found.append((function.name, bool(asked) and min(asked) < min(lines)))
    return found


def test_every_body_is_asked_for() -> None:
    """No function of the package but these begins one, and these ask."""
    ours = [m for m in modules("pyengine") if m.path.startswith(FOLDERS) and m.path not in UNLEASED]
    found = {
        module.path: {name for name, asks in bodies(module) if asks or name not in REPEATS}
        for module in ours
        if bodies(module)
    }
    assert found == PLACES
    assert not [
        (module.path, name)
        for module in ours
        for name, asks in bodies(module)
        if not (asks or name in REPEATS)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "return call.step.fn(*args)",
        "value = await memo.fn()",
        "return run.replay.advance()",
        "await asyncio.create_subprocess_exec(program)",
        "value = step.fn()\n    self._terms.may_begin(run)",
        "def asks():\n        return may_begin()\n    return step.fn()",
    ],
)
def test_a_body_that_nobody_has_asked_for_is_found(text: str) -> None:
    """Each way to begin one, without a question before it, is refused."""
    assert ("f", False) in bodies(Module(path="pyengine/x.py", text=f"async def f():\n    {text}"))
