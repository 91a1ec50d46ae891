"""Law: the Python files keep the limits and habits of the house, and ruff and mypy have nothing to add.

Each rule is a function from a module to a list of findings; every rule has a text that breaks it.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.support.tree import ROOT, Module, files, modules
from tests.support.typed import run_mypy

Finder = Callable[[Module], Iterator[str]]

FUNCTION_LINES = 60
FILE_LINES = {"pyengine": 500, "tests": 600, "bench": 600}
POSITIONAL = 5
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "shared"}
# written in two parts, so that these rules do not find themselves
LEFTOVER = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
MACHINE = re.compile(r"(?<![\w.])/(wo" r"rk|ro" r"ot|ho" r"me/\w+|opt/py" r"env)(/|\b)")


def where(module: Module, node: ast.AST) -> str:
    """File and line of a node."""
    return f"{module.path}:{getattr(node, 'lineno', 1)}"


def function_length(module: Module) -> Iterator[str]:
    """A function fits a screen."""
    for function in module.functions:
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > FUNCTION_LINES:
            yield f"{where(module, function)}: {function.name} has {lines} lines, {FUNCTION_LINES} allowed"


def file_length(module: Module) -> Iterator[str]:
    """A file can be read in one sitting."""
    lines = module.text.count("\n")
    allowed = FILE_LINES[module.path.split("/", 1)[0]]
    if lines > allowed:
        yield f"{module.path}: {lines} lines, {allowed} allowed"


def positional_parameters(module: Module) -> Iterator[str]:
    """More than five arguments are given by name."""
    for function in module.functions:
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        if names[:1] in (["self"], ["cls"]):
            names = names[1:]
        if len(names) <= POSITIONAL:
            continue
        # pytest and typer give them by name
        by_name = function.name.startswith("test_") or re.search(
            r"fixture|command|typer\.", _decorators(function) + ast.unparse(function.args)
        )
        if not by_name:
            yield f"{where(module, function)}: {function.name} has {len(names)} positional parameters"


def annotations(module: Module) -> Iterator[str]:
    """Everything is annotated."""
    for function in module.functions:
        arguments = function.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [each for each in (arguments.vararg, arguments.kwarg) if each]
        bare = [
            each.arg for each in every if each.annotation is None and each.arg not in ("self", "cls", "_")
        ]
        if bare or function.returns is None:
            what = ", ".join(bare) or "the result"
            yield f"{where(module, function)}: {function.name}: {what} is not annotated"


def future_annotations(module: Module) -> Iterator[str]:
    """Annotations are not evaluated when a module is imported."""
    code = [node for node in module.tree.body if not _is_docstring(node)]
    if code and not (isinstance(code[0], ast.ImportFrom) and code[0].module == "__future__"):
        yield f"{module.path}: begins with from __future__ import annotations"


def docstrings(module: Module) -> Iterator[str]:
    """Modules say what lives there; public things of the package and all tests say what they are."""
    if not ast.get_docstring(module.tree):
        yield f"{module.path}: no module docstring"
    top = module.path.split("/", 1)[0]
    for node in module.nodes:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or ast.get_docstring(
            node
        ):
            continue
        name = node.name
        wanted = top == "pyengine" and _public(module, node) and not _is_stub(node)
        if wanted or (top == "tests" and name.startswith("test_")):
            yield f"{where(module, node)}: {name} has no docstring"


def vague_names(module: Module) -> Iterator[str]:
    """No module is a drawer for anything."""
    if module.path.rsplit("/", 1)[-1].removesuffix(".py") in VAGUE:
        yield f"{module.path}: a module is named after what it does"


def leftovers(module: Module) -> Iterator[str]:
    """Nothing is left for later in the text."""
    for number, line in enumerate(module.text.split("\n"), start=1):
        if LEFTOVER.search(line):
            yield f"{module.path}:{number}: left over: {line.strip()[:60]}"


def broad_excepts(module: Module) -> Iterator[str]:
    """Catching everything without raising it again happens at a boundary, and a comment says at which."""
    lines = module.text.split("\n")
    for node in module.nodes:
        if not isinstance(node, ast.ExceptHandler):
            continue
        names = (
            [each.id for each in ast.walk(node.type) if isinstance(each, ast.Name)] if node.type else ["all"]
        )
        if not {"Exception", "BaseException", "all"} & set(names):
            continue
        if isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None:
            continue
        around = lines[node.lineno - 1 : node.lineno + 1]
        if module.path.startswith("pyengine/") and not any("#" in line for line in around):
            yield f"{where(module, node)}: catches {', '.join(names)} without a comment that says why"


def async_plugins(module: Module) -> Iterator[str]:
    """Async tests call asyncio.run."""
    for node in module.nodes:
        if isinstance(node, ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield f"{where(module, node)}: {node.name} is async; call asyncio.run in it"


RULES: dict[str, Finder] = {
    check.__name__: check
    for check in (
        function_length,
        file_length,
        positional_parameters,
        annotations,
        future_annotations,
        docstrings,
        vague_names,
        leftovers,
        broad_excepts,
        async_plugins,
    )
}

HEAD = '"""A module."""\n\nfrom __future__ import annotations\n\n'
BROKEN = {
    "function_length": HEAD + 'def f() -> None:\n    """Long."""\n' + "    pass\n" * 60,
    "file_length": HEAD + "\n" * 500,
    "positional_parameters": HEAD + "def f(a: int, b: int, c: int, d: int, e: int, f: int) -> None: ...\n",
    "annotations": HEAD + "def f(a) -> None: ...\n",
    "future_annotations": '"""A module."""\nimport os\n',
    "docstrings": HEAD + "def f() -> None:\n    pass\n",
    "vague_names": HEAD,
    "leftovers": HEAD + "# TO" + "DO later\n",
    "broad_excepts": HEAD + "try:\n    pass\nexcept (ValueError, Exception):\n    pass\n",
    "async_plugins": HEAD + "async def test_f() -> None: ...\n",
}


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _decorators(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
    return " ".join(ast.unparse(each) for each in node.decorator_list)


def _is_stub(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """An overload, a setter, or a member of a protocol: what it is stands elsewhere."""
    decorators = _decorators(node)
    return "overload" in decorators or ".setter" in decorators or ast.unparse(node.body[-1]) == "..."


def _public(module: Module, wanted: ast.AST) -> bool:
    """Whether a function or class can be reached by name from outside without an underscore."""

    def reach(body: list[ast.stmt]) -> Iterator[ast.AST]:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                if node.name.startswith("_"):
                    continue
                yield node
                if isinstance(node, ast.ClassDef):
                    yield from reach(node.body)

    return any(node is wanted for node in reach(module.tree.body))


def test_the_modules_keep_every_rule() -> None:
    """No module of package, tests or bench breaks a rule."""
    found = [
        finding
        for module in modules("pyengine", "tests", "bench")
        for rule in RULES.values()
        for finding in rule(module)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_can_be_broken(rule: str) -> None:
    """Each rule finds the text that breaks it, and nothing in an empty module of a good name."""
    name = "utils" if rule == "vague_names" else "good"
    assert list(RULES[rule](Module(path=f"pyengine/{name}.py", text=BROKEN[rule])))
    assert not list(RULES[rule](Module(path="pyengine/good.py", text=HEAD)))


def test_no_path_of_a_machine() -> None:
    """No committed file names a folder of the machine it was written on."""
    found = []
    for path in files():
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [
            f"{path}:{n}: {line.strip()[:80]}"
            for n, line in enumerate(text.split("\n"), 1)
            if MACHINE.search(line)
        ]
    assert not found, "\n".join(found)


def test_the_check_of_machine_paths_reports() -> None:
    """A path below somebody's home is found; /var/lib and an example URL are not."""
    assert MACHINE.search("see /ho" + "me/ada/x")
    assert MACHINE.search("cd /wo" + "rk/main")
    assert not MACHINE.search("/var/lib/pyengine and postgresql://host/workflows, network/root")


def run(*command: str) -> str:
    """Run a tool in the repository; return what it says, empty if it is content."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    return done.stdout + done.stderr if done.returncode else ""


def test_ruff_is_content() -> None:
    """ruff check, as configured in pyproject.toml, finds nothing."""
    said = run("ruff", "check", "--output-format", "concise", "--no-cache", ".")
    assert not said, said


def test_mypy_is_content() -> None:
    """mypy --strict finds nothing in the package."""
    done = run_mypy("pyengine")
    assert done.returncode == 0, done.stdout + done.stderr
