"""The statement that deletes a run.

Lives here: its procedure, in the form of database/statements/procedures.py. May not: a decision.
"""

from __future__ import annotations

from pyengine.core.database.statements.procedures import Procedure

DELETE = Procedure(
    signature="(id) -> deleted: false if it was removed before",
    sql="select durable.delete($1::text) as deleted",
)
