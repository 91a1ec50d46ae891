"""Law: the SQL sources keep the rules of the house, each of which has a test here that it can be broken.

The text is judged by tests/style/lint; what needs types and a catalogue (comments on every object,
the pinned search_path, generated names) is asked of a live database; pglast gives PostgreSQL's own opinion
of the grammar.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pglast
import psycopg
import pytest
from psycopg.rows import TupleRow

from pyengine.core.sources import Sources, found
from tests.style.lint.__main__ import RULES, findings_in, lint
from tests.support.tree import schema

Connection = psycopg.Connection[TupleRow]
Lint = Callable[[str, dict[str, str]], list[str]]

TABLE = """
create table durable._boxes (
  id text not null,
  constraint boxes_pk primary key (id)
);
comment on table durable._boxes is 'Boxes.';
"""


def function(
    body: str, *, name: str = "_f", head: str = "p_a text", after: str = "", language: str = "sql"
) -> str:
    """A function in the shape of the house around a body."""
    return (
        f"create or replace function durable.{name}({head})\nreturns void language {language} volatile\n"
        f"as $$\n{body}\n$${after};\ncomment on function durable.{name}({head}) is 'For a test.';\n"
    )


def procedure(body: str, *, after: str = "") -> str:
    """A procedure in the shape of the house around statements."""
    return (
        f"create or replace procedure durable.wait(a integer)\nlanguage plpgsql\n"
        f"as $$\nbegin\n{body}\nend\n$$"
        f"{after};\ncomment on procedure durable.wait(integer) is 'For a test.';\n"
    )


PLPGSQL = {"language": "plpgsql"}
PINNED = " set search_path = '' set jit = off set quote_all_identifiers = off"
DEFINER = function(
    "declare a text; begin perform durable._g(); end",
    after=" set search_path = pg_catalog, pg_temp",
    **PLPGSQL,
).replace("volatile", "volatile security definer")
HOOK = function("begin end", **PLPGSQL)
# the file that most cases are in
FILE = "logic/core/10_a"
# the file of hooks
HOOKS = "logic/core/10_base/90_hooks"
# rule -> (file, text that breaks it, words of the message)
BROKEN: dict[str, list[tuple[str, str, str]]] = {
    "statements": [
        (FILE, "drop table durable._boxes;", "drop does not belong"),
        (FILE, "create view durable.v as select 1;", "create or replace"),
        ("state/10_a", function("select 1"), "belongs in sql/logic"),
        ("state/10_a", "create table if not exists durable.x (id text);", "hides drift"),
        ("debug/10_a", "grant usage on schema durable to public;", "grant does not belong"),
        ("debug/10_a", "create view durable.v as select 1;", "create or replace"),
    ],
    "header_order": [
        (
            FILE,
            "create or replace function durable._f() returns void volatile language sql as $$ select 1 $$;",
            "_f",
        ),
        (
            FILE,
            "create or replace function durable.f() returns void language sql stable "
            "set search_path = '' as $$ select 1 $$;",
            "clauses",
        ),
    ],
    "language": [
        (FILE, "create or replace function durable._f() returns int language sql stable return 1;", "_f"),
        (FILE, function("select 1", language="plpython3u"), "language sql or plpgsql"),
    ],
    "volatility": [
        (
            FILE,
            "create or replace function durable._f() returns int language sql as $$ select 1 $$;",
            "_f",
        )
    ],
    "search_path": [
        (FILE, function("begin end", name="f", after=PINNED, **PLPGSQL), "99_entry_points"),
        (FILE, function("select 1", after=" set search_path = ''"), "never inlined"),
        (FILE, function("begin end", after=" set search_path = durable", **PLPGSQL), "pinned to ''"),
        (
            FILE,
            function("begin end", after=PINNED, **PLPGSQL).replace("volatile", "volatile security definer"),
            "pinned to pg_catalog, pg_temp",
        ),
        (FILE, procedure("perform durable._f($1);"), "does not commit"),
        (FILE, procedure("commit;", after=PINNED), "does not commit"),
        (FILE, procedure("commit; perform durable._f($1 - 1);"), "operator -"),
        (FILE, procedure("commit; if $1 <> $1 then null; end if;"), "operator <>"),
        (FILE, procedure("commit; perform pg_sleep($1);"), "pg_sleep( without"),
    ],
    "settings": [
        (FILE, function("begin end", name="f", after=" set search_path = ''", **PLPGSQL), "jit"),
        (FILE, function("select 1", after=" set enable_seqscan = off"), "without set jit = off"),
        (
            FILE,
            function("begin end", name="f", after=" set search_path = '' set jit = off", **PLPGSQL),
            "quote_all_identifiers",
        ),
    ],
    "backslashes": [
        (FILE, function("select p_a ~ '^\\d$'"), "without E"),
        (FILE, function("select p_a ~ E'^\\\\d$' or p_a ~ '^\\d$'"), "without E"),
        (FILE, "create or replace view durable.v as select '\\';", "without E"),
    ],
    "parameter_names": [
        (FILE, function("select 1", head="a text"), "parameter a"),
        (FILE, function("select 1", name="f_v1", head="a text"), "parameter a"),
        (FILE, function("select 1", name="f", head="p_a text, b text"), "parameter b"),
    ],
    "length": [(FILE, function("select 1" + "\n" * 60), "60 allowed")],
    "layout": [
        (FILE, "\tselect 1;", "tab"),
        (FILE, "grant select on durable._boxes to a; ", "trailing blank"),
        (FILE, "SELECT 1;", "lower case"),
        (FILE, "grant select on " + "durable._boxes, " * 10 + "durable.x to a;", "columns"),
    ],
    "comments": [
        ("state/10_a", "create table durable._x (id text);", "table _x"),
        ("state/10_a", "create domain durable.ms as bigint;", "domain ms"),
        ("state/20_a", f"{TABLE}create index boxes_by_id on durable._boxes (id);", "index boxes_by_id"),
        (
            "state/20_a",
            TABLE.replace("id text not null,", "id text not null, born_at bigint,"),
            "column _boxes.born_at",
        ),
        (
            FILE,
            "create or replace function durable._f() returns int language sql stable as $$ select 1 $$;",
            "_f",
        ),
        (FILE, "create or replace view durable.v as select 1;", "view v"),
    ],
    "array_lookups": [
        (FILE, function("select 1 from durable._boxes b where b.id = any (array[p_a])"), "write ="),
        (
            FILE,
            function(
                "begin delete from durable._boxes b where b.id = any (array['x' || p_a]); end", **PLPGSQL
            ),
            "write =",
        ),
    ],
    "names_of_constraints": [
        ("state/20_a", "create table durable._x (id text primary key);", "primary"),
        ("state/20_a", "create table durable._x (id text, check (id <> ''));", "check"),
        ("state/20_a", "create table durable._x (id text references durable._boxes);", "references"),
        ("state/20_a", "create table durable._x (id text constraint x_a check (id <> '') unique);", "unique"),
        ("state/20_a", "create domain durable.ms as bigint check (value > 0);", "check"),
        ("state/20_a", f"{TABLE}create index on durable._boxes (id);", "index without a name"),
        ("state/20_a", f"{TABLE}alter table durable._boxes add unique (id);", "unique"),
    ],
    "calls": [
        (FILE, function("select durable._later()"), "_later"),
        (FILE, "create or replace view durable.v as select durable._later();", "_later"),
    ],
    "qualified_tables": [
        (FILE, function("select id from boxes"), "boxes"),
        (FILE, function("select 1 from durable._boxes b join boxes c on true"), "boxes"),
        (FILE, function("begin update boxes set id = 1; end", **PLPGSQL), "boxes"),
        (FILE, function("insert into boxes (id) values (p_a)"), "boxes"),
        (FILE, function("delete from boxes b where b.id = p_a"), "boxes"),
    ],
    "dynamic_sql": [(FILE, function("begin execute 'drop table x'; end", **PLPGSQL), "dynamic")],
    "clock": [
        ("logic/core/11_a", function("select now()"), "now"),
        ("logic/core/11_a", function("begin perform clock_timestamp(); end", **PLPGSQL), "clock_timestamp"),
        (
            "logic/core/11_a",
            "create or replace view durable.v as select current_timestamp;",
            "current_timestamp",
        ),
    ],
    "growth": [
        (FILE, function("select 5 * 2 ^ least(p_a, 6)"), "_f: power or shift by a variable"),
        (FILE, function("begin perform 1 << v_round; end", **PLPGSQL), "_f: power or shift by a variable"),
        (FILE, function("select pg_catalog.power(2, p_a)"), "_f: power or shift by a variable"),
        (
            FILE,
            "create or replace view durable.v as select 2.0 ^ b.n from durable._boxes b;",
            "v: power or shift",
        ),
    ],
    "row_locks": [
        (FILE, function("select 1 from durable._boxes b for update"), "for update"),
        (
            "logic/core/40_tasks/20_tasks",
            function("select 1 from durable._boxes b for no key update"),
            "for no key update",
        ),
        (FILE, function("select 1 from durable._boxes b for share skip locked"), "for share"),
        (FILE, function("begin lock table durable._boxes; end", **PLPGSQL), "whole table"),
    ],
    "lock_names": [
        (
            FILE,
            function("select 1 from durable._boxes b for update skip locked", name="_lock_boxes"),
            "tries a lock",
        ),
        (FILE, function("select pg_try_advisory_xact_lock(1)", name="_lock_box"), "tries a lock"),
        (
            FILE,
            function("select 1 from durable._boxes b for update", name="_try_lock_boxes"),
            "waits for a lock",
        ),
        (FILE, function("select durable._lock_boxes()", name="_try_lock_box"), "waits for a lock"),
        (FILE, function("select 1", name="_take_boxes"), "another word"),
        (FILE, function("select 1", name="_try_boxes"), "another word"),
        (
            "logic/core/10_base/40_try_locks",
            function("select 1 from durable._boxes b for update skip locked", name="_free_boxes"),
            "locks rows",
        ),
    ],
    "notify": [(FILE, function("select pg_notify('a', '')"), "notifies")],
    "journal": [
        (
            "logic/core/30_promises/20_settlement",
            function("insert into durable._journal (seq) values (1)"),
            "insert on the journal",
        ),
        (
            "logic/core/30_promises/20_settlement",
            function("update durable._journal j set seq = 1"),
            "update on the journal",
        ),
        (
            "logic/core/30_promises/20_settlement",
            function("delete from durable._journal"),
            "delete on the journal",
        ),
    ],
    "journal_data": [
        (
            "logic/core/30_promises/20_settlement",
            function("select j.data from durable._journal j"),
            "reads j.data",
        ),
    ],
    "settlement": [
        (
            "logic/core/30_promises/40_promises",
            function("update durable._promises p set data = 1, state = 'resolved'"),
            "out of pending",
        ),
        (
            "logic/core/30_promises/40_promises",
            function("update durable._promises p set (data, state) = (1, 'x') where p.id = p_a"),
            "pending",
        ),
        (
            "logic/core/30_promises/40_promises",
            function(
                "insert into durable._promises (id) values (p_a) on conflict (id) do update set state = 'x'"
            ),
            "pending",
        ),
        (
            "logic/core/30_promises/20_settlement",
            function("update durable._promises p set state = 'a'"),
            "out of pending",
        ),
        (
            "logic/core/30_promises/20_settlement",
            function("update durable._promises p set state = 'a'", name="_settle_rows") * 2,
            "out of pending",
        ),
        (
            "logic/core/30_promises/40_promises",
            function("update durable._promises p set state = 'a'", name="_settle_single"),
            "out of pending",
        ),
    ],
    "raises": [
        ("logic/core/40_a", function("begin raise exception 'no'; end", **PLPGSQL), "raises"),
        (
            "logic/core/40_a",
            function("begin null; exception when others then null; end", **PLPGSQL),
            "catches everything",
        ),
        (
            "logic/core/40_a",
            function("begin null; exception when no_data then raise; end", **PLPGSQL),
            "raises",
        ),
        ("logic/core/98_protocol/10_rpc", function("begin raise exception 'no'; end", **PLPGSQL), "raises"),
    ],
    "insert_columns": [
        (FILE, function("insert into durable._boxes values (p_a)"), "list of columns"),
        (FILE, function("insert into durable._boxes as b select p_a"), "list of columns"),
    ],
    "hooks": [
        (FILE, function("select 1") * 2, "defined in logic/core/10_a.sql already"),
        (
            FILE,
            function("select 1") + function("select 1", head="p_a text default ''"),
            "defined in logic/core/10_a.sql already",
        ),
        (HOOKS, function("select 1"), "does nothing by itself"),
        (HOOKS, function("begin perform 1; end", **PLPGSQL), "does nothing by itself"),
        (HOOKS, HOOK + function("begin perform 1; end", **PLPGSQL) * 2, "replaced in"),
        (HOOKS, HOOK + function("select 1"), "another header"),
        (
            HOOKS,
            HOOK + function("begin perform 1; end", **PLPGSQL).replace("volatile", "stable"),
            "another header",
        ),
        (
            HOOKS,
            HOOK + function("begin perform 1; end", head="p_a text default ''", **PLPGSQL),
            "another header",
        ),
    ],
    "asked_in_plpgsql": [
        (HOOKS, HOOK + function("select durable._f('')", name="_g"), "_g asks a hook"),
        (HOOKS, HOOK + "create or replace view durable.v as select durable._f('');", "v asks a hook"),
    ],
    "with_the_owners_rights": [
        (FILE, DEFINER.replace("pg_catalog, pg_temp", "''"), "_f: run by others"),
        (
            FILE,
            DEFINER + function("begin end", name="_g", after=" set search_path = ''", **PLPGSQL),
            "_g: run by others",
        ),
        (
            FILE,
            DEFINER + function("declare a integer; b constant text := ''; begin end", name="_g", **PLPGSQL),
            "_g: b of a type",
        ),
        (
            FILE,
            DEFINER
            + function("select durable._h()", name="_g")
            + function("declare b record; begin end", name="_h", **PLPGSQL),
            "_h: b of a type",
        ),
    ],
}

SOUND = {
    "state/20_boxes": TABLE,
    "logic/core/10_base/10_clock": function("select clock_timestamp() -- what's '\\'\n", name="_now"),
    "logic/core/12_texts": function("select E'\\\\', 'it''s', \"a\\b\" from unnest(p_a)", name="_texts"),
    "logic/core/11_rights": DEFINER.replace(
        "set search", "set jit = off set quote_all_identifiers = off set search"
    )
    + function("declare a bigint; b constant durable.ms := 1; begin end", name="_g", **PLPGSQL),
    "logic/core/10_base/30_locks": function(
        "begin perform from durable._boxes b for update; end", name="_lock_boxes", **PLPGSQL
    )
    + function("select 1 from durable._boxes b for update skip locked", name="_try_lock_boxes"),
    "logic/core/30_promises/20_settlement": function(
        "with a as (update durable._promises p set state = 'x' where p.id = p_a returning p.id), "
        "b (n) as (select 1)\n"
        "select extract(epoch from x.t), x.a is distinct from x.b from a join b on true, unnest(p_a) x",
        name="_settle_rows",
    ),
    "logic/core/40_tasks/20_tasks": function(
        "begin select * into p_a from durable._boxes b for update skip locked;\n"
        "insert into durable._boxes as b (id) values ('insert into boxes') on conflict do nothing;\n"
        "perform durable._settle_rows(p_a); end",
        name="claim",
        **PLPGSQL,
    ),
    HOOKS: function("begin end", name="_ask", head="", **PLPGSQL)
    + function("begin end", name="_ask", **PLPGSQL),
    "logic/core/13_answers": function("begin perform durable._texts(p_a); end", name="_ask", **PLPGSQL)
    + function("begin perform durable._ask(p_a); end", name="_asks", **PLPGSQL),
    "logic/core/14_lookups": function(
        "select 1 from unnest(p_a) as x (id) join durable._boxes b on b.id = any (array[x.id])\n"
        "where b.id = any (array[p_a, p_a]) and b.id = p_a",
        name="_lookup",
    ),
    "logic/core/98_protocol/10_rpc": function(
        "begin null; exception when others then raise; end", name="rpc", **PLPGSQL
    ),
    "debug/10_clock": function("select clock_timestamp()", name="_now"),
    "logic/core/15_backoff": function("select least(2 ^ p_a, 9)", name="_backoff_ms"),
    "logic/core/16_shift": function("select (p_a << 32) + 2 ^ 3", name="_shift"),
    "logic/core/72_wait": procedure(
        "loop select l.state, 'a <> b' into state, b from durable._poll_result($1, b) l; commit;\n"
        "perform pg_catalog.pg_sleep(c); exit when d is null; b := durable._after(b); end loop;\n"
        "begin commit; exception when no_data then get stacked diagnostics b := message_text; end;"
    ),
    "logic/core/73_start": function("select durable.claim(start.id), 'now()'", name="start", head="id text"),
}


@pytest.fixture
def linted(tmp_path: Path) -> Lint:
    """Lint a tree of files given as {'logic/core/10_a': text} by one rule; returns the messages."""

    def run(rule: str, files: dict[str, str]) -> list[str]:
        for name, text in files.items():
            path = tmp_path / "sql" / f"{name}.sql"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / "migrations").mkdir()
        sources = Sources(sql=tmp_path / "sql", migrations=tmp_path / "migrations")
        return [str(finding) for finding in lint(sources, [rule] if rule else [])]

    return run


def test_the_sources_keep_every_rule() -> None:
    """Nothing in sql/ breaks a rule of the house."""
    findings = findings_in(schema())
    assert not findings, "\n".join(map(str, findings))


@pytest.mark.parametrize(
    ("rule", "case"), [(rule, n) for rule, cases in BROKEN.items() for n in range(len(cases))]
)
def test_a_rule_can_be_broken(linted: Lint, rule: str, case: int) -> None:
    """The lint finds a source that breaks the rule, and names what is wrong."""
    name, text, words = BROKEN[rule][case]
    later = {"logic/core/99_z": function("select 1", name="_later")} if rule == "calls" else {}
    findings = linted(rule, {name: text, **later})
    assert any(words in finding for finding in findings), findings


def test_logic_stands_without_debug(linted: Lint) -> None:
    """What only a test installation has is not used by what every installation has."""
    findings = linted(
        "calls",
        {
            "logic/core/99_a": function("select durable._spy()"),
            "debug/10_a": function("select 1", name="_spy"),
        },
    )
    assert any("_spy" in finding for finding in findings)


def test_every_rule_is_broken_here() -> None:
    """No rule without a source that breaks it."""
    assert set(BROKEN) == set(RULES)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("logic/core/10_other", "10_a has that number already"),
        ("logic/core/20_b/10_c/x", "NN_words"),
        ("logic/core/b/10_c", "NN_words"),
    ],
)
def test_numbers_are_an_order(linted: Lint, name: str, words: str) -> None:
    """Within a folder each number is given once, and nothing goes without."""
    with pytest.raises(ValueError, match=words):
        linted("", {"logic/core/10_a/10_x": function("select 1"), name: function("select 2")})


def test_sound_sources_pass_every_rule(linted: Lint) -> None:
    """Sources in the shape of the house raise no finding: strings, aliases, CTEs are not mistaken."""
    assert linted("", SOUND) == []


@pytest.mark.parametrize(
    "path",
    [*found().state_files(), *found().functions(debug=True, facade=True)],
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_postgres_grammar(path: Path) -> None:
    """Every file is PostgreSQL to PostgreSQL's own parser, and so is every body in SQL."""
    assert pglast.parse_sql(path.read_text(encoding="utf-8"))


