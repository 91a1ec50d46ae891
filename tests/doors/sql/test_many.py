"""Law: a verb for many does to each run what the single verb does, in a fixed number of statements, and tells
of each id what became of it; a run that has ended, or that does not exist, spoils nothing for the rest."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.stages import LIVE, NEVER_RUN, PAUSE, Stage, states
from tests.support.verbs import (
    Call,
    Connection,
    ask,
    begin_run,
    cancel,
    complete,
    create,
    done,
    halt,
    intent,
    promise,
    receive,
    refusal,
    report,
    run,
    send,
    settle,
    start,
    suspend,
    take_turn,
    task_of,
    types_of,
)

TABLES = ("_promises", "_tasks", "_executions", "_journal", "_signals", "_inboxes", "_callbacks", "_resumes")
PAIRS: dict[str, tuple[Call, Call]] = {
    "signal": (send("r"), ("select * from durable.signal_many('{r}', 'go', '1')", ())),
    "cancel": (
        cancel("r", '"why"', grace_ms=9_000),
        ("select * from durable.cancel_many('{r}', '\"why\"', '9 s')", ()),
    ),
    "force": (cancel("r", force=True), ("select * from durable.cancel_many('{r}', force => true)", ())),
    "pause": (PAUSE, ("select * from durable.pause_many('{r}')", ())),
}
RESUME_PAIR: tuple[Call, Call] = (
    ("select durable.resume('r')", ()),
    ("select * from durable.resume_many('{r}')", ()),
)
REDRIVE_PAIR: tuple[Call, Call] = (
    ("select durable.redrive('r')", ()),
    ("select * from durable.redrive_many('{r}')", ()),
)
ENDED = [
    ("done", "signal_many('{ended,asked,gone,live}', 'go')"),
    ("done", "cancel_many('{ended,asked,gone,live}')"),
    ("done", "pause_many('{ended,asked,gone,live}')"),
    ("already", "resume_many('{ended,asked,gone,live}')"),
    ("already", "redrive_many('{ended,asked,gone,live}')"),
]


def rows(conn: Connection, call: Call) -> dict[str, Any]:
    """All rows of the engine's tables after a statement, which is then taken back."""
    with conn.transaction(force_rollback=True):
        ask(conn, call)
        return {
            table: sorted(
                str(row) for (row,) in conn.execute(f"select to_jsonb(t) from durable.{table} t".encode())
            )
            for table in TABLES
        }


def answers(conn: Connection, text: str, *values: Any) -> dict[str, tuple[Any, ...]]:
    """What a verb for many says of each id."""
    found = conn.execute(f"select * from durable.{text}".encode(), values).fetchall()
    assert len(found) == len({row[0] for row in found})
    return {row[0]: row[1:] for row in found}


@pytest.mark.parametrize("verb", PAIRS)
@pytest.mark.parametrize("name", [*LIVE, *NEVER_RUN])
def test_one_of_many_is_as_one(conn: Connection, clock: Clock, name: str, verb: str) -> None:
    """A verb for many leaves the rows that the single verb leaves, whatever state the run is in."""
    stage: Stage = {**LIVE, **NEVER_RUN}[name][0]
    stage(conn, clock)
    one, many = PAIRS[verb]
    assert rows(conn, many) == rows(conn, one)


@pytest.mark.parametrize("name", ["paused", "dead", "paused unclaimed"])
def test_resumed_as_one(conn: Connection, clock: Clock, name: str) -> None:
    """The same for what is set aside, and what is dead."""
    {**LIVE, **NEVER_RUN}[name][0](conn, clock)
    for one, many in (RESUME_PAIR, REDRIVE_PAIR) if name == "dead" else (RESUME_PAIR,):
        assert rows(conn, many) == rows(conn, one)


@pytest.mark.parametrize(("outcome", "verb"), ENDED)
def test_each_id_gets_an_outcome(conn: Connection, outcome: str, verb: str) -> None:
    """Ended, not found and the rest are told apart, in the order given, and nothing raises."""
    take_turn(conn, "W", report(begin_run(conn, "ended"), end=complete()))
    begin_run(conn, "asked")
    begin_run(conn, "live")
    ask(conn, create("plain"))
    found = answers(conn, verb)
    assert list(found) == ["ended", "asked", "gone", "live"]
    assert [found[id_][0] for id_ in found] == ["ended", outcome, "not_found", outcome]
    assert answers(conn, verb.replace("ended,asked,gone,live", "plain"))["plain"][0] == "not_found"
    assert answers(conn, verb.replace("ended,asked,gone,live", "")) == {}


