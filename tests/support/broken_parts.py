"""Parts that fail by an error of ours, which nothing expects."""

from __future__ import annotations

import threading
from typing import Any

import pytest

__all__ = ["Fault", "break_part"]


class Fault(Exception):
    """The error."""


def break_part(monkeypatch: pytest.MonkeyPatch, part: type, method: str) -> None:
    """Let an asynchronous method fail at its first call, but not in the gateway of other tests, which has a
    thread of its own.
    """
    sound = getattr(part, method)

    async def broken(*args: Any, **options: Any) -> Any:
        if threading.current_thread().name == "gateway":
            return await sound(*args, **options)
        raise Fault("a fault")

    monkeypatch.setattr(part, method, broken)
