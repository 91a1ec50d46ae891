"""Law: durable.journal_append takes exactly what the rulings take, and says exactly what the model says.

Random histories of the published model, each step judged under the rulings: what they take is appended as
the same entry and leads to the same status; what they refuse is refused, or was told before, and leaves
everything as it was.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest

from tests.features.journal import keeper, model_traces
from tests.features.journal.model_traces import FAMILIES, ORIGINALS, Step, Trace
from tests.support.clock import Clock
from tests.support.verbs import Connection

# traces of each family in a run without --full
SAMPLE = 3
# what an action is refused with, where that is not WF006; TOLD is an answer that appends nothing
TOLD = "told before"
REFUSALS = {
    "unknown_execution": {"WF001"},
    "terminal": {"WF002"},
    "execution_exists": {"WF009", TOLD},
    "already_cancelling": {TOLD},
    "already_fired": {TOLD},
}


def expected(step: Step) -> set[str]:
    """How a step may be refused. Ids that are no children of the run, as the constants of join sets in the
    oldest family, and a Signal wait for something else are seen before anything is looked at."""
    kind = step.payload.get("kind", {})
    if (
        isinstance(kind, dict)
        and kind.get("tag") == "Signal"
        and step.payload["waiting_on"] != [kind["promise_id"]]
    ):
        return {"WF004"}
    ids = [
        step.payload.get("promise_id"),
        step.payload.get("join_set_id"),
        *step.payload.get("waiting_on", []),
    ]
    if step.action != "startExecution" and any(
        i is not None and not i.startswith(f"{step.run}.") for i in ids
    ):
        return {"WF004"}
    return REFUSALS.get(step.refusal or "", {"WF006"})


def verdict(conn: Connection, step: Step, length: int) -> str:
    """What the append says: the SQLSTATE of a refusal, TOLD, or nothing for what was appended to a journal of
    that length."""
    version = None if step.action == "startExecution" else 1
    try:
        with conn.transaction():
            answer = keeper.say(conn, step.run, version, model_traces.EVENTS[step.action], step.payload)
    except psycopg.Error as error:
        return error.sqlstate or "?"
    return "" if answer.seq == length else TOLD


def play(conn: Connection, clock: Clock, trace: Trace) -> Counter[tuple[str, str]]:
    """Replay one trace and judge each step; counts what was taken and what was refused, by action and
    reason."""
    seen: Counter[tuple[str, str]] = Counter()
    told: dict[str, list[keeper.Json]] = {}
    mark = keeper.everything(conn)
    for number, step in enumerate(trace.steps):
        where = f"{trace.name}, step {number}: {step}"
        clock.set(step.ts)
        said = verdict(conn, step, len(told.get(step.run, ())))
        seen[step.action, step.refusal or ""] += 1
        if step.refusal is not None:
            assert said in expected(step), f"{said or 'taken'}; {where}"
            assert keeper.everything(conn) == mark, where
            continue
        assert said == "", where
        told.setdefault(step.run, []).append(step.entry or {})
        assert keeper.entries(conn, step.run, len(told[step.run]) - 1) == [step.entry], where
        assert keeper.state(conn, step.run) == (step.status, step.next_child, len(told[step.run])), where
        mark = keeper.everything(conn)
    for run, journal in told.items():
        assert keeper.entries(conn, run) == journal, f"{trace.name}, run {run}"
    broken = conn.execute("select * from durable.check()").fetchall()
    assert not broken, f"{trace.name}: {broken}"
    return seen


def play_all(conn: Connection, clock: Clock, traces: list[Trace]) -> Counter[tuple[str, str]]:
    """Replay each trace in an empty database."""
    seen: Counter[tuple[str, str]] = Counter()
    for trace in traces:
        with conn.transaction(force_rollback=True):
            seen += play(conn, clock, trace)
    return seen


def table(seen: dict[str, Counter[tuple[str, str]]], number: dict[str, int]) -> str:
    """The counts for people."""
    lines = ["| family | traces | steps taken | steps refused |", "|---|---|---|---|"]
    for family, counts in seen.items():
        taken = sum(n for (_, reason), n in counts.items() if not reason)
        lines.append(f"| {family} | {number[family]} | {taken:,} | {counts.total() - taken:,} |")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def published() -> dict[str, list[Trace]]:
    """All traces by family."""
    found: dict[str, list[Trace]] = {family: [] for family in FAMILIES}
    for trace in model_traces.traces():
        found[trace.family].append(trace)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sample_of_the_traces(
    conn: Connection, clock: Clock, seed: int, published: dict[str, list[Trace]], family: str
) -> None:
    """Each step is taken or refused as ruled, with the same entry, status and counter; a refused one
    changes nothing."""
    chosen = random.Random(seed).sample(published[family], SAMPLE)
    assert play_all(conn, clock, chosen).total() == sum(len(trace.steps) for trace in chosen)


@pytest.mark.full
def test_all_traces(
    conn: Connection,
    clock: Clock,
    published: dict[str, list[Trace]],
    figures: Callable[[str, str], None],
) -> None:
    """The same of all of them, and every reason that the rulings have is met."""
    seen = {family: play_all(conn, clock, traces) for family, traces in published.items()}
    figures("journal-traces", table(seen, {family: len(traces) for family, traces in published.items()}))
    assert {f: (len(published[f]), counts.total()) for f, counts in seen.items()} == {
        "own": (173, 3555),
        "mix": (148, 3258),
        "ruled": (182, 17289),
    }


def test_the_copy_is_what_was_published(published: dict[str, list[Trace]]) -> None:
    """The traces of this repository are the published ones, as far as those are at hand: none left out,
    none changed, and what the copy leaves out follows from what it has."""
    assert {family: len(traces) for family, traces in published.items()} == {
        "own": 173,
        "mix": 148,
        "ruled": 182,
    }
    if not ORIGINALS.exists():
        return
    for family, traces in published.items():
        for original, ours in zip(model_traces.originals(family), traces, strict=True):
            assert model_traces.parsed(model_traces.reduced(family, original)) == ours
            journals: dict[str, list[keeper.Json]] = {}
            for step in original["steps"]:
                if step["accepted"]:
                    journal = journals.setdefault(step["args"]["execution_id"], [])
                    journal.append(step["appended"])
                    assert step["journal_after"] == journal


def test_a_wrong_verdict_is_found(conn: Connection, clock: Clock, published: dict[str, list[Trace]]) -> None:
    """A trace whose first taken step were refused, or whose entry were another one, does not pass."""
    trace = published["ruled"][0]
    place = next(n for n, step in enumerate(trace.steps) if step.refusal is None)
    step = trace.steps[place]
    for wrong in (
        replace(step, refusal="not_blocked"),
        replace(step, entry={**(step.entry or {}), "ts": 7}),
        replace(step, next_child=3),
    ):
        steps = (*trace.steps[:place], wrong)
        with pytest.raises(AssertionError, match=trace.name), conn.transaction(force_rollback=True):
            play(conn, clock, replace(trace, steps=steps))
    with conn.transaction(force_rollback=True), pytest.raises(psycopg.Error):
        keeper.append(conn, "none", "ExecutionResumed")
