"""The error about a promise that is there already, through the codec of errors."""

from __future__ import annotations

from datetime import UTC, datetime

from pyengine.features.promises.records import PromiseConflict, PromiseRecord
from tests.core.replay.test_failures import through


def test_a_conflict_over_a_promise_keeps_the_promise() -> None:
    """The record that the error carries comes back as itself."""
    now = datetime(2026, 1, 2, tzinfo=UTC)
    promise = PromiseRecord(
        id="p",
        state="PENDING",
        param_data="1",
        param_headers={},
        value_data=None,
        value_headers={},
        tags={"a": "b"},
        timeout=None,
        created_on=now,
        completed_on=None,
        idempotency_key_for_create=None,
        idempotency_key_for_complete=None,
    )
    back = through(PromiseConflict("m", promise=promise))
    assert isinstance(back, PromiseConflict) and back.promise == promise
