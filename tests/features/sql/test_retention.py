"""Law: what ended long ago goes as a whole tree, with all that it left; what anything that stays refers to
stays; what is gone does not begin again; and partitions that nobody needs are dropped without holding
anybody up."""

from __future__ import annotations

import json
import re
from typing import Any

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    NEVER,
    Connection,
    adopt,
    ask,
    begin_run,
    claim,
    complete,
    continue_as_new,
    create,
    done,
    join_set,
    promise,
    receive,
    refusal,
    report,
    run,
    send,
    settle,
    start,
    submit,
    suspend,
    take,
    take_turn,
    tick,
    timer,
)

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS
# whatever may name a run, or hold what it left
LEFT = """
select t.relname from pg_class t join pg_namespace n on n.oid = t.relnamespace
where n.nspname = 'durable' and t.relkind in ('r', 'p') and not t.relispartition
and t.relname not in ('settings', 'migrations', '_logic', '_site', '_workers', '_workflows', '_buckets',
                      '_removed', '_retention', '_services', '_watches', '_hints', '_schedules')
"""


def purge(conn: Connection, age: str = "30 days", **more: Any) -> dict[str, Any]:
    """Ask for a purge; its answer by name."""
    extra = "".join(f", {name} => '{value}'" for name, value in more.items())
    names = ("runs", "promises", "generations", "kept", "more")
    return dict(
        zip(names, ask(conn, (f"select * from durable.purge(%s::interval{extra})", (age,))), strict=True)
    )


def left(conn: Connection) -> dict[str, int]:
    """How many rows stand in the tables of runs."""
    tables = [name for (name,) in conn.execute(LEFT).fetchall()]
    counts = {name: ask(conn, (f'select count(*) from durable."{name}"', ()))[0] for name in tables}
    return {name: count for name, count in counts.items() if count}


def end_run(conn: Connection, id_: str, **options: Any) -> None:
    """A run that did one step and completed."""
    held = begin_run(conn, id_, **options)
    take_turn(conn, "W", report(held, outcomes=[done(0)], end=complete(), seen=1))


def removed(conn: Connection) -> list[str]:
    """Remembered ids."""
    return [id_ for (id_,) in conn.execute("select id from durable._removed order by id").fetchall()]


def test_a_whole_tree_goes(conn: Connection, clock: Clock) -> None:
    """Promises, heads, journals, signals, join sets and waits of a run, its children and generations go."""
    held = begin_run(conn, "r")
    commands = [run(0, queue="q-0"), receive(1), join_set(2), submit(0, 2), promise(3), timer(4, 10)]
    answer = take_turn(conn, "W", report(held, commands=commands))
    child = claim(conn, "W", "q-0")
    take_turn(conn, "W", report(child, outcomes=[done(0)], end=complete(), seen=1))
    ask(conn, send("r"))
    seen = ask(conn, ("select next_seq from durable._executions where id = 'r'", ()))[0]
    answer = take_turn(conn, "W", report(held, end=continue_as_new(on=0), seen=seen))
    assert answer.raw
    again = claim(conn, "W", "q-r")
    take_turn(conn, "W", report(again, outcomes=[done(again.first_child)], end=complete(), seen=again.next))
    assert set(left(conn)) >= {"_promises", "_executions", "_journal", "_signals", "_inboxes", "_join_sets"}
    clock.advance(31 * DAY_MS)
    found = purge(conn)
    assert (found["runs"], found["kept"], found["more"]) == (1, {}, None)
    assert found["promises"] == 4
    assert left(conn) == {}
    assert removed(conn) == ["r"]


def test_a_run_goes_by_its_age(conn: Connection, clock: Clock) -> None:
    """Runs go by the instant of their end, the first to be born first, as many as asked."""
    for number in range(3):
        end_run(conn, f"r{number}")
        clock.advance(DAY_MS)
    begin_run(conn, "alive")
    assert purge(conn, "31 days")["runs"] == 0
    clock.advance(28 * DAY_MS)
    assert purge(conn) == {"runs": 1, "promises": 1, "generations": 0, "kept": {}, "more": None}
    assert removed(conn) == ["r0"]
    clock.advance(30 * DAY_MS)
    answer = purge(conn, max_runs=1)
    (number,) = ask(conn, ("select execution - 2 from durable._executions where id = 'alive'", ()))
    assert answer == {"runs": 1, "promises": 1, "generations": 0, "kept": {}, "more": {"run": number}}
    assert removed(conn) == ["r0", "r1"]
    assert purge(conn)["runs"] == 1
    assert ask(conn, ("select array_agg(id) from durable._promises", ())) == (["alive"],)


