"""The server lets go too: of the statement of a process that is gone, and of sessions of vanished clients."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import psycopg
import pytest

from pyengine.core.client.psycopg_transport import PsycopgTransport
from pyengine.core.database.connection import Database
from pyengine.core.database.sessions import clean_session
from tests.system.crash.processes import kill, launch, stop, until

Connection = psycopg.Connection[tuple[object, ...]]

ROLES = ("turn", "side", "heartbeat", "listen", "work", "client", "adapters", "memos", "gateway", "check")
SHOWN = (
    "select name, source, unit, case when name not like 'tcp_%' then setting end as setting from pg_settings "
    "where name like 'tcp_%' or name = 'client_connection_check_interval'"
)
# through a socket of the file system those of TCP have no effect, and are shown as 0
WANTED = {
    ("client_connection_check_interval", "session", "ms", "2000"),
    ("tcp_keepalives_count", "session", None, None),
    ("tcp_keepalives_idle", "session", "s", None),
    ("tcp_keepalives_interval", "session", "s", None),
    ("tcp_user_timeout", "session", "ms", None),
}

TRANSACTING = """
from pathlib import Path
from pyengine import App, ctx

app = App()

@app.workflow
async def go() -> None:
    async with ctx.transaction() as tx:
        await tx.execute("select pg_sleep(600)")
"""

SLEEPING = (
    "select count(*) from pg_stat_activity "
    "where position('pg_sleep(600)' in query) > 0 and state <> 'idle' and pid <> pg_backend_pid()"
)


@pytest.mark.session("settings of sessions")
def test_each_session_notices_that_its_client_is_gone(dsn: str) -> None:
    """Sessions of every purpose, of both drivers, have the settings with which a server notices it."""

    async def main() -> dict[str, set[tuple[object, ...]]]:
        database = Database(dsn)
        await database.open()
        found = {}
        for role in ROLES:
            conn = await database.connect(role)
            found[role] = {tuple(row) for row in await conn.fetch(SHOWN)}
            if role == "work":
                assert await clean_session(conn)
                assert {tuple(row) for row in await conn.fetch(SHOWN)} == WANTED
            await conn.close()
        return found

    assert asyncio.run(main()) == dict.fromkeys(ROLES, WANTED)
    transport = PsycopgTransport(dsn, 1)
    asyncio.run(transport.open())
    with transport._taken() as conn:
        rows = conn.execute(SHOWN.encode()).fetchall()
    asyncio.run(transport.close())
    assert {tuple(row.values()) for row in rows} == WANTED


@pytest.mark.session("the server looks at the connection of a process")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_a_worker_ends_its_transaction(
    how: signal.Signals, dsn: str, conn: Connection, tmp_path: Path
) -> None:
    """Its statement does not go on with the locks of its rows, however the worker ends."""
    (tmp_path / "transacting.py").write_text(TRANSACTING)
    conn.execute("select durable.start('go', '[]', any_workflow => true)")
    process = launch(dsn, "-m", "pyengine", "worker", "transacting:app", folder=tmp_path)
    try:
        until(dsn, SLEEPING.replace("count(*)", "count(*) = 1"))
        if how is signal.SIGKILL:
            kill(process)
        else:
            process.send_signal(how)
            process.wait(30)
        until(dsn, SLEEPING.replace("count(*)", "count(*) = 0"))
    finally:
        stop(process)
