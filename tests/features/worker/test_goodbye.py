"""The goodbye of an adapter worker is its last word, as that of a worker."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from pyengine.features.calls.adapter_process import Adapter
from pyengine.features.calls.adapter_worker import AdapterWorker
from pyengine.features.calls.program_executor import ProgramExecutor
from tests.core.worker.test_goodbye import SLOW, left, writes

Connection = psycopg.Connection[tuple[object, ...]]


@pytest.mark.session("sessions are counted")
def test_a_hello_under_way_is_no_last_word(dsn: str, conn: Connection) -> None:
    """An adapter worker that stops while it shows that it is there is not registered after it."""
    conn.execute(SLOW.format("update"))
    conn.execute("select durable.set_setting('lease_ttl_ms', '1000')")

    async def main() -> None:
        async with AdapterWorker([ProgramExecutor([Adapter(name="x", path="/bin/true")])], dsn):
            await writes(conn)

    asyncio.run(main())
    assert left(conn) == []
