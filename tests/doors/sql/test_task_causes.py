"""Law: a task that no worker drives on has a cause, in one sentence that says what is missing."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.features.calls.scene import Scene
from tests.support.clock import Clock
from tests.support.stages import PAUSE
from tests.support.verbs import (
    TTL_MS,
    Connection,
    acquire,
    ask,
    begin_run,
    begun,
    broken,
    claim,
    create,
    halt,
    release,
    report,
    start,
    take,
    take_turn,
    tick,
)
from tests.support.why import details, hello, why

Situation = Callable[[Connection, Clock], object]
S, MIN = 1000, 60_000
SERVED = "create function public.work(n integer) returns integer language sql as 'select n'"
SERVE = "select durable.serve('public.work(integer)')"


def queued(conn: Connection, clock: Clock, **more: object) -> None:
    """A run that has been ready for three minutes, and a worker that is alive."""
    ask(conn, hello())
    ask(conn, start("r", any_workflow=True, **more))
    clock.advance(3 * MIN)
    ask(conn, hello())


def behind_others(conn: Connection, clock: Clock) -> None:
    """A run behind two others of its queue; a third comes later."""
    for id_ in ("a", "b"):
        ask(conn, start(id_))
    clock.advance(1)
    ask(conn, start("r"))
    clock.advance(2 * S)
    ask(conn, start("z"))
    ask(conn, hello("A"))
    ask(conn, hello("B"))


def failing(conn: Connection, clock: Clock) -> None:
    """A step that failed twice; the run was given back until its third attempt."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, outcomes=[broken(0, retry_in=S, name="charge")]))
    failure = broken(0, attempt=2, retry_in=12 * S, name="charge")
    take_turn(conn, "W", report(held, outcomes=[failure], end=release(12 * S)))


def failing_in_a_worker(conn: Connection, clock: Clock) -> None:
    """A step that failed once, in a run that its worker keeps."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, outcomes=[broken(0, retry_in=2 * S, name="charge")]))


def running_step(conn: Connection, clock: Clock) -> None:
    """A step that has been running for ten seconds."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, outcomes=[begun(0, name="charge")]))
    clock.advance(10 * S)


def running(conn: Connection, clock: Clock) -> None:
    """A run whose code runs."""
    begin_run(conn, "r")
    clock.advance(5 * S)


def lost(conn: Connection, clock: Clock, times: int) -> None:
    """Workers die while the step resize runs."""
    ask(conn, start("r"))
    for attempt in range(1, times + 1):
        held = claim(conn, "W", "default")
        take_turn(conn, "W", report(held, outcomes=[begun(0, attempt=attempt, name="resize")]))
        clock.advance(TTL_MS)
        tick(conn)
    clock.advance(2 * S)


def dead(conn: Connection, clock: Clock) -> None:
    """A run that is set aside at its second crash."""
    ask(conn, ("select durable.set_setting('max_crashes', '1')", ()))
    lost(conn, clock, 2)


def gone(conn: Connection, clock: Clock) -> None:
    """A run whose worker has lost its connection."""
    ask(conn, hello())
    begin_run(conn, "r")
    conn.execute("update durable._workers set missing_at = durable._now_ms()")
    clock.advance(S)


def killed(conn: Connection, clock: Clock, *, another: bool) -> None:
    """A run whose worker was present, and has lost its presence lock; nothing has ticked since."""
    ask(conn, hello())
    begin_run(conn, "r")
    conn.execute("update durable._workers set present = true")
    clock.advance(4 * S)
    if another:
        ask(conn, hello("X"))


def silent(conn: Connection, clock: Clock) -> None:
    """A run whose worker, without presence, sends no heartbeat any more."""
    ask(conn, hello())
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, outcomes=[begun(0, name="charge")]))
    conn.execute("update durable._workers set seen_at = durable._now_ms()")
    clock.advance(10 * S)


