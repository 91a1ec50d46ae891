"""The shop: payment, approval, compensation, mail and report, while workers and the service are killed."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import psycopg
import pytest

from tests.system.crash.processes import environment, kill, stop, until, worker

APP = "tests.examples.shop.app:app"
Connection = psycopg.Connection[tuple[Any, ...]]


def free_port() -> int:
    """A port of loopback that nothing listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


@contextmanager
def served(dsn: str, module: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """An HTTP service in a process of its own: its address, once it answers, and the process."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", module, "--port", str(port), "--log-level", "warning"],
        env=environment(dsn),
    )
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert process.poll() is None
            with suppress(httpx.TransportError):
                httpx.get(f"{url}/openapi.json", trust_env=False)
                break
            time.sleep(0.05)
        yield url, process
    finally:
        stop(process)


@pytest.fixture
def bank(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The bank's service, its address in the environment of the workers."""
    with served(dsn, "tests.examples.shop.bank:api") as (url, _):
        monkeypatch.setenv("BANK_URL", url)
        yield url


def order(web: httpx.Client, item: str, amount: int) -> int:
    """Place an order and return its number."""
    answer = web.post("/orders", json={"item": item, "amount": amount})
    assert answer.status_code == 201, answer.text
    number: int = answer.json()["order"]
    return number


def test_orders_survive_the_death_of_the_worker_and_the_service(
    dsn: str, conn: Connection, bank: str
) -> None:
    """Four orders: one small, one approved, one refused, one cancelled. The worker and the service die while
    three of them wait; then each is shipped or undone, and each customer has paid once or got the money back.
    """
    with (
        served(dsn, "tests.examples.shop.web:api") as (url, service),
        httpx.Client(base_url=url, trust_env=False, timeout=60) as web,
        worker(dsn, job=APP) as first,
    ):
        conn.execute("insert into stock values ('tea', 3), ('piano', 3)")
        small, large, refused, cancelled = [
            order(web, item, amount)
            for item, amount in [("tea", 5), ("piano", 3000), ("piano", 4000), ("piano", 5000)]
        ]
        until(dsn, "select count(*) = 3 from durable.progress where named ->> 'waits' = 'for approval'")
        assert web.get(f"/orders/{large}").json() == {
            "state": "placed",
            "run": "waiting",
            "waits": "for approval",
        }
        kill(first)
        kill(service)
    with (
        served(dsn, "tests.examples.shop.web:api") as (url, _),
        httpx.Client(base_url=url, trust_env=False, timeout=60) as web,
        worker(dsn, job=APP),
    ):
        for number, approved in [(large, True), (refused, False)]:
            answer = web.post(f"/orders/{number}/decision", json={"approved": approved, "by": "Ada"})
            assert answer.status_code == 202
        assert web.delete(f"/orders/{cancelled}").status_code == 202
        until(dsn, "select count(*) = 0 from durable.live")
        assert web.get("/orders/99").status_code == 404
    assert conn.execute("select state from orders order by id").fetchall() == [
        ("shipped",),
        ("shipped",),
        ("cancelled",),
        ("cancelled",),
    ]
    assert conn.execute("select item, available from stock order by item").fetchall() == [
        ("piano", 2),
        ("tea", 2),
    ]
    assert conn.execute(
        "select order_id, amount, count(*), bool_or(refunded) from bank_charge group by 1, 2 order by 1"
    ).fetchall() == [
        (small, 5, 1, False),
        (large, 3000, 1, False),
        (refused, 4000, 1, True),
        (cancelled, 5000, 1, True),
    ]
    assert conn.execute("select order_id, text from outbox order by order_id").fetchall() == [
        (small, "tea is on its way"),
        (large, "piano is on its way"),
        (refused, "we cannot deliver this order"),
    ]
    states = conn.execute("select state from durable.runs order by id").fetchall()
    assert states == [("completed",), ("completed",), ("failed",), ("cancelled",)]


def test_the_report_of_a_night(dsn: str, conn: Connection, bank: str) -> None:
    """The schedule is recorded by a worker, and a night's run counts the day before it."""
    with served(dsn, "tests.examples.shop.web:api"):
        pass
    conn.execute(
        "insert into orders (item, amount, shipped_at) values "
        "('tea', 5, '2026-03-01T12:00Z'), ('tea', 5, '2026-03-01T01:00Z'), ('pie', 9, '2026-03-01T13:00Z')"
    )
    with worker(dsn, job=APP):
        until(dsn, "select exists (select from durable.schedules where id = 'nightly_report')")
        conn.execute(
            "select durable.start('nightly_report', '[\"2026-03-02T03:00:00+01:00\"]', id => 'report')"
        )
        until(dsn, "select state = 'completed' from durable.runs where id = 'report'")
    assert conn.execute("select text from outbox").fetchall() == [
        ("shipped until 2026-03-02 03:00: pie: 1, tea: 1",)
    ]
