"""Law: a task that nobody awaits is in the supervised set of `pyengine/core/process/background.py`.

A task or thread that is begun elsewhere is awaited where it is begun, and is listed here with the reason:
so a new one is seen. A task group is awaited by its block. Workflows have a loop of their own.
"""

from __future__ import annotations

import ast

import pytest

from tests.support.tree import Module, modules

SET = "pyengine/core/process/background.py"
OTHER_LOOPS = (
    "pyengine/core/loop/",
    "pyengine/core/replay/",
    "pyengine/core/workflow/",
    "pyengine/core/definitions/",
)
BEGIN = {
    *("create_task", "ensure_future", "run_coroutine_threadsafe", "run_in_executor", "to_thread"),
    *("Thread", "threading.Timer", "ThreadPoolExecutor", "ProcessPoolExecutor", "start_new_thread"),
}
# place -> how many at most, and who awaits them
AWAITED = {
    "pyengine/doors/program/foreground.py": (
        4,
        "`serve` waits for both, `run` and `_end_tasks` end the threads of the loop",
    ),
    "pyengine/features/checks/development.py": (1, "awaited at once: a task only for the context of errors"),
    "pyengine/features/calls/adapter_process.py": (
        1,
        "the function that begins it waits for the end of the process",
    ),
    "pyengine/features/calls/functions.py": (1, "the caller awaits it"),
    "pyengine/features/calls/handles.py": (2, "calls of a workflow, whose code awaits them"),
    "pyengine/doors/gateway/courier/hosts.py": (3, "the request awaits the look-up"),
    "pyengine/doors/gateway/http_server.py": (1, "`wait` and `stop` await the server"),
    "pyengine/core/worker/lease_heartbeat.py": (
        5,
        "`_main` waits for them; the thread tells the worker why it ended",
    ),
    "pyengine/core/process/own_threads.py": (1, "the caller awaits the outcome"),
    "pyengine/core/process/thread_pool.py": (1, "functions of users: the outcome goes to the loop"),
    "pyengine/core/database/registered.py": (1, "awaited at once"),
    "pyengine/core/worker/step_runner.py": (
        1,
        "bodies of users: any outcome is posted, an error of ours is told",
    ),
    "pyengine/core/worker/worker.py": (2, "the heartbeat waits for the declaration"),
    "pyengine/doors/program/stop_signals.py": (
        2,
        "the thread that hears signals, and one that flushes at the end",
    ),
    "pyengine/doors/demo/audit.py": (1, "a thread that waits for the parent process, and asks to stop"),
}

# whose threads are those of the loop: the program's that calls its own function outside of any run
PLAIN_CALLS = {"pyengine/core/definitions/registry.py", "pyengine/features/calls/functions.py"}


def groups(module: Module) -> set[str]:
    """Names of the task groups of a module."""
    blocks = [node for node in module.nodes if isinstance(node, ast.AsyncWith)]
    return {
        ast.unparse(item.optional_vars)
        for block in blocks
        for item in block.items
        if item.optional_vars is not None and ast.unparse(item.context_expr) == "asyncio.TaskGroup()"
    }


def begun(module: Module) -> list[int]:
    """Lines of a module that begin a task or a thread."""
    found, own = [], groups(module)
    for node in module.nodes:
        if isinstance(node, ast.Name | ast.Attribute):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            holder = ast.unparse(node.value) if isinstance(node, ast.Attribute) else ""
            known = name in BEGIN or f"{holder}.{name}" in BEGIN
            if known and holder not in own and not isinstance(getattr(node, "ctx", None), ast.Store):
                found.append(node.lineno)
    return found


def test_tasks_are_supervised() -> None:
    """No module begins more tasks and threads than are awaited there."""
    ours = [m for m in modules("pyengine") if m.path != SET and not m.path.startswith(OTHER_LOOPS)]
    found = {module.path: begun(module) for module in ours}
    assert not {path: lines for path, lines in found.items() if len(lines) > AWAITED.get(path, (0, ""))[0]}


@pytest.mark.parametrize(
    "text",
    [
        "task = asyncio.create_task(run())",
        "task = self._loop.create_task(run())",
        "task = asyncio.get_running_loop().create_task(run())",
        "asyncio.ensure_future(run())",
        "Thread(target=run).start()",
        "threading.Thread(target=run).start()",
        "threading.Timer(5, run).start()",
        "asyncio.run_coroutine_threadsafe(run(), loop)",
        "begin = asyncio.create_task",
        "loop.run_in_executor(None, run)",
    ],
)
def test_a_task_outside_the_set_is_found(text: str) -> None:
    """Each way to begin a task or a thread is found."""
    assert begun(Module(path="pyengine/x.py", text=text)) == [1]


def test_a_task_group_is_awaited() -> None:
    """The tasks of a group are awaited by its block."""
    text = "async def f():\n    async with asyncio.TaskGroup() as group:\n        group.create_task(g())"
    assert begun(Module(path="pyengine/x.py", text=text)) == []
    assert begun(Module(path="pyengine/x.py", text=text.replace("TaskGroup", "Runner"))) == [3]


def in_default_executor(module: Module) -> list[int]:
    """Lines of a module that take a thread of the default executor."""
    calls = [node for node in module.nodes if isinstance(node, ast.Call)]
    named = [(node, ast.unparse(node.func).rpartition(".")[2]) for node in calls]
    first = [(node, node.args[0] if node.args else None) for node, name in named if name == "run_in_executor"]
    taken = [node.lineno for node, one in first if isinstance(one, ast.Constant)]
    return taken + [
        node.lineno
        for node in module.nodes
        if isinstance(node, ast.Attribute | ast.Name)
        and "to_thread" in (getattr(node, "attr", ""), getattr(node, "id", ""))
    ]


def test_the_default_executor_is_for_users() -> None:
    """Users' code may fill it, so nothing of the engine waits for a place in it."""
    ours = [one for one in modules("pyengine") if one.path not in PLAIN_CALLS]
    assert not {one.path: lines for one in ours if (lines := in_default_executor(one))}
    for text in ("asyncio.to_thread(f)", "begin = to_thread", "loop.run_in_executor(None, f)"):
        assert in_default_executor(Module(path="pyengine/x.py", text=text)) == [1]
    assert not in_default_executor(Module(path="pyengine/x.py", text="loop.run_in_executor(threads, f)"))
