"""Law: an error of the server is no error of a run. What was under way is done again, until it works; errors
of the user's own statements keep their meaning."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyengine import App, SqlError, ctx
from pyengine.errors import passes

Connection = psycopg.Connection[tuple[Any, ...]]
Runs = Callable[[str, str], Any]
SCENE = """
create schema lab;
create table lab.calls (said text);
create sequence lab.tries;
create function lab.fail_twice(state text) returns void language plpgsql as $$
begin
  if nextval('lab.tries') <= 2 then raise exception 'no room' using errcode = state; end if;
end $$;
create function lab.call(state text) returns text language plpgsql as $$
begin
  insert into lab.calls values (state);
  perform lab.fail_twice(state);
  return 'done';
end $$;
select durable.serve('lab.call(text)', attempts => 1);
"""
# doors of the engine that fail at first
SPOILT = {
    "sql": """
alter function durable._end_sql_step(durable._sql_step_call, text) rename to _sound;
create function durable._end_sql_step(durable._sql_step_call, text)
returns json language plpgsql as $$
begin perform lab.fail_twice('%s'); return durable._sound($1, $2); end $$
""",
    "transaction": """
alter function durable.worker_commit_v1(
  text, bigint, text, integer, integer, integer, text, text, text, jsonb) rename to _sound;
create function durable.worker_commit_v1(
  text, bigint, text, integer, integer, integer, text, text, text, jsonb)
returns json language plpgsql as $$
begin perform lab.fail_twice('%s'); return durable._sound($1, $2, $3, $4, $5, $6, $7, $8, $9, $10); end $$
""",
}
SOUND_CALL = """
create or replace function lab.call(state text) returns text language sql as $$ select text 'done' $$
"""
SERVERS = ["53100", "53200", "58030"]
WAYS = ["sql", "service", "transaction"]


def pairs(some: Sequence[str], others: Sequence[str]) -> list[Any]:
    """Each of some with each of the others; without --full each of both sides at least once."""
    count = max(len(some), len(others))
    chosen = {(some[n % len(some)], others[n % len(others)]) for n in range(count)}
    return [
        pytest.param(*pair, marks=[] if pair in chosen else [pytest.mark.full])
        for pair in product(some, others)
    ]


@pytest.fixture
def run(dsn: str, conn: Connection) -> Runs:
    """Runs a workflow that calls a function, in one of three ways, and returns its result."""
    conn.execute(SCENE)
    app = App(dsn)

    @app.workflow
    async def sql(state: str) -> Any:
        return await ctx.sql("lab.call", state)

    @app.workflow
    async def service(state: str) -> Any:
        return await ctx.start("sql://lab.call", state=state)

    @app.workflow
    async def transaction(state: str) -> Any:
        async with ctx.transaction() as tx:
            return await tx.fetchval("select lab.call($1)", state)

    ways = {"sql": sql, "service": service, "transaction": transaction}
    return lambda way, state: app.run(ways[way], state)


@pytest.mark.parametrize(("way", "state"), pairs(WAYS, SERVERS))
def test_an_error_of_the_server_is_done_again(run: Runs, conn: Connection, way: str, state: str) -> None:
    """Whatever it came from: the run ends with its result, and what failed has left nothing."""
    assert run(way, state) == "done"
    assert conn.execute("select last_value from lab.tries").fetchone() == (3,)
    assert conn.execute("select count(*) from lab.calls").fetchone() == (1,)


@pytest.mark.sample(2)
@pytest.mark.parametrize(("way", "state"), pairs(list(SPOILT), [*SERVERS, "55P03", "57014"]))
def test_an_error_at_the_engines_own_doing_is_done_again(
    run: Runs, conn: Connection, way: str, state: str
) -> None:
    """So is a lock or a time that somebody has bounded, where the engine's own statement meets it."""
    conn.execute(SOUND_CALL)
    conn.execute((SPOILT[way] % state).encode())
    assert run(way, state) == "done"
    assert conn.execute("select last_value from lab.tries").fetchone() == (3,)


@pytest.mark.sample(2)
@pytest.mark.parametrize(("state", "way"), pairs(["55P03", "53400", "58P01", "22012"], WAYS))
def test_an_error_of_the_users_statement_stays_his(run: Runs, conn: Connection, way: str, state: str) -> None:
    """A lock that his function did not get, a limit that he has set, a file that is not there."""
    with pytest.raises(Exception, match="failed") as failed:
        run(way, state)
    assert conn.execute("select last_value from lab.tries").fetchone() == (1,)
    assert "no room" in str(failed.value.__cause__)
    if way == "sql":
        assert isinstance(failed.value.__cause__, SqlError)
        assert failed.value.__cause__.sqlstate == state


def test_both_sides_have_the_same_list() -> None:
    """What passes is the same for the worker and for the schema."""
    root = Path(__file__).parents[3]
    text = (root / "sql/logic/features/65_sql/10_call_function.sql").read_text(encoding="utf-8")
    listed = re.search(r"function durable\._passes.*?in \((.*?)\)", text, re.DOTALL)
    assert listed is not None
    states = set(re.findall(r"'(\w{5})'", listed[1]))
    assert states
    assert all(passes(state) for state in states)
    source = (root / "pyengine/errors.py").read_text(encoding="utf-8")
    assert set(re.findall(r'"(\w{5})"', source.split("_TEMPORARY = ")[1].split(")")[0])) == states
