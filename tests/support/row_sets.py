"""Row types by what they do to a journal, written down apart from the engine as a second opinion.

Lives here: widths, and the types that allocate a child number, resolve a child or belong to a local step.
May not: import the engine's own sets; a test compares those with these.
"""

from __future__ import annotations

WIDTHS = {
    "step_completed": 3,
    "step_failed": 3,
    "first_attempt_failed": 3,
    "step_started": 2,
    "attempt_failed": 2,
    "last_attempt_completed": 2,
    "last_attempt_failed": 2,
    "child_settled": 2,
}
ALLOCATING = {
    "step_completed",
    "step_failed",
    "first_attempt_failed",
    "step_started",
    "step_scheduled",
    "child_run_scheduled",
    "promise_registered",
    "timer_scheduled",
    "random_generated",
    "time_recorded",
    "signal_received",
    "join_set_created",
}
RESOLVING = {
    "step_completed",
    "step_failed",
    "open_step_completed",
    "open_step_failed",
    "last_attempt_completed",
    "last_attempt_failed",
    "open_child_settled",
    "child_settled",
    "timer_fired",
    "signal_received",
}
LOCAL = {
    "step_completed",
    "step_failed",
    "first_attempt_failed",
    "step_started",
    "step_scheduled",
    "attempt_started",
    "open_attempt_failed",
    "attempt_failed",
    "open_step_completed",
    "open_step_failed",
    "last_attempt_completed",
    "last_attempt_failed",
}
