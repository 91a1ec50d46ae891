"""The statements that move objects between databases and other remotes."""

from __future__ import annotations

from pyengine.core.database.statements.procedures import Procedure

OBJECTS_EXPORT = Procedure(
    signature="(ids in hexadecimal digits, ids whose closure the receiver has) -> manifest as text",
    sql=(
        "select manifest::text from durable.objects_export("
        "array(select durable._unhex(i) from unnest($1::text[]) i), "
        "array(select durable._unhex(i) from unnest($2::text[]) i)) as manifest"
    ),
)

OBJECTS_IMPORT = Procedure(
    signature="(manifest as text) -> number of its objects",
    sql="select count from durable.objects_import($1::text::jsonb) as count",
)

OPEN_HEAD = Procedure(
    signature="(name) -> version of the head, which is made if there is none",
    sql="select version from durable.scope_open($1::text, kind => 'head')",
)

REF_READ = Procedure(
    signature="(name) -> (kind, commit, version), no row if there is none",
    sql='select kind, "commit", version from durable.refs where name = $1::text',
)
