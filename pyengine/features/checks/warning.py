"""Warnings about workflow code that a replay cannot repeat.

Lives here: `DeterminismWarning`; `warn_of`, which gives one for each hazard (hazards.py) when a workflow is
registered; the check that an app gives to its registry. May not: raising; a filter of the user may do that:
`-W error::pyengine.DeterminismWarning`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final

from pyengine.core.definitions.code_check import CodeCheck, Hazard
from pyengine.features.checks.hazards import hazards_of
from pyengine.features.checks.rules import LOG


class DeterminismWarning(UserWarning):
    """The code of a workflow does something that a replay cannot repeat.

    It stands at the line of that code; the comment `# durable: ok` on the line silences it.
    """


def warn_of(function: Callable[..., Any], workflow: str) -> None:
    """Warn of each place in the code of a workflow that a replay cannot repeat.

    Args:
        function: the code.
        workflow: its name.
    """
    for hazard in hazards_of(function):
        scope = getattr(getattr(function, "__func__", function), "__globals__", {})
        means = "each replay does it again" if hazard.instead == LOG else "a replay cannot repeat it"
        warnings.warn_explicit(
            f"workflow {workflow} {hazard.action}: {means}; use instead: {hazard.instead} "
            "(`# durable: ok` on the line silences this)",
            DeterminismWarning,
            hazard.file,
            hazard.line,
            module=scope.get("__name__"),
            registry=scope.setdefault("__warningregistry__", {}),
        )


def _differing(function: Callable[..., Any]) -> list[Hazard]:
    """Return the hazards by which a replay may differ; a line for people is none."""
    return [one for one in hazards_of(function) if one.instead != LOG]


DETERMINISM: Final = CodeCheck(hazards_of=_differing, warn_of=warn_of)
"""The check, as an app gives it to its registry."""
