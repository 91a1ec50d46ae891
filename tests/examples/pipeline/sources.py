"""A pipeline over source files: hash and parse each, aggregate by folder, then all.

Every function below is a memo, so a second run over the same files runs none of them, and a changed file runs
only what depends on it. `PIPELINE_LOG` names a file to which each body appends its name, as it runs.
"""

from __future__ import annotations

import ast
import hashlib
import os
import threading
from pathlib import Path
from typing import Any

from pyengine import App, ctx

app = App()

_parser = threading.Lock()  # ast.parse of CPython 3.11 fails at times in several threads


def _ran(name: str) -> None:
    if log := os.environ.get("PIPELINE_LOG"):
        with Path(log).open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")


@app.step
def read(folder: str) -> dict[str, str]:
    """The sources below a folder, by their path; a step, because it looks at the world."""
    root = Path(folder)
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*.py"))}


@app.memo(version="1")
def digest(text: str) -> str:
    """The hash of a file."""
    _ran("digest")
    return hashlib.sha256(text.encode()).hexdigest()


@app.memo(version="1")
def parse(text: str) -> dict[str, Any]:
    """What a file defines, and how long it is."""
    _ran("parse")
    with _parser:
        tree = ast.parse(text)
    names = [each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.ClassDef)]
    return {"lines": text.count("\n"), "names": sorted(set(names))}


@app.memo(version="1")
def aggregate(parsed: list[dict[str, Any]]) -> dict[str, Any]:
    """The sums of what was parsed."""
    _ran("aggregate")
    names = {name for each in parsed for name in each["names"]}
    return {"lines": sum(each["lines"] for each in parsed), "names": sorted(names)}


@app.memo(version="1")
def report(digests: list[str], total: dict[str, Any]) -> dict[str, Any]:
    """What people read."""
    _ran("report")
    together = hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()
    return {"files": len(digests), "lines": total["lines"], "names": len(total["names"]), "digest": together}


@app.workflow
async def survey(folder: str) -> dict[str, Any]:
    """The pipeline: calls are made at once, and each waits for its inputs alone."""
    files = await read(folder)
    digests = [ctx.call(digest, text) for text in files.values()]
    folders: dict[str, list[Any]] = {}
    for path, text in files.items():
        folders.setdefault(str(Path(path).parent), []).append(ctx.call(parse, text))
    parts = [ctx.call(aggregate, parsed) for parsed in folders.values()]
    return await ctx.call(report, digests, ctx.call(aggregate, parts))
