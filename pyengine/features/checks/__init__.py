"""Checks of the code of workflows: at their registration, during a run, and against journals.

Lives here: the table of such calls with their alternatives (rules.py), the meaning of a name in the source
of a function (names.py), the walk through that source (hazards.py), the warnings of a registration
(warning.py), and the search for signals (received_signals.py); the search for calls that no code awaits
(unawaited.py); and the replay of journals with the code of today (compatibility.py, replay_check.py,
development.py). May not: a decision about a run. The readers of sources neither run them nor import a
module for them.

The way of a call: `Registry.add_workflow` asks warning.py, hazards.py finds `now()` in the source, names.py
resolves it to `datetime.datetime.now`, rules.py has a row for that, and Python shows a `DeterminismWarning`
with the line of the user. The deterministic loop refuses the rows that it can see at run time
(loop/restrictions.py), from the same table.
"""

from __future__ import annotations
