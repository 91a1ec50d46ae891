"""The files of this repository as the style tests see them, without what tools leave behind."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from pyengine.core.sources import found
from tests.style.lint import inventory
from tests.style.lint.inventory import Inventory

ROOT = Path(__file__).resolve().parent.parent.parent
LEFT_BEHIND = {"__pycache__", "build", "dist", "site", "venv", "htmlcov", "node_modules"}
# hidden entries that belong to the project
KEPT_HIDDEN = {".ci", ".gitignore", ".pre-commit-config.yaml", ".github"}


@dataclass(frozen=True, kw_only=True)
class Module:
    """A Python file with its syntax tree."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return ast.parse(self.text, filename=self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of that tree."""
        return list(ast.walk(self.tree))

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """All functions and methods, nested ones too."""
        return [node for node in self.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]

    @property
    def dotted(self) -> str:
        """``pyengine/doors/admin/migrate.py`` -> ``pyengine.doors.admin.migrate``."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def files(root: Path = ROOT) -> list[str]:
    """Paths of all files of the project, with forward slashes, sorted."""
    found = []
    for folder, folders, names in os.walk(root):
        below = "" if folder == str(root) else f"{Path(folder).relative_to(root).as_posix()}/"
        folders[:] = [name for name in folders if _kept(name) and not name.endswith(".egg-info")]
        found += [
            f"{below}{name}"
            for name in names
            if _kept(name) and not name.endswith((".pyc", ".pyo", ".swp", "~"))
        ]
    return sorted(found)


@cache
def schema() -> Inventory:
    """The SQL files, read once for all tests."""
    return inventory.read(found())


def modules(*roots: str) -> Iterator[Module]:
    """The Python files below these folders of the project; their trees take much memory."""
    for path in files():
        if path.endswith(".py") and path.split("/", 1)[0] in roots:
            yield Module(path=path, text=(ROOT / path).read_text(encoding="utf-8"))


def _kept(name: str) -> bool:
    return name not in LEFT_BEHIND and (not name.startswith(".") or name in KEPT_HIDDEN)
