"""Journal in, commands out: a coroutine is driven by the rows of its journal alone.

Lives here: the replay machine and the state of one run. May not: a clock, randomness, a thread, a socket, a
driver; every result is a function of journal and code.

The way of a call: `CallMatcher` (call_matcher.py) takes the next number from `CallSequence`
(call_sequence.py) and compares the call with the row of that number (history.py). Either the call's future is
completed with the recorded value (completions.py), or a new command leaves with the next `Advance`
(advance.py).
"""

from __future__ import annotations
