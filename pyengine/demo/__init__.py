"""The job of ``pyengine demo``: compare every installed file with the RECORD of its package.

Lives here: reading and verifying files (`records`), the workflows (`audit`), the worker process that runs
them (`worker`), and the code that starts and kills such processes (`run`, `crew`). May not: anything that the
engine needs; the printed report (cli/demo_report.py).
"""

from __future__ import annotations