def test_a_child_at_work_keeps_its_tree(conn: Connection, clock: Clock) -> None:
    """A run that has ended stays while a child has not, or ended later than asked."""
    held = begin_run(conn, "r")
    commands = [run(0, queue="q-0", detached=True, abandon=True)]
    take_turn(conn, "W", report(held, commands=commands, end=complete(), seen=1))
    clock.advance(31 * DAY_MS)
    assert purge(conn) == {"runs": 0, "promises": 0, "generations": 0, "kept": {"busy": 1}, "more": None}
    child = claim(conn, "W", "q-0")
    take_turn(conn, "W", report(child, end=complete(), seen=1))
    assert purge(conn)["kept"] == {"busy": 1}
    clock.advance(31 * DAY_MS)
    assert purge(conn)["promises"] == 2


def test_a_journal_that_reads_a_result_keeps_it(conn: Connection, clock: Clock) -> None:
    """A run that was adopted stays as long as the journal that reads its result, and they go together."""
    end_run(conn, "r")
    held = begin_run(conn, "reader")
    take_turn(conn, "W", report(held, commands=[adopt(0, "r")]))
    clock.advance(31 * DAY_MS)
    assert purge(conn)["kept"] == {"journal": 1}
    seen = ask(conn, ("select next_seq from durable._executions where id = 'reader'", ()))[0]
    ask(conn, settle("reader", '"over"'))
    assert seen == 4
    assert purge(conn)["kept"] == {"journal": 1}
    clock.advance(31 * DAY_MS)
    assert purge(conn) == {"runs": 2, "promises": 2, "generations": 0, "kept": {}, "more": None}


