"""Claims of runs that are forks."""

from __future__ import annotations

from tests.core.sql.test_claims import NEW
from tests.support.verbs import (
    TTL_MS,
    Connection,
    ask,
    claim,
    code,
    done,
    report,
    start,
    take_turn,
)


def test_a_fork_keeps_plain_claims_away(conn: Connection) -> None:
    """While there are forks, whose journal is another run's, every run is claimed the batch path."""
    ask(conn, ("select durable.worker_hello_v1('W', '{default}', '{w}', '{1}', null, '{ab}')", ()))
    ask(conn, start("r"))
    with conn.transaction(force_rollback=True):
        assert ask(conn, (NEW, ("r", TTL_MS, code("w"), "r")))[0] is True
    held = claim(conn, "W", "default")
    take_turn(conn, "W", report(held, outcomes=[done(0)]))
    ask(conn, ("select durable.fork('r', seq => 3)", ()))
    ask(conn, start("s"))
    assert ask(conn, (NEW, ("s", TTL_MS, code("w"), "s")))[0] is False
