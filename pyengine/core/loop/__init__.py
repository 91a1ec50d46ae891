"""The deterministic event loop that drives workflow code.

Lives here: the loop, its futures, tasks, shields, and the methods that it refuses. May not: a journal, real
time, real input and output; the same calls in the same order always give the same schedule.

The way of an await: a coroutine awaits a future (awaitables.py), the loop runs ready callbacks in the order
in which they became ready (event_loop.py), and returns when nothing is ready any more.
"""

from __future__ import annotations
