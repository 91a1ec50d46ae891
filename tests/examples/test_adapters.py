"""The adapters of the documentation keep the contract, checked as their page says."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from pyengine.doors.cli.root import run
from pyengine.features.calls.adapters import local
from tests.examples.pages import Page
from tests.features.calls.adapters import wrong
from tests.support.tree import ROOT

PAGE = Page("docs/how-to/write-an-adapter.md")


def checked(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """What the check saw, for an adapter that passes it."""
    code = run(["adapter", "check", "--json", *words])
    document = json.loads(capsys.readouterr().out)
    assert code == 0, document
    return [one["detail"] for one in document["findings"]]


def test_ten_lines_of_shell_are_an_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The adapter of the page has ten lines, starts its job once and answers with its result."""
    (block,) = (block for block in PAGE.blocks if block.title == "count")
    assert block.text.count("\n") <= 10
    path = tmp_path / "count"
    path.write_text(block.text)
    path.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    counted = tmp_path / "counted"
    counted.mkdir()
    (counted / "one").touch()
    seen = checked(capsys, f"count={path}", "--function", f"dml+exec://count{counted}")
    assert any("done, ok, with its value" in each for each in seen)
    (job,) = (tmp_path / "jobs").iterdir()
    assert (job / "out").read_text().strip() == "2"


def test_an_adapter_wraps_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The nested adapter passes the check, and its job runs with a low priority."""
    programs = tmp_path / "programs"
    programs.mkdir()
    wrong.write(programs, "nice", "ps -o ni= -p $$ > ../../nice; echo done")
    wrong.write(tmp_path, "pyengine-adapter-local", f'exec {sys.executable} {local.__file__} "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DURABLE_LOCAL_PATH", str(programs))
    monkeypatch.setenv("DURABLE_LOCAL_STATE", str(tmp_path / "state"))
    passed = ["--env", "DURABLE_LOCAL_PATH", "--env", "DURABLE_LOCAL_STATE"]
    nested = ROOT / "tests" / "examples" / "nested_adapter.sh"
    checked(capsys, f"niced={nested}", "--function", "dml+exec://niced/local/nice", *passed)
    (priority,) = (int(each.read_text()) for each in (tmp_path / "state").glob("nice"))
    assert priority >= 10
