"""Law: the habits of the house are written down where tools read them."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml

from tests.support.tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]


def allowed(message: str) -> bool:
    """Whether the hook for commit messages takes it; as pre-commit reads its pattern."""
    (hook,) = (hook for hook in HOOKS if hook["id"] == "subject")
    assert hook["args"] == ["--negate", "--multiline", "--ignore-case"]
    return re.search(hook["entry"], message, re.IGNORECASE | re.MULTILINE | re.DOTALL) is not None


@pytest.mark.parametrize(
    "message",
    [
        "Name the classes of worker by the field's words",
        "docs: move README into a tested site\n\nWhy: it was three things at once.\n",
        "values, loop: feed the codec in pieces",
        "Need one lock less",
        "x " + "y" * 70,
    ],
)
def test_a_good_subject_is_allowed(message: str) -> None:
    """An imperative subject of at most 72 characters, with a scope or without."""
    assert allowed(message)


@pytest.mark.parametrize(
    "message",
    [
        "Added a lock",
        "docs: moving README",
        "What waits for the disk has one statement",
        "x " + "y" * 71,
        "Fix",
        "",
    ],
)
def test_a_bad_subject_is_refused(message: str) -> None:
    """A subject that is too long, tells a story, or is one word."""
    assert not allowed(message)


def test_the_commands_of_contributing_exist() -> None:
    """Every task that CONTRIBUTING.md names is a task, and every task stands there."""
    named = set(re.findall(r"`poe ([\w-]+)`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    assert named == set(PROJECT["tool"]["poe"]["tasks"])


def test_the_glossary_is_a_page() -> None:
    """The whole vocabulary has 30 lines at most."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    words = text.split("## The words", 1)[1].split("\n## ", 1)[0]
    assert 10 < len([line for line in words.splitlines() if line.startswith("| ")]) - 1 <= 30


def test_only_what_was_tried_is_claimed() -> None:
    """The classifiers name the one Python and the one system on which the suite runs."""
    claims = PROJECT["project"]["classifiers"]
    assert [one for one in claims if "Python :: 3" in one] == ["Programming Language :: Python :: 3.11"]
    assert [one for one in claims if "Operating System" in one] == ["Operating System :: POSIX :: Linux"]
