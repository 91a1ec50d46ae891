"""Rows of the journal, as the worker reads them.

What lives here: `Row`, and what its types say: how many logical events a row stands for, which rows make a
child and which complete one. What may not: reading or writing a journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

__all__ = ["ALLOCATING", "RESOLVING", "ROW_WIDTH", "Row"]

ROW_WIDTH: Mapping[str, int] = MappingProxyType(
    {"L": 3, "E": 3, "f": 3, "l": 2, "t": 2, "k": 2, "K": 2, "D": 2}
    | dict.fromkeys("SCFYQosrceIXbidTZnmgvjuaAW", 1)
)
"""How many of the twenty logical events a row of each type stands for."""

ALLOCATING = frozenset("LEfloIXTnmvj")
"""Row types that carry a child number for the first time."""

RESOLVING = frozenset("LEcekKdDZv")
"""Row types that complete a child."""


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One journal row as the turn returns it: an array in this order.

    Args:
        seq: logical number of its first event.
        type: the letter of its type.
        child: child number, or None for events of the run itself.
        attempt: attempt number of a step, counted from 1; number of the delivery of a signal (`g`, `v`);
            number of the join set (`u`, `a`).
        name: step, workflow, promise or signal name.
        hash: 16 hex digits of the input hash.
        data: JSON text; its meaning depends on the type.
        ok: for `d` and `D`: whether the child's promise was resolved; true for `v`.
    """

    seq: int
    type: str
    child: int | None = None
    attempt: int | None = None
    name: str | None = None
    hash: str | None = None
    data: str | None = None
    ok: bool | None = None
