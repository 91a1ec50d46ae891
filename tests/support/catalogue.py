"""A schema as a dictionary of readable lines, equal for two databases exactly if they were built equal.

Column order is left out on purpose: a column that a migration adds stands last, and no code may depend on
it. Partitions are left out too, since there is one for each week in which a database lived.
"""

from __future__ import annotations

import psycopg
from psycopg.rows import TupleRow

from pyengine.core.sources import Sources

_SNAPSHOT = """
with mine as (
  select c.* from pg_class c where c.relnamespace = %(schema)s::regnamespace and not c.relispartition
)
select 'relation ' || c.relname,
  concat_ws(' | ', c.relkind, c.relpersistence, c.reloptions::text, pg_get_partkeydef(c.oid),
    c.relrowsecurity::text, c.relreplident::text, obj_description(c.oid, 'pg_class'),
    (select string_agg(a::text, ',' order by a::text) from unnest(c.relacl) a),
    case when c.relkind = 'v' then pg_get_viewdef(c.oid) end,
    case when c.relkind = 'i' then pg_get_indexdef(c.oid) end)
from mine c
union all
select 'column ' || c.relname || '.' || a.attname,
  concat_ws(' | ', format_type(a.atttypid, a.atttypmod), a.attnotnull::text,
    pg_get_expr(d.adbin, d.adrelid), a.attidentity, a.attgenerated,
    a.attcollation::regcollation::text, a.attcompression,
    a.attstattarget::text,
    a.attstorage, col_description(c.oid, a.attnum))
from mine c
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
where c.relkind <> 'i'
union all
select 'constraint ' || coalesce(c.relname, k.contypid::regtype::text) || '.' || k.conname,
  concat_ws(' | ', pg_get_constraintdef(k.oid), k.convalidated::text, obj_description(k.oid, 'pg_constraint'))
from pg_constraint k left join mine c on c.oid = k.conrelid
where k.connamespace = %(schema)s::regnamespace and (c.oid is not null or k.contypid <> 0)
union all
select 'function ' || p.oid::regprocedure::text,
  concat_ws(' | ', pg_get_functiondef(p.oid), obj_description(p.oid, 'pg_proc'),
    (select string_agg(a::text, ',' order by a::text) from unnest(p.proacl) a))
from pg_proc p where p.pronamespace = %(schema)s::regnamespace and p.prokind in ('f', 'p')
union all
select 'type ' || t.oid::regtype::text,
  concat_ws(' | ', t.typtype, format_type(t.typbasetype, t.typtypmod), t.typnotnull::text, t.typdefault,
    obj_description(t.oid, 'pg_type'))
from pg_type t left join pg_class c on c.oid = t.typrelid
where t.typnamespace = %(schema)s::regnamespace and t.typtype in ('d', 'e', 'c', 'r')
  and not coalesce(c.relispartition, false)
union all
select 'trigger ' || c.relname || '.' || t.tgname, pg_get_triggerdef(t.oid)
from pg_trigger t join mine c on c.oid = t.tgrelid where not t.tgisinternal
union all
select 'schema', concat_ws(' | ', obj_description(n.oid, 'pg_namespace'),
  (select string_agg(a::text, ',' order by a::text) from unnest(n.nspacl) a))
from pg_namespace n where n.oid = %(schema)s::regnamespace
"""


def snapshot(dsn: str, schema: str = "durable") -> dict[str, str]:
    """All of a schema that a user could tell apart: {'column _tasks.version': 'integer | true | ...'}."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("set search_path = ''")
        return dict(conn.execute(_SNAPSHOT.encode(), {"schema": schema}).fetchall())


def settings(dsn: str) -> dict[str, str]:
    """The knobs and their values, without what the installer notes about itself."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        rows: list[TupleRow] = conn.execute("select name, value from durable.settings").fetchall()
    return {name: value for name, value in rows if name not in ("logic_sha256", "engine_version")}


def build_from_sources(dsn: str, sources: Sources) -> None:
    """Build a database from sql/state and sql/logic as they stand, without any migration."""
    with psycopg.connect(dsn) as conn:
        for path in (*sources.state_files(), *sources.logic_files()):
            conn.execute(path.read_bytes())


def differences(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """What is not the same in two snapshots, one readable entry each."""
    return [
        f"{name}:\n  {one.get(name, '(missing)')}\n  {other.get(name, '(missing)')}"
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    ]
