"""Law: a knob has a default and a type; changing it answers the old value, holds from the next call and
survives an upgrade."""

from __future__ import annotations

import pytest

from tests.support.verbs import Connection, ask, refusal


def test_set_setting_answers_the_old_value(conn: Connection) -> None:
    """The new value holds at once."""
    assert ask(conn, ("select durable.set_setting('max_crashes', '9')", ())) == ("5",)
    assert ask(conn, ("select durable._setting_int('max_crashes'), durable._setting('hints')", ())) == (
        9,
        "coalesce",
    )


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("no_such", "1", "WF001"),
        ("max_crashes", "many", "WF004"),
        ("max_crashes", "-1", "WF004"),
        ("max_crashes", None, "WF004"),
        ("hints", "maybe", "WF004"),
        ("conformance", "lax", "WF004"),
        ("hints", None, "WF004"),
        ("lease_ttl_ms", "0", "WF004"),
        ("sweep_limit", "0", "WF004"),
        ("retry_offer_ms", "0", "WF004"),
        ("payload_max_bytes", "0", "WF004"),
        ("max_in_flight", "0", "WF004"),
        ("stall_limit_ms", "0", "WF004"),
        ("lease_ttl_ms", "99999999999", "WF004"),
        ("logic_sha256", "forged", "WF004"),
        ("max_crashes", "0", ""),
        ("hints", "off", ""),
        ("conformance", "strict", ""),
    ],
)
def test_values_are_checked(conn: Connection, name: str, value: str | None, code: str) -> None:
    """A value of the wrong type, or one that would make a loop spin, is refused and changes nothing."""
    before = conn.execute("select * from durable.settings order by name").fetchall()
    assert refusal(conn, ("select durable.set_setting(%s, %s)", (name, value))) == code
    after = conn.execute("select * from durable.settings order by name").fetchall()
    assert (before == after) == bool(code)


def test_every_setting_is_described(conn: Connection) -> None:
    """A sentence for each knob, with its unit in its name if it has one."""
    rows = conn.execute("select name, value, description from durable.settings").fetchall()
    assert len(rows) >= 13
    assert all(len(description.split()) >= 4 for _, _, description in rows)
    assert all(
        name.endswith(("_ms", "_bytes")) for name, value, _ in rows if value.isdigit() and int(value) > 2000
    )
