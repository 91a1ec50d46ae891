"""The FastAPI example: an endpoint starts a run in the transaction of its session, a worker serves beside."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import psycopg
import pytest
import uvicorn

Connection = psycopg.Connection[tuple[Any, ...]]

SHOP = Path(__file__).parent / "fastapi_shop.py"


def imported(dsn: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example, imported anew with the test's database in its environment."""
    monkeypatch.setenv("DATABASE_URL", dsn)
    spec = importlib.util.spec_from_file_location("tests.examples.fastapi_shop", SHOP)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_an_order_and_its_run_come_together(
    dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a real server, a request that is answered has left its order and its run, which the worker of
    the same process takes to its end; one that found nothing left has left neither.
    """
    shop = imported(dsn, monkeypatch)

    async def main() -> None:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            server = uvicorn.Server(uvicorn.Config(shop.api, log_level="warning"))
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            while not server.started:
                assert not serving.done()
                await asyncio.sleep(0.01)
            conn.execute("insert into stock values ('tea', 1)")
            async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as browser:
                await use(browser)
            server.should_exit = True
            await serving

    async def use(browser: httpx.AsyncClient) -> None:
        answer = await browser.post("/orders", json={"item": "tea"})
        assert (answer.status_code, answer.json()) == (201, {"order": 1, "run": "order-1"})
        again = await browser.post("/orders", json={"item": "tea"})
        assert (again.status_code, again.json()) == (409, {"detail": "no tea left"})
        assert (await browser.get("/orders/1/parcel")).json() == "parcel 1"
        assert (await browser.get("/orders/1")).json() == {"item": "tea", "state": "completed"}
        assert (await browser.get("/orders/2")).status_code == 404
        stand = (await browser.get("/orders/1/run")).json()
        assert stand["state"] == "completed"
        assert all(isinstance(sentence, str) for sentence in stand["why"])
        unknown = await browser.get("/orders/2/run")
        assert (unknown.status_code, "order-2" in unknown.json()["detail"]) == (404, True)
        ended = await browser.post("/orders/1/redrive")
        assert (ended.status_code, list(ended.json())) == (409, ["detail"])

    asyncio.run(main())
    assert conn.execute("select id, run_id from orders").fetchall() == [(1, "order-1")]
    assert conn.execute("select id from durable.runs").fetchall() == [("order-1",)]
