"""The Django example: a view starts a run in the transaction of its request."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import django
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from pyengine import App
from pyengine.core.client.caller_connection import run_on_sync
from pyengine.core.database.statements.procedures import PAUSE
from pyengine.errors import InvalidRequest
from pyengine.features.frameworks.connections import as_requests
from pyengine.sync import Client

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.examples.django_shop.settings")
django.setup()

from django.db import connection, connections, transaction  # noqa: E402
from django.test import Client as Browser  # noqa: E402

from tests.examples.django_shop import models, views, workflows  # noqa: E402

Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def shop(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
    """A browser before the shop, whose tables stand in the test's database."""
    url = conninfo_to_dict(dsn)
    place = {"NAME": url["dbname"], "USER": url["user"], "HOST": url["host"], "PORT": url["port"]}
    for key, value in place.items():
        monkeypatch.setitem(connections["default"].settings_dict, key, value)
    with connection.schema_editor() as editor:
        editor.create_model(models.Stock)
        editor.create_model(models.Order)
        editor.execute(
            'alter table django_shop_order alter run_id type text collate "C", '
            "add foreign key (run_id) references durable._promises (id) on delete set null"
        )
    models.Stock.objects.create(item="tea", left=1)
    with Client(dsn, registry=workflows.app.registry) as client:
        monkeypatch.setattr(views, "client", client)
        yield Browser(raise_request_exception=True)
    connections.close_all()


def serve_until_done(dsn: str, run_id: str) -> None:
    """Run a worker until a run has ended."""
    workflows.app.use_database(dsn)

    async def main() -> None:
        async with workflows.app.worker(), workflows.app.client() as client:
            await client.run(run_id).result(timeout=60)

    asyncio.run(main())


def test_an_order_and_its_run_come_together(shop: Browser, dsn: str, conn: Connection) -> None:
    """A request that is answered has left its order, its run and its change of the stock; one that found
    nothing left has left none of them.
    """
    answer = shop.post("/orders", {"item": "tea"}, content_type="application/json")
    assert (answer.status_code, answer.json()) == (201, {"order": 1, "run": "order-1"})
    assert shop.get("/orders/1").json() == {"item": "tea", "state": "queued", "result": None}
    again = shop.post("/orders", {"item": "tea"}, content_type="application/json")
    assert (again.status_code, again.json()) == (409, {"error": "no tea left"})
    assert conn.execute("select id from durable._promises").fetchall() == [("order-1",)]
    assert models.Order.objects.count() == 1
    serve_until_done(dsn, "order-1")
    assert shop.get("/orders/1").json() == {"item": "tea", "state": "completed", "result": "parcel 1"}


def test_an_order_is_cancelled_with_its_run(shop: Browser) -> None:
    """The run is cancelled and the item goes back in one transaction."""
    shop.post("/orders", {"item": "tea"}, content_type="application/json")
    assert shop.post("/orders/1/cancel").json() == {"state": "cancelled"}
    assert shop.get("/orders/1").json()["state"] == "cancelled"
    assert models.Stock.objects.get().left == 1


def test_a_nested_block_is_undone_alone(shop: Browser, conn: Connection) -> None:
    """An atomic block inside another one is a savepoint, for runs too; outside of any block each start is a
    transaction of its own.
    """
    with transaction.atomic():
        views.client.start("fulfil", 1, id="outer", conn=connection)
        with suppress(views.SoldOut), transaction.atomic():
            views.client.start("fulfil", 1, id="inner", conn=connection)
            raise views.SoldOut
    views.client.start("fulfil", 1, id="alone", conn=connection)
    assert sorted(conn.execute("select id from durable.runs")) == [("alone",), ("outer",)]


def test_other_databases_of_django_are_refused() -> None:
    """A Django connection that is not over psycopg 3 is refused by name."""
    from django.db.backends.sqlite3.base import DatabaseWrapper

    other = DatabaseWrapper({**connections["default"].settings_dict, "NAME": ":memory:"}, "other")
    with pytest.raises(InvalidRequest, match="sqlite3"):
        run_on_sync(other, PAUSE, "a")
    other.close()


@pytest.mark.parametrize("lasts", [0, None])
def test_a_thread_does_what_a_request_does(
    shop: Browser, dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch, lasts: int | None
) -> None:
    """Around each `def` step and memo function the connections of its thread are treated as around a
    request (D026): with CONN_MAX_AGE=0 none is left, and one that the database has cut is opened again.
    """
    settings = connections["default"].settings_dict
    monkeypatch.setitem(settings, "CONN_MAX_AGE", lasts)
    monkeypatch.setitem(settings, "CONN_HEALTH_CHECKS", True)
    monkeypatch.setitem(settings, "OPTIONS", {"application_name": "threads"})
    app = App(dsn)

    kept: list[bool] = []

    @app.step
    def count() -> int:
        kept.append(connection.connection is not None)
        return int(models.Stock.objects.count())

    @app.memo(version="1")
    def counted(turn: int) -> int:
        kept.append(connection.connection is not None)
        return int(models.Stock.objects.count()) + turn

    @app.workflow
    async def both(turn: int) -> int:
        return await count() + await counted(turn)

    sessions = (
        "select pid from pg_stat_activity where application_name = 'threads' and datname = current_database()"
    )

    async def main() -> None:
        async with app.worker(threads=1), app.client() as client:
            for turn in range(3):
                run = await client.start(both, turn)
                assert await run.result(timeout=60) == 2 + turn
                for (pid,) in conn.execute(sessions).fetchall():
                    # it has gone when this returns
                    conn.execute("select pg_terminate_backend(%s, 60000)", (pid,))

    asyncio.run(main())
    assert kept == [False, False, *[lasts is None] * 4]
    assert conn.execute("select distinct attempt from durable._journal where attempt > 1").fetchall() == []


def test_what_django_raises_is_no_outcome(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A function whose thread cannot be tidied keeps its own outcome, and a line says so."""
    monkeypatch.setattr("django.db.close_old_connections", lambda: 1 / 0)
    with as_requests():
        done = True
    assert done
    assert [record.getMessage() for record in caplog.records] == [
        "django's close_old_connections failed in a thread of steps: division by zero"
    ] * 2
