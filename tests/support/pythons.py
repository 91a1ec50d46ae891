"""The other Pythons of this machine, with this package installed as its users install it.

What lives here: which interpreters there are, the environments with what the package needs, kept in the
user's cache, and the package itself, built once a session. What may not: what is run there.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

from tests.support.sdks import made, pythons, run_program, version_of
from tests.support.tree import ROOT

OLDEST = (3, 11)
OTHERS = ("3.12", "3.13", "3.14", "3.15")


@cache
def other_pythons() -> dict[str, Path]:
    """The newest interpreter of each minor version that pyengine runs on and this one is not, as 3.12."""
    found = {version: path for path in pythons() if (version := version_of(path)) is not None}
    supported = {version: path for version, path in sorted(found.items()) if version[:2] >= OLDEST}
    here = sys.version_info[:2]
    return {f"{one[0]}.{one[1]}": path for one, path in supported.items() if one[:2] != here}


def build_wheel(folder: Path) -> Path:
    """Build the package of this tree, and return its wheel."""
    pip = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder)
    run_program("the wheel", Path(sys.executable), *pip, ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def lowest() -> list[str]:
    """The oldest releases that the package takes, as constraints: `rich==13`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    needs = [*project["dependencies"], *extras["serve"], *extras["pydantic"]]
    return sorted({f"{name}=={version}" for name, version in map(_bound, needs)})


def _bound(need: str) -> tuple[str, str]:
    found = re.match(r"([\w-]+)(?:\[[\w,]+\])?>=([\d.]+)", need)
    assert found is not None, f"{need} has no lower bound"
    return found[1], found[2]


def with_the_tests(minor: str, constraints: list[str]) -> Path:
    """Make an environment for the tests, and return its interpreter.

    Args:
        minor: of which Python; this one has what this one has.
        constraints: releases to take.
    """
    needs = (ROOT / "pyproject.toml").read_text(encoding="utf-8") + " ".join(constraints)
    named = hashlib.sha256(needs.encode()).hexdigest()[:12]

    def build(home: Path) -> None:
        run_program("the environment", other_pythons().get(minor, Path(sys.executable)), "-m", "venv", home)
        (home / "constraints").write_text("\n".join(constraints), encoding="utf-8")
        pip = ("-m", "pip", "install", "--quiet", "-c", home / "constraints", f"{ROOT}[test]")
        run_program("pip does not get what the tests need", home / "bin" / "python", *pip)

    return made(f"tests-{minor}-{named}", build) / "bin" / "python"


def install(wheel: Path, minor: str, folder: Path) -> tuple[Path, dict[str, str]]:
    """Install a wheel for another Python, beside what it needs.

    Returns:
        The interpreter, and the environment in which it imports the wheel alone.
    """
    needs = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = hashlib.sha256(needs.encode()).hexdigest()[:12]

    def build(home: Path) -> None:
        run_program("the environment", other_pythons()[minor], "-m", "venv", home)
        pip = (home / "bin" / "python", "-m", "pip")
        run_program(f"pip does not get what {wheel.name} needs", *pip, "install", "--quiet", wheel)
        run_program("pip keeps the package", *pip, "uninstall", "--quiet", "--yes", "pyengine-durable")

    python = made(f"python-{minor}-{named}", build) / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, wheel)
    run_program("pip refuses the wheel", *pip)
    return python, {**os.environ, "PYTHONPATH": str(folder), "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
