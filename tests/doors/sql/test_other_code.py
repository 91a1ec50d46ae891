"""Why a run waits for other code, as people are told."""

from __future__ import annotations

import pytest

from tests.core.sql.test_other_code import (
    MISFIT,
    NEW,
    OLD,
    THIRD,
    WHY_HALTED,
    claims,
    digests,
    hello,
    misfit,
    written_by_new,
)
from tests.support.clock import Clock
from tests.support.verbs import (
    Connection,
    ask,
    captured,
    complete,
    halt,
    promise,
    report,
    settle,
    suspend,
    take_turn,
    task_of,
    tick,
)
from tests.support.why import why


def test_left_to_a_present_worker_with_its_code(conn: Connection, clock: Clock) -> None:
    """The other worker cannot claim it again, the one with the code can, and the run ends."""
    written_by_new(conn)
    hello(conn, "O", OLD)
    hello(conn, "N2", NEW)
    assert misfit(conn, "O", OLD) == "released"
    assert digests(conn) == (NEW, None)
    assert claims(conn, "O", OLD) == []
    assert why(conn) == [(0, "r", "reserved", "is left for 15 s more to worker N2, which has its code")]
    [held] = claims(conn, "N2", NEW)
    assert take_turn(conn, "N2", report(held, end=complete()), digest=NEW).of(held) == ("ok", "done")


def test_halted_without_its_code_and_offered_when_it_is_back(conn: Connection, clock: Clock) -> None:
    """It says what it waits for; a tick offers it to the first worker with the code, and to no other."""
    written_by_new(conn)
    hello(conn, "O", OLD)
    assert misfit(conn, "O", OLD) == "halted"
    assert why(conn) == [(0, "r", "waits_for_code", WHY_HALTED)]
    hello(conn, "T", THIRD)
    assert tick(conn)["hints"] == []
    assert task_of(conn, "r") == ("halted", 2, None)
    hello(conn, "N2", NEW)
    assert tick(conn)["hints"] == ["default"]
    assert claims(conn, "O", OLD) == claims(conn, "T", THIRD) == []
    [held] = claims(conn, "N2", NEW)
    assert take_turn(conn, "N2", report(held, end=complete()), digest=NEW).of(held) == ("ok", "done")
    assert ask(conn, ("select count(*) from durable._code_waits", ())) == (0,)


def test_code_that_wrote_the_journal_and_does_not_fit_it_halts(conn: Connection, clock: Clock) -> None:
    """Such code is not deterministic: the run waits for nobody, whoever comes."""
    written_by_new(conn)
    hello(conn, "N2", NEW)
    assert misfit(conn, "N2", NEW) == "halted"
    hello(conn, "N3", NEW)
    assert tick(conn)["hints"] == []
    assert [cause for _, _, cause, _ in why(conn)] == ["halted"]


@pytest.mark.parametrize("wrote", ["a call", "a wait"])
def test_code_that_has_written_owns_the_journal(conn: Connection, clock: Clock, wrote: str) -> None:
    """Once another code has made calls in it, no earlier code fits any more."""
    written_by_new(conn)
    hello(conn, "O", OLD)
    [held] = claims(conn, "O", OLD)
    if wrote == "a call":
        made = report(held, commands=[captured(2)])
    else:
        made = report(held, commands=[promise(2)], end=suspend(2))
    take_turn(conn, "O", made, digest=OLD)
    if wrote == "a wait":
        ask(conn, settle("r.2"))
        [held] = claims(conn, "O", OLD)
        seen = held.next
    else:
        seen = held.next + 1
    hello(conn, "N2", NEW)
    assert take_turn(conn, "O", report(held, seen=seen, end=halt(MISFIT)), digest=OLD).of(held)[1] == "halted"
    assert [cause for _, _, cause, _ in why(conn)] == ["halted"]
