"""Law: the receiver of docs/how-to/push.md, a program without an SDK, does what its page says."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import Popen

from tests.conftest import Connection
from tests.doors.gateway.http_client import Client
from tests.doors.gateway.test_killed import free_port
from tests.doors.gateway.test_push import Opened
from tests.doors.gateway.test_push import pushing as pushing
from tests.examples.pages import Page
from tests.system.crash.processes import stop, until


def test_the_receiver_of_the_page(conn: Connection, dsn: str, pushing: Opened, tmp_path: Path) -> None:
    """It acquires and fulfils the task that is pushed to it."""
    program = Page("docs/how-to/push.md").block("python", "A receiver")
    (tmp_path / "receiver.py").write_text(program)
    port = free_port()
    process = Popen([sys.executable, str(tmp_path / "receiver.py"), str(port)])
    try:
        with Client(pushing().url) as client:
            client.create("thumbnail-7", f"http://127.0.0.1:{port}/resize")
            until(dsn, "select state = 'resolved' from durable.promises where id = 'thumbnail-7'")
    finally:
        stop(process)
