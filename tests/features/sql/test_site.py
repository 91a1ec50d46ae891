"""Law: in a copy of a database nothing runs before it is adopted: no lease is given or used, time starts
nothing, and no message leaves. People may read and write. A copy in which nothing could run adopts itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.roles import who_works
from tests.support.verbs import (
    Call,
    Connection,
    Held,
    acquire,
    adopt,
    ask,
    at_end,
    begin_run,
    commit,
    complete,
    create,
    done,
    dump,
    heartbeat,
    intent,
    promise_of,
    refusal,
    report,
    run,
    send,
    settle,
    start,
    suspend,
    take,
    take_turn,
    task_of,
    tick,
    timer,
    turn,
)

NOT_ADOPTED = "WF016"
KEY = bytes(range(32))
WRITTEN = (
    *("_promises", "_tasks", "_resumes", "_callbacks", "_executions", "_journal", "_unblocks", "_schedules"),
    *("_workers", "_calls", "_call_attempts", "_claims"),
)
SERVICE = """
create table public.served (n integer);
create function public.work(n integer) returns integer language sql
  as 'insert into public.served values ($1) returning n';
select durable.serve('public.work(integer)');
select durable.start('sql://public.work', '[7]', id => 'service');
"""
HELLO: Call = ("select durable.worker_hello_v1('new', '{default}', '{w}', '{1}', '{}', '{ab}')", ())
CREATE_TASK: Call = (
    "select durable.task_create('t', 9000000000000, 'P', 1000, p_tags => %s)",
    ('{"resonate:target": "poll://any@g"}',),
)
IDLE = "durable_to_" + "0" * 32 + ":" + "0" * 32


@dataclass(frozen=True, kw_only=True)
class Leased:
    """What is under lease in the original, and so in its copy."""

    run: Held
    child: Held


def live(conn: Connection) -> Leased:
    """Everything that could run, most of it due: runs, timers, a schedule, a call, a service, messages."""
    ask(conn, HELLO)
    ask(conn, ("select durable.worker_hello_v1('W', '{default}', '{w}', '{1}', '{}', '{ab}')", ()))
    leased = begin_run(conn, "leased")
    take_turn(conn, "W", report(leased, commands=[intent(0)]))
    parent = begin_run(conn, "parent")
    answer = take_turn(conn, "W", report(parent, commands=[run(0, queue="kids")]))
    take_turn(conn, "W", report(parent, end=suspend(0), seen=answer.next_of(parent)))
    (child,) = take_turn(conn, "W", want=1, queues=["kids"]).tasks
    asleep = begin_run(conn, "asleep")
    answer = take_turn(conn, "W", report(asleep, commands=[timer(0, 1)]))
    take_turn(conn, "W", report(asleep, end=suspend(0), seen=answer.next_of(asleep)))
    waits = begin_run(conn, "waits")
    ask(conn, create("late", 9_000_000_000_000, external="true"))
    answer = take_turn(conn, "W", report(waits, commands=[adopt(0, "late")]))
    take_turn(conn, "W", report(waits, end=suspend(0), seen=answer.next_of(waits)))
    conn.execute("update durable._promises set timeout_at = created_at + 1 where id = 'late'")
    ask(conn, start("queued"))
    ask(conn, create("offered", target="g"))
    take(conn, "taken")
    ask(conn, create("heard", external="true"))
    ask(conn, ("select from durable.promise_register_listener('heard', 'g')", ()))
    ask(conn, settle("heard"))
    ask(conn, ("select durable.call('dml+exec://fake/f', '[1]', scope => 's')", ()))
    ask(conn, ("select durable.claim_acquire(%s, 'me', 60000)", (KEY,)))
    ask(conn, ("select from durable.schedule_create('each', '* * * * * *', 'at-{{.timestamp}}', 60000)", ()))
    conn.execute(
        "update durable._schedules set created_at = created_at - 3000, "
        "next_run_at = durable._schedule_next(cron, timezone, created_at - 3000)"
    )
    conn.execute(SERVICE.encode())
    return Leased(run=leased, child=child)


def begins(held: Leased) -> dict[str, Call]:
    """The ways in which work is given out or a lease is used."""
    pair = ("default", "w")
    leased = held.run
    return {
        "hello": HELLO,
        "claim": turn("new", want=5, queues=["default", "q-queued"]),
        "report": turn("W", report(leased, outcomes=[done(0)])),
        "end": turn("W", report(held.child, end=complete())),
        "report and claim": turn("W", report(leased, outcomes=[done(0)]), want=5),
        "heartbeat": heartbeat("W", leased),
        "idle": (
            "select durable.worker_idle_v1('W', %s, %s, %s, '{ab}', 15000, 1000)",
            (IDLE, [pair[0]], [pair[1]]),
        ),
        "sql step": (
            "select durable.worker_sql_v1('W', %s, 'leased', 1, 1, 1, 1, 'public.work', %s, '[1]')",
            (leased.execution, "00" * 8),
        ),
        "commit": commit(leased),
        "service": ("select durable.serve_v1('service')", ()),
        "acquire": acquire("offered"),
        "fulfill": ("select durable.task_fulfill('taken', 1, 'resolved')", ()),
        "suspend": ("select durable.task_suspend('taken', 1, '{offered}')", ()),
        "create a task": CREATE_TASK,
        "offer": ("select count(*) from durable.task_offer('g')", ()),
        "messages": ("select count(*) from durable.messages_v0('poll://any@g')", ()),
        "offers": ("select count(*) from durable.task_offer_many('{poll://uni@g/p}', '{9}')", ()),
        "older claim": ("select from durable.task_claim_v0('offered', 1, 'p', 1000)", ()),
        "older completion": ("select from durable.task_complete_v0('taken', 1)", ()),
        "older drop": ("select from durable.task_drop_v0('taken', 1)", ()),
        "older create with a task": (
            "select from durable.promise_task_v0('t', null, null, null, 9000000000000, false, %s, 'p', 1000)",
            ('{"resonate:invoke": "g"}',),
        ),
        "unblock": ("select count(*) from durable.unblock_claim()", ()),
        "adapter": ("select count(*) from durable.call_lease_v1('A', '{fake}', 15000, 5)", ()),
        "adapter sweep": ("select durable.call_sweep_v1()", ()),
        "claim of a job": ("select durable.claim_acquire(%s, 'you', 60000)", (KEY,)),
        "refresh of a job": ("select durable.claim_refresh(%s, 1)", (KEY,)),
        "journal of a client": (
            "select from durable.journal_append('j', null, 'ExecutionStarted', "
            '\'{"component_digest": "d", "input": 1}\')',
            (),
        ),
    }


@contextmanager
def session(url: str) -> Iterator[Connection]:
    """A session in autocommit."""
    with psycopg.connect(url, autocommit=True) as conn:
        yield conn


def state(conn: Connection) -> str:
    """What the view says of this database."""
    return str(ask(conn, ("select state from durable.site", ()))[0])


@pytest.mark.parametrize("how", ["template", "dump"])
@pytest.mark.unlawful("the copies are checked here")
def test_nothing_runs_in_a_copy(direct: str, how: str, copy_of: Callable[[str], str]) -> None:
    """Every way to get work or to use a lease is refused, and names the next command. Ticks do nothing, and
    say why. No row changes. The original goes on."""
    with session(direct) as conn:
        held = live(conn)
    with session(copy_of(how)) as conn:
        assert state(conn) == "copy"
        before = dump(conn, WRITTEN)
        for name, call in begins(held).items():
            with pytest.raises(psycopg.Error) as caught, conn.transaction():
                ask(conn, call)
            assert (name, caught.value.sqlstate) == (name, NOT_ADOPTED)
            assert "pyengine db adopt" in (caught.value.diag.message_hint or "")
        idle: dict[str, object] = {
            "promises": 0,
            "leases": 0,
            "schedules": 0,
            "more": False,
            "next_due_ms": None,
            "hints": [],
        }
        for answer in (tick(conn), ask(conn, ("select durable.tick()", ()))[0]):
            assert {key: answer[key] for key in idle} == idle and "pyengine db adopt" in answer["problem"]
        assert ask(conn, ("select durable.services_due_v1()", ())) == (None,)
        assert conn.execute("select from durable.next_service_v1()").fetchall() == []
        assert dump(conn, WRITTEN) == before
        assert conn.execute("select * from durable.check()").fetchall() == []
        assert conn.execute("select subject from durable.health where not ok").fetchall()[0] == ("site",)
    with session(direct) as conn:
        assert take_turn(conn, "W", report(held.run, outcomes=[done(0)])).of(held.run)[0] == "ok"
        assert tick(conn)["schedules"] > 0
        assert state(conn) == "adopted"


@pytest.mark.parametrize("how", ["template", "dump"])
@pytest.mark.unlawful("the copies are checked here")
def test_an_adopted_copy_goes_on(direct: str, how: str, copy_of: Callable[[str], str]) -> None:
    """Leases of the original are void and no run has crashed by that; all that was due is done; the original
    does not change by it."""
    with session(direct) as conn:
        held = live(conn)
        original = dump(conn, WRITTEN)
    with session(copy_of(how)) as conn:
        would = {row[0]: row[1:3] for row in conn.execute("select * from durable.would_run").fetchall()}
        assert would["runs"] == (6, 3) and would["schedules"] == (1, 1)
        assert would["timers"] == would["deadlines"] == would["services"] == would["calls"] == (1, 1)
        assert would["tasks of clients"] == (3, 3) and would["messages"] == (1, 1)
        assert ask(conn, ("select * from durable.adopt()", ())) == (True, 4)
        assert state(conn) == "adopted"
        assert ask(conn, ("select * from durable.adopt()", ())) == (False, 0)
        assert conn.execute("select from durable._workers").fetchall() == []
        assert take_turn(conn, "W", report(held.run, outcomes=[done(0)])).of(held.run)[0] == "lost"
        ask(conn, HELLO)
        while tick(conn)["more"]:
            pass
        tasks = take_turn(conn, "new", want=20, queues=["default", *QUEUES]).tasks
        assert {(one.id, one.version, one.crashes) for one in tasks} == {
            ("leased", 2, 0),
            ("parent.0", 2, 0),
            ("asleep", 2, 0),
            ("waits", 2, 0),
            ("queued", 1, 0),
        }
        assert promise_of(conn, "late") == ("rejected_timedout", None)
        while ask(conn, ("select durable.tick() ->> 'more'", ())) == ("true",):
            pass
        assert conn.execute("select n from public.served").fetchall() == [(7,)]
        assert conn.execute("select id from durable.task_offer('g')").fetchall() == [("offered",), ("taken",)]
        assert conn.execute("select promise_id from durable.unblock_claim()").fetchall() == [("heard",)]
        assert len(conn.execute("select durable.call_lease_v1('A', '{fake}', 15000, 5)").fetchall()) == 1
        assert ask(conn, ("select durable.claim_acquire(%s, 'you', 60000) ->> 'role'", (KEY,))) == ("owner",)
        assert conn.execute("select * from durable.check()").fetchall() == []
    with session(direct) as conn:
        assert dump(conn, WRITTEN) == original
        assert conn.execute("select n from public.served").fetchall() == []


QUEUES = ("q-leased", "kids", "q-parent", "q-asleep", "q-waits")


@pytest.mark.unlawful("the copies are checked here")
def test_people_may_write_in_a_copy(direct: str, copy_of: Callable[[str], str]) -> None:
    """A start is queued and handed to nobody, a signal is delivered, a promise is settled: an application in
    the copy does not fail. Nothing of it runs before the adoption."""
    with session(direct) as conn:
        live(conn)
    with session(copy_of("template")) as conn:
        words = "'w', '[1]', null, null, 'default', '1', null, null, 0, '{}', '', true, true, true"
        assert ask(conn, (f"select * from durable.start_v1({words})", ()))[1:] == (True, False)
        assert ask(conn, send("parent"))[1] is True
        ask(conn, create("new", external="true"))
        ask(conn, settle("new"))
        ask(conn, ("select from durable.schedule_create('other', '* * * * *', 'x', 1)", ()))
        assert state(conn) == "copy"
        ask(conn, ("select * from durable.adopt()", ()))
        assert len(take_turn(conn, "new", want=9).tasks) == 2


FIRST_USES: dict[str, Call] = {
    "hello": HELLO,
    "turn": turn("W", want=1),
    "tick": ("select durable.tick_v1(10)", ()),
    "start": start("r"),
    "ordinary start": ("select durable.start('w', any_workflow => true)", ()),
    "resendable start": (
        "select durable.start_v1('w', '[]', %s, null, null, '1', null, null, 0, '{}', '', true, true)",
        ("0f" * 16,),
    ),
    "start many": ("select durable.start_many('w', array['[1]', '[2]']::jsonb[], any_workflow => true)", ()),
    "promise": create("p", external="true"),
    "task": CREATE_TASK,
    "schedule": ("select durable.schedule('s', '* * * * *', 'w')", ()),
    "call": ("select durable.call('dml+exec://fake/f', '[1]', scope => 's')", ()),
    "install": ("select durable._adopt_idle_copy()", ()),
}


@pytest.mark.parametrize("use", FIRST_USES)
def test_an_idle_copy_adopts_itself(direct: str, copy_of: Callable[[str], str], use: str) -> None:
    """A copy of a database whose runs have all ended needs no call: its first use adopts it."""
    with session(direct) as conn:
        held = begin_run(conn, "over")
        take_turn(conn, "W", report(held, end=complete()))
    with session(copy_of("template")) as conn:
        assert state(conn) == "idle copy"
        ask(conn, FIRST_USES[use])
        assert state(conn) == "adopted"
        ask(conn, start("next"))
        tasks = take_turn(conn, "W", want=9).tasks
        assert "next" in [one.id for one in tasks]


@pytest.mark.parametrize("first", ["rolled back", "serializable"])
def test_the_first_use_decides_whatever_becomes_of_it(
    direct: str, copy_of: Callable[[str], str], first: str
) -> None:
    """Two sessions use an idle copy first at the same moment, and the one that adopts it is rolled back; or
    the first use cannot adopt it, by its isolation. What they write is no part of the copy, and runs."""
    dsn = copy_of("template")
    with session(dsn) as one, session(dsn) as other:
        with one.transaction(force_rollback=first == "rolled back"):
            if first == "serializable":
                one.execute("set transaction isolation level serializable")
            ask(one, FIRST_USES["ordinary start"])
            if first == "rolled back":
                ask(other, FIRST_USES["ordinary start"])
        assert state(one) == "idle copy"
        assert ask(other, ("select durable._is_copy()", ())) == (False,)
        assert state(one) == "adopted"
        assert len(take_turn(one, "W", want=9).tasks) == 1
    with session(copy_of("template")) as conn:
        assert state(conn) == "idle copy"


# -- who may adopt, and what is waited for


@pytest.fixture
def copied(direct: str, copy_of: Callable[[str], str]) -> Iterator[Connection]:
    """A session in a copy with everything in it."""
    with session(direct) as conn:
        live(conn)
    with session(copy_of("template")) as conn:
        yield conn


ASK_OFTEN = """
do $$
begin
  for n in 1..400 loop
    if not durable._is_copy() then
      raise 'taken for adopted at look %', n;
    end if;
    commit;
  end loop;
