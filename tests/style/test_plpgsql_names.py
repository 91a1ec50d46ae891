"""Law: every name in every body exists, and means one thing.

PostgreSQL looks at a PL/pgSQL body only when a line runs. These tests look at all of them: each embedded
statement is prepared in a live database (support/plpgsql.py), and where Debian's PostgreSQL 15 and
plpgsql_check can be had, that is asked too.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pglast
import psycopg
import pytest
from pglast import ast
from pglast.visitors import Visitor
from psycopg.rows import TupleRow

from pyengine.doors.admin import migrate
from pyengine.doors.embedded.server import EmbeddedPostgres
from tests.support import plpgsql_check
from tests.support.cluster import SETTINGS, make_folder
from tests.support.plpgsql import check_schema, definitions

Connection = psycopg.Connection[TupleRow]

STAGE = """
create schema lab;
create table lab.boxes (id text primary key, size bigint not null, label text);
create domain lab.epoch as bigint;
create type lab.pair as (a text, b bigint);
create function lab.weigh(p_id text, p_size bigint) returns bigint language sql as $$ select p_size $$;
"""

SOUND = """
create function lab.sound(p_ids text[], p_pair lab.pair) returns table (id text, total bigint)
language plpgsql as $$
declare
  v_box lab.boxes;
  v_pairs lab.pair[];
  v_size lab.boxes.size%type := 3;
  v_when constant lab.epoch := lab.weigh('x', 4);
  v_each record;  -- any; row
  -- a comment; then a type of our own
  v_other lab.pair := (select row(b.id, b.size)::lab.pair from lab.boxes b where b.size > 3 limit 1);
begin
  select * into v_box from lab.boxes b where b.id = p_ids[1];
  if not found or v_box.label is null then
    v_box.label := p_pair.a || v_when || $1[1];
  end if;
  for v_each in select b.id as key, count(*) as n from lab.boxes b group by b.id loop
    perform lab.weigh(v_each.key, p_size => v_each.n);
    v_pairs[1] := row(v_each.key, v_size);
  end loop;
  case v_box.label
    when 'a', 'b' then perform lab.weigh(v_box.label, 1);
    else null;
  end case;
  update lab.boxes b set size = sound.p_pair.b where b.id = v_pairs[1].a returning b.* into v_box;
  insert into lab.boxes as b (id, size) values ('a', v_size) on conflict on constraint boxes_pkey do nothing;
  return query select b.id, b.size from lab.boxes b where b.id = any (p_ids);
