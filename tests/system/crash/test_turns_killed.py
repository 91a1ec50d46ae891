"""A worker dies at every turn of a run: before the call, after the commit, after the answer.

For each place and each turn one worker process serves a queue of its own and kills itself there
(victim.py); then one survivor serves all queues. The deaths are real SIGKILLs, and what the steps did is
counted in a table that the engine does not know of.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import psycopg
import pytest

from tests.system.crash import effects
from tests.system.crash.job import expected_journey
from tests.system.crash.processes import launch, start, until, worker

PLACES = ("before", "commit", "answer")


def victims(dsn: str, place: str, turns: Iterable[int]) -> list[int]:
    """Kill a worker at each of these turns of a run each, until one run is over before its turn comes;
    answers the turns of the deaths."""
    deaths: list[int] = []
    with launch(dsn, "-m", "tests.system.crash.victim", talks=True, log=None) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for turn in turns:
            name = f"{place}-{turn}"
            start(dsn, name, "journey", f'["{name}"]', name)
            process.stdin.write(f"{name} {place} {turn}\n".encode())
            process.stdin.flush()
            code = int(process.stdout.readline())
            if code == 0:
                process.stdin.close()
                return deaths
            assert code == -signal.SIGKILL
            deaths.append(turn)
    raise AssertionError("unreachable")


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.full)])
def test_a_worker_may_die_at_any_turn(dsn: str, step: int, figures: Callable[[str, str], None]) -> None:
    """Whatever turn a worker dies at, the result is that of an undisturbed run and nothing recorded runs
    again. By default each turn has a death at one of the places."""
    effects.prepare(dsn)
    with ThreadPoolExecutor(2) as pool:
        turns = [count(1 + number % step, step) for number in range(len(PLACES))]
        deaths = dict(zip(PLACES, pool.map(lambda *of: victims(dsn, *of), PLACES, turns), strict=True))
    with psycopg.connect(dsn, autocommit=True) as conn:
        queues = [queue for (queue,) in conn.execute("select id from durable.runs where parent is null")]
    with worker(dsn, *(option for queue in queues for option in ("--queue", queue))):
        until(dsn, "select bool_and(state = 'completed') from durable.runs")
    with psycopg.connect(dsn, autocommit=True) as conn:
        results = dict(conn.execute("select id, result from durable.runs where parent is null").fetchall())
    assert results == {queue: expected_journey(queue) for queue in queues}
    assert effects.repeated(dsn) == []
    assert effects.missing(dsn) == []
    assert min(map(len, deaths.values())) >= 6 // step
    assert set().union(*deaths.values()) >= set(range(1, 7))
    died = ", ".join(f"{place} {len(of)}" for place, of in deaths.items())
    figures(
        "crashes",
        f"{sum(map(len, deaths.values()))} workers killed ({died}), {len(results)} runs equal to an "
        f"undisturbed one, 0 recorded steps ran again, {effects.extra(dsn)} bodies ran before their record "
        "and again after it",
    )
