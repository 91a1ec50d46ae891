"""`app.run` executes its run in this process, whoever serves the database; a crash leaves it to others."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from pyengine import App

Connection = psycopg.Connection[tuple[object, ...]]

SHOP = """
import asyncio, os, sys, time
from pyengine import App, Retry, ctx

app = App()
me = os.environ["ME"]

@app.step
async def charge(n: int) -> str:
    await asyncio.sleep(0.02)
    return me

@app.step(retry=Retry(max_attempts=2, initial=0.05))
async def flaky(n: int) -> str:
    if ctx.step.attempt == 1:
        raise OSError("once")
    return me

@app.workflow
async def part(n: int) -> str:
    return await charge(n)

@app.workflow
async def order(n: int) -> list[str]:
    first = [await charge(n), await flaky(n)]
    await ctx.sleep(0.05)
    return [*first, *await ctx.gather(part(n), part(n + 1)), await charge(n)]

@app.workflow
async def long(n: int) -> str:
    print("waits", flush=True)
    await ctx.sleep(1)
    return await charge(n)

@app.step
async def hold() -> None:
    print("begun", flush=True)
    await asyncio.sleep(60)

@app.workflow
async def busy(n: int) -> None:
    await hold()
"""
MANY = """
from shop import app, me, order
for n in range({count}):
    done = app.run(order, n)
    assert done == [me] * 5, (me, done)
"""


def program(folder: Path, dsn: str, me: str, text: str) -> subprocess.Popen[str]:
    """A process that has the shop and this program."""
    shop = folder / "shop.py"
    if not shop.exists():
        shop.write_text(SHOP)
    environment = {**os.environ, "PYENGINE_DATABASE_URL": dsn, "ME": me, "PYTHONPATH": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-c", text],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("count", [2, pytest.param(60, marks=pytest.mark.full)])
def test_three_processes_execute_their_own_runs(tmp_path: Path, dsn: str, count: int) -> None:
    """Each gets its own steps only: of the run, of its child runs, after waits and after retries."""
    processes = [program(tmp_path, dsn, me, MANY.format(count=count)) for me in "abc"]
    ended = [(one.communicate(timeout=120), one.returncode) for one in processes]
    assert [code for _, code in ended] == [0, 0, 0], ended


def test_a_run_whose_process_was_killed_is_finished_by_a_worker(
    tmp_path: Path, dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else would: it belongs to a process only while that is there."""
    process = program(tmp_path, dsn, "dead", "from shop import app, long\napp.run(long, 1)")
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    process.kill()
    process.wait()
    app = App(dsn)

    @app.step
    async def charge(n: int) -> str:
        return "alive"

    @app.workflow(name="long")
    async def long_(n: int) -> str:
        from pyengine import ctx

        await ctx.sleep(1)
        return await charge(n)

    async def main() -> None:
        async with app.worker(), asyncio.timeout(60):
            while conn.execute("select result from durable.runs").fetchall() != [("alive",)]:
                await asyncio.sleep(0.05)

    asyncio.run(main())


@pytest.mark.parametrize("wait", [True, False])
def test_ctrl_c_says_what_stays(tmp_path: Path, dsn: str, conn: Connection, wait: bool) -> None:
    """Somebody who leaves is told which run is there, in which state, and the commands to go on (D047)."""
    text = "from shop import app, long\napp.run(long, 1)"
    process = program(tmp_path, dsn, "me", text if wait else text.replace("long", "busy"))
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    row = conn.execute("select id, state from durable.runs").fetchone()
    # a run that waits is ready again when its second is over
    assert row is not None and row[1] in ("waiting", "queued")
    (line,) = (one for one in said.splitlines() if "stays in the database" in one)
    assert f"run {row[0]} of workflow" in line
    assert "is running and stays" in line or (wait and "is waiting and stays" in line)
    assert f"pyengine show {row[0]}" in line and f"pyengine cancel {row[0]}" in line
