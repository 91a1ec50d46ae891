"""Definitions of decorated functions, and the run and attempt that code is running in.

Lives here: definitions of steps, workflows, signals and SQL functions, their signatures and retry policies,
the registry, and the context variables of the current run and step. May not: a run's history, a connection.

The way of a call: `Step.__call__` (registry.py) asks `scope` (current_run.py); inside a workflow the call
goes to the replay machine behind it, elsewhere it just runs the function.
"""

from __future__ import annotations
