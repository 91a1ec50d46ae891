"""Programs as type checkers see them.

Lives here: the errors of mypy and pyright in programs of users. May not: a configuration of its own. With
that of the package all runs of mypy have one cache, and most of a run is the package. pyright is its package
on npm, installed once for a machine (sdks.py).
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.sdks import NODE, npm_packages
from tests.support.tree import ROOT

PYRIGHT = "1.1.414"
MARK = "# wrong"


def written(folder: Path, programs: Mapping[str, str]) -> dict[str, Path]:
    """The files of programs, by name."""
    paths = {name: folder / f"{name}.py" for name in programs}
    for name, text in programs.items():
        paths[name].write_text(text, encoding="utf-8")
    return paths


def run_mypy(*files: str) -> subprocess.CompletedProcess[str]:
    """Run mypy --strict in the repository: one process at a time, so that only the first one reads the whole
    package."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *files]
    with (ROOT / "pyproject.toml").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def wrong_lines(folder: Path, programs: Mapping[str, str]) -> dict[str, list[int]]:
    """The lines with an error of mypy in each of the programs, which are written to the folder under their
    names."""
    paths = written(folder, programs)
    done = run_mypy(*map(str, paths.values()))
    found: dict[str, list[int]] = {name: [] for name in programs}
    for line in done.stdout.splitlines():
        if ": error:" in line:
            path, number, _ = line.split(":", 2)
            found[Path(path).stem].append(int(number))
    assert done.returncode == (1 if any(found.values()) else 0), done.stdout + done.stderr
    return found


def wrong_lines_of_pyright(folder: Path, programs: Mapping[str, str]) -> dict[str, list[int]]:
    """The same of pyright in strict mode.

    Raises:
        NoSdk: npm does not get it.
    """
    written(folder, programs)
    config = {"include": [str(folder)], "typeCheckingMode": "strict", "extraPaths": [str(ROOT)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    program = npm_packages(f"pyright-{PYRIGHT}", f"pyright@{PYRIGHT}") / "node_modules/pyright/index.js"
    done = subprocess.run(
        [NODE, program, "--outputjson", "--pythonpath", sys.executable, "--project", folder],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[str, list[int]] = {name: [] for name in programs}
    for one in json.loads(done.stdout)["generalDiagnostics"]:
        if one["severity"] == "error":
            found[Path(one["file"]).stem].append(one["range"]["start"]["line"] + 1)
    assert done.returncode == (1 if any(found.values()) else 0), done.stdout + done.stderr
    return found


def marked_lines(programs: Mapping[str, str]) -> dict[str, list[int]]:
    """The lines of programs that say of themselves that they are wrong."""
    return {
        name: [n for n, line in enumerate(text.splitlines(), 1) if line.endswith(MARK)]
        for name, text in programs.items()
    }
