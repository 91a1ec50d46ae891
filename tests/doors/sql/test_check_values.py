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


def stored_list(conn: Connection) -> None:
    """A list of nine long texts, which a second one continues with plain and stored elements."""
    texts = [f'"{n:0999}"' for n in range(9)]
    more = [*texts, "1", '{"a": [1, 2.50]}', f'["{"y" * 300}", {{"k": "z"}}]', '"SUB"', f'["{"w" * 9000}"]']
    held = begin_run(conn, "r")
    lists = ["[" + ",".join(some) + "]" for some in (texts, more)]
    take_turn(conn, "W", report(held, outcomes=[done(0, lists[0]), done(1, lists[1])]))


def test_a_list_is_under_the_hash_of_its_elements(conn: Connection, clock: Clock) -> None:
    """Lists as the engine stores them are lawful: one that continues another too."""
    stored_list(conn)
    query = "select count(*) from durable._journal_values where prefix is not null"
    assert conn.execute(query).fetchone() == (3,)


@pytest.mark.unlawful
@pytest.mark.parametrize(
    "hand",
    [
        "data = regexp_replace(data, '2.50', '2.5') where prefix is not null and strpos(data, '2.50') > 0",
        "data = overlay(data placing '{' from 3 for 1) where prefix = sha256('[')",
        "prefix = sha256('[') where prefix is null and hash = (select min(hash) from durable._journal_values"
        " where prefix is null)",
    ],
    ids=["an element", "the form", "a plain value"],
)
def test_a_list_that_was_changed_is_found(conn: Connection, clock: Clock, hand: str) -> None:
    """Its elements, its form, and a value that is made one."""
    stored_list(conn)
    assert conn.execute(f"update durable._journal_values set {hand}".encode()).rowcount > 0
    laws = {row[0] for row in conn.execute("select law from durable.check()")}
    assert "LV-3 value_is_under_its_hash" in laws
