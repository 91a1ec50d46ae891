"""Law: the habits of the house are written down where tools read them."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml

from tests.support.pythons import OTHERS
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
    """The classifiers name the Pythons on which programs are run and replayed, and the one system on which
    the suite runs.
    """
    claims = PROJECT["project"]["classifiers"]
    tried = [f"Programming Language :: Python :: {minor}" for minor in ("3.11", *OTHERS)]
    assert [one for one in claims if "Python :: 3." in one] == tried
    assert [one for one in claims if "Operating System" in one] == ["Operating System :: POSIX :: Linux"]


def wrong_installs(text: str) -> list[str]:
    """Commands that install the package of somebody else, which bears the name of our import."""
    return re.findall(r"pip install[^\n`\";]*?[ ']pyengine(?![\w-])[^\n`\"]*", text)


def test_hints_install_our_distribution() -> None:
    """The distribution is not called like the import, and every command that installs it knows that."""
    assert wrong_installs("type: pip install -U pyengine") and wrong_installs("pip install 'pyengine[docs]'")
    assert not wrong_installs("pip install -U pyengine-durable")
    assert not wrong_installs("pip install .\npyengine demo")
    places = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    places += [path for room in ("pyengine", "bench", "sql") for path in (ROOT / room).rglob("*.[ps]*")]
    places = [path for path in places if path.suffix in (".py", ".sql", ".md")]
    texts = {path: path.read_text(encoding="utf-8") for path in places}
    assert not {path: found for path, text in texts.items() if (found := wrong_installs(text))}
    name = PROJECT["project"]["name"]
    assert f'packages = ("{name}"' in texts[ROOT / "bench" / "systems" / "pyengine.py"]
