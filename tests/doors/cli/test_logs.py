"""Law: what a log line shows of users' texts is escaped, without passwords, and never like a line of ours."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyengine.doors.cli.display.logs import LogOptions, log_uncaught
from pyengine.doors.cli.output import progress

SECRET = "postgresql://bob:s3cretpw@127.0.0.1/db"
FORGED = "2026-01-01 00:00:00,000 ERROR pyengine: all runs are lost"
HOSTILE = f"x\x1b]0;pwn\x07\u202e\r{SECRET}\n{FORGED}\n\x9b31m"
FORMS = ("lines", "terminal", "json")


class Screen(io.StringIO):
    """A stderr that is a terminal or not."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        """Whether it is one."""
        return self.is_terminal


@pytest.fixture(params=FORMS)
def log(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[logging.Logger, Screen]:
    """A root logger in one of the three forms, and what it writes to."""
    screen = Screen(is_terminal=request.param == "terminal")
    root = logging.Logger("root")
    monkeypatch.setenv("PYENGINE_DATABASE_URL", SECRET)
    monkeypatch.setattr(logging, "getLogger", lambda name=None: root)
    monkeypatch.setattr(sys, "stderr", screen)
    LogOptions(log_json=request.param == "json").configure()
    return root, screen


def raised(error: BaseException) -> BaseException:
    """The error with a traceback, and a cause that has one."""
    try:
        try:
            raise RuntimeError(HOSTILE)
        except RuntimeError as cause:
            raise error from cause
    except BaseException as caught:
        return caught


def by_exc_info(root: logging.Logger) -> None:
    """Log with a traceback."""
    root.error("it failed", exc_info=raised(ValueError(HOSTILE)))


def by_cached_text(root: logging.Logger) -> None:
    """Log a record whose traceback another handler has formatted already."""
    record = root.makeRecord("root", logging.ERROR, "f", 1, "it failed", (), None)
    record.exc_text = f"Traceback\n{HOSTILE}"
    root.handle(record)


def by_message(root: logging.Logger) -> None:
    """Log a message that has it."""
    root.error("it failed: %s", HOSTILE)


def by_field(root: logging.Logger) -> None:
    """Log a field that has it."""
    root.error("it failed", extra={"run": HOSTILE, "more": {"deep": HOSTILE}})


def by_stack(root: logging.Logger) -> None:
    """Log a stack that has it."""
    record = root.makeRecord("root", logging.ERROR, "f", 1, "it failed", (), None, sinfo=HOSTILE)
    root.handle(record)


def by_wrong_arguments(root: logging.Logger) -> None:
    """Log arguments that do not fit their message."""
    root.error("it failed %d %d", HOSTILE)


WAYS = [by_exc_info, by_cached_text, by_message, by_field, by_stack, by_wrong_arguments]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_hostile_texts(log: tuple[logging.Logger, Screen], way: Callable[[logging.Logger], None]) -> None:
    """Message, field, traceback and stack: no control character, no password; one line begins like ours."""
    root, screen = log
    way(root)
    root.error("the next")
    written = screen.getvalue()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", written) if screen.is_terminal else written
    assert not [c for c in plain if not c.isprintable() and c != "\n"]
    assert "s3cretpw" not in plain
    first, *others = plain.splitlines()
    assert others.pop().endswith("the next") or '"the next"' in plain
    assert "it failed" in first
    assert [line for line in others if not line.startswith("    ")] == []
    if written.startswith("{"):
        assert [json.loads(line)["level"] for line in plain.splitlines()] == ["error", "error"]


def test_a_field_is_one_word(log: tuple[logging.Logger, Screen]) -> None:
    """A value with a space is quoted, so that none looks like another field."""
    root, screen = log
    root.error("it failed", extra={"run": "r event=run_completed", "plain": "a-b.1"})
    if screen.is_terminal:
        assert "run=" not in screen.getvalue()
    elif screen.getvalue().startswith("{"):
        assert json.loads(screen.getvalue())["run"] == "r event=run_completed"
    else:
        assert screen.getvalue().endswith('it failed run="r event=run_completed" plain=a-b.1\n')


def test_a_thread_of_the_program(log: tuple[logging.Logger, Screen], monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that nobody caught, in a thread or at the end of the process, is logged as any other."""
    _, screen = log
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    log_uncaught()

    def fails() -> None:
        raise ValueError(HOSTILE)

    thread = threading.Thread(target=fails)
    thread.start()
    thread.join()
    error = raised(LookupError(HOSTILE))
    sys.excepthook(type(error), error, error.__traceback__)
    written = screen.getvalue()
    assert written.count("ValueError: x") == 1 and written.count("LookupError: x") == 1
    assert "s3cretpw" not in written and "\x07" not in written


def test_the_command_itself(tmp_path: Path) -> None:
    """`pyengine` logs what nobody caught, and ends with 1."""
    (tmp_path / "broken.py").write_text(
        "import pyengine.doors.cli.root as root\n"
        "from pyengine.doors.cli import main\n"
        f"def fail(argv): raise ValueError({HOSTILE!r})\n"
        "root.command_line = fail\n"
        "main()\n"
    )
    done: Any = subprocess.run([sys.executable, "broken.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "ValueError: x\\x1b" in done.stderr
    assert "s3cretpw" not in done.stderr and "\x07" not in done.stderr
    assert not re.search("^2026-01-01", done.stderr, re.MULTILINE)


def test_a_progress_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that a command rewrites has no control character but its own."""
    screen = Screen(is_terminal=True)
    monkeypatch.setattr(sys, "stderr", screen)
    with progress() as show:
        assert show is not None
        show("law x\x1b]0;pwn\x07\ny")
    assert screen.getvalue() == "\rlaw x\\x1b]0;pwn\\x07\\ny\x1b[K\r\x1b[K"
