"""The deterministic event loop that drives workflow code.

Lives here: the loop, its futures, tasks, shields, and what code may not ask of it. May not: a journal, real
time, real input and output; the same calls in the same order give the same schedule, always.

The way of an await: a coroutine awaits a future (awaitables.py), the loop runs what is ready in the order in
which it became ready (event_loop.py), and returns when nothing is ready any more.
"""

from __future__ import annotations
