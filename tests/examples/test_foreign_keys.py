"""Users' tables that refer to runs: what docs/how-to/foreign-keys.md says of them is true."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg import errors

from pyengine.doors.admin import migrate
from tests.examples.pages import Page

Connection = psycopg.Connection[tuple[Any, ...]]
PAGE = Page("docs/how-to/foreign-keys.md")


@pytest.fixture
def shop(conn: Connection) -> Connection:
    """A database with the table of the page's block."""
    table, index, *_ = PAGE.block("sql", "Refer to runs from your tables").split(";")
    conn.execute(table.encode())
    conn.execute(index.encode())
    return conn


def test_a_row_needs_its_run(shop: Connection) -> None:
    """A row that names no run is refused; in one transaction the run comes first, or with it."""
    with pytest.raises(errors.ForeignKeyViolation):
        shop.execute("insert into orders values (1, 1, 'nobody')")
    with shop.transaction():
        shop.execute("select durable.start('fulfil', '[1]', id => 'order-1')")
        shop.execute("insert into orders values (1, 1, 'order-1')")
    with suppress(errors.ForeignKeyViolation), shop.transaction():
        shop.execute("select durable.start('fulfil', '[2]', id => 'order-2')")
        shop.execute("insert into orders values (2, 1, 'order-3')")
    assert shop.execute("select run_id from orders").fetchall() == [("order-1",)]
    assert shop.execute("select id from durable.runs").fetchall() == [("order-1",)]


def test_a_run_that_is_removed_leaves_its_row(shop: Connection) -> None:
    """When a run is removed, the row stays and names none; so no such row keeps runs from being removed."""
    shop.execute("select durable.start('fulfil', '[1]', id => 'order-1')")
    shop.execute("insert into orders values (1, 1, 'order-1')")
    with shop.transaction(force_rollback=True):
        shop.execute("delete from durable._promises where id = 'order-1'")
        assert shop.execute("select id, run_id from orders").fetchall() == [(1, None)]


def test_an_open_transaction_with_such_a_row_keeps_nobody_waiting(shop: Connection, dsn: str) -> None:
    """Who has inserted a row that names a run, and not committed, is in the way of nothing that happens to
    that run.
    """
    shop.execute("select durable.start('fulfil', '[1]', id => 'order-1')")
    with psycopg.connect(dsn) as customer:
        customer.execute("insert into orders values (1, 1, 'order-1')")
        shop.execute("set lock_timeout = '5s'")
        shop.execute("select durable.signal('order-1', 'ping')")
        shop.execute("select durable.pause('order-1')")
        shop.execute("select durable.resume('order-1')")
        assert shop.execute("select durable.cancel('order-1')").fetchone() == ("cancelled",)


def test_the_row_of_a_run_is_found_by_an_index(shop: Connection) -> None:
    """From the run to its rows an index is used, because the column sorts as ids do."""
    shop.execute("set enable_seqscan = off")
    plan = shop.execute(
        "explain select o.id from durable._promises p join orders o on o.run_id = p.id where p.id = 'order-1'"
    ).fetchall()
    assert "orders_run_id_idx" in "\n".join(line for (line,) in plan)


def test_an_upgrade_leaves_foreign_keys(shop: Connection, dsn: str) -> None:
    """Bringing the schema up again neither minds nor removes what refers to it."""
    keys = "select count(*) from pg_constraint where contype = 'f' and conrelid = 'orders'::regclass"
    migrate.install(dsn, reapply=True)
    assert shop.execute(keys).fetchone() == (1,)


def test_another_role_may_refer_with_two_grants(shop: Connection) -> None:
    """A role that owns its tables and not the engine needs usage of the schema and the right to refer, and no
    more.
    """
    role = "foreign_keys_" + shop.info.dbname
    shop.execute(f'create role "{role}"')
    try:
        shop.execute(f'create schema customers authorization "{role}"')
        grants = re.findall(r"`(grant [^`]*)`", PAGE.text)
        assert len(grants) == 2
        for grant in grants:
            shop.execute(grant.replace("to shop", f'to "{role}"').encode())
        shop.execute("select durable.start('fulfil', '[1]', id => 'order-1')")
        shop.execute(f'set role "{role}"')
        shop.execute("create table customers.letters (run_id text references durable._promises (id))")
        shop.execute("insert into customers.letters values ('order-1')")
        with pytest.raises(errors.ForeignKeyViolation):
            shop.execute("insert into customers.letters values ('nobody')")
        with pytest.raises(errors.InsufficientPrivilege):
            shop.execute("select from durable._promises")
    finally:
        shop.execute("reset role")
        shop.execute(f'drop owned by "{role}"')
        shop.execute(f'drop role "{role}"')
