"""Law: what a session has set changes nothing of what people ask for in SQL, or they are told what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.rows import TupleRow

from pyengine.doors.admin import migrate, queries, queries_check
from pyengine.doors.cli.database import connect
from pyengine.doors.embedded.server import database_url
from tests.support.odd import ODD, TEXTS, put_on, singly

Connection = psycopg.Connection[TupleRow]
SCENE = """
create schema lab;
create function lab.square(n integer) returns integer language sql as 'select n * n';
create table lab.orders (id bigint primary key, status text);
"""


@pytest.fixture
def odd(request: pytest.FixtureRequest, dsn: str, direct: str) -> Iterator[Connection]:
    """A connection to the test's own database, every session of which begins oddly."""
    put_on(direct, request.param)
    with psycopg.connect(direct, autocommit=True) as connection:
        yield connection
    with psycopg.connect(direct, autocommit=True) as connection:
        connection.execute("set default_transaction_read_only = off")
        connection.execute(f'alter database "{connection.info.dbname}" reset all'.encode())


def one(conn: Connection, statement: str, *values: object) -> TupleRow:
    """The first row of a statement."""
    row = conn.execute(statement.encode(), values).fetchone()
    assert row is not None
    return row


def ticked(conn: Connection) -> None:
    """Tick until nothing is left to do."""
    for _ in range(200):
        (answer,) = one(conn, "select durable.tick()")
        if not answer["more"]:
            return
    raise AssertionError("it never ends")


@pytest.mark.parametrize("odd", singly(TEXTS), indirect=True)
def test_session_settings_change_no_meaning(odd: Connection) -> None:
    """Services, starts, signals, watches, purges mean the same under any way to read and write."""
    odd.execute(SCENE)
    assert one(odd, "select durable.serve('lab.square(integer)')") == ("sql://lab.square",)
    odd.execute("select durable.start('sql://lab.square', '{\"n\": 12}', id => 'square')")
    odd.execute("select durable.start('sql://Lab.SQUARE', '[3]', id => 'small', key => 'k')")
    ticked(odd)
    assert one(odd, "select state, value from durable.result('square')") == ("resolved", 144)
    assert one(odd, "select state, value from durable.result('small')") == ("resolved", 9)
    odd.execute("select durable.watch('lab.orders', 'paid', key => '{id}', condition => 'status = ''paid''')")
    assert one(odd, "select watch, state from durable.watches") == ("orders.paid", "ok")
    odd.execute("select durable.start('w', '[1]', id => 'r')")
    odd.execute("select durable.signal('r', 'go', '{\"a\": [null]}')")
    odd.execute("select durable.cancel('r', reason => '\"why\"', force => true)")
    odd.execute("select durable.schedule('hourly', '0 * * * *', target => 'sql://lab.square')")
    assert one(odd, "select durable.unwatch('lab.orders', 'paid')") == (0,)
    assert odd.execute("select * from durable.check()").fetchall() == []
    assert one(odd, "select runs from durable.purge('0 days')") == (3,)


@pytest.mark.parametrize("odd", singly(ODD.items() - TEXTS.items()), indirect=True)
def test_impossible_starts_are_refused_with_a_hint(odd: Connection) -> None:
    """Under one snapshot, or with too little time, a start works or is refused with a way out."""
    try:
        odd.execute("select durable.start('w', '[1]', id => 'r')")
    except psycopg.Error as error:
        told = " ".join(filter(None, (str(error), error.diag.message_hint)))
        assert "READ COMMITTED" in told or "read-only" in told or "timeout" in told
        odd.execute("set default_transaction_isolation = 'read committed'")
        odd.execute("set default_transaction_read_only = off")
        odd.execute("set statement_timeout = 0")
        odd.execute("select durable.start('w', '[1]', id => 'r')")
    assert one(odd, "select id from durable.runs") == ("r",)


@pytest.mark.parametrize("settings", singly(ODD))
def test_the_schema_is_installed_under_any_setting(
    empty_database: Callable[[], str], settings: dict[str, str]
) -> None:
    """An install under odd settings makes the same functions as one without, and is done then."""
    plain, odd = empty_database(), empty_database()
    put_on(odd, settings)
    assert migrate.install(odd).changed
    assert not migrate.install(odd).changed
    migrate.install(plain)
    assert bodies(odd) == bodies(plain)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("setting", "value"), [("client_encoding", "SQL_ASCII"), ("transaction_timeout", "100ms")]
)
def test_limits_and_encodings_of_a_role_stop_no_administrator(
    empty_database: Callable[[], str], setting: str, value: str
) -> None:
    """A role whose sessions get texts as bytes, or 100 ms for a transaction, installs, asks and checks."""
    dsn = empty_database()
    with psycopg.connect(dsn, autocommit=True) as conn:
        if setting == "transaction_timeout" and conn.info.server_version < 170000:
            pytest.skip("new in version 17")
        conn.execute(f"alter database \"{conn.info.dbname}\" set {setting} = '{value}'".encode())
    assert migrate.install(dsn).changed
    assert not migrate.install(dsn).changed
    with connect(dsn, database_url(dsn)) as conn:
        assert queries.installed(conn)
        conn.execute("select durable.start('w', '[\"\u00fc\"]', id => '\u00fc')")
        assert one(conn, "select id from durable.runs") == ("\u00fc",)
        assert queries_check.broken_laws(conn) == []


def bodies(dsn: str) -> list[TupleRow]:
    """All functions and views as they were understood."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("set search_path = ''; set standard_conforming_strings = on")
        conn.execute(
            "set quote_all_identifiers = off; set intervalstyle = postgres; set statement_timeout = 0"
        )
        return conn.execute(
            "select p.oid::regprocedure::text, md5(pg_get_functiondef(p.oid)) from pg_proc p "
            "where p.pronamespace = 'durable'::regnamespace union all "
            "select c.relname, md5(pg_get_viewdef(c.oid)) from pg_class c "
            "where c.relnamespace = 'durable'::regnamespace and c.relkind = 'v' order by 1, 2"
        ).fetchall()