def test_the_answer_names_each_state(conn: Connection) -> None:
    """An answer says where each run stands now; what was so before is told as already."""
    for id_ in ("a", "b", "c"):
        begin_run(conn, id_)
    ask(conn, start("d"))
    assert answers(conn, "pause_many('{a,b}')") == {"a": ("done", "paused"), "b": ("done", "paused")}
    assert answers(conn, "pause_many('{b,c}')") == {"b": ("already", "paused"), "c": ("done", "paused")}
    assert answers(conn, "resume_many('{a,d}')") == {"a": ("done", "queued"), "d": ("already", "queued")}
    assert answers(conn, "cancel_many('{a,d}')") == {"a": ("done", "cancelling"), "d": ("done", "cancelled")}
    assert answers(conn, "cancel_many('{a,d}')") == {
        "a": ("already", "cancelling"),
        "d": ("already", "cancelled"),
    }
    assert answers(conn, "cancel_many('{a,b}', force => true)") == {
        "a": ("done", "cancelled"),
        "b": ("done", "cancelled"),
    }


def test_only_the_dead_are_revived(conn: Connection) -> None:
    """redrive_many revives the dead in place, leaves what a person paused or what does not fit its code, and
    does nothing the second time.
    """
    for id_, problem in (("crashed", "Crashed"), ("changed", "Nondeterminism")):
        take_turn(conn, "W", report(begin_run(conn, id_), end=halt(f'{{"type": "{problem}"}}')))
    begin_run(conn, "paused")
    answers(conn, "pause_many('{paused}')")
    others = {"changed": ("refused", "halted"), "paused": ("refused", "paused")}
    for outcome in ("done", "already"):
        told = answers(conn, "redrive_many('{crashed,changed,paused}')")
        assert told == {"crashed": (outcome, "queued"), **others}


def test_signals_are_numbered(conn: Connection) -> None:
    """Each run counts its own signals; a key that one of them had before is the same signal there only."""
    for id_ in ("a", "b", "c"):
        begin_run(conn, id_)
    ask(conn, send("b", key="k"))
    assert answers(conn, "signal_many('{c,a,b}', 'go', dedup => 'k')") == {
        "c": ("done", 1),
        "a": ("done", 1),
        "b": ("already", 1),
    }
    assert answers(conn, "signal_many('{a,b}', 'go')") == {"a": ("done", 2), "b": ("done", 2)}
    take_turn(conn, "W", report(begin_run(conn, "d"), end=complete()))
    assert answers(conn, "signal_many('{d}', 'go', dedup => 'k')")["d"][0] == "ended"


def test_each_its_own_payload(conn: Connection) -> None:
    """payloads and each_value go with the ids by place, past those that are left out."""
    for id_ in ("a", "b", "c"):
        begin_run(conn, id_)
        ask(conn, create(f"{id_}-promise"))
    take_turn(conn, "W", report(begin_run(conn, "b2"), end=complete()))
    found = answers(conn, "signal_many('{c,b2,a}', 'go', payloads => %s::jsonb[])", ["3", "2", "1"])
    assert [each[0] for each in found.values()] == ["done", "ended", "done"]
    sent = conn.execute(
        "select h.id, s.data from durable._signals s join durable._executions h using (execution)"
    )
    assert dict(sent.fetchall()) == {"c": "3", "a": "1"}
    answers(conn, "settle_many('{b-promise,a-promise}', each_value => %s::jsonb[])", ["2", "1"])
    values = conn.execute("select id, value_data from durable._promises where value_data <> '\"done\"'")
    assert dict(values.fetchall()) == {"b-promise": "2", "a-promise": "1"}


