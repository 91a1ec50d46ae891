"""The soak: what a claim costs once many finished runs have passed through the ready index or a ready
table.

No-op runs (claim, complete) churn through both shapes, stage by stage and side by side: first vacuumed as
autovacuum would, then under an old snapshot that lets nothing be removed, then with the snapshot gone, then
vacuumed. After every stage the claim is explained and the throughput measured. The last stage puts sleeping
tasks of a more urgent priority in front of the due ones.
"""

from __future__ import annotations

from typing import Any

import asyncpg
import orjson
from drive import Metered, Worker, start_runs
from variants import flags_of, sql_of

SHAPES = {"partial index": "base", "ready table": "ready_table"}
BATCH = 20_000
CLAIM = """explain (analyze, buffers, format json)
select id from {table} where queue = 'default' and {pending} retry_at <= 9007199254740991 {floor}
 order by priority, retry_at, id limit 20 for update skip locked"""
SLEEPERS = {
    "base": """
insert into {s}.tasks (queue, priority, retry_at, id, state, deadline, workflow, workflow_version)
select 'sleepers', (n > $1)::int, {s}.clock() + 86400000 + n, 'z' || n, 'p', 9007199254740991, 'hello', '1'
  from generate_series(1, $1 + 100) n""",
    "ready_table": """
insert into {s}.ready (queue, priority, retry_at, id)
select 'sleepers', (n > $1)::int, {s}.clock() + 86400000 + n, 'z' || n from generate_series(1, $1 + 100) n""",
}


async def explain_claim(conn: asyncpg.Connection, name: str, floor: str = "") -> tuple[int, float]:
    """Return buffers and milliseconds (median of three) of claiming 20 tasks; the claim is rolled back."""
    table = f"soak_{name}.tasks" if name == "base" else f"soak_{name}.ready"
    query = CLAIM.format(table=table, pending="state = 'p' and" if name == "base" else "", floor=floor)
    found: list[tuple[int, float]] = []
    for _ in range(3):
        transaction = conn.transaction()
        await transaction.start()
        plan = orjson.loads(await conn.fetchval(query))[0]
        await transaction.rollback()
        found.append(
            (plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"], plan["Execution Time"])
        )
    return sorted(found)[1]


async def churn(conn: asyncpg.Connection, worker: Worker, runs: int) -> None:
    """Let `runs` no-op runs pass, vacuuming after each batch."""
    for first in range(0, runs, BATCH):
        count = min(BATCH, runs - first)
        await start_runs(conn, worker.schema, count)
        await worker.run(count, 1000)
        await vacuum(conn, worker.schema)


async def vacuum(conn: asyncpg.Connection, schema: str) -> None:
    tables = await conn.fetch(
        "select relname from pg_class where relnamespace = $1::regnamespace and relkind = 'r'", schema
    )
    await conn.execute("vacuum analyze " + ", ".join(f"{schema}.{t['relname']}" for t in tables))


async def stage(
    conn: asyncpg.Connection, worker: Worker, name: str, shape: str, label: str
) -> dict[str, Any]:
    """Measure one shape at one stage: claim 20 of a backlog of 2,000, then run those 2,000 to their end."""
    await start_runs(conn, worker.schema, 2000)
    oldest = await conn.fetchval(f"select min(retry_at) from {worker.schema}.tasks where state = 'p'")
    buffers, ms = await explain_claim(conn, name)
    floored, floored_ms = await explain_claim(
        conn, name, f"and (priority, retry_at) >= (0::smallint, {oldest})"
    )
    async with Metered(conn) as small:
        await worker.run(500, 20)
    async with Metered(conn) as big:
        await worker.run(1500, 400)
    assert small.meter
    assert big.meter
    ready = await conn.fetchval(
        "select pg_relation_size($1::regclass)",
        f"{worker.schema}.tasks_ready" if name == "base" else f"{worker.schema}.ready_pkey",
    )
    return {
        "stage": label,
        "shape": shape,
        "claim of 20: buffers": buffers,
        "ms": round(ms, 2),
        "buffers with a floor": floored,
        "ms with a floor": round(floored_ms, 2),
        "backend us/run, 20 in flight": round(small.meter.backend_cpu_s / 500 * 1e6, 1),
        "us/run, 400 in flight": round(big.meter.backend_cpu_s / 1500 * 1e6, 1),
        "WAL B/run": round(big.meter.wal_bytes / 1500),
        "ready index kB": ready // 1024,
    }


async def sleepers(conn: asyncpg.Connection, count: int) -> list[dict[str, Any]]:
    """Claim 20 due tasks behind `count` urgent ones that are not due."""
    lines = []
    for shape, name in SHAPES.items():
        schema = f"soak_{name}"
        await conn.execute(SLEEPERS[name].replace("{s}", schema).replace("$1", str(count)))
        table, keep = (f"{schema}.tasks", "state = 'p' and") if name == "base" else (f"{schema}.ready", "")
        await conn.execute(f"update {table} set retry_at = 1 where queue = 'sleepers' and priority = 1")
        await vacuum(conn, schema)
        query = CLAIM.format(table=table, pending=keep, floor="").replace("'default'", "'sleepers'")
        query = query.replace("9007199254740991", str(await conn.fetchval(f"select {schema}.clock()")))
        plan = orjson.loads(await conn.fetchval(query))[0]
        lines.append(
            {
                "stage": f"{count} urgent tasks asleep in front",
                "shape": shape,
                "claim of 20: buffers": plan["Plan"]["Shared Hit Blocks"],
                "ms": round(plan["Execution Time"], 2),
            }
        )
    return lines


async def soak(dsn: str, runs: int) -> list[dict[str, Any]]:
    """Run all stages for both shapes, `runs` finished runs in each of two churns."""
    conn, holder = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    workers = {name: Worker(conn, f"soak_{name}", flags_of(name), 0) for name in SHAPES.values()}
    lines: list[dict[str, Any]] = []

    async def measure(label: str) -> None:
        lines.extend([await stage(conn, workers[name], name, shape, label) for shape, name in SHAPES.items()])

    for name in SHAPES.values():
        await conn.execute(sql_of(name, f"soak_{name}"))
        await churn(conn, workers[name], 2000)
    await measure("new")
    for name in SHAPES.values():
        await churn(conn, workers[name], runs)
    await measure(f"{runs} runs later, vacuumed")
    held = holder.transaction(isolation="repeatable_read")
    await held.start()
    await holder.fetchval("select count(*) from public.probe")
    for name in SHAPES.values():
        await churn(conn, workers[name], runs)
    await measure(f"{runs} more under an old snapshot")
    await held.rollback()
    await measure("snapshot gone, not vacuumed")
    for name in SHAPES.values():
        await vacuum(conn, f"soak_{name}")
    await measure("vacuumed")
    lines += await sleepers(conn, 50_000)
    await holder.close()
    await conn.close()
    return lines
