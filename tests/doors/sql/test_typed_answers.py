"""Law: each door by which a promise is settled holds it to the type that its run declares."""

from __future__ import annotations

from tests.support.clock import Clock
from tests.support.typed_answers import is_held_to_its_type
from tests.support.verbs import Connection


def test_an_answer_by_v0_is_held_to_its_type(conn: Connection, clock: Clock) -> None:
    """As that of the newer operations."""
    is_held_to_its_type(conn, 'select * from durable.promise_resolve_v0(%s, null, %s, \'{"codec": "json"}\')')


def test_each_of_many_answers_is_held_to_its_type(conn: Connection, clock: Clock) -> None:
    """What does not fit is told, and the others are settled."""
    many = "select outcome from durable.settle_many(array[%s], 'resolved', %s::text::jsonb)"
    is_held_to_its_type(conn, many, tells=True)
