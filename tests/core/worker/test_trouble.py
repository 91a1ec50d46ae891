"""Law: what fails twice running is a warning, what fails for a minute is an error that says what to type, and
what fails in a tick stops nothing else of it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import psycopg
import pytest

from pyengine import App, ctx
from pyengine.core.database.failure_log import FailureLog, OutageLog
from pyengine.errors import Unavailable

Connection = psycopg.Connection[tuple[Any, ...]]
logger = logging.getLogger("pyengine.test")


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The instant that troubles see, in a list of one."""
    now = [100.0]
    monkeypatch.setattr("pyengine.core.process.clock.monotonic", lambda: now[0])
    return now


def test_two_failures_are_a_warning_and_a_minute_an_error(
    now_s: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """Said once each, the error once a minute, and the end of it too; one failure is nothing."""
    trouble = FailureLog(logger, "turn")
    trouble.failed("once")
    trouble.succeeded()
    assert [one.levelno for one in caplog.records] == []
    for _ in range(1, 131):
        trouble.failed("no space")
        now_s[0] += 1
    trouble.succeeded()
    told = [(one.levelname, one.getMessage()) for one in caplog.records]
    assert [level for level, _ in told] == ["WARNING", "ERROR", "ERROR", "WARNING"]
    assert told[0][1] == "turn has failed twice: no space"
    assert told[1][1] == "turn has failed for 60 s, 61 times: no space; type: pyengine db status"
    assert told[3][1] == "turn works again, after 130 failures in 130.0 s"


def test_an_outage_is_a_warning_and_each_minute_an_error(
    now_s: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """However many connections fail; operations that fail because of it add nothing."""
    outage, trouble = OutageLog(logger), FailureLog(logger, "tick")
    for _ in range(65):
        for _ in range(3):
            outage.failed("no server")
        trouble.failed(Unavailable("no server"))
        now_s[0] += 1
    outage.ended("here")
    trouble.succeeded()
    outage.ended("here")
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("WARNING", "no server; waiting for it; type: pyengine db status"),
        ("ERROR", "no server, for 60 s now; type: pyengine db status"),
        ("WARNING", "connected to here again, after 65.0 s"),
    ]


@pytest.mark.parametrize(
    "part", ["_sweep_retention(p_now bigint) returns jsonb", "_ensure_partitions(p_now bigint) returns text"]
)
def test_a_part_of_the_tick_that_fails_stops_no_timer(
    dsn: str, conn: Connection, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    """Timers fire although retention raises, and although partitions cannot be made; both are warnings."""
    raises = (
        "begin return format('no room: %s', 1 / 0); end" if "jsonb" in part else "begin return 'no room'; end"
    )
    conn.execute(f"create or replace function durable.{part} language plpgsql as $${raises}$$".encode())
    app = App(dsn)

    @app.workflow
    async def naps() -> None:
        for _ in range(4):
            await ctx.sleep(0.01)

    async def main() -> None:
        async with app.worker(), app.client() as client:
            await (await client.start(naps)).result(timeout=60)
            while not any(one.levelno == logging.WARNING for one in caplog.records):
                await asyncio.sleep(0.05)

    with caplog.at_level(logging.WARNING, logger="pyengine.housekeeping"):
        asyncio.run(asyncio.wait_for(main(), 60))
    told = caplog.records[0].getMessage()
    assert "has failed twice" in told
    assert "division by zero" in told or "no room" in told


def tick_and_report(dsn: str, conn: Connection) -> None:
    """Run a worker until it has reported a tick."""
    conn.execute("select durable.set_setting('lease_ttl_ms', '200')")
    app = App(dsn)

    @app.workflow
    async def nothing() -> None: ...

    async def main() -> None:
        async with app.worker():
            while (
                conn.execute("select ticked_at from durable._workers where ticked_at > 0").fetchone() is None
            ):
                await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_worker_reports_its_ticks(dsn: str, conn: Connection) -> None:
    """Its row has the instant of its last success, as its heartbeat told."""
    tick_and_report(dsn, conn)
