"""``python -m pyengine.demo.worker QUEUE``: one worker process of the demo.

Lives here: the life of the process. May not: the audit. It stops in an orderly way at SIGTERM, and when the
process that started it has ended (end of standard input).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading

from pyengine.demo.audit import WORKER, app, writer

CONCURRENCY = 4
"""Runs of one worker at a time: few, so that both workers have some."""


async def serve(queue: str) -> None:
    """Run the audit's workflows until SIGTERM."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)

    def watch() -> None:
        # a daemon thread must not have the lock of sys.stdin at the end of the process
        while os.read(0, 1):
            pass
        with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has ended already
            loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=watch, daemon=True).start()
    async with app.worker(queues=[queue], concurrency=CONCURRENCY, threads=CONCURRENCY) as worker:
        writer().present(worker.id, os.getpid())
        await stop.wait()


if __name__ == "__main__":
    os.environ.setdefault(WORKER, f"process {os.getpid()}")
    asyncio.run(serve(sys.argv[1]))