def halted(conn: Connection, clock: Clock) -> None:
    """A run whose code does not fit its journal."""
    problem = '{"type": "Nondeterminism", "message": "expects step a,\\n  the code made step b"}'
    take_turn(conn, "W", report(begin_run(conn, "r"), end=halt(problem)))


def halted_at_a_line(conn: Connection, clock: Clock) -> None:
    """A run whose worker found the line that a replay cannot repeat; its error is longer than a line."""
    problem = {"type": "Nondeterminism", "message": "m" * 400, "data": {"hint": "a.py:8 calls uuid.uuid4()"}}
    take_turn(conn, "W", report(begin_run(conn, "r"), end=halt(json.dumps(problem))))


def paused(conn: Connection, clock: Clock) -> None:
    """A run that a person paused."""
    ask(conn, start("r"))
    ask(conn, PAUSE)


def exhausted(conn: Connection, clock: Clock) -> None:
    """A run that its worker paused after the last attempt of a step."""
    message = "step charge failed in attempt 3: Oops; durable.resume(id) tries again"
    problem = json.dumps({"type": "Paused", "message": message})
    take_turn(conn, "W", report(begin_run(conn, "r"), end=halt(problem)))


def run_retry(conn: Connection, clock: Clock) -> None:
    """A run that failed and begins again in a minute."""
    end = {"do": "continue", "value": "[]", "on": [0], "error": '{"type": "Boom"}', "retry_in": MIN}
    take_turn(conn, "W", report(begin_run(conn, "r"), end=end))


def service(conn: Connection, clock: Clock, *after: str, worker: bool = False) -> None:
    """A run of a function of the database; then something else happens."""
    conn.execute(SERVED)
    conn.execute(SERVE)
    ask(conn, start("r", "[1]", workflow="sql://public.work"))
    clock.advance(2 * S)
    for statement in after:
        conn.execute(statement)
    if worker:
        ask(conn, hello())


def offered(conn: Connection, clock: Clock) -> None:
    """A task of a protocol client, which was offered."""
    ask(conn, create("r", target="g"))
    ask(conn, ("select durable.task_offer('g')", ()))
    clock.advance(S)


def given_back(conn: Connection, clock: Clock) -> None:
    """A task that a client of the protocol does not serve."""
    ask(conn, create("r", target="g"))
    for version in (0, 1):
        ask(conn, acquire("r", version))
        ask(conn, ("select durable.task_release('r', %s)", (version + 1,)))


def put_off(conn: Connection, clock: Clock) -> None:
    """A run that its worker gave back for five seconds."""
    take_turn(conn, "W", report(begin_run(conn, "r"), end=release(5 * S)))


def called(conn: Connection, clock: Clock, *, alive: bool = True, fails: bool = False) -> str:
    """A call at an adapter, polled twice; the id of its promise."""
    scene = Scene(conn)
    scene.scope("s")
    answer = scene.begin(request={"name": "resize"})
    (document,) = scene.lease()
    scene.pending(document)
    clock.advance(MIN)
    (document,) = scene.lease()
    if fails:
        scene.failed(document)
    else:
        scene.pending(document, poll_after_ms=9000)
    clock.advance(4 * S if fails is False and alive else 0)
    if not alive:
        clock.advance(2 * MIN)
    return str(answer["promise"])


