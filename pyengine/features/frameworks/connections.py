"""Doing around plain functions that a worker calls what Django does around a request.

Lives here: `as_requests`, the block in which such a function is called. May not: threads
(process/thread_pool.py). Design: Django has a connection for each thread, and only its handler of requests
closes those that are broken or too old. Threads of a worker live long and serve no requests, so without this
a connection that was cut would fail every later step on its thread. Django's own receivers are called
here; its signals are not sent, because receivers of users expect a request.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

logger = logging.getLogger("pyengine.steps")


@contextlib.contextmanager
def as_requests() -> Iterator[None]:
    """Do in a thread what Django does before and after a request, if the program uses Django."""
    _do("reset_queries", "close_old_connections")
    try:
        yield
    finally:
        _do("close_old_connections", "close_caches")


def _do(*names: str) -> None:
    for name in names:
        try:
            do = _function(name)
            if do is not None:
                do()
        except Exception as error:  # boundary to Django: the outcome of the function is not about this
            logger.warning("django's %s failed in a thread of steps: %s", name, error)


def _function(name: str) -> Callable[[], Any] | None:
    """Return a function of Django, if that is imported and has its settings."""
    place = "django.core.cache" if name == "close_caches" else "django.db"
    module, conf = sys.modules.get(place), sys.modules.get("django.conf")
    # another thread may be importing it
    settings = getattr(conf, "settings", None)
    return getattr(module, name, None) if settings is not None and settings.configured else None
