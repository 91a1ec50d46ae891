"""Journal in, commands out: a coroutine is driven by the rows of its journal alone.

Lives here: the replay machine and all that it keeps for one run. May not: a clock, randomness, a thread, a
socket, a driver; what happens is a function of journal and code.

The way of a call: `CallMatcher` (call_matcher.py) gives it the next number (call_sequence.py), compares it
with the row of that number (history.py), and either completes its future with what was recorded
(completions.py) or hands a command out with the next `Advance` (advance.py).
"""

from __future__ import annotations
