"""``pyengine replay-check MODULE:APP``: what it prints, and with which code it exits."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyengine import App
from pyengine.doors.cli.worker import load
from pyengine.features.checks.replay_check import Report

SHOP = """
from pyengine import App, ctx

app = App()


@app.step
async def charge(n: int) -> int:
    return n


@app.step
async def reserve(n: int) -> int:
    return n


@app.workflow
async def order(n: int) -> int:
    {body}
    return await ctx.promise(int, name="go")
"""
CHARGE, RESERVE = "await charge(n)", "await reserve(n)"
BODIES = {
    "rc_old": [CHARGE, RESERVE],
    "rc_swapped": [RESERVE, CHARGE],
    "rc_loud": ["print('loud')  # durable: ok", CHARGE, RESERVE],
    "rc_patched": [
        "if ctx.patched('reserve first'):",
        f"    {RESERVE}; {CHARGE}",
        "else:",
        f"    {CHARGE}; {RESERVE}",
    ],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the same application in several versions of its code."""
    for name, lines in BODIES.items():
        (tmp_path / f"{name}.py").write_text(SHOP.format(body="\n    ".join(lines)))
    (tmp_path / "rc_empty.py").write_text("from pyengine import App\n\napp = App()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.fixture
def waiting(dsn: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three runs that the old code brought to their promise."""
    app: App = load("rc_old:app")
    monkeypatch.setattr(app, "_database_url", dsn)
    ids = ["order-1", "order-2", "order-3"]

    async def main() -> None:
        async with app.client() as client, app.worker():
            runs = [await client.start("order", 7, id=id) for id in ids]
            while {(await run.get()).state for run in runs} != {"waiting"}:
                await asyncio.sleep(0.005)

    asyncio.run(main())
    return ids


def test_code_that_fits_exits_0(at_database: Any, waiting: list[str]) -> None:
    """The code that began the runs fits; what workflow code prints is not part of the answer."""
    answer = at_database("replay-check", "rc_old:app")
    assert (answer.code, answer.out, answer.err) == (0, "order: 3 runs, no difference\n", "")
    loud = at_database("replay-check", "rc_loud", "--json")
    assert (loud.code, loud.document["ok"], loud.err) == (0, 3, "loud\n" * 3)


def test_swapped_steps_exit_1_and_are_named(at_database: Any, waiting: list[str]) -> None:
    """A divergence exits 1 and says how many runs break, at which child, and what both sides have there."""
    answer = at_database("replay-check", "rc_swapped:app")
    lines = [re.split(r" \((?:of its )?input", line)[0].strip() for line in answer.out.splitlines()]
    assert (answer.code, lines) == (
        1,
        [
            "order: breaks 3 of 3 runs",
            "child 0: the journal has step charge",
            "the code has step reserve",
            "0: step charge",
            "1: step reserve",
            "in 3 runs: order-1, order-2, order-3",
        ],
    )
    assert "ctx.patched" in answer.err
    assert "pyengine show order-1" in answer.err


def test_another_python_is_named_first(
    at_database: Any, waiting: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before what differs, for people and for programs."""
    monkeypatch.setattr(Report, "__init__", functools.partialmethod(Report.__init__, python="3.99"))
    first, second, *_ = at_database("replay-check", "rc_swapped:app").out.splitlines()
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert first == (
        f"3 of the runs that break were driven by Python {here}, and this is Python 3.99: "
        f"a worker with Python {here} can end them"
    )
    assert second == "order: breaks 3 of 3 runs"
    document = at_database("replay-check", "rc_swapped:app", "--json").document
    assert (document["python"], document["other_pythons"]) == ("3.99", {here: 3})


def test_the_document_has_every_run(at_database: Any, waiting: list[str]) -> None:
    """--json gives counts, the breaks, and a verdict for each run."""
    answer = at_database("replay-check", "rc_swapped:app", "--json", "--sample", "2", "--workflow", "order")
    document = answer.document
    assert (answer.code, answer.err) == (1, "")
    assert [document[name] for name in ("checked", "ok", "diverged", "unknown")] == [2, 0, 2, 0]
    (broken,) = document["breaks"]
    assert broken["first"]["child"] == 0
    assert [run["id"] for run in document["runs"]] == broken["runs"]
    assert {run["state"] for run in document["runs"]} == {"waiting"}


def test_a_guarded_change_fits(at_database: Any, waiting: list[str]) -> None:
    """The same change behind ctx.patched breaks nothing."""
    answer = at_database("replay-check", "rc_patched:app", "--json")
    assert (answer.code, answer.document["ok"]) == (0, 3)


def test_runs_that_have_ended_count_with_all(at_database: Any, conn: Any, waiting: list[str]) -> None:
    """Runs that have ended are looked at with --all only."""
    conn.execute("select durable.cancel('order-1', force => true)")
    assert at_database("replay-check", "rc_old", "--json").document["checked"] == 2
    assert at_database("replay-check", "rc_old", "--json", "--all").document["checked"] == 3


def test_runs_without_code_are_reported(
    at_database: Any, conn: psycopg.Connection[Any], folder: Path
) -> None:
    """Workflows and versions that the code does not have are named, and break nothing; where there is nothing
    else, nothing was checked, which is exit 7."""
    assert at_database("replay-check", "rc_old:app").out == "no runs to replay\n"
    conn.execute("select durable.start('order', '[7]', version => '2')")
    answer = at_database("replay-check", "rc_old:app")
    assert (answer.code, answer.out) == (
        7,
        "order (version 2): 1 run not checked, rc_old:app does not have it\n",
    )
    assert "nothing was checked" in answer.err
    conn.execute("select durable.start('order', '[7]')")
    mixed = at_database("replay-check", "rc_old:app", "--json")
    assert (mixed.code, mixed.document["ok"], mixed.document["unknown"]) == (0, 1, 1)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["rc_nosuch:app"], 3, "go to the folder"),
        (["rc_old:ap"], 3, "pyengine replay-check rc_old:app"),
        (["rc_old:charge"], 2, "app = App()"),
        (["rc_empty:app"], 3, "@app.workflow"),
        (["rc_old:app", "--workflow", "ordre"], 3, "'order'"),
        (["rc_old:app", "--sample", "0"], 2, "pyengine replay-check --help"),
        ([], 2, "pyengine replay-check --help"),
        (
            ["rc_old:app", "--database-url", "postgresql://me:tops3cret@127.0.0.1:1/db"],
            4,
            "pyengine db status",
        ),
    ],
)
def test_errors_name_the_next_command(
    at_database: Any, folder: Path, words: list[str], code: int, said: str
) -> None:
    """Wrong usage and a database that is down exit with their own codes, never with 1."""
    answer = at_database("replay-check", *words)
    assert (answer.code, said in answer.err, "tops3cret" in answer.err) == (code, True, False)
    assert json.loads(at_database("replay-check", *words, "--json").out)["error"]["exit_code"] == code
