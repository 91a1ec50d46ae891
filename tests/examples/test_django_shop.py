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

from pyengine.core.client.caller_connection import run_on_sync
from pyengine.core.database.statements.procedures import PAUSE
from pyengine.errors import InvalidRequest
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
