"""Law: each law of large values has a row made by hand that it finds."""

from __future__ import annotations

import pytest

from tests.support.clock import Clock
from tests.support.verbs import Connection, begin_run, done, report, take_turn

BREAKS = {
    "LV-1 reference_leads_to_a_value": "delete from durable._journal_values where prefix is null",
    "LV-2 value_is_referred_to": "insert into durable._journal_values (bucket, execution, hash, data) "
    "select bucket, execution, sha256('x'), 'x' from durable._journal_values limit 1",
    "LV-3 value_is_under_its_hash": "update durable._journal_values set data = data || ' ' "
    "where prefix is null",
    "LV-4 value_is_in_the_partition_of_its_journal": "update durable._journal_values v set bucket = "
    "(select b.bucket from durable._buckets b where b.bucket <> v.bucket limit 1)",
}


@pytest.mark.parametrize("law", BREAKS)
def test_a_broken_law_is_found(conn: Connection, clock: Clock, law: str) -> None:
    """Each law has a row made by hand that it finds."""
    text = "[" + ",".join(f'"{n:0999}"' for n in range(9)) + "]"
    take_turn(conn, "W", report(begin_run(conn, "r"), outcomes=[done(0, text)]))
    with conn.transaction(force_rollback=True):
        conn.execute(BREAKS[law].encode())
        assert law in {row[0] for row in conn.execute("select law from durable.check()")}
        assert law in {row[0] for row in conn.execute("select law from durable.check('r')")}
