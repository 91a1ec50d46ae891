"""The job of ``pyengine demo``: is every installed file still what its package said it would be?

Lives here: a real piece of work (`records`: reading and verifying), its workflows (`audit`), the worker
process that runs them (`worker`), and who starts and kills such processes (`run`). May not: anything that the
engine needs; what is printed (cli/demo_report.py).
"""

from __future__ import annotations
