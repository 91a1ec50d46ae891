"""Which forms of a test a run of the whole suite plays: of a family that costs much, a few by lot. Another
seed draws others, `--full` and a run of named files play all. Nothing here asserts."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable


def left_out(forms: Iterable[tuple[str, int]], seed: str) -> set[str]:
    """Return the forms that a run with this seed does not play.

    Args:
        forms: for each form its node id, and how many of its test are played.
        seed: the seed of the session.
    """
    families: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for name, size in forms:
        families[name.partition("[")[0], size].append(name)
    out: set[str] = set()
    for (test, size), family in families.items():
        played = random.Random(f"{seed} {test}").sample(family, min(size, len(family)))
        out |= set(family) - set(played)
    return out
