"""Programs as mypy sees them.

Lives here: the errors of mypy in programs of users. May not: a configuration of its own. With that of the
package all runs of mypy have one cache, and most of a run is the package.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.tree import ROOT


def wrong_lines(folder: Path, programs: Mapping[str, str]) -> dict[str, list[int]]:
    """The lines with an error in each of the programs, which are written to the folder under their names."""
    paths = {name: folder / f"{name}.py" for name in programs}
    for name, text in programs.items():
        paths[name].write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *map(str, paths.values())],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found: dict[str, list[int]] = {name: [] for name in programs}
    for line in done.stdout.splitlines():
        if ": error:" in line:
            path, number, _ = line.split(":", 2)
            found[Path(path).stem].append(int(number))
    assert done.returncode == (1 if any(found.values()) else 0), done.stdout + done.stderr
    return found