def test_all_waits_end_at_once(conn: Connection) -> None:
    """Runs in waits of every kind get their signal in one call; those that waited for it alone are ready."""
    commands = {
        "one": ([receive(0)], (0,), "signal"),
        "any": ([promise(0), receive(1)], (0, 1), "any"),
        "all": ([promise(0), receive(1)], (0, 1), "all"),
        "other": ([promise(0)], (0,), "single"),
    }
    for id_, (made, on, kind) in commands.items():
        held = begin_run(conn, id_)
        answer = take_turn(conn, "W", report(held, commands=made))
        take_turn(conn, "W", report(held, end=suspend(*on, kind=kind), seen=answer.next_of(held)))
    begin_run(conn, "held")
    assert set(answers(conn, "signal_many('{one,any,all,other,held}', 'go')").values()) == {("done", 1)}
    assert states(conn) == {
        "one": "queued",
        "any": "queued",
        "all": "waiting",
        "other": "waiting",
        "held": "running",
    }
    ask(conn, settle("all.0"))
    assert states(conn)["all"] == "queued"


def test_settled_promises(conn: Connection) -> None:
    """Done, the same again, another outcome, a worker's own step, none at all."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[intent(0)], outcomes=[done(1)]))
    for id_ in ("new", "same", "other"):
        ask(conn, create(id_))
    ask(conn, settle("same", "7"))
    ask(conn, settle("other", "8"))
    assert answers(conn, "settle_many('{new,same,other,r,r.0,r.1,none}', value => '7')") == {
        "r": ("refused", "pending"),
        "new": ("done", "resolved"),
        "same": ("already", "resolved"),
        "other": ("ended", "resolved"),
        "r.0": ("refused", "pending"),
        "r.1": ("ended", "resolved"),
        "none": ("not_found", None),
    }
    assert answers(conn, "settle_many('{new}', 'rejected')") == {"new": ("ended", "resolved")}


def test_awaiters_of_many(conn: Connection) -> None:
    """A run that waits for all of several promises is woken once, by one call that settles them."""
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held, commands=[promise(0), promise(1)]))
    take_turn(conn, "W", report(held, end=suspend(0, 1, kind="all"), seen=answer.next_of(held)))
    answers(conn, "settle_many('{r.1,r.0}')")
    assert task_of(conn, "r") == ("pending", 1, None)
    assert types_of(conn, "r")[-3:] == ["child_settled", "child_settled", "execution_resumed"]


@pytest.mark.parametrize(
    "verb",
    ["signal_many('{r,s}', 'go')", "cancel_many('{r,s}')", "pause_many('{r,s}')", "resume_many('{r,s}')"],
)
def test_a_deadline_comes_first(conn: Connection, clock: Clock, verb: str) -> None:
    """A run past its deadline has ended, stored before it is told; the rest of the call is done."""
    begin_run(conn, "r", timeout="5 seconds")
    begin_run(conn, "s")
    clock.advance(5_000)
    found = answers(conn, verb)
    assert found["r"][0] == "ended"
    assert found["s"][0] in ("done", "already")
    assert states(conn)["r"] == "timed_out"


def test_a_promise_past_its_deadline(conn: Connection, clock: Clock) -> None:
    """A promise gets its deadline's verdict, and not the one that is asked for."""
    ask(conn, create("p", clock.now_ms + 5))
    clock.advance(5)
    assert answers(conn, "settle_many('{p}')") == {"p": ("ended", "rejected_timedout")}


