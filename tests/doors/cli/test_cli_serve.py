"""``pyengine serve``: what it refuses, and what it says."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest

from pyengine.doors.cli import serve
from tests.doors.cli.conftest import Command
from tests.system.crash.processes import launch, stop


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "0.0.0.0"], "can be reached from other machines"),
        (["--host", "no.such.host.invalid"], "cannot be resolved"),
        (["--auth-key", "no-such-file"], "the key file no-such-file cannot be read"),
        (["--port", "70000"], "65535"),
        (["--max-body", "4096", "--max-bodies", "2048"], "all bodies together may have 2048 bytes"),
        (["--push-token", "no-such-file"], "the token for receivers in no-such-file cannot be read"),
        *(
            (["--public-url", url], f"'{url}' is no address of a gateway")
            for url in ("http://[", "http://", "gateway", "http://h:port", "http://h:99999", "http://u@h", "")
        ),
        (["--push-timeout", "inf"], "is no number of seconds"),
        (["--push-connect-timeout", "inf"], "is no number of seconds"),
        (["--push-private", "http://fn.example"], "is no host that messages may be pushed to"),
    ],
)
def test_options_that_cannot_be(at_database: Command, words: list[str], message: str) -> None:
    """A gateway that would serve everybody, or cannot serve, does not start: 2, and what to type instead."""
    answer = at_database("serve", *words)
    assert answer.code == 2, answer.err
    assert message in answer.err.replace("\n", " ")


def test_a_port_that_is_taken(at_database: Command) -> None:
    """Is named, with the option for another one."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        answer = at_database("serve", "--port", str(taken.getsockname()[1]))
    assert (answer.code, "cannot listen on 127.0.0.1" in answer.err, "--port" in answer.err) == (
        2,
        True,
        True,
    )


def test_without_a_database(pyengine: Command) -> None:
    """With --no-wait it ends at once with 4."""
    url = "postgresql://127.0.0.1:1/none"
    assert pyengine("serve", "--no-wait", "--database-url", url).code == 4


def test_without_the_extra(pyengine: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages that are missing are named, with the command that installs them."""
    monkeypatch.setattr(serve, "_NEEDED", ("starlette", "no_such_package"))
    answer = pyengine("serve")
    assert (answer.code, "no_such_package" in answer.err) == (2, True)
    assert "pip install 'pyengine-durable[serve]'" in answer.err


def test_what_it_says(dsn: str, tmp_path: Path) -> None:
    """Where it serves, as a document for programs; a signal ends it with 0. Passwords stay unsaid."""
    with (tmp_path / "log").open("wb") as log:
        process = launch(dsn, "-m", "pyengine", "serve", "--port", "0", "--json", talks=True, log=log)
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(5)]
            about = json.loads(b"".join(lines))
            assert about["process"] == process.pid
            assert about["url"].startswith("http://127.0.0.1:")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            stop(process)
