"""Every test, and within the traces every trace, is rolled back: `conn` and `clock` as in tests/sql."""

from __future__ import annotations

from tests.sql.conftest import clock, conn

__all__ = ["clock", "conn"]
