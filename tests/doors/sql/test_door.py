"""Law: the verbs that people type are one door. They are part of the caller's transaction, savepoints and
notifications included; they mean the same in triggers, functions and under any search path; what they refuse
they refuse with a code, and nothing is written."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.support.laboratory import transaction_of
from tests.support.verbs import Connection, adopt, ask, begin_run, complete, halt, report, take_turn

VERBS = {
    "start": "select durable.start('w', '[1]', id => 'new', key => 'k', queue => 'q')",
    "start_many": "select durable.start_many('w', '{\"[1]\",\"[2]\"}', keys => '{a,b}')",
    "signal": "select durable.signal('waiting', 'go', '1', dedup => 'd')",
    "create_promise": "select durable.create_promise('fresh', timeout => '1 day')",
    "resolve": "select durable.resolve('open', '{\"a\": 1}')",
    "resolve_what_is_awaited": "select durable.resolve('awaited')",
    "reject": "select durable.reject('open', error => '{\"type\": \"No\"}')",
    "result_of_what_is_due": "select * from durable.result('due')",
    "cancel": "select durable.cancel('waiting', reason => '\"why\"', grace => '1 min')",
    "cancel_by_force": "select durable.cancel('held', force => true)",
    "pause": "select durable.pause('held')",
    "resume": "select durable.resume('halted')",
    "redrive": "select durable.redrive()",
    "signal_many": "select durable.signal_many('{waiting,held,ended}', 'go', '1', dedup => 'd')",
    "cancel_many": "select durable.cancel_many('{waiting,held,ended}', reason => '\"why\"')",
    "pause_many": "select durable.pause_many('{held,waiting}')",
    "resume_many": "select durable.resume_many('{halted,dead,held}')",
    "redrive_many": "select durable.redrive_many('{dead,held}')",
    "fork_many": "select durable.fork_many('{ended,held}', 'once')",
    "reschedule": "select durable.reschedule('later', delay => '0')",
    "delete": "select durable.delete('ended')",
    "settle_many": "select durable.settle_many('{awaited,open,due}', value => '[1]')",
    "fork": "select durable.fork('held', new_id => 'copy', set_values => '{}')",
    "schedule": "select durable.schedule('hourly', '0 * * * *', target => 'reports', args => '[1]')",
    "unschedule": "select durable.unschedule('nightly')",
    "set_setting": "select durable.set_setting('hints', 'off')",
}
# verbs after which somebody may have something to do
HINTED = {
    "start",
    "start_many",
    "signal",
    "resolve",
    "resolve_what_is_awaited",
    "reject",
    "cancel",
    "cancel_by_force",
    "signal_many",
    "cancel_many",
    "resume_many",
    "redrive_many",
    "reschedule",
    "settle_many",
}
TABLES = """
select c.relname from pg_class c
where c.relnamespace = 'durable'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition order by 1
"""
EVIL = """
create schema evil;
create function evil.start(text, jsonb) returns text language plpgsql
as $$ begin raise exception 'hijacked'; end $$;
create function evil.trap(text, text) returns boolean language plpgsql
as $$ begin raise exception 'hijacked'; end $$;
create function evil.jsonb_typeof(jsonb) returns text language plpgsql
as $$ begin raise exception 'hijacked'; end $$;
create operator evil.= (leftarg = text, rightarg = text, function = evil.trap);
create operator evil.<> (leftarg = text, rightarg = text, function = evil.trap);
create table evil._promises (id text);
create table evil._tasks (id text)
"""
Rows = dict[str, list[str]]


def populate(session: Connection) -> None:
    """Something for every verb to do."""
    session.execute("select durable.set_setting('hints', 'commit')")
    for name in ("open", "awaited"):
        session.execute("select durable.create_promise(%s)", (name,))
    session.execute("select durable.start('w', id => 'later', delay => '1 hour')")
    begin_run(session, "held")
    waiting = begin_run(session, "waiting")
    end = {"do": "suspend", "on": [0], "kind": "single"}
    take_turn(session, "W", report(waiting, commands=[adopt(0, "awaited")], end=end))
    take_turn(session, "W", report(begin_run(session, "ended"), end=complete()))
    for name, kind in (("halted", "Nondeterminism"), ("dead", "Crashed")):
        held = begin_run(session, name)
        take_turn(session, "W", report(held, end=halt(f'{{"type": "{kind}"}}')))
    session.execute("select durable.create_promise('due')")
    session.execute("update durable._promises set created_at = 1, timeout_at = 2 where id = 'due'")
    session.execute("select durable.schedule('nightly', '0 3 * * *')")


@pytest.fixture
def own(session: Connection) -> Connection:
    """A connection to a database with that."""
    populate(session)
    return session


@pytest.fixture
def inside(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A connection within a transaction that began with that."""
    with transaction_of(request, populate) as connection:
        yield connection


