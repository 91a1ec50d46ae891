"""Law: statements of other sessions are in the log of a worker without their values."""

from __future__ import annotations

import pytest

from pyengine.worker.blocked_runs import Holder


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("select durable.signal('r', 'pay', '{\"card\": \"4111\"}')", "select durable.signal(..."),
        ("update t1 set a1 = 4111 where b = 2", "update t1 set a1 = ..."),
        ("select E'4111'", "select E..."),
        ("select $secret$4111$secret$", "select ..."),
        ("select f($1, $2)", "select f($1, $2)"),
        ('update "4111" set a = -4111', 'update "...'),
        ("commit -- 4111", "commit ..."),
        ("/* 4111 */ commit", "..."),
        ("select .4111, x.4111", "select ..."),
        ("lock table durable._tasks", "lock table durable._tasks"),
        ("", "not shown to this role (pg_read_all_stats)"),
    ],
)
def test_no_value_of_a_statement_is_in_the_log(query: str, shown: str) -> None:
    """The statement of the other session is shown up to its first literal: what follows may be a payload."""
    holder = Holder(id="r", pid=1, user="u", state="active", age_ms=0, query=query)
    assert f"whose last statement is: {shown}. To end it" in str(holder)