CATALOGUE = {
    "comment on every table and view": """
        select c.oid::regclass::text from pg_class c
        where c.relnamespace = %(schema)s::regnamespace and c.relkind in ('r', 'p', 'v')
          and not c.relispartition and obj_description(c.oid, 'pg_class') is null""",
    "comment on every index that no constraint owns": """
        select i.indexrelid::regclass::text from pg_index i join pg_class c on c.oid = i.indexrelid
        where c.relnamespace = %(schema)s::regnamespace and not c.relispartition
          and not exists (select from pg_constraint k where k.conindid = c.oid)
          and obj_description(c.oid, 'pg_class') is null""",
    "comment on every function": """
        select p.oid::regprocedure::text from pg_proc p
        where p.pronamespace = %(schema)s::regnamespace and obj_description(p.oid, 'pg_proc') is null""",
    "comment on every type and domain": """
        select t.oid::regtype::text from pg_type t left join pg_class c on c.oid = t.typrelid
        where t.typnamespace = %(schema)s::regnamespace and (t.typtype = 'd' or c.relkind = 'c')
          and obj_description(t.oid, 'pg_type') is null""",
    "entry points pin the path, compiling and quoting": """
        select p.oid::regprocedure::text from pg_proc p
        where p.pronamespace = %(schema)s::regnamespace and p.proname !~ '^_' and p.prokind <> 'p'
          -- the first two are inlined, the others run code of users under the settings of the session
          and p.proname not in ('error_codes', 'journal_types', 'tick', 'watch', 'serve_v1', 'worker_sql_v1')
          and not coalesce(
            p.proconfig @> '{"search_path=\\"\\"",jit=off,quote_all_identifiers=off}', false)""",
    "what forbids plans never compiles one": """
        select p.oid::regprocedure::text from pg_proc p
        where p.pronamespace = %(schema)s::regnamespace and not coalesce('jit=off' = any (p.proconfig), false)
          and exists (select from unnest(p.proconfig) as c (set) where starts_with(c.set, 'enable_'))""",
    "security definer searches no temporary schema first": """
        select p.oid::regprocedure::text from pg_proc p
        where p.pronamespace = %(schema)s::regnamespace and p.prosecdef
          and not coalesce('search_path=pg_catalog, pg_temp' = any (p.proconfig), false)""",
    "search_path never pinned on helpers in SQL": """
        select p.oid::regprocedure::text from pg_proc p join pg_language l on l.oid = p.prolang
        where p.pronamespace = %(schema)s::regnamespace and p.proname ~ '^_' and l.lanname = 'sql'
          and p.proconfig is not null""",
    "a private function takes eight parameters at most": """
        select p.oid::regprocedure::text from pg_proc p
        where p.pronamespace = %(schema)s::regnamespace and p.proname ~ '^_' and p.pronargs > 8""",
    "security definer only where it is named": """
        select p.oid::regprocedure::text from pg_proc p
        where p.pronamespace = %(schema)s::regnamespace and p.prosecdef
          -- the trigger on tables of users, who need no right in the engine to change their rows, and
          -- what makes and drops partitions for workers, who own nothing
          and p.proname not in ('_row_changed', '_create_partitions', '_drop_partition')""",
    "views that people are sent to say what their columns are": """
        select c.oid::regclass || '.' || a.attname from pg_class c
        join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
        where c.relnamespace = %(schema)s::regnamespace and c.relkind = 'v'
          and c.relname in ('runs', 'live', 'promises', 'workers', 'blocked', 'health', 'view')
          and col_description(c.oid, a.attnum) is null""",
    "no generated constraint name": """
        select k.conrelid::regclass || ' ' || k.conname from pg_constraint k
        where k.connamespace = %(schema)s::regnamespace and k.contype <> 'n' and k.coninhcount = 0
          and k.conname ~ '_(check|pkey|key|fkey|excl)\\d*$'""",
    "a publication of the schema lets the rows of each table be deleted": """
        select c.oid::regclass::text from pg_class c
        where c.relnamespace = %(schema)s::regnamespace and c.relkind in ('r', 'p')
          and c.relreplident not in ('f', 'i')
          and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)""",
    "base tables are private or described for people": """
        select c.oid::regclass::text from pg_class c
        where c.relnamespace = %(schema)s::regnamespace and c.relkind in ('r', 'p') and c.relname !~ '^_'
          and c.relname not in ('settings', 'migrations', 'queues', 'schedules')""",
    "what a function answers is not spread by .*, which calls it for each column": r"""
        select p.oid::regprocedure::text from pg_proc p
        where p.pronamespace = %(schema)s::regnamespace
          and regexp_replace(p.prosrc, '--.*$', '', 'gn') ~ '\(\w[\w.]*\([^;]*\)\)\.\*'""",
}

