"""The request of a worker that keeps its runs.

Lives here: the statement of `Worker.keep`. May not: which worker keeps its runs (app.py).
"""

from __future__ import annotations

from pyengine.core.database.statements.procedures import Procedure

KEEP = Procedure(
    signature="(worker, id) -> boolean, true if the run is ready and for that worker only",
    sql="select durable.worker_keep_v1($1, $2)",
)