end
$$
"""


@pytest.mark.unlawful("the original is not used")
def test_sessions_that_ask_at_once_all_find_a_copy(copied: Connection) -> None:
    """What one session does to find out is not taken by another one for an adoption."""

    def look(_: int) -> None:
        with session(copied.info.dsn) as conn:
            conn.execute(ASK_OFTEN)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(look, range(3))) == [None] * 3


@pytest.mark.unlawful("the original is not used")
def test_only_the_owner_may_adopt(copied: Connection) -> None:
    """A role that works in the schema is refused, with the next thing to do."""
    url = f"host={copied.info.host} port={copied.info.port} dbname={copied.info.dbname}"
    with who_works(copied) as role, psycopg.connect(url, user=role, autocommit=True) as app:
        with pytest.raises(psycopg.Error) as caught:
            app.execute("select * from durable.adopt()")
        assert caught.value.sqlstate == "WF011"
        assert "owns it" in (caught.value.diag.message_hint or "")
        assert refusal(app, HELLO) == NOT_ADOPTED
        ask(copied, ("select * from durable.adopt()", ()))
        assert refusal(app, HELLO) == ""


@pytest.mark.unlawful("the original is not used")
def test_a_copy_by_configuration_stays_one(copied: Connection) -> None:
    """A server that was copied as files has the identity of its original. durable.site = copy in the
    configuration holds it back; it cannot be adopted before that is taken out."""
    name, url = copied.info.dbname, copied.info.dsn
    ask(copied, ("select * from durable.adopt()", ()))
    copied.execute(f"alter database {name} set durable.site = 'copy'".encode())
    with psycopg.connect(url, autocommit=True) as conn:
        assert state(conn) == "copy"
        assert refusal(conn, turn("new", want=5)) == NOT_ADOPTED
        assert "pyengine db adopt" in tick(conn)["problem"]
        assert ask(conn, start("more")) == ("more",)
        assert refusal(conn, ("select * from durable.adopt()", ())) == "WF003"
    copied.execute(f"alter database {name} reset durable.site".encode())
    with psycopg.connect(url, autocommit=True) as conn:
        assert state(conn) == "adopted"
        assert "more" in [one.id for one in take_turn(conn, "new", want=9).tasks]


def wait_less(conn: Connection) -> None:
    """Adoptions of this database wait for locks as if their five seconds were a fifth of one."""
    for name, five_seconds, less in (
        ("adopt", "SET lock_timeout TO '5s'", "set lock_timeout = '200ms'"),
        ("_lock_leases", "in 1..50 loop", "in 1..2 loop"),
    ):
        (text,) = ask(conn, ("select pg_get_functiondef(to_regproc(%s))", (f"durable.{name}",)))
        assert five_seconds in text
        conn.execute(text.replace(five_seconds, less).encode())


@pytest.mark.unlawful("the original is not used")
@pytest.mark.parametrize("row", ["_tasks where id", "_executions where id"])
def test_an_adoption_waits_a_few_seconds_for_a_lease(copied: Connection, row: str) -> None:
    """A transaction that has locked a leased run: the adoption fails after five seconds, names the run, has
    changed nothing, and holds nothing meanwhile. After the commit it works."""
    wait_less(copied)
    with psycopg.connect(copied.info.dsn) as user:
        user.execute(f"select from durable.{row} = 'leased' for update".encode())
        with pytest.raises(psycopg.errors.LockNotAvailable) as caught:
            copied.execute("select * from durable.adopt()")
        assert "leased" in (caught.value.diag.message_primary or "")
        assert state(copied) == "copy"
    assert ask(copied, ("select * from durable.adopt()", ())) == (True, 4)


@pytest.mark.unlawful("the original is not used")
def test_a_locked_site_stops_nobody(copied: Connection) -> None:
    """A transaction that holds the row of the site keeps back only an adoption, for five seconds."""
    wait_less(copied)
    with psycopg.connect(copied.info.dsn) as user:
        user.execute("select from durable._site for update")
        assert refusal(copied, ("select * from durable.adopt()", ())) == "55P03"
    ask(copied, ("select * from durable.adopt()", ()))
    copied.execute("set lock_timeout = '400ms'")
    with psycopg.connect(copied.info.dsn) as user:
        user.execute("select from durable._site for update")
        copied.execute("discard all")
        copied.execute("set lock_timeout = '400ms'")
        ask(copied, HELLO)
        ask(copied, start("more"))
        assert "more" in [one.id for one in take_turn(copied, "new", want=9).tasks]
        assert tick(copied)["schedules"] > 0


def test_a_first_use_that_is_not_committed_stops_nobody(direct: str, copy_of: Callable[[str], str]) -> None:
    """A user has started the first run of an idle copy and not committed; others use the copy meanwhile."""
    url = copy_of("template")
    with session(url) as conn, psycopg.connect(url) as user:
        conn.execute("set lock_timeout = '400ms'")
        ask(user, start("r"))
        ask(conn, HELLO)
        assert take_turn(conn, "new", want=1).tasks == []
        ask(conn, start("other"))
        assert [one.id for one in take_turn(conn, "new", want=9).tasks] == ["other"]
        with session(url) as third:
            ask(third, start("more"))
            assert [one.id for one in take_turn(third, "new", want=9).tasks] == ["more"]
        user.commit()
        assert [one.id for one in take_turn(conn, "new", want=9).tasks] == ["r"]
        assert state(conn) == "adopted"


# -- timelines


def test_a_new_timeline_warns_once(conn: Connection) -> None:
    """A promoted standby goes on; the first tick records the timeline and warns, the others do not."""
    ask(conn, start("r"))
    assert tick(conn)["warning"] is None
    conn.execute("update durable._site set timeline = 7")
    warning = tick(conn)["warning"]
    assert "timeline 1 now, after timeline 7" in warning
    assert tick(conn)["warning"] is None
    seen = "select state, timeline, previous_timeline from durable.site"
    assert ask(conn, (seen, ())) == ("adopted", 1, 7)
    assert len(take_turn(conn, "W", want=1).tasks) == 1


def test_a_locked_site_leaves_the_warning_to_a_later_tick(direct: str) -> None:
    """The tick does not wait for who holds the row."""
    with session(direct) as conn:
        ask(conn, start("r"))
        conn.execute("update durable._site set timeline = 7")
        with psycopg.connect(direct) as user:
            user.execute("select from durable._site for update")
            assert tick(conn)["warning"] is None
        assert tick(conn)["warning"] is not None


# -- what a session remembers


def test_a_restore_over_the_database_is_seen_by_open_sessions(conn: Connection) -> None:
    """Rows of another database come into this one while workers have sessions open: they claim nothing."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[timer(0, 60_000)]))
    conn.execute("update durable._site set system_identifier = 1")
    assert refusal(conn, turn("W", want=5)) == NOT_ADOPTED
    assert refusal(conn, turn("W", report(held, outcomes=[done(1)]))) == NOT_ADOPTED
    assert refusal(conn, heartbeat("W", held)) == NOT_ADOPTED
    assert state(conn) == "copy"
    ask(conn, ("select * from durable.adopt()", ()))
    assert task_of(conn, "r") == ("pending", 1, None)