def everything(conn: Connection) -> Rows:
    """Every row of every table of the schema."""
    tables = [str(name) for (name,) in conn.execute(TABLES.encode()).fetchall()]
    rows = ", ".join(f"array(select t::text from durable.{table} t order by 1)" for table in tables)
    found = conn.execute(f"select {rows}".encode()).fetchone()
    return dict(zip(tables, found or (), strict=True))


@pytest.mark.sample(8)
@pytest.mark.parametrize("verb", VERBS)
def test_a_rollback_leaves_no_trace(own: Connection, verb: str) -> None:
    """Not a row of any table differs after the caller's transaction is rolled back; before, some did."""
    before = everything(own)
    own.execute("begin")
    own.execute(VERBS[verb].encode())
    assert everything(own) != before
    own.execute("rollback")
    assert everything(own) == before


@pytest.mark.sample(8)
@pytest.mark.parametrize("verb", VERBS)
def test_savepoints(own: Connection, verb: str) -> None:
    """Rolled back to a savepoint a verb leaves no trace, and what came before it stays; released it stays."""
    own.execute("begin; savepoint one")
    own.execute("select durable.start('w', id => 'first')")
    before = everything(own)
    own.execute("savepoint two")
    own.execute(VERBS[verb].encode())
    own.execute("rollback to two")
    assert everything(own) == before
    own.execute(VERBS[verb].encode())
    after = everything(own)
    assert after != before
    own.execute("release two; release one; commit")
    assert everything(own) == after


def heard(own: Connection, ears: Connection) -> int:
    """How many notifications came until now."""
    own.execute("select pg_notify('durable_ready', 'end')")
    payloads: list[str] = []
    for note in ears.notifies(timeout=30):
        payloads.append(note.payload)
        if note.payload == "end":
            break
    assert payloads.pop() == "end"
    return len(payloads)


@pytest.mark.sample(8)
@pytest.mark.parametrize("verb", VERBS)
def test_notifications_follow_commits_only(own: Connection, direct: str, verb: str) -> None:
    """After a rollback, of all or to a savepoint, nobody is told anything; a commit tells who waits."""
    with psycopg.connect(direct, autocommit=True) as ears:
        ears.execute("listen durable_ready; listen durable_settled")
        own.execute(b"begin; " + VERBS[verb].encode() + b"; rollback")
        own.execute(b"begin; savepoint s; " + VERBS[verb].encode() + b"; rollback to s; commit")
        assert heard(own, ears) == 0
        own.execute(VERBS[verb].encode())
        count = heard(own, ears)
        assert count > 0 if verb in HINTED else count >= 0


@pytest.mark.sample(8)
@pytest.mark.parametrize("verb", VERBS)
def test_under_any_search_path(inside: Connection, verb: str) -> None:
    """A search path with nothing in it, or with functions, operators and tables of somebody else in front,
    changes nothing."""
    inside.execute(EVIL.encode())
    left = []
    for path in ('"$user", public', "''", "evil, pg_catalog"):
        with inside.transaction(force_rollback=True):
            inside.execute(f"set local search_path = {path}".encode())
            inside.execute(VERBS[verb].encode())
            left.append({table: len(rows) for table, rows in everything(inside).items()})
    assert left[0] == left[1] == left[2]


