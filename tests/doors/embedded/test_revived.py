"""Law: a process that uses the embedded server and finds it killed starts it again, and goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyengine import App, NotFound, Unavailable, ctx
from pyengine.doors.embedded.postmaster import read_postmaster
from tests.doors.embedded.killing import kill, server_of

WAIT_S = 60.0


async def answered(ask: Callable[[], Awaitable[object]]) -> None:
    """Ask until the connection that asks was not the one that was lost."""
    while True:
        try:
            await ask()
        except (Unavailable, NotFound):
            await asyncio.sleep(0.02)
        else:
            return


def test_a_worker_and_its_client(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that were under way end, and new ones are started, without another command."""
    for name in ("PYENGINE_DATABASE_URL", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    app = App(data_dir=home)

    @app.workflow
    async def waits() -> str:
        return await ctx.promise(str, name="go")

    async def main() -> None:
        async with app.client() as client, app.worker():
            run = await client.start(waits)
            while (await run.get()).state != "waiting":
                await asyncio.sleep(0.02)
            for number in range(2):
                killed = await asyncio.to_thread(kill, home)
                async with asyncio.timeout(WAIT_S):
                    await answered(lambda id=f"r{number}": client.start(waits, id=id))  # type: ignore[misc]
                    await answered(lambda id=f"r{number}.0": client.promises.resolve(id, "x"))  # type: ignore[misc]
                    assert server_of(home).pid != killed
            await client.promises.resolve(f"{run.id}.0", "done")
            async with asyncio.timeout(WAIT_S):
                assert await run == "done"

    asyncio.run(main())
    assert read_postmaster(home / "data") is None


def test_no_thread_of_the_loop_is_needed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users' code may hang in the default executor: the server starts, starts again and stops beside it."""
    for name in ("PYENGINE_DATABASE_URL", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)

    async def main() -> None:
        released = threading.Event()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        hung = loop.run_in_executor(None, released.wait)
        try:
            async with asyncio.timeout(WAIT_S), App(data_dir=home).client() as client:
                kill(home)
                await answered(lambda: client.promises.create("one", timeout="1h"))
        finally:
            released.set()
            await hung

    asyncio.run(main())
    assert read_postmaster(home / "data") is None


@pytest.mark.parametrize("words", ["adapter worker --adapter x=/bin/true", "serve --port 0"])
def test_a_command_that_serves(home: Path, words: str) -> None:
    """Nobody else uses the server; it is started again, and stopped by its last user."""
    named = {name: value for name, value in os.environ.items() if "DATABASE_URL" not in name}
    running = subprocess.Popen(
        [sys.executable, "-m", "pyengine", *words.split()],
        env=named | {"PYENGINE_DATA_DIR": str(home), "PYTHONPATH": str(Path(__file__).parents[3])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert running.stdout is not None and running.stdout.readline()
        killed = kill(home)
        until_s = time.monotonic() + WAIT_S
        while (server := read_postmaster(home / "data")) is None or server.pid == killed:
            assert time.monotonic() < until_s
            if running.poll() is not None:
                break  # its errors say why
            time.sleep(0.02)
    finally:
        running.send_signal(signal.SIGTERM)
        _, errors = running.communicate(timeout=WAIT_S)
    assert running.returncode == 0, errors
    assert read_postmaster(home / "data") is None
