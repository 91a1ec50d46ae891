"""Adapters that are shipped: ordinary executables that know of the engine only the contract.

Lives here: one file for each adapter, of the standard library alone, and their names. May not: any import of
the package, because an adapter is a program that may run elsewhere.
"""

from __future__ import annotations

__all__ = ["SHIPPED"]

SHIPPED = {"local": "local.py"}
"""Names of adapters and their programs in this folder."""