TRIGGER = """
create table orders (id int primary key, note jsonb);
create function order_changed() returns trigger language plpgsql as $$
begin
  perform durable.start('checkout', to_jsonb(new), id => 'order-' || new.id, queue => 'orders');
  perform durable.signal('held', 'order', to_jsonb(new.id), dedup => new.id::text);
  perform durable.create_promise('paid-' || new.id);
  perform durable.resolve('open', '1');
  perform durable.cancel('waiting', reason => to_jsonb('gone'::text));
  perform durable.pause('order-' || new.id);
  perform durable.resume('order-' || new.id);
  return new;
end $$;
create function orders_changed() returns trigger language plpgsql as $$
begin
  perform durable.start_many('checkout', array_agg(to_jsonb(o)), ids => array_agg('order-' || o.id),
                             queue => 'orders')
  from added o;
  return null;
end $$;
"""
EACH = "insert on orders for each row execute function order_changed()"
ATTACH = {
    "before each row": f"create trigger t before {EACH}",
    "after each row": f"create trigger t after {EACH}",
    "at the commit": "create constraint trigger t after insert on orders deferrable initially deferred "
    "for each row execute function order_changed()",
    "after the statement": "create trigger t after insert on orders referencing new table as added "
    "for each statement execute function orders_changed()",
}
INSERT = "insert into public.orders select n, '{}' from generate_series(1, 3) n"
RUNS = "select id from durable.runs where workflow = 'checkout' order by id"
ORDERS = [("order-1",), ("order-2",), ("order-3",)]


@pytest.mark.sample(4)
@pytest.mark.parametrize("path", ["public", "''", "evil, pg_catalog, public"])
@pytest.mark.parametrize("when", ATTACH)
def test_in_triggers(own: Connection, when: str, path: str) -> None:
    """Row, statement and deferred constraint triggers may use the verbs, under any search path of whoever
    writes the row; a rollback undoes them."""
    own.execute((EVIL + ";" + TRIGGER + ATTACH[when]).encode())
    before = everything(own)
    own.execute(f"set search_path = {path}".encode())
    own.execute(f"begin; {INSERT}; rollback".encode())
    assert everything(own) == before
    own.execute(INSERT.encode())
    own.execute("reset search_path")
    assert own.execute(RUNS.encode()).fetchall() == ORDERS
    own.execute("begin; delete from public.orders")
    with pytest.raises(psycopg.errors.UniqueViolation):
        own.execute("insert into public.orders select 7, '{}' from generate_series(1, 2)")
    own.execute("rollback")
    assert own.execute(RUNS.encode()).fetchall() == ORDERS


def test_a_table_that_is_dropped(own: Connection) -> None:
    """Runs do not hang on the table whose trigger started them; it may be dropped at once."""
    for name in ("dropped later", "dropped at once"):
        own.execute((TRIGGER + ATTACH["after the statement"]).encode())
        drop = "drop table orders; drop function order_changed, orders_changed"
        own.execute(f"begin; {INSERT}; {drop}; commit" if "once" in name else f"{INSERT}; {drop}")
        for _ in range(3):
            held = take_turn(own, "W", want=1, queues=["orders"], workflows=["checkout"]).tasks[0]
            take_turn(own, "W", report(held, end=complete()))
        assert own.execute(
            "select distinct state from durable.runs where workflow = 'checkout'"
        ).fetchall() == [("completed",)]
        own.execute(
            "delete from durable._journal where execution in (select execution from durable._executions "
            "where workflow = 'checkout')"
        )
        own.execute("delete from durable._executions where workflow = 'checkout'")
        own.execute("delete from durable._promises where id ~ '^order-'")


