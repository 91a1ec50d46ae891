"""A worker dies at every turn of a run: before the call, after the commit, after the answer.

For each place and each turn one worker process serves a queue of its own and kills itself there
(victim.py); then one survivor serves all queues. The deaths are real SIGKILLs, and what the steps did is
counted in a table that the engine does not know of.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import psycopg

from tests.crash import effects
from tests.crash.job import expected_journey
from tests.crash.processes import launch, start, until, worker

PLACES = ("before", "commit", "answer")


def victims(dsn: str, place: str) -> int:
    """Kill a worker at turn 1, 2, 3, ... of a run each, until one run is over before its turn comes;
    answers the deaths."""
    with launch(dsn, "-m", "tests.crash.victim", talks=True, log=None) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for turn in count(1):
            name = f"{place}-{turn}"
            start(dsn, name, "journey", f'["{name}"]', name)
            process.stdin.write(f"{name} {place} {turn}\n".encode())
            process.stdin.flush()
            code = int(process.stdout.readline())
            if code == 0:
                process.stdin.close()
                return turn - 1
            assert code == -signal.SIGKILL
    raise AssertionError("unreachable")


def test_a_worker_may_die_at_any_turn(dsn: str, figures: Callable[[str, str], None]) -> None:
    """Whatever turn a worker dies at, the result is that of an undisturbed run and nothing recorded runs
    again."""
    effects.prepare(dsn)
    with ThreadPoolExecutor(2) as pool:
        deaths = dict(zip(PLACES, pool.map(lambda place: victims(dsn, place), PLACES), strict=True))
    queues = [f"{place}-{turn}" for place in PLACES for turn in range(1, deaths[place] + 2)]
    with worker(dsn, *(option for queue in queues for option in ("--queue", queue))):
        until(dsn, "select bool_and(state = 'completed') from durable.runs")
    with psycopg.connect(dsn, autocommit=True) as conn:
        results = dict(conn.execute("select id, result from durable.runs where parent is null").fetchall())
    assert results == {queue: expected_journey(queue) for queue in queues}
    assert effects.repeated(dsn) == []
    assert effects.missing(dsn) == []
    assert min(deaths.values()) >= 6
    figures(
        "crashes",
        f"{sum(deaths.values())} workers killed ({deaths}), {len(results)} runs equal to an undisturbed one, "
        f"0 recorded steps ran again, {effects.extra(dsn)} bodies ran before their record and again after it",
    )
