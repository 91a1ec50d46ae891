"""What a decorated function is, and which run and attempt its body is in.

Lives here: definitions of steps, workflows, signals and SQL functions, their signatures and retry policies,
the registry, and the context variables that tell code where it runs. May not: a run's history, a connection.

The way of a call: `Step.__call__` (registry.py) asks `scope` (current_run.py); inside a workflow the call
goes to the replay machine behind it, outside it just runs the function.
"""

from __future__ import annotations
