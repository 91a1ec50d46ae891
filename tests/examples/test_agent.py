"""The agent: tools in parallel, a person who allows, and a worker that is killed while the person thinks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.examples.agent.model import Model
from tests.system.crash.processes import kill, start, until, worker

APP = "tests.examples.agent.app:app"
TASK = "Get me from Ulm to Bonn, and tell me the weather there."
Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    """The model, served on loopback, its address in the environment of the workers."""
    with Model(0) as server:
        monkeypatch.setenv("MODEL_URL", server.url)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("allowed", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_person_decides_while_the_worker_is_dead(
    dsn: str, conn: Connection, model: Model, allowed: bool
) -> None:
    """The answer is the same as without the kill, and the model is asked once for each turn."""
    with worker(dsn, job=APP) as first:
        start(dsn, "trip", "assist", json.dumps([TASK]))
        until(dsn, "select durable.get_value('trip', 'question') is not null")
        kill(first)
    assert conn.execute("select durable.get_value('trip', 'question')").fetchone() == (
        "book the 8:15 Ulm to Bonn?",
    )
    assert conn.execute("select done, total, note from durable.progress where id = 'trip'").fetchone() == (
        1,
        10,
        "uses book",
    )
    answer = json.dumps({"allowed": allowed, "reason": "too early"})
    conn.execute("select durable.signal('trip', 'verdict', %s::jsonb)", (answer,))
    with worker(dsn, job=APP):
        until(dsn, "select state = 'completed' from durable.runs where id = 'trip'")
    (found,) = conn.execute("select value #>> array[]::text[] from durable.result('trip')").fetchone() or (
        "",
    )
    trains, weather, mistake, booking = found.split(" | ")
    assert "8:15 Ulm to Bonn" in trains and weather == "Bonn: 14 degrees"
    assert mistake.startswith("failed: ") and "city" in mistake
    assert booking.startswith("ticket trip.") if allowed else booking == "not allowed: too early"
    assert model.asked == [1, 5, 7]
