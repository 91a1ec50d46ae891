"""The statements of content-addressed calls that clients and runners of memo functions make."""

from __future__ import annotations

from pyengine.core.database.statements.procedures import Procedure

CALL = Procedure(
    signature="(function, inputs json, options json, step or null, switch) -> json of what it found",
    sql=(
        "select c::text as answer "
        "from durable.call_v1($1::text, $2::text::jsonb, $3::text::jsonb, $4::text, $5::text) c"
    ),
)

CALL_RESULT = Procedure(
    signature="(execution key, node, scope) -> json of how the attempt ended; status null while it goes on",
    sql="select durable.call_result_v1($1::text, $2::text, $3::text)::text as answer",
)

CALL_VALUE = Procedure(
    signature="(dag, scope) -> tagged json of its root",
    sql="select durable.call_value_v1($1::text, $2::text)::text as answer",
)

CALL_CANCEL = Procedure(
    signature="(scope, node) -> left or cancelled",
    sql="select durable.call_cancel($1::text, decode($2::text, 'hex'))::text as answer",
)

OPEN_SCOPE = Procedure(
    signature="(name, base or null) -> nothing",
    sql="select durable.call_scope_v1($1::text, $2::text)::text as answer",
)

COMMIT_SCOPE = Procedure(
    signature="(scope, root as an input, json, name) -> id of the commit",
    sql="select durable.call_commit_v1($1::text, $2::text, $3::text)::text as answer",
)

INPUTS = Procedure(
    signature="(execution key) -> json array of the values of its inputs, tagged",
    sql="select durable.call_inputs_v1(decode($1, 'hex'))::text",
)
