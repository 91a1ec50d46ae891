"""Tests of SQL: one database for the whole folder, and each test is rolled back."""

from __future__ import annotations

from tests.support.rolled_back import clock, conn

__all__ = ["clock", "conn"]
