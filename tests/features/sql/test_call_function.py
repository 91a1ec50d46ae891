"""Law: a function of the user's is found by its name and called with JSON, its identifiers from the catalogue
and its values as values, under the session's own settings."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from tests.support.verbs import Connection, ask, refusal

FUNCTIONS = """
create schema shop;
create schema "Odd ""Shop";
create type shop.money as (currency text, amount numeric);
create domain shop.positive as integer check (value > 0);
create table shop.rows (id integer primary key, note text);
create function shop.add(a integer, b integer default 10) returns integer language sql as 'select a + b';
create function shop.over(a integer) returns text language sql as $$ select 'integer' $$;
create function shop.over(a text) returns text language sql as $$ select 'text' $$;
create function shop.over(a integer, b integer) returns text language sql as $$ select 'two' $$;
create function shop.types(m shop.money, n integer[], p shop.positive, j jsonb, d date, s text, b boolean)
  returns jsonb language sql as $$ select jsonb_build_array(m, n, p, j, d, s, b) $$;
create function shop.money_of(x numeric) returns shop.money language sql as $$ select 'EUR', x $$;
create function shop.nothing_of() returns shop.money language sql as $$ select null::shop.money $$;
create function shop.outs(a integer, out b integer, out c text) language sql as $$ select a + 1, 'x' $$;
create function shop.pairs(n integer) returns table (a integer, b text) language sql as
  $$ select g, repeat('x', g) from generate_series(1, n) g $$;
create function shop.many(variadic a integer[]) returns integer language sql as 'select cardinality(a)';
create function shop.nothing() returns void language plpgsql stable as $$ begin null; end $$;
create function shop.refuse() returns void language plpgsql stable as $$ begin raise exception 'no'; end $$;
create function shop.unnamed(integer, text) returns text language sql as 'select $1::text || $2';
create function shop."Mixed ""Case"("the arg" integer, "select" integer default 0) returns integer
  language sql as 'select $1 + $2';
create function "Odd ""Shop".f(x text) returns text language sql as 'select x';
create function shop.path() returns text language sql as $$ select current_setting('search_path') $$;
"""


@pytest.fixture
def shop(conn: Connection) -> Connection:
    """A database with functions."""
    conn.execute(FUNCTIONS)
    return conn


def call(conn: Connection, name: str, args: Any) -> Any:
    """What a function answers."""
    return json.loads(ask(conn, ("select durable._call_function(%s, %s)", (name, json.dumps(args))))[0])


@pytest.mark.parametrize(
    ("name", "args", "answer"),
    [
        ("shop.add", [1], 11),
        ("shop.add", [1, 2], 3),
        ("SHOP.Add", {"b": 5, "a": 1}, 6),
        ("shop.add", {"a": 1}, 11),
        ("shop.add", [1, None], None),
        ("shop.over(text)", [1], "text"),
        ("shop.over", [1, 2], "two"),
        ("shop.money_of", ["1.50"], {"currency": "EUR", "amount": 1.5}),
        ("shop.nothing_of", [], None),
        ("shop.outs", [1], {"b": 2, "c": "x"}),
        ("shop.pairs", [2], [{"a": 1, "b": "x"}, {"a": 2, "b": "xx"}]),
        ("shop.pairs", [0], []),
        ("shop.many", [[1, 2, 3]], 3),
        ("shop.nothing", [], None),
        ("shop.nothing", {}, None),
        ("shop.unnamed", [1, "x"], "1x"),
        ('shop."Mixed ""Case"', {"the arg": 1, "select": 2}, 3),
        ('shop."Mixed ""Case"', [4], 4),
        ('"Odd ""Shop".f', ["'); drop table shop.rows; --"], "'); drop table shop.rows; --"),
        (
            "shop.types",
            [{"currency": "EUR", "amount": 1}, [1, None], 3, {"x": [1]}, "2026-11-30", "a'b", True],
            [{"currency": "EUR", "amount": 1}, [1, None], 3, {"x": [1]}, "2026-11-30", "a'b", True],
        ),
    ],
)
def test_calls(shop: Connection, name: str, args: Any, answer: Any) -> None:
    """By position and by name, with defaults, every kind of parameter and of result."""
    assert call(shop, name, args) == answer
    assert ask(shop, ("select count(*) from shop.rows", ())) == (0,)


@pytest.mark.parametrize(
    ("name", "args", "sqlstate"),
    [
        ("shop.unknown", [], "WF001"),
        ("shop.add(text)", [], "WF001"),
        ("unknown.add", [], "WF001"),
        ("add", [1], "WF004"),
        ("a.b.c", [1], "WF004"),
        ("", [], "WF004"),
        ("shop.add; drop table shop.rows", [], "WF004"),
        ("shop.add", [], "WF004"),
        ("shop.add", [1, 2, 3], "WF004"),
        ("shop.add", {"a": 1, "c": 2}, "WF004"),
        ("shop.add", {"b": 1}, "WF004"),
        ("shop.add", 1, "WF004"),
        ("shop.add", None, "WF004"),
        ("shop.over", [1], "WF004"),
        ("shop.unnamed", {"a": 1, "b": "x"}, "WF004"),
        ("shop.add", ["x"], "22P02"),
        ("shop.types", [None, None, -1, None, None, None, None], "23514"),
        ("shop.refuse", [], "P0001"),
        ("pg_catalog.count", [], "WF004"),
    ],
)
def test_refusals(shop: Connection, name: str, args: Any, sqlstate: str) -> None:
    """What is wrong with a call is said by SQLSTATE; what the function raises goes out as it is, also one
    that says it is stable."""
    call_ = ("select durable._call_function(%s, %s)", (name, json.dumps(args)))
    assert refusal(shop, call_) == sqlstate


def test_a_refusal_names_the_function_as_it_can_be_called(shop: Connection) -> None:
    """A refusal names the function as it can be called."""
    for name, args, hint in (
        ("shop.add", "[]", "There is shop.add(a integer, b integer DEFAULT 10)"),
        ("shop.over", "[null]", "Say which: 'shop.over(integer)' or 'shop.over(text)'"),
    ):
        with pytest.raises(psycopg.Error) as found, shop.transaction():
            shop.execute("select durable._call_function(%s, %s)", (name, args))
        assert found.value.diag.message_hint == hint


def test_the_sessions_own_settings(shop: Connection) -> None:
    """The search_path of the session is the function's."""
    shop.execute("set local search_path = shop, pg_temp")
    assert call(shop, "shop.path", []) == "shop, pg_temp"
    # names in the catalogue are written with their schema whatever the path
    assert call(shop, "shop.money_of", [1]) == {"currency": "EUR", "amount": 1}
