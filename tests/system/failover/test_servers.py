"""Law: a URL may name the servers of a cluster, and an address may lead from one to another. Whoever needs to
write finds the primary, whichever driver looks for it, and whatever the others do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyengine import Client
from pyengine.core.database.connection import Database
from pyengine.core.database.error_mapping import refuses
from pyengine.core.servers import Servers, libpq_url
from pyengine.doors.admin import migrate
from pyengine.errors import EngineError, Unavailable
from pyengine.sync import Client as SyncClient
from tests.system.failover import trail
from tests.system.failover.cable import Cable
from tests.system.failover.nodes import Node, nodes, url
from tests.system.failover.work import until, worker

ONE_BY_ONE = [
    ("postgresql:///shop", ["postgresql:///shop"]),
    ("postgresql://u:p@a:1/shop?sslmode=require", ["postgresql://u:p@a:1/shop?sslmode=require"]),
    ("postgresql://a,b", ["postgresql://a/", "postgresql://b/"]),
    ("postgresql://u:p%2C@a:1,b/shop", ["postgresql://u:p%2C@a:1/shop", "postgresql://u:p%2C@b/shop"]),
    ("postgresql://[::1]:1,[::2]/s?user=y", ["postgresql://[::1]:1/s?user=y", "postgresql://[::2]/s?user=y"]),
    (
        "postgresql:///s?host=/a,/b&port=1,2",
        ["postgresql:///s?host=/a&port=1", "postgresql:///s?host=/b&port=2"],
    ),
    ("postgresql:///s?host=a,b&port=1", ["postgresql://a:1/s", "postgresql://b:1/s"]),
    ("postgresql://a:1/s?connect_timeout=3&keepalives_idle=9", ["postgresql://a:1/s"]),
    (
        "postgresql://a,b/s?target_session_attrs=prefer-standby",
        [
            f"postgresql://{host}/s?target_session_attrs={kind}"
            for kind in ("standby", "any")
            for host in "ab"
        ],
    ),
]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server is named by the environment."""
    for name in ("PGHOST", "PGPORT", "PGTARGETSESSIONATTRS", "PGCONNECT_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Node, Node]]:
    """A primary with the schema, and its standby."""
    with nodes(2) as (primary, standby):
        primary.start()
        migrate.install(primary.dsn())
        primary.ask(trail.LEDGER)
        standby.follow(primary)
        primary.waits_for_standby(True)
        primary.ask("select from durable.promise_create('known', 9007199254740991)")
        primary.waits_for_standby(False)
        yield primary, standby


@pytest.mark.parametrize(("dsn", "expected"), ONE_BY_ONE)
def test_each_server_of_a_url_has_a_url(dsn: str, expected: list[str]) -> None:
    """With its host and port and everything else of the URL, but not what only libpq understands."""
    assert list(Servers(dsn).in_order()) == expected


def test_the_last_server_that_served_is_tried_first() -> None:
    """All others keep their order; where standbys are preferred, nothing changes."""
    servers = Servers("postgresql://a,b,c/s")
    servers.served("postgresql://b/s")
    assert servers.in_order() == ("postgresql://b/s", "postgresql://a/s", "postgresql://c/s")
    preferring = Servers("postgresql://a,b/s?target_session_attrs=prefer-standby")
    before = preferring.in_order()
    preferring.served(before[-1])
    assert preferring.in_order() == before


def test_several_servers_mean_the_primary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the URL or the environment says which kind is meant."""
    assert libpq_url("postgresql://a,b/s") == "postgresql://a,b/s?target_session_attrs=primary"
    assert libpq_url("postgresql:///s?host=a,b") == "postgresql:///s?host=a,b&target_session_attrs=primary"
    for other in ("postgresql://a/s", "postgresql://a,b/s?target_session_attrs=any", "host=a,b dbname=s"):
        assert libpq_url(other) == other
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "standby")
    assert libpq_url("postgresql://a,b/s") == "postgresql://a,b/s"
    monkeypatch.setenv("PGHOST", "c,d")
    monkeypatch.setenv("PGPORT", "1,2")
    assert Servers("postgresql:///s").in_order() == ("postgresql://c:1/s", "postgresql://d:2/s")


def test_time_limits() -> None:
    """One of several servers has less time than a server alone; the URL may say how much."""
    assert Servers("postgresql://a,b/s").timeout_s < Servers("postgresql://a/s").timeout_s
    assert Servers("postgresql://a,b/s?connect_timeout=7").timeout_s == 7
    assert Servers("postgresql://a/s?connect_timeout=0").timeout_s == 10


def test_a_refusal_by_one_of_several_is_not_permanent() -> None:
    """The others may come back."""
    down = 'connection to server at "a", port 1 failed: Connection refused'
    no = 'connection to server at "b", port 2 failed: FATAL: password authentication failed'
    several = (
        "Multiple connection attempts failed. All failures were:\n- host: 'a', port: '1': {}\n- host: 'b': {}"
    )
    assert refuses(no)
    assert not refuses(down)
    assert refuses(f"{no}\n{several.format(no, no)}")
    assert not refuses(f"{no}\n{several.format(down, no)}")


@pytest.mark.parametrize("standby_first", [True, False])
def test_every_driver_finds_the_primary(pair: tuple[Node, Node], standby_first: bool) -> None:
    """Wherever it stands in the list: the worker's connections, both clients, the installer."""
    dsn = url(*(reversed(pair) if standby_first else pair))

    async def main() -> bool:
        async with Client(dsn) as client:
            await client.promises.create("by-asyncpg-" + str(standby_first), timeout="1h")
        database = Database(dsn)
        await database.open()
        conn = await database.connect("turn")
        return bool(await conn.fetchval("select pg_is_in_recovery()"))

    assert asyncio.run(main()) is False
    with SyncClient(dsn) as client:
        client.promises.create("by-psycopg-" + str(standby_first), timeout="1h")
    assert migrate.install(dsn).changed is False


def test_a_server_that_never_answers_is_passed_over(pair: tuple[Node, Node]) -> None:
    """A machine that is switched off answers nothing, not even a refusal."""
    primary, _ = pair
    with Cable(primary) as silent, Cable(primary) as works:
        silent.silent = True
        hosts = ",".join(":".join(cable.place) for cable in (silent, works))
        dsn = f"postgresql://postgres@{hosts}/postgres?connect_timeout=2"

        async def main() -> None:
            async with Client(dsn) as client:
                assert (await client.promises.get("known")).id == "known"

        asyncio.run(main())
        with SyncClient(dsn) as client:
            assert client.promises.get("known").id == "known"


def test_a_client_reads_from_a_standby_that_it_names(pair: tuple[Node, Node]) -> None:
    """Alone in its URL, or by target_session_attrs. To write it needs the primary, and the error says so."""
    primary, standby = pair
    for dsn in (standby.dsn(), url(primary, standby, target_session_attrs="standby")):

        async def main(dsn: str) -> None:
            async with Client(dsn) as client:
                assert (await client.promises.get("known")).id == "known"
                with pytest.raises(Unavailable, match="is a standby, which only reads"):
                    await client.promises.create("never", timeout="1h")

        asyncio.run(main(dsn))
        with SyncClient(dsn) as client:
            assert client.promises.get("known").id == "known"
            with pytest.raises(Unavailable, match="is a standby, which only reads"):
                client.promises.create("never", timeout="1h")


def test_no_server_that_serves_is_an_error_with_all_reasons(pair: tuple[Node, Node]) -> None:
    """Each server has its reason, and no password is in it."""
    _, standby = pair
    with Cable(standby) as cable:
        host, port = cable.place
        dsn = f"postgresql://postgres:geheim@127.0.0.1:1,{host}:{port}/postgres"

        async def main() -> None:
            await Database(dsn).open()

        with pytest.raises(Unavailable) as caught:
            asyncio.run(main())
    assert "127.0.0.1:1 cannot be reached" in caught.value.message
    assert f"{port} is a standby, which only reads" in caught.value.message
    assert "geheim" not in str(caught.value)
    with pytest.raises(EngineError, match="refuses"):
        asyncio.run(Database(f"{standby.dsn('nowhere')}").open())


def test_a_worker_whose_address_leads_to_a_standby_waits_for_the_primary(
    pair: tuple[Node, Node], tmp_path: Path
) -> None:
    """An address may lead to a standby for a while. The worker keeps no connection to it, so it is at work as
    soon as the address leads to the primary."""
    primary, standby = pair
    log, file = tmp_path / "log", tmp_path / "trail"
    primary.ask("select durable.start('side', '[\"x\"]', id => 'moved', any_workflow => true)")
    with Cable(standby) as address, worker(address.dsn, file, log):
        until(lambda: "is a standby, which only reads" in log.read_text())
        address.node = primary
        moved = "select state = 'completed' from durable.runs where id = 'moved'"
        until(lambda: primary.ask(moved) == [(True,)])
    assert trail.broken_laws(primary.dsn()) == []
