"""Limits of payloads at every entry point."""

from __future__ import annotations

import json

import psycopg
import pytest

from tests.core.sql.test_payloads import DEEP_DOORS, TAG_DOORS, furnished, nested, tags
from tests.support.verbs import (
    Connection,
    ask,
    refusal,
)


@pytest.mark.parametrize("mark", ["[", "{"])
@pytest.mark.parametrize("door", DEEP_DOORS)
def test_entry_points_refuse_too_deep_payloads(conn: Connection, door: str, mark: str) -> None:
    """Every door takes JSON of 500 levels, and none takes more."""
    furnished(conn)
    text, more = DEEP_DOORS[door]
    for levels in (501, 900):
        assert refusal(conn, (text, (nested(levels - more, mark),))) == "WF004"
    assert refusal(conn, (text, (nested(500 - more, mark),))) == ""


@pytest.mark.parametrize("door", TAG_DOORS)
def test_tags_have_a_limit(conn: Connection, door: str) -> None:
    """Tags may have 64 KiB together, whatever payloads may have; one byte more is refused by its size."""
    ask(conn, ("select durable.set_setting('payload_max_bytes', '4000')", ()))
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        conn.execute(TAG_DOORS[door].encode(), (tags(65_537),))
    assert caught.value.sqlstate == "WF008"
    assert "65537 bytes, the limit is 65536" in str(caught.value.diag.message_primary)
    assert refusal(conn, (TAG_DOORS[door], (json.dumps({str(n): "" for n in range(100_000)}),))) == "WF008"
    assert refusal(conn, (TAG_DOORS[door], (tags(65_536),))) == ""
