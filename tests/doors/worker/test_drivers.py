"""Law: `select *` of every public view is read by the drivers that people have, whatever stands in it.

Those of Go and Java, and pandas, are of the full size (tests/README.md).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import create_async_engine

from tests.examples.test_services import Program, go, java, port
from tests.support.debian import NoPackage
from tests.support.sdks import NoSdk, made, missing, run_program
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
READERS = Path(__file__).parent / "readers"
__all__ = ["port"]  # a fixture
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


def pandas(url: str) -> Program:
    """pandas over SQLAlchemy over psycopg, beside the packages of the tests."""
    name = f"pandas-{sys.version_info.major}.{sys.version_info.minor}"

    def build(folder: Path) -> None:
        pip = ("-m", "pip", "install", "--quiet", "--target", folder, "pandas")
        run_program("pip does not get pandas", Path(sys.executable), *pip)

    code = f"""
import sys; sys.path.append({str(made(name, build))!r})
import pandas, sqlalchemy
with sqlalchemy.create_engine("{url.replace("postgresql:", "postgresql+psycopg:")}").connect() as db:
    for view in sys.argv[1:]:
        print(view, len(pandas.read_sql(sqlalchemy.text(f"select * from durable.{{view}}"), db)))
"""
    return Program(command=(sys.executable, "-c", code), url=lambda *_: url)


@pytest.mark.full
@pytest.mark.parametrize("reader", ["views.go", "Views.java", "pandas"])
def test_every_view_is_read_elsewhere(conn: Connection, direct: str, port: int, reader: str) -> None:
    """By Go's lib/pq, Java's JDBC and pandas: as many rows, and no value is infinite."""
    made_by: dict[str, Callable[[], Program]] = {
        "views.go": lambda: go(READERS / reader),
        "Views.java": lambda: java(READERS / reader),
        "pandas": lambda: pandas(direct),
    }
    try:
        program = made_by[reader]()
    except (NoPackage, NoSdk) as reason:
        missing(NoSdk(str(reason)), full=True)
    conn.execute(SCENE)
    names = [name for (name,) in conn.execute(VIEWS).fetchall()]
    told = conninfo_to_dict(direct)
    url = program.url(port, str(told["user"]), str(told["dbname"]))
    done = subprocess.run(
        [*program.command, *names],
        env=os.environ | {"DATABASE_URL": url},
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    counts = by_psycopg(direct, [f"select * from durable.{name}" for name in names])
    assert done.stdout.splitlines() == [f"{name} {count}" for name, count in zip(names, counts, strict=True)]
    conn.execute("select durable.unwatch('public.parcels', 'sent')")
