"""Law: every wait of ours, and every reading of the time, goes by `pyengine/core/process/clock.py`.

So a test can put a clock of its own there and let a week pass in minutes. The loop of workflows has a time of
its own; programs that adapters are, and the time limits of libraries, stay real.
"""

from __future__ import annotations

import ast

import pytest

from tests.support.tree import Module, modules

SEAM = "pyengine/core/process/clock.py"
OTHER_TIMES = {
    "pyengine/core/loop/": "the time of a workflow, which a replay repeats",
    "pyengine/core/replay/": "a function of journal and code",
    "pyengine/core/workflow/": "code that runs in workflows and steps",
    "pyengine/features/calls/adapters/": "programs of their own",
}
# a library's own wait, with its own time limit
PROCESSES = {
    "pyengine/doors/embedded/postmaster.py",
    "pyengine/doors/embedded/server.py",
    "pyengine/doors/demo/run.py",
}
WAITS = {
    "asyncio": {"sleep", "timeout", "timeout_at", "wait_for"},
    "time": {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep", "time"},
}
TIMERS = {"call_later", "call_at"}
LOOPS = {"loop", "self.loop", "self._loop", "asyncio.get_running_loop()"}
# waits of ours, which go by the clock themselves
OWN = {"clock", "self._hints", "self._results"}


def own_waits(module: Module) -> list[int]:
    """The lines of a module that wait, or read the time, past the seam."""
    found = []
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom) and node.module in WAITS:
            found += [node.lineno for alias in node.names if alias.name in WAITS[node.module]]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name, holder, first = node.func.attr, ast.unparse(node.func.value), (*node.args, None)[0]
            yields = holder == "asyncio" and name == "sleep" and ast.unparse(first or node) == "0"
            is_wait = name in WAITS.get(holder, ()) and not yields
            is_timer = name in TIMERS and holder != "clock"
            is_limited = (
                holder == "asyncio" and name == "wait" and "timeout" in {k.arg for k in node.keywords}
            )
            blocks = name == "wait" and first is not None and holder not in OWN | {"asyncio"}
            if is_wait or is_timer or is_limited or (blocks and module.path not in PROCESSES):
                found.append(node.lineno)
        elif isinstance(node, ast.Attribute) and node.attr in TIMERS | {"time"}:
            found += [node.lineno] if ast.unparse(node.value) in LOOPS else []
    return sorted(set(found))


def test_every_wait_goes_by_the_clock() -> None:
    """No module of the package waits or reads the time by itself."""
    ours = [m for m in modules("pyengine") if m.path != SEAM and not m.path.startswith(tuple(OTHER_TIMES))]
    assert not {module.path: lines for module in ours if (lines := own_waits(module))}


@pytest.mark.parametrize(
    "text",
    [
        "await asyncio.sleep(pause_s)",
        "async with asyncio.timeout(5): pass",
        "async with asyncio.timeout_at(at): pass",
        "await asyncio.wait_for(future, 5)",
        "await asyncio.wait(tasks, timeout=5)",
        "now = self._loop.time()",
        "now = asyncio.get_running_loop().time()",
        "now = loop.time",
        "handle = loop.call_later(5, wake)",
        "handle = self._loop.call_at(at, wake)",
        "post(self._loop.call_later, 5)",
        "now = time.monotonic()",
        "time.sleep(1)",
        "event.wait(5)",
        "self._received.wait(seconds)",
        "from time import monotonic",
        "from asyncio import sleep",
    ],
)
def test_a_wait_past_the_clock_is_found(text: str) -> None:
    """Each way to wait, or to read the time, is refused."""
    module = Module(path="pyengine/x.py", text=f"async def f():\n    {text}")
    assert own_waits(module) == [2]


@pytest.mark.parametrize(
    "text",
    [
        "await asyncio.sleep(0)",
        "await clock.sleep(pause_s)",
        "async with clock.timeout(5): pass",
        "handle = clock.call_later(5, wake)",
        "await event.wait()",
        "await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)",
        "started_ms = time.time_ns()",
        "await clock.wait(tasks, 5)",
    ],
)
def test_the_clock_may_be_used(text: str) -> None:
    """What goes by the clock, what yields and what waits without a limit is allowed."""
    module = Module(path="pyengine/x.py", text=f"async def f():\n    {text}")
    assert own_waits(module) == []
