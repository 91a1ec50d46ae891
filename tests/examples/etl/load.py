"""Starts a load and shows its progress: `python -m tests.examples.etl.load 5000`."""

from __future__ import annotations

import asyncio
import sys

from tests.examples.etl.app import app, etl


async def main(items: int) -> None:
    """Start the load, or find it if it was started before, and follow it to its end."""
    async with app.client() as client:
        run = await client.start(etl, items, id=f"etl-{items}")
        async for status in run.watch():
            if status.progress is not None:
                print(f"{status.progress.done:.0f} of {items}, {status.progress.note}", flush=True)
        print(await run.result())


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