TASKS: dict[str, tuple[Situation, list[tuple[str, str]]]] = {
    "next in its queue": (queued, [("queued", "is next in queue default since 3 min; 1 worker serves it")]),
    "behind others": (
        behind_others,
        [("queued", "is behind 2 others in queue default since 2 s; 2 workers serve it")],
    ),
    "no worker": (
        lambda conn, clock: (ask(conn, start("r")), clock.advance(3 * MIN)),
        [("no_worker", "no worker runs; w is queued in default since 3 min")],
    ),
    "a worker that was killed": (
        lambda conn, clock: (
            queued(conn, clock),
            conn.execute("update durable._workers set present = true, seen_at = seen_at - 10000"),
        ),
        [("no_worker", "no worker runs; w is queued in default since 3 min")],
    ),
    "another queue": (
        lambda conn, clock: queued(conn, clock, queue="mail"),
        [("no_worker_for_queue", "no worker serves queue mail; 1 worker serves default")],
    ),
    "another workflow": (
        lambda conn, clock: (ask(conn, hello("X", workflow="x")), ask(conn, start("r", any_workflow=True))),
        [
            (
                "no_worker_for_workflow",
                "no worker serves w in queue default; 1 worker serves other workflows there",
            )
        ],
    ),
    "another version": (
        lambda conn, clock: queued(conn, clock, version="2"),
        [("no_worker_for_version", "no worker serves w version 2; 1 worker serves 1")],
    ),
    "other rules": (
        lambda conn, clock: (
            queued(conn, clock),
            conn.execute("update durable._tasks set rules = 2; update durable._executions set rules = 2"),
        ),
        [
            (
                "no_worker_for_rules",
                "no worker knows the rules of replay 2 of w; 1 worker serves it with an older pyengine",
            )
        ],
    ),
    "delayed, soon": (
        lambda conn, clock: ask(conn, start("r", delay="30 minutes")),
        [("delayed", "starts in 30 min")],
    ),
    "delayed, later": (
        lambda conn, clock: ask(conn, start("r", delay="25 hours")),
        [("delayed", "starts tomorrow 9:00")],
    ),
    "a step is tried again": (failing, [("retry", "step charge failed twice (Oops), attempt 3 in 12 s")]),
    "a step is tried again by its worker": (
        failing_in_a_worker,
        [("retry", "step charge failed once (Oops), attempt 2 in 2 s")],
    ),
    "a step runs": (running_step, [("step", "step charge runs in worker W since 10 s")]),
    "its code runs": (running, [("running", "runs in worker W since 5 s, with a lease for 10 s more")]),
    "a lease is over": (
        lambda conn, clock: (begin_run(conn, "r"), clock.advance(TTL_MS + 2 * S)),
        [("overdue", "the lease of worker W ended 2 s ago; the next tick gives it to another one")],
    ),
    "a lease is over and nothing ticks": (
        lambda conn, clock: (begin_run(conn, "r"), clock.advance(TTL_MS + MIN)),
        [
            (
                "no_tick",
                "the lease of worker W ended 1 min ago, and no worker runs, which would tick; "
                "select durable.tick() does it too",
            )
        ],
    ),
    "a worker is gone": (
        gone,
        [
            (
                "worker_gone",
                "worker W is gone, last heard 1 s ago; no other worker runs, which would take over",
            )
        ],
    ),
    "a worker was killed": (
        lambda conn, clock: killed(conn, clock, another=True),
        [("worker_gone", "worker W is gone, last heard 4 s ago; another one takes over within seconds")],
    ),
    "the only worker was killed": (
        lambda conn, clock: killed(conn, clock, another=False),
        [
            (
                "worker_gone",
                "worker W is gone, last heard 4 s ago; no other worker runs, which would take over",
            )
        ],
    ),
    "a worker is silent": (
        silent,
        [
            (
                "worker_silent",
                "worker W was last heard 10 s ago; if it stays silent its lease ends in 5 s, "
                "and another one takes over",
            ),
            ("step", "step charge runs in worker W since 10 s"),
        ],
    ),
    "it killed its worker": (
        lambda conn, clock: lost(conn, clock, 2),
        [
            ("crashed", "killed its worker twice in step resize; after 6 times in a row it is set aside"),
            ("no_worker", "no worker runs; w is queued in default since 2 s"),
        ],
    ),
    "dead": (
        dead,
        [
            (
                "dead",
                "killed its worker twice in step resize and is set aside; durable.redrive('r') lets it go on",
            )
        ],
    ),
    "halted": (
        halted,
        [
            (
                "halted",
                "halted: Nondeterminism: expects step a, the code made step b; "
                "durable.resume('r') lets it go on with code that fits its journal; else fork it from "
                "before the difference",
            )
        ],
    ),
    "halted at a line": (
        halted_at_a_line,
        [
            (
                "halted",
                f"halted: a.py:8 calls uuid.uuid4(); Nondeterminism: {'m' * 281}...; "
                "durable.resume('r') lets it go on with code that fits its journal; else fork it from "
                "before the difference",
            )
        ],
    ),
    "paused": (paused, [("paused", "is paused; durable.resume('r') lets it go on")]),
    "paused after the last attempt": (
        exhausted,
        [
            (
                "paused",
                "is paused: step charge failed in attempt 3: Oops; durable.resume(id) tries again",
            )
        ],
    ),
    "the run is tried again": (
        run_retry,
        [("run_retry", "failed (Boom), attempt 2 of the run in 1 min")],
    ),
    "a function": (
        lambda conn, clock: service(conn, clock, worker=True),
        [("queued", "is next for function public.work since 2 s")],
    ),
    "a function that nothing calls": (
        service,
        [
            (
                "no_worker",
                "no worker runs, which would call function public.work; select durable.tick() calls it too",
            )
        ],
    ),
    "a function that is not served": (
        lambda conn, clock: service(conn, clock, "select durable.unserve('public.work')"),
        [("not_served", "function public.work is not served; durable.serve(...) serves it")],
    ),
    "a function that is gone": (
        lambda conn, clock: service(conn, clock, "drop function public.work(integer)"),
        [("no_function", "function public.work(integer) does not exist any more")],
    ),
    "no client of the protocol": (
        lambda conn, clock: (ask(conn, create("r", target="g")), clock.advance(S)),
        [("no_client", "task waits for a client of group g since 1 s")],
    ),
    "offered to a client": (
        offered,
        [
            (
                "offered",
                "task was offered to a client of group g, which has not taken it; "
                "the next offer is due in 4 s",
            )
        ],
    ),
    "given back by a client": (
        given_back,
        [("released", "task was given back twice by clients of group g; waits for another client")],
    ),
    "held by a client": (
        lambda conn, clock: (take(conn, "r"), clock.advance(5 * S)),
        [("running", "runs in client P since 5 s, with a lease for 10 s more")],
    ),
    "put off": (put_off, [("put_off", "was put off; it is claimed again in 5 s")]),
}


