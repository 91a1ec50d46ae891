"""Law: a run that waits has a cause for each wait, followed by the causes of what it waits for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.features.sql.test_remote_calls import rpc
from tests.support.clock import Clock
from tests.support.rows import shop, until
from tests.support.stages import suspended
from tests.support.verbs import (
    Connection,
    Held,
    adopt,
    ask,
    begin_run,
    begun,
    cancel,
    claim,
    complete,
    create,
    done,
    fail,
    halt,
    intent,
    park,
    promise,
    receive,
    report,
    run,
    send,
    settle,
    start,
    suspend,
    take,
    take_turn,
    tick,
    timer,
)
from tests.support.why import Answer, details, hello, why

Situation = Callable[[Connection, Clock], object]
S, MIN, HOUR = 1000, 60_000, 3_600_000
NO_CHILD_WORKER = "no worker runs; ship is queued in kids since 3 min"


def signalled(conn: Connection, clock: Clock) -> None:
    """A run that receives one signal, with a limit, while another one lies there."""
    suspended(conn, receive(0, "approve"), timer(1, 25 * HOUR), kind="any")
    clock.advance(3 * MIN)


def misspelt(conn: Connection, clock: Clock) -> None:
    """A run that receives one signal, and got another."""
    suspended(conn, receive(0, "approve"), kind="signal")
    ask(conn, send("r", "aprove"))


def row(conn: Connection, clock: Clock) -> None:
    """A run that waits for a row."""
    shop(conn)
    suspended(conn, until(0, timeout=HOUR))
    clock.advance(MIN)


def broken_watch(conn: Connection, clock: Clock) -> None:
    """A run that waits for a row of a table whose triggers were switched off."""
    shop(conn)
    suspended(conn, until(0))
    conn.execute("alter table orders disable trigger all")


def family(conn: Connection, clock: Clock) -> None:
    """A run that waits for a child, which nobody runs."""
    suspended(conn, run(0, name="ship", queue="kids"))
    clock.advance(3 * MIN)


def chain(conn: Connection, clock: Clock) -> None:
    """A run that waits for another run, which waits for its child, which waits for a promise."""
    other = begin_run(conn, "other")
    answer = take_turn(conn, "W", report(other, commands=[run(0, name="ship", queue="kids")]))
    take_turn(conn, "W", report(other, end=suspend(0), seen=answer.next_of(other)))
    child = claim(conn, "W", "kids", workflows=["ship"])
    answer = take_turn(conn, "W", report(child, commands=[promise(0)]))
    take_turn(conn, "W", report(child, end=suspend(0), seen=answer.next_of(child)))
    suspended(conn, adopt(0, "other"))
    clock.advance(3 * MIN)


def many(conn: Connection, clock: Clock) -> None:
    """A run that waits for twelve children."""
    suspended(conn, *[run(number, queue="kids") for number in range(12)], kind="all")


def cleaning_up(conn: Connection, clock: Clock) -> None:
    """A run that was asked to cancel, and undoes something under a shield."""
    suspended(conn, receive(0), kind="signal")
    ask(conn, cancel("r", '"the customer called"', grace_ms=30 * S))
    held = claim(conn, "W", "q-r")
    take_turn(conn, "W", report(held, outcomes=[begun(1, name="refund")]))
    clock.advance(3 * S)


def cannot_clean_up(conn: Connection, clock: Clock) -> None:
    """A halted run that was asked to cancel; its worker has halted it again."""
    problem = halt('{"type": "Nondeterminism", "message": "other code"}')
    take_turn(conn, "W", report(begin_run(conn, "r"), end=problem))
    ask(conn, cancel("r", grace_ms=30 * S))
    take_turn(conn, "W", report(claim(conn, "W", "q-r"), end=problem))
    clock.advance(3 * S)


def overdue_timer(conn: Connection, clock: Clock) -> None:
    """A run whose timer was due, in a database in which nothing ticks."""
    suspended(conn, timer(0, MIN))
    clock.advance(4 * MIN)


def of_a_client(conn: Connection, clock: Clock) -> None:
    """A task of a protocol client that waits for a promise."""
    take(conn, "r")
    ask(conn, create("invoice-7", external="true"))
    ask(conn, park("r", "invoice-7"))
    clock.advance(S)


WAITS: dict[str, tuple[Situation, Answer]] = {
    "a signal with a limit": (
        signalled,
        [(0, "r", "signal", "waits for signal approve since 3 min, until tomorrow 9:00")],
    ),
    "a misspelt signal": (
        misspelt,
        [(0, "r", "signal", "waits for signal approve since 0 ms; not received yet: aprove")],
    ),
    "a sleep": (
        lambda conn, clock: (suspended(conn, timer(0, HOUR)), clock.advance(3 * MIN)),
        [(0, "r", "timer", "sleeps since 3 min, until 9:00 (in 57 min)")],
    ),
    "a sleep that is over": (
        overdue_timer,
        [
            (0, "r", "timer", "sleeps since 4 min, until 8:01:00 (in 0 ms)"),
            (
                1,
                "r.0",
                "no_tick",
                "was due 3 min ago, and no worker runs, which would tick; select durable.tick() does it too",
            ),
        ],
    ),
    "a row": (
        row,
        [(0, "r", "row", 'waits for row orders.paid {"id": 1} since 1 min, until 9:00 (in 59 min)')],
    ),
    "a broken watch": (
        broken_watch,
        [
            (0, "r", "row", 'waits for row orders.paid {"id": 1} since 0 ms'),
            (
                1,
                "r.0",
                "watch",
                "watch orders.paid does not see every change: triggers disabled; "
                "call durable.watch(...) again",
            ),
        ],
    ),
    "a child run": (
        family,
        [
            (0, "r", "child", "waits for child run ship [0] since 3 min"),
            (1, "r.0", "no_worker", NO_CHILD_WORKER),
        ],
    ),
    "another run": (
        chain,
        [
            (0, "r", "run", "waits for run other (w) since 3 min"),
            (1, "other", "child", "waits for child run ship [0] since 3 min"),
            (2, "other.0", "promise", "waits for promise label [0] since 3 min"),
            (
                3,
                "other.0.0",
                "unsettled",
                "is not settled since 3 min; durable.resolve('other.0.0', ...) settles it",
            ),
        ],
    ),
    "a function of an SDK": (
        lambda conn, clock: suspended(conn, rpc(0)),
        [
            (0, "r", "remote_call", "waits for remote call f [0] since 0 ms"),
            (1, "r.0", "no_client", "call of f waits for a client of group g since 0 ms"),
        ],
    ),
    "a request to cancel": (
        cleaning_up,
        [
            (
                0,
                "r",
                "cancelling",
                "was asked to cancel since 3 s (the customer called); its code may clean up, "
                "until 8:00:30 (in 27 s)",
            ),
            (0, "r", "step", "step refund runs in worker W since 3 s"),
        ],
    ),
    "a request to cancel what is halted": (
        cannot_clean_up,
        [
            (
                0,
                "r",
                "cancelling",
                "was asked to cancel since 3 s; it is set aside, so nothing cleans up and only its grace "
                "passes, until 8:00:30 (in 27 s); durable.cancel('r', force => true) ends it now",
            ),
            (
                0,
                "r",
                "halted",
                "halted: Nondeterminism: other code; durable.resume('r') lets it go on with code that fits "
                "its journal; else fork it from before the difference",
            ),
        ],
    ),
    "a promise, for a client": (
        of_a_client,
        [
            (0, "r", "promise", "waits for promise invoice-7"),
            (
                1,
                "invoice-7",
                "unsettled",
                "is not settled since 1 s; durable.resolve('invoice-7', ...) settles it",
            ),
        ],
    ),
}


@pytest.mark.parametrize("situation", WAITS)
def test_waits(conn: Connection, clock: Clock, situation: str) -> None:
    """Each situation, made on purpose, has its sentences."""
    make, expected = WAITS[situation]
    make(conn, clock)
    assert why(conn) == expected


@pytest.mark.unlawful
def test_a_task_that_nothing_resumes(conn: Connection, clock: Clock) -> None:
    """A suspended task that waits for nothing is a broken law, which the sentence names."""
    take(conn, "r")
    conn.execute("update durable._tasks set state = 'suspended', pid = null, ttl = null, expires_at = null")
    said = "is suspended, and no promise that is open resumes it; look at durable.check('r')"
    assert why(conn) == [(0, "r", "suspended", said)]


def test_many_waits_are_cut_short(conn: Connection, clock: Clock) -> None:
    """Ten waits of a run are answered, those first that do not run, and how many more there are."""
    many(conn, clock)
    runs = claim(conn, "W", "kids").id
    answer = why(conn)
    others = [f"r.{number}" for number in range(12) if f"r.{number}" != runs]
    assert [id_ for depth, id_, _, _ in answer if depth == 1] == others[:10]
    assert answer[-1] == (0, "r", "more", "waits for 2 more")
    assert why(conn, at_most=3) == answer[:3]


ENDED: dict[str, tuple[Callable[[Held], dict[str, object]], str, str]] = {
    "completed": (lambda held: report(held, end=complete()), "completed", "completed 3 min ago (8:00:00)"),
    "failed": (
        lambda held: report(held, end=fail('{"type": "Boom", "message": "no"}')),
        "failed",
        "failed 3 min ago (8:00:00): Boom: no",
    ),
}


@pytest.mark.parametrize("end", ENDED)
def test_runs_that_ended(conn: Connection, clock: Clock, end: str) -> None:
    """A run that ended waits for nothing, and says how it ended."""
    make, cause, said = ENDED[end]
    take_turn(conn, "W", make(begin_run(conn, "r")))
    clock.advance(3 * MIN)
    assert why(conn) == [(0, "r", cause, said)]


def test_signals_that_nobody_received(conn: Connection, clock: Clock) -> None:
    """A run that ended tells of the signals that it did not receive; five names, and all in the details."""
    held = begin_run(conn, "r")
    for number in range(6):
        ask(conn, send("r", f"s{number}"))
    ask(conn, send("r", "s0"))
    take_turn(conn, "W", report(held, end=complete()))
    said = "ended without receiving 7 signals: s0 (2), s1 (1), s2 (1), s3 (1), s4 (1), ..."
    assert why(conn)[1:] == [(0, "r", "unread", said)]
    (given,) = ask(conn, ("select details -> 'signals' from durable.why('r') offset 1", ()))
    assert given == {"s0": 2} | {f"s{number}": 1 for number in range(1, 6)}


def test_other_ends(conn: Connection, clock: Clock) -> None:
    """A deadline, a cancellation before the run began, and promises."""
    ask(conn, start("late", timeout="1 s"))
    clock.advance(2 * S)
    assert why(conn, "late") == [(0, "late", "overdue", "expired 1 s ago; the next tick ends it")]
    tick(conn)
    said = "timed out 1 s ago (8:00:01): Timeout: the deadline passed"
    assert why(conn, "late") == [(0, "late", "timed_out", said)]
    ask(conn, start("unwanted"))
    ask(conn, cancel("unwanted", '"no stock"'))
    said = "was cancelled 0 ms ago (8:00:02): Cancelled: no stock"
    assert why(conn, "unwanted") == [(0, "unwanted", "cancelled", said)]
    ask(conn, create("p", external="true"))
    ask(conn, settle("p"))
    assert why(conn, "p") == [(0, "p", "resolved", "was resolved 0 ms ago (8:00:02)")]


def test_ids_that_no_run_has(conn: Connection, clock: Clock) -> None:
    """A mistyped id is answered with those like it; a step and a schedule with what they are."""
    for id_ in ("order-41", "order-42", "invoice-1"):
        ask(conn, start(id_))
    said = "no run, promise or schedule has this id; near are order-41, order-42"
    assert why(conn, "order-4l") == [(0, "order-4l", "unknown", said)]
    assert why(conn, "zzz") == [(0, "zzz", "unknown", "no run, promise or schedule has this id")]
    held = begin_run(conn, "r")
    outcomes = [done(0, name="charge")]
    take_turn(conn, "W", report(held, outcomes=outcomes, commands=[intent(1, name="mail")]))
    assert why(conn, "r.0") == [(0, "r.0", "step_of", "is step charge of run r: resolved")]
    assert [row[:3] for row in why(conn, "r.1")] == [(0, "r.1", "step_of"), (1, "r", "step")]
    ask(conn, ("select durable.schedule_create('nightly', '0 9 * * *', '{{.id}}.{{.timestamp}}', 1000)", ()))
    said = "is a schedule (0 9 * * *, UTC): fires 9:00"
    assert why(conn, "nightly") == [(0, "nightly", "schedule", said)]


def test_a_removed_run(conn: Connection, clock: Clock) -> None:
    """Its id is remembered for a while."""
    take_turn(conn, "W", report(begin_run(conn, "r"), end=complete()))
    clock.advance(24 * HOUR)
    ask(conn, ("select runs from durable.purge('1 hour')", ()))
    clock.advance(3 * MIN)
    said = "ended as resolved 24 h 3 min ago and was removed 3 min ago"
    assert why(conn) == [(0, "r", "removed", said)]


def test_a_late_schedule(conn: Connection, clock: Clock) -> None:
    """A schedule that was due says why it has not fired."""
    ask(conn, ("select durable.schedule_create('often', '* * * * *', '{{.id}}.{{.timestamp}}', 1000)", ()))
    clock.advance(3 * MIN)
    ((_, _, cause, _),) = why(conn, "often")
    assert cause == "no_tick"
    ask(conn, hello())
    ((_, _, cause, said),) = why(conn, "often")
    assert (cause, said) == ("overdue", "was due 2 min ago; the next tick fires it")


def test_a_paused_schedule(conn: Connection, clock: Clock) -> None:
    """A schedule that is paused says since when."""
    ask(conn, ("select durable.schedule_create('nightly', '0 9 * * *', '{{.id}}.{{.timestamp}}', 1000)", ()))
    ask(conn, ("select durable.pause_schedule('nightly')", ()))
    clock.advance(3 * MIN)
    said = (
        "is a schedule (0 9 * * *, UTC), paused since 3 min by postgres; "
        "durable.resume_schedule('nightly') lets it go on"
    )
    assert why(conn, "nightly") == [(0, "nightly", "schedule_paused", said)]


def test_instants_that_wait_or_were_left_out(conn: Connection, clock: Clock) -> None:
    """A schedule says which, and why the run that they wait for goes on."""
    late = "'s', '@hourly', workflow => 'ship', queue => 'kids', catch_up => '30 min'"
    ask(conn, (f"select durable.schedule({late}, overlap => 'buffer_one', any_workflow => true)", ()))
    for _ in range(3):
        clock.advance(HOUR)
        tick(conn)
    run_, plan = "s-2027-01-15T09:00:00Z", "is a schedule (@hourly, UTC): fires 12:00, the last time 0 ms ago"
    assert why(conn, "s") == [
        (0, "s", "schedule", plan),
        (0, "s", "buffered", f"1 instant waits for the end of run {run_}"),
        (1, run_, "no_worker", "no worker runs; ship is queued in kids since 2 h"),
        (0, "s", "skipped", "the instant 11:00:00 was skipped: another instant was buffered"),
    ]
    clock.advance(5 * HOUR)
    tick(conn)
    missed = "the instants from 12:00 to 15:29 were missed: no tick came in time"
    assert ("missed", missed) in [row[2:] for row in why(conn, "s")]
    clock.advance(30 * HOUR)
    assert "missed" not in [cause for _, _, cause, _ in why(conn, "s")]


def test_details_of_a_wait(conn: Connection, clock: Clock) -> None:
    """The same as data."""
    misspelt(conn, clock)
    assert details(conn) == {"name": "approve", "wait": "signal", "unread": ["aprove"]}
