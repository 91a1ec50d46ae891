"""Law: each Python from 3.11 on installs the package, runs it without a warning, and replays what another one
has recorded, in both directions.

A Python that is not on this machine is skipped by name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.pythons import OTHERS, build_wheel, install, other_pythons
from tests.support.sdks import NoSdk, missing

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Other:
    """Another Python with the package."""

    python: Path
    env: dict[str, str]

    def run(self, dsn: str, *args: str) -> str:
        """Run it on a program, with every warning an error, and return what it prints."""
        return run(self.python, dsn, self.env, *args)


def run(python: Path, dsn: str, env: dict[str, str], *args: str) -> str:
    """Run a Python beside the programs of this folder, and return what it prints."""
    done = subprocess.run(
        [python, "-W", "error", *args],
        cwd=HERE,
        env={**env, "PYENGINE_DATABASE_URL": dsn},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def replayed(answer: str) -> int:
    """How many runs a check has replayed; none differs."""
    found = json.loads(answer)
    assert found["ok"] == found["checked"], found["breaks"]
    return int(found["ok"])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of this tree."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.mark.parametrize("minor", OTHERS)
def test_another_python_runs_and_replays(
    minor: str, wheel: Path, dsn: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It runs the demo, begins a run of each construct, and so does this one; each replays all of them."""
    if minor not in other_pythons():
        pytest.skip(f"no Python {minor} on this machine")
    try:
        other = Other(*install(wheel, minor, tmp_path))
    except NoSdk as reason:
        missing(reason, full=request.config.getoption("--full"))
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert other.run(dsn, "constructs.py", "hello") == "hello world\n"
    assert "no law is broken" in other.run(dsn, "-m", "pyengine", "demo")
    if int(minor.split(".")[1]) >= 14:
        assert other.run(dsn, "late.txt") == "4\ncaught no\nhidden is refused\n"
    other.run(dsn, "constructs.py", "begin", minor)
    run(Path(sys.executable), dsn, here, "constructs.py", "begin", "here")
    check = ("-m", "pyengine", "replay-check", "constructs:app", "--json")
    assert replayed(other.run(dsn, *check)) == replayed(run(Path(sys.executable), dsn, here, *check)) == 50