BAD_CATALOGUE = """
create schema lab;
create table lab.boxes (id text primary key);
create table lab.keyless (id text);
create index by_id on lab.boxes (id, id);
create domain lab.ms as bigint;
create type lab.pair as (a text);
create view lab.view as select 1 as one;
create function lab.entry() returns void language plpgsql security definer as $$ begin end $$;
create function lab.spread() returns text language plpgsql
as $$ begin return (select (pg_control_init()).*); end $$;
create function lab._slow() returns void language plpgsql set enable_sort = off as $$ begin end $$;
create function lab._many(a int, b int, c int, d int, e int, f int, g int, h int, i int) returns int
language sql as $$ select 1 $$;
create function lab._helper() returns int language sql set search_path = '' as $$ select 1 $$;
"""


@pytest.mark.parametrize("law", CATALOGUE)
def test_the_catalogue_keeps(conn: Connection, law: str) -> None:
    """What psql shows of the installed schema keeps the law."""
    rows = [name for (name,) in conn.execute(CATALOGUE[law].encode(), {"schema": "durable"})]
    assert not rows, f"{law}: {', '.join(rows)}"


@pytest.mark.parametrize("law", CATALOGUE)
def test_the_catalogue_law_can_be_broken(conn: Connection, law: str) -> None:
    """A schema that keeps no law is reported by every law."""
    conn.execute(BAD_CATALOGUE.encode())
    assert conn.execute(CATALOGUE[law].encode(), {"schema": "lab"}).fetchall()