def test_awaited_promises_are_not_purged(conn: Connection, clock: Clock) -> None:
    """An open promise of an ended run stays with its run while somebody waits for it."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[promise(0)], end=complete(), seen=1))
    waiter = begin_run(conn, "waiter")
    answer = take_turn(conn, "W", report(waiter, commands=[adopt(0, "r.0")]))
    take_turn(conn, "W", report(waiter, end=suspend(0), seen=answer.next_of(waiter)))
    clock.advance(31 * DAY_MS)
    assert purge(conn)["kept"] == {"awaited": 1}
    ask(conn, settle("waiter"))
    assert purge(conn) == {"runs": 1, "promises": 2, "generations": 0, "kept": {}, "more": None}


def test_a_wake_reason_keeps_its_promise(conn: Connection, clock: Clock) -> None:
    """A promise that woke a task stays until somebody has taken the task."""
    ask(conn, create("p", NEVER, external="true"))
    take(conn, "t")
    ask(conn, ("select durable.task_suspend('t', 1, array['p'])", ()))
    ask(conn, settle("p"))
    clock.advance(31 * DAY_MS)
    assert purge(conn)["kept"] == {"awaited": 1}
    ask(conn, ("select * from durable.task_acquire('t', 1, 'P', 1000)", ()))
    assert purge(conn)["runs"] == 1


def test_callbacks_of_a_purged_run_are_removed(conn: Connection, clock: Clock) -> None:
    """The callbacks of a removed run go with it, whatever they await."""
    ask(conn, create("p", NEVER, external="true"))
    ask(conn, create("q", NEVER, external="true"))
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[adopt(0, "p")]))
    ask(conn, ("select durable.promise_register_callback('q', 'r')", ()))
    ask(conn, settle("r"))
    clock.advance(31 * DAY_MS)
    assert purge(conn)["runs"] == 1
    assert left(conn) == {"_promises": 2}


def test_undelivered_settlements_are_not_purged(conn: Connection, clock: Clock) -> None:
    """A promise whose settlement a listener was not told of stays."""
    ask(conn, create("p", NEVER, external="true"))
    ask(conn, ("select durable.promise_register_listener('p', 'poll://any@g')", ()))
    ask(conn, settle("p"))
    clock.advance(31 * DAY_MS)
    assert purge(conn)["kept"] == {"undelivered": 1}
    conn.execute("delete from durable._unblocks")
    assert purge(conn)["runs"] == 1


@pytest.mark.parametrize(
    ("action", "keeps", "rows"),
    [
        ("no action", True, ["goes", "kept"]),
        ("restrict", True, ["goes", "kept"]),
        ("cascade", False, ["kept"]),
        ("set null", False, ["kept", None]),
    ],
)
def test_a_row_of_the_users_keeps_its_run(
    conn: Connection, clock: Clock, action: str, keeps: bool, rows: list[str | None]
) -> None:
    """A run that a user's row names by a foreign key stays, unless the key says what becomes of the row; the
    others go."""
    for table, rule in (("strict", "no action"), ("orders", action)):
        conn.execute(
            f"create table {table} (run text references durable._promises (id) on delete {rule})".encode()
        )
    for id_ in ("kept", "goes", "free"):
        end_run(conn, id_)
    conn.execute("insert into strict values ('kept')")
    conn.execute("insert into orders values ('kept'), ('goes')")
    clock.advance(31 * DAY_MS)
    assert purge(conn)["kept"] == {"row": 1 + keeps}
    assert removed(conn) == (["free"] if keeps else ["free", "goes"])
    assert ask(conn, ("select array_agg(run order by run) from orders", ())) == (rows,)


def test_a_row_that_may_not_go_keeps_its_run_alone(conn: Connection, clock: Clock) -> None:
    """Where a delete of a user's row is refused by another key of his, that run stays, and the others go."""
    conn.execute(
        "create table orders (run text primary key references durable._promises (id) on delete cascade)"
    )
    conn.execute("create table lines (run text references orders (run))")
    for id_ in ("kept", "goes", "free"):
        end_run(conn, id_)
    conn.execute("insert into orders values ('kept'), ('goes')")
    conn.execute("insert into lines values ('kept')")
    clock.advance(31 * DAY_MS)
    assert purge(conn) == {"runs": 2, "promises": 2, "generations": 0, "kept": {"row": 1}, "more": None}
    assert removed(conn) == ["free", "goes"]


def test_a_purge_goes_on_after_the_rows_it_left(conn: Connection, clock: Clock) -> None:
    """With after a purge looks at nothing twice, at runs and at promises of one instant alike; without it,
    it begins anew."""
    conn.execute("create table orders (run text references durable._promises (id))")
    for id_ in ("a", "b", "c", "d"):
        end_run(conn, f"run-{id_}")
        ask(conn, create(f"p-{id_}", NEVER, external="true"))
        ask(conn, settle(f"p-{id_}"))
    conn.execute("insert into orders values ('run-a'), ('run-c'), ('p-a'), ('p-c')")
    conn.execute("update durable._promises set created_at = 1, settled_at = 2 where id ~ '^p'")
    clock.advance(31 * DAY_MS)
    found = purge(conn, max_runs=1)
    kept, more = found["kept"].get("row", 0), [found["more"]]
    while more[-1] is not None:
        found = purge(conn, max_runs=1, after=json.dumps(more[-1]))
        kept += found["kept"].get("row", 0)
        more.append(found["more"])
    assert kept == 4
    assert removed(conn) == ["p-b", "p-d", "run-b", "run-d"]
    assert {"created_at": 1, "id": "p-b"} in more
    assert purge(conn) == {"runs": 0, "promises": 0, "generations": 0, "kept": {"row": 4}, "more": None}


def many_runs(conn: Connection, count: int) -> None:
    """Runs that nobody works on."""
    ask(
        conn,
        (
            "select count(*) from durable.start_many('w', array_fill('[]'::jsonb, array[%s::integer]), "
            "any_workflow => true)",
            (count,),
        ),
    )


