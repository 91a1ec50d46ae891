"""One worker that drives a variant's turn function, and the meters around it.

The worker knows nothing of Python semantics: a run is N step results one after the other and then an end.
Figures of a round are taken from the backend (its CPU time, WAL bytes) and, second, from the wall clock,
because the machine is shared.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import orjson

RESULT = '{"ok": true, "order": "b7d0c1e2-4711", "amount": 1290, "n": %d}'
NAMES = ("reserve_stock", "charge_card", "ship_order", "send_mail", "audit")
HASH = bytes.fromhex("9f86d081884c7d65")
PARAM = '{"customer": "c-104857", "order": "b7d0c1e2-4711"}'
TTL_MS = 15_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """The cost of one measured part; times in seconds."""

    wall_s: float
    backend_cpu_s: float
    client_cpu_s: float
    other_cpu_s: float
    wal_bytes: int


def process_cpu_s(pid: int) -> float:
    """Return the CPU time of a process, from schedstat (ns) if available, else from clock ticks."""
    with open(f"/proc/{pid}/schedstat") as f:
        ns = int(f.read().split()[0])
    if ns:
        return ns / 1e9
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_busy_s() -> float:
    """Return the seconds that all cores together have spent not idle since boot."""
    with open("/proc/stat") as f:
        values = [int(v) for v in f.readline().split()[1:9]]
    return (sum(values) - values[3] - values[4]) / os.sysconf("SC_CLK_TCK")


class Metered:
    """Async context manager: meters everything inside it, on one connection."""

    def __init__(self, conn: asyncpg.Connection) -> None:
        self.conn = conn
        self.pid = conn.get_server_pid()
        self.meter: Meter | None = None

    async def _lsn(self) -> int:
        return int(await self.conn.fetchval("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))

    async def __aenter__(self) -> Metered:
        self.wal = await self._lsn()
        self.before = (time.perf_counter(), process_cpu_s(self.pid), time.process_time(), machine_busy_s())
        return self

    async def __aexit__(self, *_: object) -> None:
        after = (time.perf_counter(), process_cpu_s(self.pid), time.process_time(), machine_busy_s())
        wall, backend, client, busy = (a - b for a, b in zip(after, self.before, strict=True))
        wal = await self._lsn() - self.wal
        self.meter = Meter(
            wall_s=wall,
            backend_cpu_s=backend,
            client_cpu_s=client,
            other_cpu_s=max(0.0, busy - backend - client),
            wal_bytes=wal,
        )


@dataclass(slots=True)
class Live:
    """A run that the worker drives."""

    key: str | int
    version: int
    seen: int
    child: int = 0


@dataclass(slots=True)
class Worker:
    """Sends turns until every run has ended; one statement in flight, each turn carries every live run."""

    conn: asyncpg.Connection
    schema: str
    flags: frozenset[str]
    steps: int
    live: dict[int, Live] = field(default_factory=dict)
    ended: int = 0
    turns: int = 0

    def _bundle(self, run: Live) -> dict[str, Any]:
        key = "execution" if "key_bigint" in self.flags else "id"
        facts: list[dict[str, Any]] = []
        end = None
        if run.child < self.steps:
            facts = [
                {
                    "child": run.child,
                    "name": NAMES[run.child % 5],
                    "hash": HASH.hex(),
                    "attempt": 1,
                    "value": RESULT % run.child,
                }
            ]
        else:
            end = {"do": "complete", "value": '{"total": 12900}'}
        return {
            key: run.key,
            "version": run.version,
            "seen": run.seen,
            "facts": facts,
            "acts": [],
            "end": end,
        }

    def _arrays(self, runs: list[Live]) -> tuple[list[Any], ...]:
        going = [(o, r) for o, r in enumerate(runs, 1) if r.child < self.steps]
        return (
            [r.key for r in runs],
            [r.version for r in runs],
            [r.seen for r in runs],
            [None if r.child < self.steps else '{"total": 12900}' for r in runs],
            [int(r.child < self.steps) for r in runs],
            [o for o, _ in going],
            [r.child for _, r in going],
            [NAMES[r.child % 5] for _, r in going],
            [HASH] * len(going),
            [1] * len(going),
            [RESULT % r.child for _, r in going],
        )

    def _take(self, task: dict[str, Any]) -> None:
        key = task["execution"] if "key_bigint" in self.flags else task["id"]
        self.live[task["execution"]] = Live(key, task["version"], task["next"])

    def _moved(self, runs: list[tuple[int, Live]], verdicts: list[tuple[Any, Any]]) -> None:
        assert len(runs) == len(verdicts), (len(runs), len(verdicts))
        for (execution, run), (answered, following) in zip(runs, verdicts, strict=True):
            assert answered == execution, (self.schema, run, answered)
            if run.child < self.steps:
                run.child, run.seen = run.child + 1, following
            else:
                del self.live[execution]
                self.ended += 1

    async def run(self, total: int, in_flight: int) -> None:
        """Claim and finish `total` runs with at most `in_flight` of them at once."""
        n = 15 if "arrays" in self.flags else 5
        marks = ", ".join(f"${i + 1}" for i in range(n))
        call = await self.conn.prepare(
            f"select {'*' if 'setof' in self.flags else ''} "
            f"{'from' if 'setof' in self.flags else ''} {self.schema}.turn({marks})"
        )
        aim = self.ended + total
        empty = 0
        while self.ended < aim:
            runs = list(self.live.items())
            if "arrays" in self.flags:
                given: tuple[Any, ...] = self._arrays([r for _, r in runs])
            else:
                given = (orjson.dumps([self._bundle(r) for _, r in runs]).decode(),)
            want = min(in_flight - len(runs), aim - self.ended - len(runs))
            self.turns += 1
            decode = self._rows if "setof" in self.flags else self._json
            got = await decode(call, ("w-7f3a-1", "default", want, TTL_MS, *given), runs)
            empty = empty + 1 if not got and not runs else 0
            assert empty < 50, "nothing to claim"

    async def _json(self, call: Any, args: tuple[Any, ...], runs: list[tuple[int, Live]]) -> int:
        answer = orjson.loads(await call.fetchval(*args))
        if "columns" in self.flags:
            executions, seqs = answer["execution"] or [], answer["seq"] or []
            self._moved(runs, [(e, s + 3) for e, s in zip(executions, seqs, strict=True)])
        else:
            self._moved(runs, [(b["execution"], b["next"]) for b in answer["bundles"] or []])
        for task in answer["tasks"] or []:
            self._take(task)
        return len(answer["tasks"] or [])

    async def _rows(self, call: Any, args: tuple[Any, ...], runs: list[tuple[int, Live]]) -> int:
        rows = await call.fetch(*args)
        self._moved(runs, [(r["execution"], r["next"]) for r in rows if r["verdict"] != "task"])
        tasks = [orjson.loads(r["task"]) for r in rows if r["verdict"] == "task"]
        for task in tasks:
            self._take(task)
        return len(tasks)


async def start_runs(
    conn: asyncpg.Connection, schema: str, count: int, make_id: Callable[[], str] = lambda: str(uuid.uuid4())
) -> None:
    """Start `count` runs with ids of 36 characters, 1,000 a transaction."""
    for first in range(0, count, 1000):
        await conn.execute(
            f"select {schema}.start($1, 'default', $2)",
            [make_id() for _ in range(min(1000, count - first))],
            PARAM,
        )


async def commit_probe(conn: asyncpg.Connection, seconds: float = 0.3) -> float:
    """Return single-row INSERT commits a second, measured for `seconds`."""
    insert = await conn.prepare("insert into public.probe (data) values ($1)")
    begun = time.perf_counter()
    n = 0
    while (spent := time.perf_counter() - begun) < seconds:
        await insert.fetch("x" * 60)
        n += 1
    return n / spent
