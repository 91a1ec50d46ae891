"""Law: `select *` of every public view is read by the drivers that people have, whatever stands in it."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import psycopg
import psycopg2
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import create_async_engine

from tests.support.verbs import Connection, ask

SCENE = """
create table public.parcels (id bigint primary key, sent boolean);
select durable.watch('public.parcels', 'sent', key => '{id}', condition => 'sent');
select durable.worker_hello_v1('W', '{default}', '{w}', '{1}', null);
select durable.start('w', '[1]', id => 'one');
select durable.start('w', '[1]', id => 'later', delay => '1 hour');
select durable.start('w', '[1]', id => 'ended');
select durable.cancel('ended', force => true);
select durable.create_promise('asked');
select durable.schedule('nightly', '0 0 * * *', workflow => 'w');
select durable.set_progress('one', 1, 3);
select durable.datum_put('{"string": "x"}');
"""
VIEWS = """select c.relname from pg_class c where c.relnamespace = 'durable'::regnamespace and c.relkind = 'v'
and c.relname !~ '^_' order by 1"""
COLUMNS = """select c.relname, a.attname, format_type(a.atttypid, null)
from pg_class c join pg_attribute a on a.attrelid = c.oid
where c.relnamespace = 'durable'::regnamespace and c.relkind = 'v' and c.relname !~ '^_'
and a.attnum > 0 and not a.attisdropped"""
FILLED = "runs newest live promises tasks schedules watches progress workers health"
# no driver needs a codec for these; in binary form a regclass is the number of its table
PLAIN = "text,name,bigint,integer,smallint,boolean,numeric,double precision,jsonb,json,bytea,uuid,interval"
PLAIN += ",timestamp with time zone,text[],bigint[],integer[],regclass"


def by_psycopg(url: str, statements: list[str], *, binary: bool = False) -> list[int]:
    """psycopg, and so Django."""
    with psycopg.connect(url, autocommit=True) as db, db.cursor(binary=binary) as cursor:
        return [len(cursor.execute(one.encode()).fetchall()) for one in statements]


def by_psycopg_binary(url: str, statements: list[str]) -> list[int]:
    """psycopg, which asks for binary values."""
    return by_psycopg(url, statements, binary=True)


def by_psycopg2(url: str, statements: list[str]) -> list[int]:
    """psycopg2."""
    db = psycopg2.connect(**conninfo_to_dict(url))
    found = []
    with db.cursor() as cursor:
        for one in statements:
            cursor.execute(one)
            found.append(len(cursor.fetchall()))
    db.close()
    return found


def by_asyncpg(url: str, statements: list[str]) -> list[int]:
    """asyncpg."""

    async def read() -> list[int]:
        db = await asyncpg.connect(url)
        try:
            return [len(await db.fetch(one)) for one in statements]
        finally:
            await db.close()

    return asyncio.run(read())


def by_sqlalchemy(url: str, statements: list[str]) -> list[int]:
    """SQLAlchemy over psycopg, and so pandas."""
    told: dict[str, Any] = conninfo_to_dict(url)
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(**told))
    with engine.connect() as db:
        found = [len(db.execute(sqlalchemy.text(one)).fetchall()) for one in statements]
    engine.dispose()
    return found


def by_sqlalchemy_async(url: str, statements: list[str]) -> list[int]:
    """SQLAlchemy over asyncpg."""

    async def read() -> list[int]:
        engine = create_async_engine("postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(url))
        async with engine.connect() as db:
            found = [len((await db.execute(sqlalchemy.text(one))).fetchall()) for one in statements]
        await engine.dispose()
        return found

    return asyncio.run(read())


DRIVERS = [by_psycopg, by_psycopg_binary, by_psycopg2, by_asyncpg, by_sqlalchemy, by_sqlalchemy_async]


def test_every_view_is_read(conn: Connection, direct: str) -> None:
    """By all drivers alike (D040); no instant is infinite, and no column has a type of ours."""
    conn.execute(SCENE)
    names = [name for (name,) in conn.execute(VIEWS).fetchall()]
    statements = [f"select * from durable.{name}" for name in names]
    read = {driver.__name__: driver(direct, statements) for driver in DRIVERS}
    assert len({tuple(counts) for counts in read.values()}) == 1, read
    found = dict(zip(names, read["by_psycopg"], strict=True))
    assert {name for name, count in found.items() if count} >= set(FILLED.split()), found
    columns = conn.execute(COLUMNS).fetchall()
    assert {kind for _, _, kind in columns} <= set(PLAIN.split(","))
    instants = [(view, column) for view, column, kind in columns if kind.startswith("timestamp")]
    assert len(instants) > 20
    odd = " union all ".join(
        f"select '{view}' from durable.{view} v where not isfinite(v.{name})" for view, name in instants
    )
    assert ask(conn, (f"select count(*) from ({odd}) x", ())) == (0,)
    conn.execute("select durable.unwatch('public.parcels', 'sent')")