@pytest.mark.parametrize("situation", TASKS)
def test_tasks(conn: Connection, clock: Clock, situation: str) -> None:
    """Each situation, made on purpose, has its sentences."""
    make, expected = TASKS[situation]
    make(conn, clock)
    assert why(conn) == [(0, "r", *each) for each in expected]


def test_calls_at_an_adapter(conn: Connection, clock: Clock) -> None:
    """A call is pending, failed, or has no worker for its adapter."""
    id_ = called(conn, clock)
    said = "call resize is pending at adapter fake since 1 min, poll 3 in 5 s"
    assert why(conn, id_) == [(0, id_, "call", said)]
    assert details(conn, id_)["polls"] == 2


def test_a_call_that_failed(conn: Connection, clock: Clock) -> None:
    """The last message of the adapter stands in the sentence."""
    id_ = called(conn, clock, fails=True)
    ((_, _, cause, said),) = why(conn, id_)
    assert cause == "call_retry"
    assert said == "call resize failed once at adapter fake (throttled!), poll 3 in 1 s"


def test_a_call_without_a_worker(conn: Connection, clock: Clock) -> None:
    """Nobody has asked for work of the adapter for a minute."""
    id_ = called(conn, clock, alive=False)
    said = "no worker serves adapter fake; call resize waits since 3 min"
    assert why(conn, id_) == [(0, id_, "no_adapter", said)]


def test_details_of_a_failure(conn: Connection, clock: Clock) -> None:
    """The same as data: the step, its attempts, and the error as it is recorded."""
    failing(conn, clock)
    assert details(conn) == {
        "name": "charge",
        "child": 0,
        "attempt": 3,
        "failures": 2,
        "error": {"type": "Oops"},
    }
