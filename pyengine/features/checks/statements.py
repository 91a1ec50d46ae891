"""The statements that read journals, for the code of today to replay.

Lives here: the procedures of the replay check, in the form of database/statements/procedures.py. May not: a
replay.
"""

from __future__ import annotations

from pyengine.core.database.statements.procedures import Procedure

JOURNAL_LIST = Procedure(
    signature="(workflows[] or null, finished ones too) -> (workflow, version, executions[], events[])",
    sql="select workflow, version, executions, events from durable.journal_list_v1($1, $2)",
)

JOURNALS = Procedure(
    signature=(
        "(executions[]) -> (execution, id, workflow, version, param, started_at, queue, first_child, state, "
        "outcome, waiting_on[], rows json, rules, digest)"
    ),
    sql=(
        "select execution, id, workflow, version, param, started_at, queue, first_child, state, outcome, "
        "waiting_on, rows, rules, digest from durable.journals_v1($1)"
    ),
)

JOURNALS_OF = Procedure(
    signature="(id) -> as JOURNALS, one row for each generation of a run",
    sql=JOURNALS.sql.replace("$1", "array(select g.execution from durable.generations($1) g)"),
)