@pytest.mark.parametrize(("count", "is_found"), [(1100, True), (2100, False)])
def test_a_purge_stops_at_what_is_too_young(
    conn: Connection, clock: Clock, count: int, is_found: bool
) -> None:
    """A run that was born before others and has its number behind them is found, unless they are a thousand
    in a row: what was born since cannot have ended before."""
    long_ago = clock.now_ms
    end_run(conn, "old")
    clock.advance(31 * DAY_MS)
    many_runs(conn, count)
    now = clock.now_ms
    clock.set(long_ago)
    end_run(conn, "late")
    clock.set(now)
    purge(conn)
    assert removed(conn) == (["late", "old"] if is_found else ["old"])


def test_young_generations_are_young(conn: Connection, clock: Clock) -> None:
    """What counts is the birth of a generation, not that of its run, which may go on for ever."""
    held = begin_run(conn, "r")
    clock.advance(31 * DAY_MS)
    take_turn(conn, "W", report(held, end=continue_as_new()))
    many_runs(conn, 998)
    many_runs(conn, 1)
    # a number higher than all of them
    ended = ask(
        conn,
        (
            "select last from durable._ended_runs(durable._now_ms() - 1, (select min(execution) "
            "from durable._executions), 10)",
            (),
        ),
    )
    assert ended == (None,)


@pytest.mark.parametrize("kind", ["run", "promise"])
def test_a_settlement_changes_no_index(conn: Connection, kind: str) -> None:
    """The row of a run, or of a promise without one, is not indexed anew when it is settled."""
    # of this session, whose counters are not handed in within a transaction
    counters = (
        "select pg_stat_get_xact_tuples_updated(c), pg_stat_get_xact_tuples_hot_updated(c) "
        "from (select 'durable._promises'::regclass::oid as c) x",
        (),
    )
    before = ask(conn, counters)
    if kind == "run":
        ask(conn, start("x"))
    else:
        ask(conn, create("x", NEVER, external="true"))
    ask(conn, settle("x"))
    assert [now - then for now, then in zip(ask(conn, counters), before, strict=True)] == [1, 1]


def test_a_sweep_does_nothing_else(conn: Connection, clock: Clock) -> None:
    """A round that looked for what to remove, and kept it, settles nothing in the same transaction: it has
    locks out of their order."""
    conn.execute("create table orders (run text references durable._promises (id))")
    end_run(conn, "kept")
    conn.execute("insert into orders values ('kept')")
    ask(conn, ("select durable.set_setting('retention_days', '30')", ()))
    tick(conn)
    ask(conn, create("p", clock.now_ms + DAY_MS, external="true"))
    clock.advance(31 * DAY_MS)
    answer = tick(conn)
    assert (answer["removed"], answer["promises"], answer["more"]) == (0, 0, True)
    assert tick(conn)["promises"] == 1


def test_free_standing_promises_go_too(conn: Connection, clock: Clock) -> None:
    """A settled promise without a run goes; a pending one stays, however old it is."""
    ask(conn, create("p", NEVER, external="true"))
    ask(conn, create("q", NEVER, external="true"))
    ask(conn, settle("p"))
    clock.advance(31 * DAY_MS)
    assert purge(conn)["promises"] == 1
    assert ask(conn, ("select array_agg(id) from durable._promises", ())) == (["q"],)
    assert refusal(conn, create("p", NEVER, external="true")) == "WF003"


def test_purged_ids_do_not_begin_again(conn: Connection, clock: Clock) -> None:
    """No door makes anything under a remembered id or key, and who asks for it is told what became of it."""
    end_run(conn, "r", key="k")
    end_run(conn, "other")
    clock.advance(31 * DAY_MS)
    assert purge(conn)["runs"] == 2
    end_run(conn, "here")
    assert refusal(conn, start("r")) == "WF003"
    assert refusal(conn, start("another", key="k")) == "WF003"
    assert refusal(conn, ("select durable.start('w', key => 'k')", ())) == "WF003"
    assert refusal(conn, create("r", NEVER, target="g")) == "WF003"
    assert refusal(conn, ("select durable.fork('here', new_id => 'r')", ())) == "WF003"
    assert refusal(conn, ("select * from durable.result('r')", ())) == "WF001"
    with (
        pytest.raises(psycopg.Error, match=r"'r' ended as resolved at .* and was removed"),
        conn.transaction(),
    ):
        conn.execute("select * from durable.result('r')")
    for id, has_key in (("r", True), ("other", False)):
        with pytest.raises(psycopg.Error) as caught, conn.transaction():
            ask(conn, start(id))
        assert ("It had the key 'k'." in str(caught.value.diag.message_primary)) is has_key
        assert has_key or "the key" not in str(caught.value.diag.message_primary)
    ask(conn, ("select durable.start('w', key => 'k', tenant => 't')", ()))
    ask(conn, ("select durable.start('v', key => 'k')", ()))


