"""A database in which everything is: objects of every kind in every state, made through the doors.

What lives here: the inhabitants that the tests of durable.check() break laws on. No law is stated here.
"""

from __future__ import annotations

from tests.support.clock import Clock
from tests.support.laboratory import ClockInside
from tests.support.verbs import (
    Connection,
    adopt,
    ask,
    begin_run,
    begun,
    broken,
    cancel,
    cancelled,
    captured,
    claim,
    complete,
    continue_as_new,
    create,
    done,
    intent,
    join_set,
    park,
    pick,
    promise,
    receive,
    report,
    run,
    send,
    settle,
    submit,
    suspend,
    take,
    take_turn,
    tick,
    timer,
)

DAY = 86_400_000


def everything(conn: Connection) -> None:
    """All of this file, as the scene of a laboratory."""
    inhabit(conn, ClockInside(conn))
    inhabit_journals(conn)


def promises_and_runs(conn: Connection) -> None:
    """Objects of every kind in every state, as the scene of a laboratory."""
    inhabit(conn, ClockInside(conn))


def inhabit(conn: Connection, clock: Clock) -> None:
    """Objects of every kind in every state."""
    ask(conn, ("select from durable.schedule_create('s', '* * * * *', 'fired.{{.timestamp}}', 5)", ()))
    clock.advance(60_000)
    tick(conn)
    for name in ("x", "done", "early"):
        ask(conn, create(name, clock.now_ms + 100 * DAY, external="true"))
    ask(conn, create("internal"))
    ask(conn, create("bare"))
    ask(conn, create("over", clock.now_ms + 10, external="true"))
    for name in ("x", "done", "bare"):
        ask(conn, ("select from durable.promise_register_listener(%s, 'g')", (name,)))
    for name in ("t", "a", "h", "f"):
        take(conn, name, clock.now_ms + 100 * DAY)
    ask(conn, create("p", target="g"))
    ask(conn, create("both", target="g", timer="true"))
    ask(conn, park("t", "x"))
    ask(conn, ("select durable.task_halt('h')", ()))
    ask(conn, ("select from durable.promise_register_callback('early', 'a')", ()))
    ask(conn, settle("early"))
    clock.advance(10)
    for name in ("done", "f"):
        ask(conn, settle(name))
    conn.execute(
        "insert into durable._callbacks (awaited_id, awaiter_id, id, timeout_at, recv)"
        " values ('x', 'a', 'c', 9007199254740991, 'poll://any@h')"
    )
    tick(conn)
    inhabit_runs(conn)
    clock.advance(1)
    tick(conn)


def inhabit_runs(conn: Connection) -> None:
    """Runs with children of every kind, waiting, retrying and ended."""
    outcomes = [done(0), begun(1)]
    commands = [promise(2), run(3, queue="kids"), timer(4, DAY), captured(5), timer(6, 1)]
    take_turn(conn, "W", report(begin_run(conn, "r"), outcomes=outcomes, commands=commands))
    claim(conn, "K", "kids")
    held = begin_run(conn, "b")
    answer = take_turn(conn, "W", report(held, commands=[promise(0), promise(1)]))
    take_turn(conn, "W", report(held, end=suspend(0, 1, kind="all"), seen=answer.next_of(held)))
    outcomes = [done(0), broken(2, retry_in=5)]
    take_turn(conn, "W", report(begin_run(conn, "q"), outcomes=outcomes, commands=[captured(4)]))
    ask(conn, ("select from durable.promise_register_callback('x', 'q')", ()))
    take_turn(conn, "W", report(begin_run(conn, "e"), outcomes=[done(0)], end=complete()))


def inhabit_journals(conn: Connection) -> None:
    """Runs with signals, join sets, adopted promises, requests of cancellation and generations."""
    take_turn(conn, "W", report(begin_run(conn, "m")))
    held = begin_run(conn, "s")
    for _ in range(3):
        ask(conn, send("s"))
    take_turn(conn, "W", report(held, commands=[receive(0), receive(1, "later"), receive(2, "free")]))
    ask(conn, send("s", "free"))
    held = begin_run(conn, "w")
    take_turn(conn, "W", report(held, commands=[receive(0)], end=suspend(0, kind="signal")))
    held = begin_run(conn, "j")
    commands = [intent(0), intent(1), join_set(2), submit(0, 2), submit(1, 2), join_set(3)]
    take_turn(conn, "W", report(held, commands=commands))
    answer = take_turn(conn, "W", report(held, outcomes=[done(0)]))
    take_turn(conn, "W", report(held, commands=[pick(0, 2)], seen=answer.next_of(held)))
    held = begin_run(conn, "ad")
    take_turn(conn, "W", report(held, commands=[adopt(0, "x"), adopt(1, "done"), adopt(2, "bare")]))
    begin_run(conn, "c")
    ask(conn, cancel("c", '"why"'))
    held = begin_run(conn, "y")
    ask(conn, cancel("y"))
    take_turn(conn, "W", report(held, end=cancelled(), seen=held.next + 1))
    inhabit_generations(conn)


def inhabit_generations(conn: Connection) -> None:
    """Runs in their second generation: with a signal that waited, and with a backlog that was read from."""
    held = begin_run(conn, "g")
    ask(conn, send("g"))
    take_turn(conn, "W", report(held, outcomes=[done(0)], commands=[promise(1)]))
    take_turn(conn, "W", report(held, end=continue_as_new(on=3), seen=held.next + 5))
    held = claim(conn, "W", "q-g")
    take_turn(conn, "W", report(held, commands=[captured(3)]))
    held = begin_run(conn, "lag")
    for number in range(3):
        ask(conn, send("lag", payload=str(number), key=f"key {number}"))
    answer = take_turn(conn, "W", report(held, commands=[receive(0)]))
    take_turn(conn, "W", report(held, end=continue_as_new(on=1), seen=answer.next_of(held) + 3))
    take_turn(conn, "W", report(claim(conn, "W", "q-lag"), commands=[receive(1)]))
    ask(conn, send("lag", payload="3", key="key 3"))
