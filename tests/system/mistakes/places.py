"""Places in the files of these tests, which the sentences name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["line_of"]


def line_of(fn: Callable[..., Any], text: str) -> int:
    """Return the line on which a text stands first, from the beginning of a function on."""
    lines = Path(inspect.getfile(fn)).read_text(encoding="utf-8").split("\n")
    first = fn.__code__.co_firstlineno
    return next(n for n, line in enumerate(lines[first - 1 :], first) if text in line)
