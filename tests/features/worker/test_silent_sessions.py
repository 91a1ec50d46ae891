"""Law: time that passes on a session which the network has lost without a word is not a step's time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pyengine import App, ctx
from pyengine.core.database import sessions
from pyengine.errors import RunFailed, StepTimeout
from pyengine.features.sql.sql_step_runner import SqlStepRunner
from tests.system.failover.cable import Cable

Connection = psycopg.Connection[tuple[Any, ...]]


class Socket(NamedTuple):
    """Where the server of the tests is."""

    place: tuple[str, str]


@pytest.fixture
def cable(direct: str) -> Iterator[Cable]:
    """A cable to the server of the tests."""
    told = conninfo_to_dict(direct)
    with Cable(Socket((str(told["host"]), str(told["port"])))) as cable:
        yield cable


def called(conn: Connection) -> int:
    """How often the user's function was called."""
    row = conn.execute("select case when is_called then last_value else 0 end from calls").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.session("the cable leads to the server")
@pytest.mark.parametrize("losses", [1, 3])
def test_a_session_lost_under_a_step_in_sql(
    direct: str, conn: Connection, cable: Cable, monkeypatch: pytest.MonkeyPatch, losses: int
) -> None:
    """The statement of a step is sent into a lost session: after its time limit the function is called on
    another one, with all of its time. Only if that goes on, the step has taken too long.
    """
    conn.execute("create sequence calls")
    conn.execute("create function count_call() returns bigint language sql as $$ select nextval('calls') $$")
    monkeypatch.setattr(sessions, "_ANSWERS_S", 0.1)
    true, tries = SqlStepRunner.execute, 0

    async def losing(self: SqlStepRunner, link: Any, *given: Any) -> str:
        nonlocal tries
        tries += 1
        if tries <= losses:
            transport = (await link.connected())._transport
            cable.lose(transport.get_extra_info("sockname")[1])
        return await true(self, link, *given)

    monkeypatch.setattr(SqlStepRunner, "execute", losing)
    name = conninfo_to_dict(direct)["dbname"]
    limit = "2s" if losses == 1 else "0.2s"
    app = App(cable.dsn.removesuffix("postgres") + str(name))

    @app.workflow
    async def counts() -> int:
        return int(await ctx.sql("public.count_call", timeout=limit))

    async def main() -> Any:
        async with app.worker(), app.client() as client:
            return await (await client.start(counts)).result(timeout=60)

    if losses == 1:
        assert asyncio.run(main()) == 1
    else:
        with pytest.raises(RunFailed) as found:
            asyncio.run(main())
        assert isinstance(found.value.__cause__, StepTimeout)
    assert (tries, called(conn)) == ((2, 1) if losses == 1 else (3, 0))
