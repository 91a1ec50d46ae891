"""Law: a wait for a row is there exactly while its promise is pending, and durable.check() tells where it is
not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.clock import Clock
from tests.support.hands import laws_in, laws_of
from tests.support.rows import arm, settle_rows, shop, wait_for
from tests.support.verbs import Connection, ask

LAWS = {
    "row_wait_has_a_pending_promise": (
        "update durable._promises set state = 'resolved', settled_at = created_at where id = 'r.0'; "
        "delete from durable._callbacks; insert into durable._resumes values ('r', 'r.0')"
    ),
    "row_wait_is_of_its_owner": "update durable._row_waits set execution = 0",
    "row_wait_ends_with_its_run": (
        "update durable._executions set status = 'completed', waiting_on = null, wait_kind = null, "
        "wait_left = null"
    ),
    "row_wait_has_a_key_of_its_watch": """update durable._row_waits set key = '{"nr": 1}'""",
    "row_wait_is_tested_soon": "update durable._row_waits set test_at = 32503680000000",
    "row_wait_has_its_watch": "update durable._row_waits set watch = 0",
    "row_wait_has_the_key_of_its_promise": """update durable._row_waits set key = key || '{"id": 999}'""",
    "row_promise_has_a_wait": "delete from durable._row_waits",
    "row_event_names_a_promise": (
        "insert into durable._row_events (xid, watch, state, promise_id) "
        "values ('1', 1, 'resolved', 'nobody')"
    ),
}


@pytest.fixture
def conn(session: Connection) -> Connection:
    """A database of its own."""
    return session


@pytest.fixture
def clock(standing_clock: None, dsn: str) -> Iterator[Clock]:
    """Its clock."""
    frozen = Clock(dsn)
    yield frozen
    frozen.close()


@pytest.mark.sample(3)
@pytest.mark.unlawful
@pytest.mark.parametrize("law", LAWS)
def test_a_broken_law_is_reported(conn: Connection, clock: Clock, law: str) -> None:
    """By its name; a healthy wait breaks none."""
    shop(conn)
    wait_for(conn, "r")
    arm(conn)
    assert laws_of(conn) == set()
    conn.execute(LAWS[law].encode())
    assert law in laws_of(conn)


def test_no_law_is_missed() -> None:
    """Every law of the source is broken here once."""
    assert laws_in("watch_views") == set(LAWS)


def test_the_view_counts_waits(conn: Connection, clock: Clock) -> None:
    """How many runs wait, how many of them the triggers do not have yet, and what the triggers lack."""
    shop(conn)
    settle_rows(conn)
    wait_for(conn, "r")
    arm(conn)
    wait_for(conn, "s")
    seen = "select waits, untested, state from durable.watches"
    assert ask(conn, (seen, ())) == (2, 1, "ok")
    arm(conn)
    conn.execute("drop trigger durable_paid_update on orders")
    assert ask(conn, (seen, ())) == (2, 0, "triggers missing")
    conn.execute("alter table orders alter status drop not null, alter id type numeric")
    assert ask(conn, (seen, ())) == (2, 0, "key column has another type")
    conn.execute("alter table orders drop id")
    assert ask(conn, (seen, ())) == (2, 0, "key column missing")
    conn.execute("drop table orders")
    assert ask(conn, (seen, ())) == (2, 0, "table dropped")
    assert settle_rows(conn) == 2
