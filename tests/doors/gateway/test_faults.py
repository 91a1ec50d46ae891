"""Law: no background task of a gateway dies unseen. Its error ends the process with a sentence, or ends the
stream whose client it can no longer hear."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from pyengine.core.database.listener import Listener
from pyengine.core.worker.ticker import Ticker
from pyengine.doors.gateway.config import GatewayConfig
from pyengine.doors.gateway.courier.courier import Courier, PushLimits
from pyengine.doors.gateway.courier.outbox import Outbox
from pyengine.doors.gateway.courier.pushes import Offer
from pyengine.doors.gateway.housekeeping import Housekeeping
from pyengine.doors.gateway.http_server import GatewayServer
from pyengine.doors.gateway.poller import Poller
from pyengine.doors.gateway.streams.event_streams import _StreamResponse
from tests.doors.gateway.http_client import EventStream
from tests.support.broken_parts import Fault, break_part
from tests.support.gateway import Gateway

PARTS: dict[str, tuple[type, str]] = {
    "polls": (Poller, "run"),
    "acknowledgments": (Courier, "_flush"),
    "claims": (Courier, "_renew"),
    "ticks": (Ticker, "_tick"),
    "reports of locks": (Housekeeping, "_report"),
    "the connection of hints": (Listener, "_reconnect"),
    "channels": (Listener, "_change_channels"),
    "hints": (Listener, "_send_hints"),
}


async def fault(*_: object, **__: object) -> NoReturn:
    """Fail."""
    raise Fault("a fault")


def causes(error: BaseException) -> list[type[BaseException]]:
    """The classes of an error and of those in it."""
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return [type(error), *(one for each in inner for one in causes(each))]


@pytest.mark.session("listens")
@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_fails_ends_the_gateway(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str, waits: bool
) -> None:
    """A block that waits for the server gets the error, and any other block fails with it."""
    break_part(monkeypatch, *PARTS[part])

    async def main() -> None:
        async with asyncio.timeout(30), GatewayServer(GatewayConfig(database_url=dsn, port=0)) as server:
            await (server.wait() if waits else asyncio.Event().wait())

    with pytest.raises(BaseException) as raised:  # noqa: PT011  of a group or alone
        asyncio.run(main())
    assert Fault in causes(raised.value)
    assert [one.getMessage() for one in caplog.records if "cannot go on" in one.getMessage()] == [
        "the gateway cannot go on; it stops"
    ]


def test_a_push_that_fails_by_a_fault_of_ours_ends_the_courier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its address would count as busy, and get nothing any more."""
    monkeypatch.setattr(Courier, "_send", fault)

    async def main() -> None:
        offer = Offer(address="http://x", id="a", version=1, retry_ms=1, headers={}, body=b"")

        class Full:
            async def due(self) -> list[str]:
                return ["http://x"]

            async def claim(self, rooms: object) -> list[Offer]:
                return [offer]

            async def flush(self) -> bool:
                return False

        class Closing:
            async def close(self) -> None:
                pass

        metrics = type("Metrics", (), {"gauge": lambda *_: None})()
        limits = PushLimits(per_address=2, in_all=4)
        courier = Courier(cast("Outbox", Full()), cast("Any", Closing()), metrics, limits)
        async with asyncio.timeout(30):
            await courier.run()

    with pytest.raises(BaseExceptionGroup) as raised:
        asyncio.run(main())
    assert Fault in causes(raised.value)


def test_a_stream_whose_client_is_not_heard_ends(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client sees the end of its stream, and may come again."""
    monkeypatch.setattr(_StreamResponse, "_watch", fault)
    with Gateway(dsn) as gateway, EventStream(gateway.url, "g", "p") as stream:
        assert stream.next() is None


PROGRAM = """
from pyengine.doors.cli import main
from pyengine.doors.gateway.courier.courier import Courier, PushLimits

async def fault(*_):
    raise ZeroDivisionError("a fault")

Courier._renew = fault
main()
"""


def test_the_process_ends_with_a_sentence(dsn: str, tmp_path: Path) -> None:
    """`pyengine serve` without its courier exits with 1, and says that it stops."""
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "program.py", "--database-url", dsn, "serve", "--port", "0"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "the gateway cannot go on; it stops" in ended.stderr