def test_ids_are_remembered_for_a_while(conn: Connection, clock: Clock) -> None:
    """After removed_ids_days an id may be used again; each round forgets, the first one says when."""
    end_run(conn, "r", key="k")
    clock.advance(31 * DAY_MS)
    purge(conn)
    tick(conn)
    clock.advance(89 * DAY_MS)
    sweep(conn)
    assert refusal(conn, start("r")) == "WF003"
    clock.advance(2 * DAY_MS)
    sweep(conn)
    assert removed(conn) == []
    ask(conn, start("r", key="k"))


def sweep(conn: Connection) -> int:
    """Rounds until retention has nothing to do for a while; how many things it removed."""
    total = 0
    for _ in range(100):
        conn.execute("update durable._retention set due_at = durable._now_ms() + 1")
        assert "removed" not in tick(conn)
        conn.execute("update durable._retention set due_at = 0 where subject = 'runs'")
        total += tick(conn)["removed"]
        late = "select due_at >= durable._now_ms() + 60000 from durable._retention where subject = 'runs'"
        if ask(conn, (late, ()))[0]:
            return total
    raise AssertionError("the sweep does not come to an end")


def test_the_sweep_is_a_setting(conn: Connection, clock: Clock) -> None:
    """Without retention_days nothing goes by itself; with it each round removes a portion, until all is."""
    for number in range(5):
        end_run(conn, f"r{number}")
    begin_run(conn, "alive")
    tick(conn)
    clock.advance(31 * DAY_MS)
    sweep(conn)
    assert removed(conn) == []
    ask(conn, ("select durable.set_setting('retention_days', '30')", ()))
    assert sweep(conn) >= 5
    assert removed(conn) == [f"r{number}" for number in range(5)]
    assert task_ids(conn) == ["alive"]


def task_ids(conn: Connection) -> list[str]:
    """Tasks that there are."""
    return [id_ for (id_,) in conn.execute("select id from durable._tasks order by id").fetchall()]


def buckets(conn: Connection) -> list[int]:
    """Weeks that have a partition; both records of it agree."""
    weeks = [week for (week,) in conn.execute("select bucket from durable._buckets order by 1").fetchall()]
    names = conn.execute(
        "select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid "
        "where i.inhparent = 'durable._journal'::regclass"
    ).fetchall()
    assert sorted(int(re.sub(r"\D", "", name)) for (name,) in names) == weeks
    return weeks


def test_empty_partitions_are_dropped(conn: Connection, clock: Clock) -> None:
    """A partition without rows goes once its week and the next are over; one with rows stays."""
    tick(conn)
    end_run(conn, "r")
    (week,) = ask(conn, ("select bucket from durable._executions", ()))
    clock.advance(3 * WEEK_MS)
    tick(conn)
    sweep(conn)
    assert week in buckets(conn)
    assert [each for each in buckets(conn) if each < week] == []
    purge(conn, "1 day")
    sweep(conn)
    now = clock.now_ms // WEEK_MS
    assert buckets(conn) == list(range(now - 1, now + 5))


def test_the_newest_partition_stays(conn: Connection, clock: Clock) -> None:
    """However old partitions are, while there is none for this week the newest is not dropped: starts need
    one."""
    tick(conn)
    clock.advance(20 * WEEK_MS)
    for _ in range(20):
        conn.execute("update durable._retention set due_at = 0")
        assert tick(conn)["removed"] == 0
    begin_run(conn, "r")


