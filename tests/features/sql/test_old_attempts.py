"""Attempts that are not kept, as the past, forks and the checks see them."""

from __future__ import annotations

import psycopg
import pytest

from tests.core.sql.test_old_attempts import MISSING, fails, held, kept, problems, remaining, say
from tests.support.verbs import (
    Connection,
    Held,
    ask,
    begun,
    broken,
    claim,
    done,
    release,
)

__all__ = ["held"]


def test_interrupted_attempts_stay_and_do_not_count(conn: Connection, held: Held) -> None:
    """A policy of thirty attempts allows thirty failures, whatever was interrupted between them."""
    cut_off = (3, 17, 18)
    last = 30 + len(cut_off)
    for attempt in range(1, last):
        policy = {"retry": '{"max_attempts": 30}'} if attempt == 1 else {}
        if attempt in cut_off:
            assert say(conn, held, {**begun(0, attempt=attempt), **policy}) == "ok"
            assert say(conn, held, end=release()) == "ok"
            held = claim(conn, "W", "q-r")
        else:
            assert say(conn, held, fails(attempt, policy='{"max_attempts": 30}')) == "ok"
    assert kept(conn) == sorted({*remaining(last - 1), *cut_off})
    assert problems(conn) == []
    why = "select details ->> 'failures' from durable.why('r') where cause = 'retry'"
    assert ask(conn, (why, ())) == (str(29),)
    with pytest.raises(psycopg.Error) as refused, conn.transaction():
        say(conn, held, fails(last))
    assert "its retry policy allows 30 attempts" in (refused.value.diag.message_primary or "")
    assert say(conn, held, broken(0, attempt=last)) == "ok"
    assert problems(conn) == []


def test_the_past_is_told_by_what_is_left(conn: Connection, held: Held) -> None:
    """The events have the numbers that they were born with; a moment whose rows are gone has the attempt
    after the last one before it that is left."""
    say(conn, held, *(fails(attempt) for attempt in range(1, 41)))
    seqs = [seq for (seq,) in conn.execute("select seq from durable.journal_events order by seq").fetchall()]
    assert seqs == [*range(4), *range(2 + 2 * 30, 2 + 2 * 40)]
    for seq, attempt, state in ((30, 2, "retrying"), (63, 31, "running"), (64, 32, "retrying")):
        (then,) = ask(conn, ("select running from durable.as_of('r', seq => %s)", (seq,)))
        assert [(one["attempt"], one["state"]) for one in then] == [(attempt, state)]


def test_forks_of_what_is_left(conn: Connection, held: Held) -> None:
    """A fork goes on from the attempts that are left before its position, and removes its own in turn."""
    assert say(conn, held, *(fails(attempt) for attempt in range(1, 41))) == "ok"
    positions = {1: [], 4: [1], 30: [1], 64: [1, 31], 82: remaining(40)}
    for seq, attempts in positions.items():
        ask(
            conn,
            ("select durable.fork('r', seq => %s, new_id => %s, queue => %s)", (seq, f"f{seq}", f"q-f{seq}")),
        )
        assert (kept(conn, id_=f"f{seq}") or []) == attempts
        assert problems(conn) == []
        fork = claim(conn, "W", f"q-f{seq}")
        first = attempts[-1] + 1 if attempts else 1
        assert say(conn, fork, *(fails(attempt) for attempt in range(first, 48))) == "ok"
        assert kept(conn, id_=f"f{seq}") == remaining(47)
        assert problems(conn) == []


@pytest.mark.unlawful
@pytest.mark.parametrize("missing", MISSING)
def test_whatever_else_is_missing_is_reported(conn: Connection, held: Held, missing: str) -> None:
    """check() knows the rows that were removed from those that are lost."""
    assert say(conn, held, fails(1), done(1), *(fails(attempt) for attempt in range(2, 46))) == "ok"
    assert problems(conn) == []
    which, laws = MISSING[missing]
    conn.execute(f"delete from durable._journal where {which}".encode())
    assert {law for law, *_ in problems(conn)} == laws