def test_families_that_overlap(conn: Connection) -> None:
    """A parent and its child in one call are asked once each; what is below is reached as by one."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[run(0), run(1)]))
    assert answers(conn, "cancel_many('{r.0,r}')") == {
        "r.0": ("done", "cancelled"),
        "r": ("done", "cancelling"),
    }
    assert states(conn) == {"r": "cancelling", "r.0": "cancelled", "r.1": "cancelled"}


FILTERS: list[tuple[str, list[str]]] = [
    ("", ["a", "b", "b.0", "c"]),
    ("workflow => 'mail'", ["a"]),
    ("state => 'running'", ["b"]),
    ("state => 'queued'", ["b.0"]),
    ("state => 'scheduled'", ["a"]),
    ("state => 'paused'", ["c"]),
    ('tags => \'{"team": "x"}\'', ["a"]),
    ("started_after => durable._at(durable._now_ms() - 1000)", ["c"]),
    ("started_before => durable._at(durable._now_ms() - 1000)", ["a", "b", "b.0"]),
    ("at_most => 2", ["a", "b"]),
    ("after => 'b', at_most => 2", ["b.0", "c"]),
    ("workflow => 'mail', state => 'running'", []),
]


@pytest.mark.parametrize(("named", "expected"), FILTERS)
def test_a_filter(conn: Connection, clock: Clock, named: str, expected: list[str]) -> None:
    """matching_runs answers the live runs that match, in the order of their ids, in portions."""
    call = "select durable.start('mail', '[]', id => 'a', tags => '{\"team\": \"x\"}', delay => '1 hour')"
    ask(conn, (call, ()))
    take_turn(conn, "W", report(begin_run(conn, "b"), commands=[run(0)]))
    take_turn(conn, "W", report(begin_run(conn, "d"), end=complete()))
    ask(conn, create("plain", target="q"))
    clock.advance(2_000)
    begin_run(conn, "c")
    ask(conn, ("select durable.pause('c')", ()))
    assert ask(conn, (f"select durable.matching_runs({named})", ()))[0] == expected


@pytest.mark.parametrize(
    "text",
    [
        "signal_many(null, 'go')",
        "signal_many('{a,null}', 'go')",
        "signal_many('{a,\"\"}', 'go')",
        "signal_many('{a}', '')",
        "signal_many('{a}', 'go', dedup => '')",
        "signal_many('{a,b}', 'go', payloads => '{1}')",
        "signal_many('{a,a}', 'go', payloads => '{1,2}')",
        "cancel_many(null)",
        "cancel_many('{a}', grace => '-1 s')",
        "pause_many(null)",
        "resume_many('{null}')",
        "redrive_many('{null}')",
        "settle_many(null)",
        "settle_many('{a}', 'pending')",
        "settle_many('{a}', each_value => '{}')",
        "matching_runs(state => 'completed')",
        "matching_runs(state => 'nonsense')",
        "matching_runs(at_most => 0)",
        "matching_runs(at_most => 10001)",
        "matching_runs(tags => '[]')",
    ],
)
def test_refused(conn: Connection, text: str) -> None:
    """What is malformed is refused before anything is looked at."""
    assert refusal(conn, (f"select * from durable.{text}", ())) == "WF004"


MANY: dict[str, str] = {
    "signal": "signal_many(%s, 'go')",
    "cancel": "cancel_many(%s)",
    "force": "cancel_many(%s, force => true)",
    "pause": "pause_many(%s)",
    "resume": "resume_many(%s)",
    "redrive": "redrive_many(%s)",
    "settle": "settle_many(%s)",
}
COUNTED: Call = (
    """select coalesce(jsonb_object_agg(p.proname, pg_stat_get_xact_function_calls(p.oid)), '{}')
    from pg_proc p join pg_language l on l.oid = p.prolang
    where p.pronamespace = 'durable'::regnamespace and l.lanname = 'plpgsql' and p.provolatile = 'v'
      and pg_stat_get_xact_function_calls(p.oid) > 0""",
    (),
)
"""Calls in this transaction of the functions that may write or lock."""


def calls(conn: Connection, call: Call) -> dict[str, int]:
    """How often a statement, which is then taken back, calls functions that may write or lock."""
    with conn.transaction(force_rollback=True):
        conn.execute("set local track_functions = 'all'")
        before = ask(conn, COUNTED)[0]
        ask(conn, call)
        after = ask(conn, COUNTED)[0]
    return {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name)}


@pytest.mark.parametrize("verb", MANY)
def test_the_work_is_in_the_rows(conn: Connection, clock: Clock, verb: str) -> None:
    """Sixty runs, suspended and never begun, take as many statements as six: no function is called by run.
    Time stands still, so the hints of both are sent, or left out, for the same reason.
    """
    found = []
    for count in (6, 60):
        ids = [f"{count}-{number}" for number in range(count)]
        for id_ in ids[::2]:
            ask(conn, start(id_))
        for id_ in ids[1::2]:
            held = begin_run(conn, id_)
            answer = take_turn(conn, "W", report(held, commands=[receive(0)]))
            take_turn(conn, "W", report(held, end=suspend(0, kind="signal"), seen=answer.next_of(held)))
            if verb == "resume":
                ask(conn, ("select durable.pause(%s)", (id_,)))
            if verb == "redrive":
                crashed = ["""{"type": "Crashed"}"""]
                ask(conn, ("select durable._halt_runs(array[%s], %s, 1)", (id_, crashed)))
        found.append(calls(conn, (f"select * from durable.{MANY[verb]}", (ids,))))
    assert found[0] == found[1] != {}
