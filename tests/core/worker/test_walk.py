"""How a run travels through the house, stop by stop, with the rows that each stop leaves.

The table is read from docs/explanation/how-a-run-travels.md, so a stop that is renamed or
forgotten there fails here.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyengine import App, Client, Worker, ctx
from pyengine.core.database.statements.procedures import START, TURN

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "explanation" / "how-a-run-travels.md"
TEXT = PAGE.read_text(encoding="utf-8")


def stops(heading: str) -> list[tuple[str, str]]:
    """The stops of a table of the page: their numbers, and where they are."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## )", TEXT, re.M | re.S)
    return re.findall(r"^\| (\d+) \| (.*?) \| .*? \|$", section, re.M)


STOPS = stops("Stop by stop")

app = App()


@app.step
async def greet(name: str) -> str:
    """The step of the walk."""
    return f"hello {name}"


@app.workflow
async def letter(name: str) -> str:
    """A step, then an answer from outside."""
    greeting = await greet(name)
    return f"{greeting}, {await ctx.promise(str, name='answer')}"


def rows(dsn: str, query: str) -> list[tuple[Any, ...]]:
    """What a DBA would see."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        return conn.execute(query.encode()).fetchall()


TASK = "select state, version, pid is not null, expires_at is not null from durable._tasks where id = 'walk'"
HEAD = "select status, next_seq, next_child from durable._executions where id = 'walk'"
EVENTS = "select event from durable.journal_events where id = 'walk' order by seq"


async def walk(dsn: str) -> None:
    """Lead one run from its start to its result, looking at the tables at every stop."""
    async with Client(dsn) as client:
        run = await client.start(letter, "world", id="walk")  # stops 1 to 3
        assert rows(dsn, TASK) == [("pending", 0, False, False)]
        assert rows(dsn, HEAD) == [("running", 1, 0)]
        assert rows(dsn, EVENTS) == [("ExecutionStarted",)]
        assert rows(dsn, "select state, param_data from durable._promises where id = 'walk'") == [
            ("pending", '["world"]')
        ]
        async with Worker(app.registry, dsn):  # stops 4 to 10
            while (await run.get()).state != "waiting":
                await asyncio.sleep(0.01)
            assert rows(dsn, TASK) == [("suspended", 1, False, False)]
            assert [event for (event,) in rows(dsn, EVENTS)] == [
                "ExecutionStarted",
                "InvokeScheduled",
                "InvokeStarted",
                "InvokeCompleted",
                "InvokeScheduled",
                "ExecutionAwaiting",
            ]
            assert rows(dsn, "select type, data from durable._journal where type = 'step_completed'") == [
                ("step_completed", '"hello world"')
            ]
            assert rows(dsn, "select awaited_id from durable._callbacks where awaiter_id = 'walk'") == [
                ("walk.1",)
            ]
            assert rows(dsn, "select durable.resolve('walk.1', '\"goodbye\"')") == [("resolved",)]  # stop 11
            assert await run.result(timeout=20) == "hello world, goodbye"  # stops 12 to 14
        assert rows(dsn, TASK) == []
        assert rows(
            dsn, "select state, value_data, task_version from durable._promises where id = 'walk'"
        ) == [("resolved", '"hello world, goodbye"', 2)]
        assert [event for (event,) in rows(dsn, EVENTS)][6:] == [
            "InvokeStarted",
            "InvokeCompleted",
            "ExecutionResumed",
            "ExecutionCompleted",
        ]
        assert rows(dsn, HEAD) == [("completed", 10, 2)]


def test_a_run_travels_as_the_page_says(dsn: str) -> None:
    """Every stop of a run leaves the rows that the page's table promises."""
    asyncio.run(walk(dsn))


def sources() -> dict[str, str]:
    """The sources of package and schema, by path."""
    paths = (*(ROOT / "sql").rglob("*.sql"), *(ROOT / "pyengine").rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def test_every_stop_of_the_walk_exists() -> None:
    """The page's table has its fourteen stops, and every file and function that they name is there."""
    assert [int(number) for number, _ in STOPS] == list(range(1, 15))
    texts = sources()
    for _, where in STOPS:
        for name in re.findall(r"`([\w./]+)`", where):
            if name.endswith((".py", ".sql")):
                assert any(f"/{path}".endswith(f"/{name}") for path in texts), name
            else:
                word = re.escape(name.split(".")[-1])
                assert any(re.search(rf"\b{word}\b", text) for text in texts.values()), name


@pytest.mark.parametrize(
    "heading",
    ["A claimed run, from the claim to its first step", "A step's result, from its end to the next advance"],
)
def test_ways_through_the_worker_are_short(heading: str) -> None:
    """A way has at most twelve stops, each a function of the file that it names, and visits none twice."""
    way = stops(heading)
    assert [int(number) for number, _ in way] == list(range(1, len(way) + 1))
    assert 5 < len(way) <= 12
    assert len({where for _, where in way}) == len(way)
    texts = sources()
    for _, where in way:
        file, function = re.findall(r"`([\w./]+)`", where)
        owner, _, name = function.rpartition(".")
        if owner:
            method = rf"^class {owner}\b.*?^    (?:async )?def {name}\("
            assert re.search(method, texts[file], re.M | re.S), where
        else:
            assert f"function durable.{name}(" in texts[file], where


def test_python_asks_the_functions_of_the_walk() -> None:
    """The procedures behind the walk are the SQL functions that the page names."""
    assert "durable.start_v1(" in START.sql
    assert "durable.worker_turn_v1(" in TURN.sql
