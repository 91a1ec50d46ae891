"""How what a program does reaches the engine: the protocol's envelope for requests, plain calls for what is
not on the wire.

What lives here: the engine behind the same shape that the model has, one step in one transaction and one
round trip: the clock is set, the request is asked, the tables are read. May not: know what the right answer
is.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from tests.support.verbs import Connection
from tests.system.model.programs import Step
from tests.system.model.state import Json, State
from tests.system.model.tables import READ, state_of

VERSION = "2026-04-01"
TABLES = ("_promises", "_tasks", "_resumes", "_callbacks", "_listeners", "_unblocks")
FRESH = 50
SET_CLOCK = "update test_clock.instant set now_ms = %s"
RPC = "select durable.rpc(%s::jsonb)"
# delivery and time: (statement, names of its parameters, name of the answer)
CALLS: dict[str, tuple[str, Sequence[str], str]] = {
    "tick": ("select durable.tick()", (), ""),
    "task.offer": (
        "select coalesce(json_agg(json_build_array(o.id, o.version)), '[]') "
        "from durable.task_offer(%s, %s) o",
        ("queue", "limit"),
        "tasks",
    ),
    "unblock.claim": (
        "select coalesce(json_agg(json_build_array(u.promise_id, u.address, u.attempt, "
        "durable.wire_promise(u.promise))), '[]') from durable.unblock_claim(%s, 1000, %s) u",
        ("address", "ttl"),
        "messages",
    ),
    "unblock.acknowledge": (
        "select to_json(durable.unblock_acknowledge(%s, %s))",
        ("promiseId", "address"),
        "known",
    ),
}


class Engine:
    """The engine in one database whose clock the fixture `clock` has replaced."""

    def __init__(self, conn: Connection, like: State) -> None:
        self._conn = conn
        self._like = like
        self._numbers = itertools.count()
        self._cleared = itertools.count()
        conn.execute("select durable.set_setting('conformance', %s)", (like.profile,))
        conn.execute("select durable.set_setting('retry_offer_ms', %s)", (str(like.retry_offer_ms),))

    def clear(self) -> None:
        """Empty all tables; now and then also of what deleted rows left behind."""
        names = [f"durable.{name}" for name in TABLES]
        if next(self._cleared) % FRESH == 0:
            self._conn.execute(f"truncate {', '.join(names)}".encode())
        else:
            self._conn.execute("; ".join(f"delete from {name}" for name in names).encode())

    def play(self, step: Step) -> tuple[Json, State]:
        """What the engine answers to a step, and its tables afterwards."""
        number = f"c{next(self._numbers)}"
        with self._conn.pipeline():
            self._conn.execute(SET_CLOCK, (step.now,))
            asked = None
            if step.kind in CALLS:
                text, names, _ = CALLS[step.kind]
                data = step.request["data"] if step.request else {}
                asked = self._conn.execute(text.encode(), [data[name] for name in names])
            elif step.request is not None:
                asked = self._conn.execute(RPC, (json.dumps(envelope(step.request, number)),))
            read = self._conn.execute(READ)
        tables = read.fetchone()
        assert tables is not None
        answer = asked.fetchone() if asked is not None else (None,)
        assert answer is not None
        return _answer(step, answer[0], number), state_of(tables[0], self._like)

    def broken_laws(self) -> list[tuple[Any, ...]]:
        """Rows of durable.check()."""
        return self._conn.execute("select * from durable.check()").fetchall()


def envelope(request: Json, number: str) -> Json:
    """A request as it travels: with a head, and heads for the requests inside it."""
    data = request["data"]
    if isinstance(data.get("action"), dict):
        data = {**data, "action": _headed(data["action"], number)}
    if isinstance(data.get("actions"), list):
        data = {**data, "actions": [_headed(each, number) for each in data["actions"]]}
    headed: Json = _headed({**request, "data": data}, number)
    return headed


def _headed(request: Any, number: str) -> Any:
    head = {"corrId": number, "version": VERSION}
    return {**request, "head": head} if isinstance(request, dict) else request


def _answer(step: Step, answer: Any, number: str) -> Json:
    """The engine's answer in the model's shape."""
    if step.tick:
        found: Json = {name: answer[name] for name in ("promises", "leases", "next_due_ms", "more")}
        return {**found, "hints": sorted(answer["hints"])}
    if step.request is None:
        return {}
    if step.kind in CALLS:
        return {"status": 200, "data": {CALLS[step.kind][2]: answer}}
    status = _status(answer, step.request["kind"], number)
    data: Json = answer["data"]
    if step.kind == "task.fence" and status == 200:
        inner = data["action"]
        inner_status = _status(inner, step.request["data"]["action"]["kind"], number)
        data = {**data, "action": {"kind": inner["kind"], "status": inner_status, "data": inner["data"]}}
    return {"status": status, "data": data}


def _status(answer: Json, kind: str, number: str) -> int:
    """The status of an envelope whose other parts are as they must be."""
    assert answer.keys() == {"kind", "head", "data"}, answer
    assert answer["kind"] == kind, answer
    status = answer["head"]["status"]
    assert answer["head"] == {"corrId": number, "status": status, "version": VERSION}, answer
    assert isinstance(answer["data"], str if status >= 400 else dict), answer
    return int(status)