def test_in_functions_that_catch(own: Connection) -> None:
    """An error that a function catches by its code undoes the verb that raised it and nothing else."""
    own.execute(
        """create function relay(p_calls text[]) returns text[] language plpgsql as $$
        declare v_codes text[] := '{}'; v_code text; v_call text;
        begin
          perform durable.start('w', id => 'kept');
          foreach v_call in array p_calls loop
            begin
              perform durable.create_promise('lost');
              execute 'select ' || v_call;
            exception when sqlstate 'WF001' or sqlstate 'WF003' or sqlstate 'WF004' or sqlstate 'WF009' then
              get stacked diagnostics v_code = returned_sqlstate;
              v_codes := v_codes || v_code;
            end;
          end loop;
          perform durable.cancel('waiting');
          return v_codes;
        end $$"""
    )
    calls = {
        "durable.signal('nobody', 'go')": "WF001",
        "durable.signal('ended', 'go')": "WF003",
        "durable.resolve('none')": "WF001",
        "durable.start('w', '7')": "WF004",
        "durable.start('other', id => 'kept')": "WF009",
        "durable.pause('ended')": "WF003",
        "durable.schedule('nightly', '1 1 1 1 1')": "WF003",
        "durable.redrive('held')": "WF003",
    }
    assert ask(own, ("select relay(%s)", (list(calls),))) == (list(calls.values()),)
    assert own.execute("select id from durable._promises where id in ('kept', 'lost')").fetchall() == [
        ("kept",)
    ]
    assert ask(own, ("select status from durable._executions where id = 'waiting'", ())) == ("cancelling",)


def test_parameters_of_drivers(own: Connection) -> None:
    """Values of a driver need no cast: JSON, intervals, arrays, texts, nulls, by position and by name."""
    hour = datetime.timedelta(hours=1)
    options = ", ".join(f"{name} => %s" for name in ("id", "key", "delay", "timeout", "priority", "tags"))
    call = f"select durable.start(%s, %s, {options})"
    values: tuple[Any, ...] = ("w", Jsonb({"a": [1]}), "p", None, hour, 2 * hour, 3, Jsonb({"b": "c"}))
    assert ask(own, (call, values)) == ("p",)
    call = "select id, created from durable.start_many(%s, %s, ids => %s)"
    assert ask(own, (call, ("w", [Jsonb([1]), Jsonb({})], ["x", None]))) == ("x", True)
    assert ask(own, ("select durable.signal(%s, %s, %s)", ("p", "go", Jsonb(None)))) == (1,)
    assert ask(own, ("select durable.create_promise(%s, %s)", ("q", hour))) == ("q",)
    assert ask(own, ("select durable.resolve(%s, %s)", ("q", '{"text": 1}'))) == ("resolved",)
    assert ask(own, ("select durable.cancel(%s, %s, %s)", ("p", Jsonb("why"), hour))) == ("cancelled",)
    assert ask(own, ("select durable.schedule(%s, %s, timeout => %s) > now()", ("s", "* * * * *", hour))) == (
        True,
    )


