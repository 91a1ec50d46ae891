"""Law: the programs of the page about other languages run as they are printed, with the published SDKs."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.examples.pages import Page
from tests.support.gateway import Gateway
from tests.support.sdks import PYTHON_SDK, TYPESCRIPT_SDK, NoSdk, missing, python_sdk, typescript_sdk

PAGE = Page("docs/how-to/serve-other-languages.md")
WAIT_S = 120


def block(start: str) -> str:
    """The block of the page whose title starts so."""
    (found,) = [one.text for one in PAGE.blocks if one.title.startswith(start)]
    return found


def test_the_programs_of_the_page(request: pytest.FixtureRequest, dsn: str, tmp_path: Path) -> None:
    """The worker in one language answers the client in the other what the page shows."""
    try:
        python, node = python_sdk(PYTHON_SDK), typescript_sdk(TYPESCRIPT_SDK)
    except NoSdk as reason:
        missing(reason, full=request.config.getoption("--full"))
    for name in ("greet.py", "ask.mjs"):
        (tmp_path / name).write_text(block(name), encoding="utf-8")
    (tmp_path / "node_modules").symlink_to(node.folder / "node_modules")
    with Gateway(dsn) as gateway:
        clean = {name: text for name, text in os.environ.items() if not re.match("RESONATE_|PYTHON", name)}
        environment = {**clean, "RESONATE_URL": gateway.url}
        worker = subprocess.Popen([*python.command, "greet.py"], cwd=tmp_path, env=environment)
        try:
            for _ in range(2):
                asked = [*node.command, "ask.mjs"]
                done = subprocess.run(
                    asked, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=WAIT_S
                )
                assert done.stdout == block("what ask.mjs prints"), done.stderr
        finally:
            worker.kill()
            worker.wait()
