"""The checks of the code of a workflow, when it is registered.

Lives here: `CodeCheck`, which a feature fills, and `Hazard`, what it finds. May not: a check. Design: the
core warns by the check when a workflow is registered, and names its hazards when a replay diverges; it knows
none by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """A place that a replay cannot repeat.

    Args:
        file: its file.
        line: its line.
        action: what the code does there, as a verb and its object: "calls time.time()".
        instead: the alternative.
    """

    file: str
    line: int
    action: str
    instead: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeCheck:
    """A check of the code of workflows.

    Args:
        hazards_of: the hazards of a function.
        warn_of: warns of each of them; takes the function and the name of the workflow.
    """

    hazards_of: Callable[[Callable[..., Any]], Sequence[Hazard]]
    warn_of: Callable[[Callable[..., Any], str], None]
