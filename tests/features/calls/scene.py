"""The words of tests of calls: values, calls, leases, and reports of an adapter that the test plays.

Nothing here asserts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.rows import TupleRow

Connection = psycopg.Connection[TupleRow]
F = "dml+exec://fake/f"
TTL_MS = 15_000
# past the checks of promise_create, which refuses the ids of attempts and claims
MAKE_PROMISE = (
    'select durable._insert_promise((%s, durable._never(), null, null, \'{"resonate:external": "true"}\','
    " null)::durable._new_promise, null, null, durable._now_ms())"
)


@dataclass(slots=True)
class Scene:
    """A database with scopes, seen by one session.

    Args:
        conn: the session.
        polls: documents that the adapter was run with, in their order.
    """

    conn: Connection
    polls: list[dict[str, Any]] = field(default_factory=list)

    def one(self, query: str, *parameters: Any) -> Any:
        """First column of the first row."""
        row = self.conn.execute(query.encode(), parameters or None).fetchone()
        return None if row is None else row[0]

    def all(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """All rows."""
        return self.conn.execute(query.encode(), parameters or None).fetchall()

    def scope(self, *names: str) -> None:
        """Open scopes."""
        for name in names:
            self.one("select version from durable.scope_open(%s)", name)

    def literal(self, value: Any) -> bytes:
        """The node of a value."""
        return bytes(self.one("select durable.literal(%s)", json.dumps(value)))

    def dag(self, value: Any) -> bytes:
        """A DAG whose root is a value."""
        return bytes(self.one("select durable.dag_put(%s)", self.literal(value)))

    def begin(
        self, inputs: Sequence[Any] = (1,), *, scope: str = "s", function: str = F, **options: Any
    ) -> dict[str, Any]:
        """Call a function with values, or with nodes where bytes are given."""
        nodes = [value if isinstance(value, bytes) else self.literal(value) for value in inputs]
        named = {"scope": scope, "function": function, "inputs": nodes, **options}
        text = ", ".join(f"{name} => %s" for name in named)
        values = [json.dumps(value) if isinstance(value, dict) else value for value in named.values()]
        answer: dict[str, Any] = self.one(f"select durable.call_begin({text})", *values)
        return answer

    def lease(
        self, worker: str = "W", adapters: Sequence[str] = ("fake",), most: int = 100, ttl: int = TTL_MS
    ) -> list[dict[str, Any]]:
        """Lease what is due."""
        got = self.all(
            "select * from durable.call_lease_v1(%s, %s, %s, %s)", worker, list(adapters), ttl, most
        )
        documents = [row[0] for row in got]
        self.polls += [each for each in documents if each["op"] == "poll" and each["phase"] == "poll_adapter"]
        return documents

    def report(self, document: dict[str, Any], **report: Any) -> str:
        """Report on a leased attempt."""
        key = bytes.fromhex(document["execution_key"])
        state: str = self.one(
            "select durable.call_report_v1(%s, %s, %s)", key, document["version"], json.dumps(report)
        )
        return state

    def pending(self, document: dict[str, Any], token: str = "t1", **more: Any) -> str:
        """The job goes on."""
        return self.report(document, **{"class": "pending", "token": token, **more})

    def done(self, document: dict[str, Any], value: Any = 7, *, outcome: str = "ok", **more: Any) -> str:
        """The job has ended; its result was published."""
        return self.report(
            document, **{"class": "done", "outcome": outcome, "result": self.dag(value).hex(), **more}
        )

    def failed(self, document: dict[str, Any], code: str = "throttled", *, retryable: bool = True) -> str:
        """The poll has failed."""
        error = {"code": code, "message": f"{code}!"}
        return self.report(document, **{"class": "failed", "retryable": retryable, "error": error})

    def integrate(self, document: dict[str, Any]) -> str:
        """Pin the stored outcome."""
        key = bytes.fromhex(document["execution_key"])
        state: str = self.one("select durable.call_integrate_v1(%s, %s)", key, document["version"])
        return state

    def run(self, value: Any = 7, *, outcome: str = "ok") -> list[str]:
        """Let the adapter end everything that is due."""
        return [self.done(each, value, outcome=outcome) for each in self.lease()]

    def count(self, what: str) -> int:
        """How many rows a table or a part of one has."""
        return int(self.one(f"select count(*) from durable.{what}"))

    def promise(self, answer: dict[str, Any]) -> tuple[str, Any]:
        """State and value of the promise of an attempt."""
        state, value = self.all(
            "select state, value_data from durable._promises where id = %s", answer["promise"]
        )[0]
        return state, value and json.loads(value)

    def state(self, answer: dict[str, Any]) -> str:
        """State of an attempt, as people see it."""
        key = answer["execution_key"]
        state: str = self.one("select state from durable.call_attempts where execution_key = %s", key)
        return state


def refusal(conn: Connection, call: Any, *arguments: Any, **options: Any) -> str:
    """SQLSTATE and detail with which something is refused."""
    try:
        with conn.transaction():
            call(*arguments, **options)
    except psycopg.Error as error:
        return f"{error.sqlstate} {error.diag.message_primary}"
    return "none"