BAD = {
    "durable.signal('nobody', 'go')": "WF001",
    "durable.signal('ended', 'go')": "WF003",
    "durable.signal('held', '')": "WF004",
    "durable.signal(null, 'go')": "WF004",
    "durable.signal('held', 'go', dedup => '')": "WF004",
    "durable.resolve('nobody')": "WF001",
    "durable.resolve('')": "WF004",
    "durable.reject(null)": "WF004",
    "durable.cancel('nobody')": "WF001",
    "durable.cancel('open')": "WF001",
    "durable.cancel('ended')": "WF003",
    "durable.cancel('held', grace => '-1 s')": "WF004",
    "durable.pause('nobody')": "WF001",
    "durable.pause('ended')": "WF003",
    "durable.resume('held')": "WF003",
    "durable.resume('nobody')": "WF001",
    "durable.redrive('held')": "WF003",
    "durable.redrive('nobody')": "WF001",
    "durable.reschedule('held', delay => '1 h')": "WF003",
    "durable.reschedule('later')": "WF004",
    "durable.reschedule('nobody', delay => '1 h')": "WF001",
    "durable.delete('held')": "WF003",
    "durable.delete('nobody')": "WF001",
    "durable.fork_many('{ended}', '')": "WF004",
    "durable.fork('nobody')": "WF001",
    "durable.fork('held', new_id => 'open')": "WF003",
    "durable.fork('held', seq => 99)": "WF004",
    "durable.fork('held', set_values => '[]')": "WF004",
    "durable.as_of('nobody')": "WF001",
    "durable.as_of('held', seq => 99)": "WF004",
    "durable.result('nobody')": "WF001",
    "durable.start('w', '7')": "WF004",
    "durable.start('w', null)": "WF004",
    "durable.start('w', id => 'open')": "WF003",
    "durable.unschedule('nobody')": "WF001",
    "durable.unschedule(null)": "WF001",
    "durable.schedule('nightly', '0 4 * * *')": "WF003",
    "durable.schedule('nightly', '0 3 * * *', args => '[1]')": "WF003",
    "durable.schedule('nightly', '0 3 * * *', timezone => 'Europe/Berlin')": "WF003",
    "durable.schedule('x', '61 * * * *')": "WF004",
    "durable.schedule('x', null)": "WF004",
    "durable.schedule('x', '* * * * *', timezone => 'Nowhere')": "WF004",
    "durable.schedule('x', '* * * * *', target => '')": "WF004",
    "durable.schedule('x', '* * * * *', tags => '[]')": "WF004",
    "durable.schedule('x', '* * * * *', tags => null)": "WF004",
    "durable.schedule('x', '* * * * *', promise_id => '')": "WF004",
    "durable.schedule('x', '* * * * *', timeout => '-1 s')": "WF004",
    "durable.schedule(null, '* * * * *')": "WF004",
}


@pytest.mark.parametrize("call", BAD)
def test_refusals(inside: Connection, call: str) -> None:
    """Each refusal has its code, a detail and a hint, and writes nothing."""
    before = everything(inside)
    with pytest.raises(psycopg.Error) as caught, inside.transaction():
        inside.execute(f"select {call}".encode())
    assert caught.value.sqlstate == BAD[call]
    assert caught.value.diag.message_primary
    assert caught.value.diag.message_hint
    assert everything(inside) == before


def test_a_schedule_makes_promises(own: Connection) -> None:
    """What people schedule becomes promises with the arguments, for the target or for anybody."""
    again = (
        "select durable.schedule('nightly', '0 3 * * *') = durable._at(next_run_at) "
        "from durable._schedules where id = 'nightly'"
    )
    assert ask(own, (again, ())) == (True,)
    own.execute("select durable.schedule('due', '* * * * *', target => 'reports', args => '{\"a\": 1}')")
    own.execute(
        "select durable.schedule('free', '* * * * *', promise_id => 'free-{{.timestamp}}', timeout => null)"
    )
    own.execute(
        "update durable._schedules set created_at = 1, next_run_at = 60000 where id in ('due', 'free')"
    )
    own.execute("select durable.set_setting('schedule_catch_up', '1')")
    own.execute("select durable.tick()")
    made = own.execute(
        "select id, target, param_data, timeout_at - created_at > 86400000 from durable._promises "
        "where id ~ '^(due|free)-' order by id"
    ).fetchall()
    assert made == [
        ("due-60000", "poll://any@reports", '{"a": 1}', False),
        ("free-60000", None, "[]", True),
    ]
    own.execute("select durable.unschedule('due')")
    assert ask(own, ("select count(*) from durable._schedules where id = 'due'", ())) == (0,)
    assert ask(own, ("select count(*) from durable._promises where id = 'due-60000'", ())) == (1,)


def test_every_verb_has_names_and_defaults(own: Connection) -> None:
    """Parameters have names without prefix, and all after the first two have defaults."""
    rows = own.execute(
        "select p.proname::text, p.proargnames[1:p.pronargs], p.pronargs - p.pronargdefaults from pg_proc p "
        "where p.pronamespace = 'durable'::regnamespace and p.proname = any (%s)",
        ([*(verb for verb in VERBS), "wait", "result", "as_of"],),
    ).fetchall()
    assert len(rows) == 26
    for name, parameters, needed in rows:
        assert needed <= 2, name
        assert not any(each.startswith("p_") for each in parameters or ()), name
