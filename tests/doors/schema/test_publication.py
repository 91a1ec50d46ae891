"""Law: a publication of all tables, as a reporting copy has it, keeps nothing from going on."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

Connection = psycopg.Connection[Any]


@pytest.mark.new_database("the publication is the database's")
@pytest.mark.filterwarnings("ignore")
def test_all_goes_on_under_a_publication(conn: Connection) -> None:
    """Objects that were put again are collected, runs are removed, and ticks answer (C067)."""
    put = "select durable._put_objects(durable._literal_objects('{\"i64\": 1}'))"
    conn.execute(put.encode())
    conn.execute("update durable._objects set created_at = created_at - 5 * 86400000::bigint")
    conn.execute(put.encode())
    conn.execute("update durable._object_uses set used_at = used_at - 3 * 86400000::bigint")
    conn.execute("create publication everything for all tables")
    conn.execute("select durable.start('w', '[]', id => 'r', any_workflow => true)")
    conn.execute("select durable.cancel('r'), durable.resolve(durable.create_promise('p'), '1')")
    (removed,) = conn.execute("select removed from durable.objects_collect()").fetchone() or (0,)
    assert removed == 2
    assert conn.execute("select count(*) from durable._object_uses").fetchone() == (0,)
    conn.execute(
        "insert into durable._retention (due_at, subject) values (1, 'objects') on conflict do nothing"
    )
    for _ in range(3):
        conn.execute("select durable.tick()")
    conn.execute("delete from durable._workflows")
    tables = conn.execute(
        "select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname = 'durable' and c.relkind in ('r', 'p')"
    ).fetchall()
    for (name,) in tables:
        # what it is refused for, if anything, is not the publication
        with conn.transaction(force_rollback=True):
            conn.execute("set session_replication_role = replica")
            conn.execute(f"delete from {name}".encode())
