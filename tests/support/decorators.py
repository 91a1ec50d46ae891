"""Decorators as users write them, for tests of what people decorate."""

from __future__ import annotations

import functools
from typing import Any


def plainly(fn: Any) -> Any:
    """A decorator that is not async, around an async function too."""

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper
