"""The one place where a pause grows.

Lives here: `backoff_pause`, from which every back-off and poll schedule has its pauses. May not: clocks,
waiting, jitter. Design: a counter of failures or of empty rounds grows for as long as nothing happens, and a
power of it overflows a float one quiet night. So the power is computed only below the ceiling; elsewhere
there is none with a variable exponent (`tests/style/test_growth.py`). In SQL it is `durable._backoff_ms`.
"""

from __future__ import annotations

import math


def backoff_pause(first: float, longest: float, times: int, factor: float = 2.0) -> float:
    """Return a pause that has grown a number of times: `first * factor ** times`, at most `longest`.

    Args:
        first: the pause that has not grown.
        longest: the ceiling, in the same unit.
        times: how often it has grown, without a bound; below 0 is 0.
        factor: how much it grows each time, at least 1.
    """
    if times <= 0 or first <= 0 or factor <= 1:
        return min(first, longest)
    if first >= longest or times > math.log(longest / first, factor):
        return longest
    return min(longest, first * factor**times)
