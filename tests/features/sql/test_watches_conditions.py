"""Law: the condition of a watch is one expression that reads nothing which changes by itself; what is more,
or volatile, is refused before any of it is run.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.support.verbs import Call, Connection, ask, refusal


def watch(conn: Connection, relation: str, condition: str, key: str = "{id}", name: str = "w") -> Any:
    """Watch a table."""
    return ask(conn, ("select durable.watch(%s, %s, %s, %s)", (relation, name, key, condition)))[0]


INJECTIONS = {
    "several statements": "true); create table hacked (a int); select (true",
    "more and a comment": "true); create table hacked (a int); --",
    "several behind a comment": "true /* ) */ ); create table hacked (a int); select (/* */ true",
    "several in lines": "true\n);\ncreate table hacked (a int);\nselect (\ntrue",
    "several with a body": "true); do $$ begin create table hacked (a int); end $$; select (true",
    "another constraint": "true), add constraint more check (true",
    "several actions": "true); alter table t add column hacked int; select (true",
    "brackets that do not match": "id = 1) or (true",
    "the other brackets": "true], array[true",
    "a list": "true, true",
    "a comment that is open": "true /*",
}


CATALOGUE: Call = (
    "select (select count(*) from pg_class), (select count(*) from pg_attribute), "
    "(select count(*) from pg_constraint)",
    (),
)


@pytest.mark.parametrize("name", INJECTIONS)
def test_a_condition_is_one_expression(conn: Connection, name: str) -> None:
    """What closes the brackets around a condition is refused before any of it is run."""
    conn.execute("create table t (id int primary key)")
    before = ask(conn, CATALOGUE)
    said = refusal(conn, ("select durable.watch('t', 'w', '{id}', %s)", (INJECTIONS[name],)))
    assert ask(conn, CATALOGUE) == before
    assert said == "WF004" if "several" in name else said in ("WF004", "42601", "42804")


def test_a_comment_is_part_of_a_condition(conn: Connection) -> None:
    """A comment to the end of its line takes nothing along that is not its own."""
    conn.execute("create table t (id int primary key)")
    assert watch(conn, "t", "true --) or (false") == "t.w"


VOLATILE = {
    "a sleep": "pg_sleep(0.5) is null",
    "a random number": "id > random() * 10",
    "a clock": "at < clock_timestamp()",
    "inside": "case when id = any (array[1, floor(random())::int]) then true else false end",
    "a setting that is set": "set_config('a.b', id::text, false) <> ''",
    "a function of the user's": "may(id)",
    "an operator of the user's": "id === 1",
    "an operator with a list": "id === any (array[1])",
}
STABLE = {
    "now": "at < now()",
    "current_timestamp": "at < current_timestamp",
    "a setting": "current_setting('a.b', true) is null",
    "a function of the user's": "must(id)",
    "a name like a node": '"{FUNCEXPR :funcid 2626" is null',
    "a text like a node": "name <> '{FUNCEXPR :funcid 2626 '",
    "a null": "null::boolean",
    "a pattern": "name ~ '^a.*b$' and name like 'x%'",
}
FUNCTIONS = """
create table t (id int primary key, at timestamptz, name text, "{FUNCEXPR :funcid 2626" int);
create function may(int) returns boolean language sql as 'select true';
create function must(int) returns boolean language sql stable as 'select true';
create function same(int, int) returns boolean language plpgsql volatile as 'begin return $1 = $2; end';
create operator === (function = same, leftarg = int, rightarg = int)
"""


@pytest.mark.parametrize("name", VOLATILE)
def test_a_condition_is_not_volatile(conn: Connection, name: str) -> None:
    """A condition that calls anything volatile is refused, and the error names what."""
    conn.execute(FUNCTIONS.encode())
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        watch(conn, "t", VOLATILE[name])
    assert caught.value.sqlstate == "WF004"
    assert "which is volatile" in str(caught.value.diag.message_primary)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", STABLE)
def test_a_condition_may_be_stable(conn: Connection, name: str) -> None:
    """What reads the clock of the transaction, a setting or the catalogue is taken."""
    conn.execute(FUNCTIONS.encode())
    assert watch(conn, "t", STABLE[name]) == "t.w"