end $$;
"""

UNSOUND = {
    "missing column": ("begin perform b.sizes from lab.boxes b; end", "sizes"),
    "missing column of a row variable": ("declare v lab.boxes; begin v.colour := 'red'; end", "colour"),
    "missing table": ("begin delete from lab.crates; end", "crates"),
    "missing function": ("begin perform lab.measure('a'); end", "measure"),
    "wrong argument type": ("begin perform lab.weigh('a', array['b']); end", "weigh"),
    "wrong parameter name": ("begin perform lab.weigh('a', size => 1); end", "weigh"),
    "unqualified table": ("begin perform from boxes; end", "boxes"),
    "unqualified function": ("begin perform weigh('a', 1); end", "weigh"),
    "unknown variable": ("begin perform p_nothing; end", "p_nothing"),
    "missing field of a loop record": (
        "declare r record; begin for r in select b.id from lab.boxes b loop perform r.label; end loop; end",
        "label",
    ),
    "a variable that is a column too": (
        "declare label text; begin perform from lab.boxes where label = 'x'; end",
        "label",
    ),
    "a conflict target that is a variable too": (
        "declare id text; begin insert into lab.boxes values ('a', 1) on conflict (id) do nothing; end",
        "id",
    ),
    "into of another width": (
        "declare a text; begin select b.id, b.size into a from lab.boxes b; end",
        "2 columns go into 1",
    ),
    "in an exception handler": (
        "begin null; exception when unique_violation then delete from lab.crates; end",
        "crates",
    ),
    "in a declaration": (
        "declare v bigint := (select max(b.sizes) from lab.boxes b); begin null; end",
        "sizes",
    ),
    "in a condition": ("begin if exists (select from lab.crates) then null; end if; end", "crates"),
    "in a case": ("begin case 'x' when 'y' then delete from lab.crates; else null; end case; end", "crates"),
    "in the else of a case": (
        "begin case 1 when 2 then null; else delete from lab.crates; end case; end",
        "crates",
    ),
    "of another type than its case": ("begin case 1 when 'y' then null; end case; end", "integer"),
    "in a return": ("begin return query select 1; end", "declared is"),
}


def test_every_statement_of_every_body_prepares(conn: Connection) -> None:
    """No body names a table, column or function that does not exist, or anything that means two things."""
    problems = check_schema(conn, "durable")
    assert not problems, "\n".join(map(str, problems))


def test_every_statement_of_the_debug_operations_prepares(
    conn: Connection, empty_database: Callable[[], str]
) -> None:
    """The same holds of what a test installation replaces and adds; the new names are none of the others."""
    dsn = empty_database()
    migrate.install(dsn, debug=True)
    with psycopg.connect(dsn, autocommit=True) as debug:
        plain = definitions(conn, "durable")
        added = definitions(debug, "durable") - plain
        assert any("durable._debug(" in each for each in added)
        problems = check_schema(debug, "durable", known=plain)
    assert not problems, "\n".join(map(str, problems))


def test_the_checker_accepts_a_sound_body(conn: Connection) -> None:
    """Rows, records, arrays, domains, named and positional parameters are understood: no false alarm."""
    conn.execute((STAGE + SOUND).encode())
    problems = check_schema(conn, "lab")
    assert not problems, "\n".join(map(str, problems))


@pytest.mark.sample(7)
@pytest.mark.parametrize("fault", UNSOUND)
def test_the_checker_reports(conn: Connection, fault: str) -> None:
    """Each kind of fault that PostgreSQL lets into a body is found, and the message names it."""
    body, word = UNSOUND[fault]
    returns = "setof text" if "return query" in body else "void"
    conn.execute(STAGE.encode())
    conn.execute(f"create function lab.unsound() returns {returns} language plpgsql as $${body}$$".encode())
    problems = check_schema(conn, "lab")
    assert problems
    assert word in str(problems[0])


def test_bare_parameters_are_qualified_in_sql_bodies(conn: Connection) -> None:
    """In a body in SQL an unqualified name that is a column and a parameter is silently the column."""
    wrong = bare_parameters(conn, "durable")
    assert not wrong, "\n".join(wrong)


def test_the_check_of_bare_parameters_reports(conn: Connection) -> None:
    """A bare parameter that is not written as function.parameter is found; the qualified form is not."""
    conn.execute(STAGE.encode())
    bad = "select b.size from lab.boxes b where b.id = id"
    conn.execute(f"create function lab.bad(id text) returns bigint language sql as $${bad}$$".encode())
    conn.execute(
        f"create function lab.good(id text) returns bigint language sql as $${bad[:-2]}good.id$$".encode()
    )
    assert bare_parameters(conn, "lab") == ["lab.bad(text): id is a parameter; write bad.id"]


def bare_parameters(conn: Connection, schema: str) -> list[str]:
    """Functions in SQL that mention a parameter without ``p_`` by its bare name."""
    conn.execute("set search_path = ''")
    rows = conn.execute(
        "select p.oid::regprocedure::text, p.proname, p.prosrc, p.proargnames[1:p.pronargs] "
        "from pg_proc p join pg_language l on l.oid = p.prolang "
        "where l.lanname = 'sql' and p.pronamespace = %s::regnamespace order by 1",
        (schema,),
    ).fetchall()
    wrong = []
    for signature, name, source, parameters in rows:
        bare = {each for each in parameters or [] if not each.startswith("p_")}
        used = {words[0] for words in _columns(source) if len(words) == 1}
        wrong += [f"{signature}: {each} is a parameter; write {name}.{each}" for each in sorted(bare & used)]
    return wrong


def _columns(source: str) -> list[list[str]]:
    found: list[list[str]] = []

    class Collect(Visitor):
        def visit_ColumnRef(self, _: object, node: ast.ColumnRef) -> None:
            found.append([part.sval for part in node.fields if not isinstance(part, ast.A_Star)])

    Collect()(pglast.parse_sql(source))
    return found


@pytest.fixture(scope="module")
def strict() -> Iterator[Connection]:
    """A database of PostgreSQL 15 with the schema and plpgsql_check; skips where that cannot be had."""
    folder = Path(make_folder())
    try:
        programs = plpgsql_check.server_programs()
        root = plpgsql_check.unpack(folder / "package")
    except plpgsql_check.Unobtainable as why:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"plpgsql_check: {why}")
    folder.chmod(0o755)
    with EmbeddedPostgres(folder / "server", settings=SETTINGS, binaries=programs) as postgres:
        migrate.install(postgres.dsn)
        with psycopg.connect(postgres.dsn, autocommit=True) as conn:
            plpgsql_check.create(conn, root)
            conn.execute((STAGE + SOUND).encode())
            yield conn
    shutil.rmtree(folder, ignore_errors=True)


def test_plpgsql_check_finds_nothing(strict: Connection) -> None:
    """On PostgreSQL 15, our oldest, the schema installs and plpgsql_check has nothing against it."""
    found = plpgsql_check.findings(strict, "durable")
    assert not found, "\n".join(found)
    migrate.install(strict.info.dsn, debug=True)
    found = plpgsql_check.findings(strict, "durable")
    assert not found, "\n".join(found)


def test_plpgsql_check_would_find(strict: Connection) -> None:
    """It reports a missing column and an unused variable, so that the test above can fail."""
    body = "declare v_idle text; begin perform b.sizes from lab.boxes b; end"
    strict.execute(
        f"create or replace function lab.unsound() returns void language plpgsql as $${body}$$".encode()
    )
    found = "\n".join(plpgsql_check.findings(strict, "lab"))
    assert "sizes" in found
    assert "v_idle" in found
