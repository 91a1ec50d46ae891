"""Every test, and within the traces every trace, is rolled back: `conn` and `clock` as in tests/core/sql."""

from __future__ import annotations

from tests.support.rolled_back import clock, conn

__all__ = ["clock", "conn"]