def test_the_living_move_out(conn: Connection, clock: Clock) -> None:
    """Runs that are alive, or kept, leave a partition whose time is over, and go on."""
    ask(conn, ("select durable.set_setting('retention_days', '30')", ()))
    held = begin_run(conn, "alive")
    answer = take_turn(conn, "W", report(held, outcomes=[done(0)], commands=[timer(1, 60 * DAY_MS)], seen=1))
    take_turn(conn, "W", report(held, end=suspend(1), seen=answer.next_of(held)))
    conn.execute("create table public.orders (run text references durable._promises (id))")
    end_run(conn, "kept")
    conn.execute("insert into public.orders values ('kept')")
    end_run(conn, "goes")
    (week,) = ask(conn, ("select min(bucket) from durable._executions", ()))
    clock.advance(50 * DAY_MS)
    tick(conn)
    sweep(conn)
    assert week not in buckets(conn)
    assert ask(conn, ("select array_agg(distinct bucket) from durable._journal", ())) == (
        [clock.now_ms // WEEK_MS],
    )
    clock.advance(20 * DAY_MS)
    while tick(conn)["more"]:
        pass
    again = claim(conn, "V", "q-alive")
    assert [row[1] for row in again.rows] == [
        *("execution_started", "timer_scheduled", "step_completed", "execution_awaiting"),
        *("timer_fired", "execution_resumed"),
    ]
    take_turn(conn, "V", report(again, end=complete(), seen=again.next))


@pytest.mark.parametrize("age", [None, "-1 day", "30", "365", "59 min"])
def test_an_age_is_needed(conn: Connection, clock: Clock, age: str | None) -> None:
    """A purge without an age, of the future, or of less than an hour is refused: '30' is 30 seconds."""
    for verb in ("purge", "calls_purge", "snapshot_prune"):
        assert refusal(conn, (f"select * from durable.{verb}(%s::interval)", (age,))) == "WF004", verb
    assert refusal(conn, ("select * from durable.purge('1 day', max_runs => 0)", ())) == "WF004"


@pytest.mark.parametrize(
    "after", ["{}", "7", "null", '{"run": "x"}', '{"run": 1.5}', '{"created_at": 1}', '{"id": "x"}']
)
def test_a_purge_position_must_come_from_an_answer(conn: Connection, after: str) -> None:
    """A purge that shall go on behind what none has answered is refused."""
    assert refusal(conn, ("select * from durable.purge('1 day', after => %s)", (after,))) == "WF004"


def test_a_sweep_that_fails_starves_nobody(conn: Connection, clock: Clock) -> None:
    """The other sweeps and the rest of the tick go on; the one that fails is tried again after ten minutes,
    from where it was, and health tells why until it succeeds.
    """
    ask(conn, ("select durable.set_setting('retention_days', '1')", ()))
    end_run(conn, "old")
    clock.advance(3 * DAY_MS)
    tick(conn)
    conn.execute("savepoint sound")
    conn.execute(
        "create or replace function durable._sweep_objects(p_place jsonb, p_now bigint, "
        "out removed integer, out place jsonb, out due_in bigint) language plpgsql as "
        "$$ begin raise exception 'no identity'; end $$"
    )
    conn.execute(
        "insert into durable._retention (due_at, subject, place) values (1, 'objects', '{\"x\": 1}') "
        "on conflict on constraint retention_pk do update set due_at = 1, place = excluded.place"
    )
    conn.execute("update durable._retention set due_at = 2 where subject = 'runs'")
    answer = tick(conn)
    assert "no identity" in answer["problem"] and answer["removed"] == 0
    row = "select due_at, place, problem from durable._retention where subject = 'objects'"
    due_at, place, problem = ask(conn, (row, ()))
    assert (due_at, place) == (clock.now_ms + 600_000, {"x": 1}) and "P0001" in problem
    assert tick(conn)["removed"] == 1 and removed(conn) == ["old"]
    health = "select ok, detail from durable.health where subject = 'retention'"
    assert ask(conn, (health, ())) == (False, "objects: no identity (SQLSTATE P0001)")
    assert "removed" not in tick(conn)
    conn.execute("rollback to sound")
    conn.execute("update durable._retention set problem = 'no', due_at = 0 where subject = 'runs'")
    tick(conn)
    assert ask(conn, (health, ())) == (True, "no sweep has failed")
