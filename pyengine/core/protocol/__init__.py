"""The messages between a worker and the database: journal rows, commands, turns.

Lives here: the records on the wire, and how they are written and read as JSON. May not: a decision, a
connection, anything else of ours: the folder imports nothing but its own files.

The way of a step's outcome: the worker makes a `StepOutcome` (commands.py), a `RunReport` carries it to
`durable.worker_turn_v1` (turn.py), and it comes back as a `Row` of the journal (journal.py).
"""

from __future__ import annotations
