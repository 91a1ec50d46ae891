"""The core of `ctx`, the interface of the engine for workflow code.

Lives here: `CoreContext` and the handles that it returns; the hall adds the parts of features. May not: an
implementation of a wait or a call; each is one call of the `WorkflowRuntime` of the run
(definitions/current_run.py).

The way of `ctx.sleep`: a duration is read, `WorkflowRuntime.sleep` makes a timer, and the future it returns
is awaited.
"""

from __future__ import annotations