def test_no_result_prolongs_a_lease_in_such_a_restore(conn: Connection, clock: Clock) -> None:
    """The single-row path of a result looks at the site where it renews the lease."""
    held = begin_run(conn, "r")
    conn.execute("update durable._site set database = 1")
    held = at_end(held, take_turn(conn, "W", report(held, outcomes=[done(0)])).next_of(held))
    clock.advance(8_000)
    assert refusal(conn, turn("W", report(held, outcomes=[done(1)]))) == NOT_ADOPTED


def test_a_read_only_session_compares_and_writes_nothing(conn: Connection) -> None:
    """As on a standby: the views tell where the database was adopted; an idle copy is not adopted there."""
    conn.execute("set default_transaction_read_only = on")
    assert ask(conn, ("select durable._is_copy()", ())) == (False,)
    assert state(conn) in ("idle copy", "adopted")
    conn.execute("set default_transaction_read_only = off")
    ask(conn, HELLO)
    assert state(conn) == "adopted"


def test_what_the_identity_is_made_of_may_be_read_by_all(direct: str) -> None:
    """A role without rights reads what a session compares."""
    with (
        session(direct) as conn,
        who_works(conn) as role,
        psycopg.connect(direct, user=role, autocommit=True) as app,
    ):
        ask(app, ("select durable._identity()", ()))
        ask(app, ("select durable._timeline()", ()))
        assert state(app) == "idle copy"
