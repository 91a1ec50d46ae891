"""Readings of sensors, cleaned one by one and loaded in batches; docs/tutorial/etl.md.

Serve it with `pyengine worker tests.examples.etl.app:app`, then `python -m tests.examples.etl.load 5000`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from psycopg import AsyncConnection
from psycopg.rows import class_row

from pyengine import App, ctx

URL = os.environ.get("PYENGINE_DATABASE_URL", "postgresql://localhost/etl")
BATCH = 500
app = App(URL)


@dataclass
class Reading:
    """A reading of a sensor, as it is in the table of raw data."""

    id: int
    celsius: str


@dataclass
class Clean:
    """A reading that can be loaded."""

    id: int
    kelvin: float


@dataclass
class Report:
    """The outcome of a load."""

    loaded: int
    rejected: int


@app.step
async def extract(after: int, count: int) -> list[Reading]:
    """Read a page of raw readings, in the order of their ids."""
    async with await AsyncConnection.connect(URL) as conn:
        rows = conn.cursor(row_factory=class_row(Reading))
        await rows.execute(
            "select id, celsius from raw_reading where id > %s order by id limit %s", (after, count)
        )
        return await rows.fetchall()


@app.step
async def transform(reading: Reading) -> Clean | None:
    """Convert one reading; None if it is no number."""
    try:
        return Clean(reading.id, round(float(reading.celsius) + 273.15, 2))
    except ValueError:
        return None


@app.workflow
async def etl(items: int) -> Report:
    """Load so many readings: read a page, convert its readings in parallel, write it in one transaction."""
    report, after, done = Report(0, 0), 0, 0
    while done < items and (page := await extract(after, min(BATCH, items - done))):
        clean = [one for one in await ctx.map(transform, page, concurrency=50) if one is not None]
        async with ctx.transaction("load") as tx:  # the rows and the run's journal: one commit
            await tx.execute(
                "insert into reading (id, kelvin) select * from unnest($1::bigint[], $2::float8[])",
                [one.id for one in clean],
                [one.kelvin for one in clean],
            )
        report.loaded += len(clean)
        report.rejected += len(page) - len(clean)
        after, done = page[-1].id, done + len(page)
        ctx.progress(done, items, f"{report.rejected} rejected")
    return report
