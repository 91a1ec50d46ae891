"""Law: a run may be resumed by promises and hands that its journal knows nothing of; it looks, and goes on
waiting for what its code waits for."""

from __future__ import annotations

import asyncio
import time

import psycopg
import pytest

from pyengine import App, Client, ctx


def waiting_app(dsn: str, bodies: list[int]) -> App:
    """A workflow that waits for one promise between two steps, which note that they ran."""
    app = App(dsn)

    @app.step
    async def count() -> int:
        bodies.append(ctx.step.child)
        return 1

    @app.workflow
    async def patient() -> str:
        await count()
        word = await ctx.promise(str, name="word")
        await count()
        return word

    return app


async def until(conn: psycopg.Connection[tuple[object, ...]], query: str, wanted: object) -> None:
    """Look until the query answers so."""
    ends_at = time.monotonic() + 20
    found = None
    while time.monotonic() < ends_at:
        (found,) = conn.execute(query.encode()).fetchone() or (None,)
        if found == wanted:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{query}: {found!r}, not {wanted!r}")


@pytest.mark.parametrize("how", ["callback", "halted and continued"])
@pytest.mark.parametrize("times", [1, 3])
def test_a_run_that_is_woken_for_nothing_waits_again(dsn: str, how: str, times: int) -> None:
    """A callback on somebody else's promise, or a halt and a continue, makes the run pending though its
    journal is blocked: the worker takes it up, finds nothing new and parks it on the same wait."""
    bodies: list[int] = []
    app = waiting_app(dsn, bodies)
    state = "select state || ' ' || version from durable.tasks where id = 'r'"

    async def main() -> None:
        conn = psycopg.connect(dsn, autocommit=True)
        async with app.worker(), Client(dsn) as client:
            run = await client.start("patient", id="r")
            await until(conn, state, "suspended 1")
            for number in range(times):
                if how == "callback":
                    conn.execute("select durable.create_promise(%s)", (f"x{number}",))
                    conn.execute("select durable.promise_register_callback(%s, 'r')", (f"x{number}",))
                    conn.execute("select durable.resolve(%s)", (f"x{number}",))
                else:
                    conn.execute("select durable.task_halt('r'), durable.task_continue('r')")
                await until(conn, state, f"suspended {number + 2}")
            conn.execute("select durable.resolve('r.1', '\"go\"')")
            assert await run.result(timeout=20) == "go"
        conn.close()

    asyncio.run(main())
    assert bodies == [0, 2]
