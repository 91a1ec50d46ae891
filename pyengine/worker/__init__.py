"""The process that serves queues: it claims runs, drives their code, runs their steps and reports.

Lives here: everything that needs a lease. May not: the client; a worker knows no handle.

The way of a claimed run: a turn returns it (turn_sender.py), the dispatcher hands it on (dispatcher.py), the
manager replays its journal (run_manager.py), its steps run (step_runner.py), their outcomes queue up
(report_queue.py) and leave with the next turn.
"""

from __future__ import annotations
