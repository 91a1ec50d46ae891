"""Law: on each Python, and on the oldest with the oldest releases of what the package needs, the tests of
replay, journal, workers and gateway pass.

A Python that is not on this machine is skipped by name.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pythons import OTHERS, lowest, other_pythons, with_the_tests
from tests.support.sdks import NoSdk, missing
from tests.support.tree import ROOT

FOLDERS = (
    *("tests/core/replay", "tests/features/replay", "tests/features/journal"),
    *("tests/core/worker", "tests/features/worker", "tests/doors/gateway"),
)


@pytest.mark.full
@pytest.mark.parametrize(("minor", "constraints"), [*((one, []) for one in OTHERS), ("3.11", lowest())])
def test_the_tests_pass(minor: str, constraints: list[str], tmp_path: Path) -> None:
    """In an environment of its own, with what pip takes, or with the lowest bounds."""
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if minor not in other_pythons() and not (minor == here and constraints):
        pytest.skip(f"no Python {minor} on this machine")
    try:
        python = with_the_tests(minor, constraints)
    except NoSdk as reason:
        missing(reason, full=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYENGINE"))}
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *FOLDERS],
        cwd=ROOT,
        env={**env, "PYTHONPATH": "", "PYTHONPYCACHEPREFIX": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stdout[-6000:]


def test_each_need_has_a_lower_bound() -> None:
    """One that has none would be tried at any release, and at none by the test above."""
    bounds = dict(one.split("==") for one in lowest())
    assert {"asyncpg", "httpx", "msgspec", "psycopg", "rich", "starlette", "typer"} <= bounds.keys()
