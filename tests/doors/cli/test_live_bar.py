"""The bar of ``pyengine start --wait`` and ``app.run(progress=True)``, on a real terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import asyncio
from pyengine import App, ctx

app = App()

@app.step
async def work():
    await asyncio.sleep(0.6)

@app.workflow
async def album():
    ctx.progress(2, 4, "resizing")
    await work()
    return "ready"

if __name__ == "__main__":
    print(app.run(album, progress=True))
"""


HOSTILE = PROGRAM.replace('"resizing"', '"res\\x1b]0;pwn\\x07\\u202eizing"')


def on_terminal(words: list[str], folder: Path, dsn: str) -> tuple[int, str, str]:
    """Run a program with a terminal as its stderr; exit code, stdout, and what the terminal got."""
    ours, theirs = os.openpty()
    environment = {**os.environ, "PYENGINE_DATABASE_URL": dsn, "COLUMNS": "100", "TERM": "xterm"}
    with subprocess.Popen(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=theirs, text=True
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:
            pass  # the program has closed its end
        os.close(ours)
        out = process.communicate(timeout=60)[0]
    return process.returncode, out, shown.decode(errors="replace")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a program."""
    (tmp_path / "shop.py").write_text(PROGRAM)
    return tmp_path


def test_a_program_shows_its_progress(folder: Path, dsn: str) -> None:
    """While it runs; the result stands alone on stdout."""
    code, out, shown = on_terminal([sys.executable, "shop.py"], folder, dsn)
    assert (code, out) == (0, "ready\n")
    assert "album" in shown and "running 2/4 resizing" in shown


def test_a_command_shows_the_progress(folder: Path, dsn: str, player: Any) -> None:
    """As long as it waits for the run."""
    player.hello("album")
    player.conn.execute("select durable.start('album', id => 'a')")
    (task,) = player.claim("album")
    player.report(task, progress={"seq": 0, "done": 2, "total": 4, "note": "resizing"})
    words = [sys.executable, "-m", "pyengine", "start", "album", "--id", "a", "--wait", "--timeout", "0.7"]
    code, _, shown = on_terminal(words, folder, dsn)
    assert code == 1
    assert "running 2/4 resizing" in shown and "is still running" in shown


def test_a_note_is_no_command_of_the_terminal(tmp_path: Path, dsn: str) -> None:
    """Escapes in the note of a run do not reach the terminal of who waits for it."""
    (tmp_path / "hostile.py").write_text(HOSTILE)
    code, out, shown = on_terminal([sys.executable, "hostile.py"], tmp_path, dsn)
    assert (code, out) == (0, "ready\n")
    assert "res]0;pwnizing" in shown
    assert "\x1b]0;" not in shown and "\x07" not in shown and "\u202e" not in shown
