"""Law: a loss counts for the run that was alone with its worker; what was lost together is claimed alone."""

from __future__ import annotations

import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    TTL_MS,
    Connection,
    ask,
    begin_run,
    complete,
    done,
    report,
    start,
    take_turn,
    task_of,
    tick,
)


def _lost_together(conn: Connection, clock: Clock) -> None:
    """The worker of these runs is gone."""
    clock.advance(TTL_MS)
    tick(conn)


def _marks(conn: Connection) -> dict[str, tuple[int, bool]]:
    rows = conn.execute(
        "select id, crashes, suspect from durable._tasks where execution is not null"
    ).fetchall()
    return {id_: (crashes, suspect) for id_, crashes, suspect in rows}


def test_a_loss_counts_for_the_run_that_was_alone(conn: Connection, clock: Clock) -> None:
    """Runs that a worker takes with it before its first word count no crash; from then on each is claimed
    alone, and the one with which a worker is lost again is dead after max_crashes, and no other.
    """
    ask(conn, ("select durable.set_setting('max_crashes', '2')", ()))
    for number in range(5):
        ask(conn, start(f"r{number}"))
    assert len(take_turn(conn, "W", want=50).tasks) == 5
    _lost_together(conn, clock)
    assert _marks(conn) == {f"r{number}": (0, True) for number in range(5)}
    crashes = 0
    while (task_of(conn, "r2") or ("",))[0] != "halted":
        (alone,) = take_turn(conn, "V", want=50).tasks
        # it has said nothing yet, so nothing comes beside it; after a second this is no reason any more
        assert take_turn(conn, "V", want=50).tasks == []
        clock.advance(1)
        if alone.id == "r2":
            _lost_together(conn, clock)
            crashes += 1
            assert _marks(conn)["r2"] == (crashes, True)
        else:
            take_turn(conn, "V", report(alone, end=complete()))
    assert crashes == 3
    marks = _marks(conn)
    assert {id_: crashes for id_, (crashes, _) in marks.items() if id_ != "r2"} == dict.fromkeys(
        set(marks) - {"r2"}, 0
    )
    problem = ask(conn, ("select problem ->> 'type' from durable.runs where id = 'r2'", ()))
    assert problem == ("Crashed",)


def test_a_second_suspect_comes_after_a_second(conn: Connection, clock: Clock) -> None:
    """A suspect whose first step is long keeps others away from its worker for a second only; runs
    that are no suspects are claimed beside it at once.
    """
    for number in range(3):
        ask(conn, start(f"r{number}"))
    take_turn(conn, "W", want=50)
    _lost_together(conn, clock)
    # they were lost at one instant, so any of them may come first
    suspects = [one.id for one in take_turn(conn, "V", want=50).tasks]
    assert len(suspects) == 1
    ask(conn, start("young"))
    assert [one.id for one in take_turn(conn, "V", want=50).tasks] == ["young"]
    suspects += [one.id for one in take_turn(conn, "U", want=50).tasks]
    assert len(suspects) == 2
    clock.advance(1001)
    suspects += [one.id for one in take_turn(conn, "V", want=50).tasks]
    assert sorted(suspects) == ["r0", "r1", "r2"]


def test_suspects_hide_no_other_run(conn: Connection, clock: Clock) -> None:
    """However many stand before it, a run that is no suspect is claimed beside the one that is."""
    for number in range(9):
        ask(conn, start(f"r{number}"))
    take_turn(conn, "W", want=50)
    _lost_together(conn, clock)
    clock.advance(1)
    ask(conn, start("young"))
    assert [one.id[:1] for one in take_turn(conn, "V", want=1).tasks] == ["r"]
    assert [one.id for one in take_turn(conn, "V", want=1).tasks] == ["young"]


def test_no_other_run_hides_a_suspect(conn: Connection, clock: Clock) -> None:
    """It is claimed although others stand before it each time, and they are claimed at once after it."""
    ask(conn, start("r0"))
    take_turn(conn, "W", want=50)
    _lost_together(conn, clock)
    for number in range(2):
        ask(conn, start(f"first{number}", priority=-1))
    assert [one.id for one in take_turn(conn, "V", want=50).tasks] == ["r0"]
    assert sorted(one.id for one in take_turn(conn, "V", want=50).tasks) == ["first0", "first1"]


@pytest.mark.unlawful
def test_a_loss_reads_no_row_from_before_the_lease(conn: Connection, clock: Clock) -> None:
    """Whether a run is a suspect is read from the end of its journal, however long that is."""
    held = begin_run(conn, "long")
    conn.execute(
        "insert into durable._journal (bucket, execution, seq, ts, type, child, name) "
        "select h.bucket, h.execution, n, 1, 'step_completed', n, 's' "
        "from durable._executions h, generate_series(1, 5000) n where h.id = 'long'"
    )
    read = (
        "select sum(idx_tup_fetch + coalesce(seq_tup_read, 0)) from pg_stat_xact_all_tables "
        "where relname like '%%journal%%'"
    )
    with conn.transaction():
        (before,) = ask(conn, (read, ()))
        assert ask(conn, ("select durable._without_progress(array[%s])", (held.id,))) == (["long"],)
        (after,) = ask(conn, (read, ()))
    assert after - before < 100


def test_a_word_clears_a_suspect(conn: Connection, clock: Clock) -> None:
    """After its first outcome a run is as any other: a loss beside a new one counts for the new one."""
    for number in range(2):
        ask(conn, start(f"r{number}"))
    take_turn(conn, "W", want=50)
    _lost_together(conn, clock)
    (held,) = take_turn(conn, "V", want=50).tasks
    clock.advance(1)
    take_turn(conn, "V", report(held, outcomes=[done(0)]))
    assert _marks(conn)[held.id] == (0, False)
    (other,) = take_turn(conn, "V", want=50).tasks
    _lost_together(conn, clock)
    assert _marks(conn) == {held.id: (0, False), other.id: (1, True)}


def test_an_old_suspect_is_to_blame_and_not_the_new_runs(conn: Connection, clock: Clock) -> None:
    """The run that was claimed alone is known by it, although its worker has claimed others since."""
    for number in range(2):
        ask(conn, start(f"r{number}"))
    take_turn(conn, "W", want=50)
    _lost_together(conn, clock)
    (held,) = take_turn(conn, "V", want=1).tasks
    ask(conn, start("young"))
    take_turn(conn, "V", want=50)
    _lost_together(conn, clock)
    assert _marks(conn) == {held.id: (1, True), "young": (0, True), "r1": (0, True)}
