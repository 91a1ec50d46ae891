"""Law: statements of other sessions are in the log of a worker without their values, and what is in its way
with what ends it.
"""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from pyengine import App
from pyengine.core.worker.blocked_runs import Holder


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("select durable.signal('r', 'pay', '{\"card\": \"4111\"}')", "select durable.signal(..."),
        ("update t1 set a1 = 4111 where b = 2", "update t1 set a1 = ..."),
        ("select E'4111'", "select E..."),
        ("select $secret$4111$secret$", "select ..."),
        ("select f($1, $2)", "select f($1, $2)"),
        ('update "4111" set a = -4111', 'update "...'),
        ("commit -- 4111", "commit ..."),
        ("/* 4111 */ commit", "..."),
        ("select .4111, x.4111", "select ..."),
        ("lock table durable._tasks", "lock table durable._tasks"),
        ("", "not shown to this role (pg_read_all_stats)"),
    ],
)
def test_no_value_of_a_statement_is_in_the_log(query: str, shown: str) -> None:
    """The statement of the other session is shown up to its first literal: what follows may be a payload."""
    holder = Holder(id="r", pid=1, user="u", state="active", age_ms=0, query=query)
    assert f"whose last statement is: {shown}. To end it" in str(holder)


def test_a_prepared_transaction_keeps_a_worker_from_its_start(
    dsn: str, direct: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that waits for a table names the prepared transaction that has locked it, once; then it
    starts.
    """
    app = App(dsn)

    @app.workflow
    async def hello() -> str:
        return "hello"

    async def main(conn: psycopg.Connection[tuple[object, ...]], gid: str) -> None:
        async def end() -> None:
            while f"rollback prepared '{gid}'" not in caplog.text:
                await asyncio.sleep(0.01)
            conn.execute(f"rollback prepared '{gid}'".encode())

        ends = asyncio.create_task(end())
        async with app.worker():
            await ends

    with psycopg.connect(direct) as user, psycopg.connect(direct, autocommit=True) as conn:
        gid = f"users of {user.info.dbname}"
        user.execute("lock table durable._workers in access exclusive mode")
        user.execute(f"prepare transaction '{gid}'".encode())
        try:
            asyncio.run(asyncio.wait_for(main(conn, gid), 60))
        finally:
            left = conn.execute("select gid from pg_prepared_xacts where gid = %s", (gid,)).fetchall()
            if left:
                conn.execute(f"rollback prepared '{gid}'".encode())
    assert caplog.text.count("waits to start: table _workers is locked by the prepared transaction") == 1
