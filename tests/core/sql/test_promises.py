"""Law: the promise operations answer as the protocol's tables say: malformed before missing, missing before
conflict, and nothing twice."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.typed_answers import TYPED, is_held_to_its_type
from tests.support.verbs import (
    NEVER,
    Call,
    Connection,
    acquire,
    ask,
    begin_run,
    begun,
    broken,
    create,
    done,
    park,
    promise,
    promise_of,
    refusal,
    report,
    run,
    settle,
    start,
    suspend,
    take,
    take_turn,
    task_of,
    types_of,
)


def creation(id_: str | None = "p", timeout_at: int | None = NEVER, tags: str | None = "{}") -> Call:
    """promise.create with every argument free."""
    return "select state from durable.promise_create(%s, %s, p_tags => %s::jsonb)", (id_, timeout_at, tags)


MALFORMED = {
    "no id": creation(id_=None),
    "empty id": creation(id_=""),
    "long id": creation(id_="x" * 513),
    "no timeout": creation(timeout_at=None),
    "negative timeout": creation(timeout_at=-1),
    "timeout beyond never": creation(timeout_at=NEVER + 1),
    "tags are an array": creation(tags="[]"),
    "no tags": creation(tags=None),
    "tag is no string": creation(tags='{"a": 1}'),
    "target is empty": creation(tags='{"resonate:target": ""}'),
    "target cannot be routed": creation(tags='{"resonate:target": "ftp://x"}'),
    "delay without target": creation(tags='{"resonate:delay": "5"}'),
    "delay is no number": creation(tags='{"resonate:target": "g", "resonate:delay": "soon"}'),
    "delay is negative": creation(tags='{"resonate:target": "g", "resonate:delay": "-1"}'),
    "delay at the timeout": creation(
        timeout_at=NEVER, tags=f'{{"resonate:target": "g", "resonate:delay": "{NEVER}"}}'
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_create_refuses_what_is_malformed(conn: Connection, name: str) -> None:
    """WF004 does not depend on stored state: the same refusal when the id exists."""
    assert refusal(conn, MALFORMED[name]) == "WF004"
    ask(conn, create("p"))
    assert refusal(conn, MALFORMED[name]) == "WF004"


def test_create(conn: Connection, clock: Clock) -> None:
    """A new promise is pending, born now, without a task unless it has a target."""
    found = ask(conn, ("select (durable.promise_create('p', %s, 'data', '{\"a\": \"b\"}')).*", (NEVER,)))
    assert found == ("p", "pending", {"a": "b"}, "data", None, None, {}, NEVER, clock.now_ms, None)
    assert task_of(conn, "p") is None


def test_create_with_a_target(conn: Connection, clock: Clock) -> None:
    """A targeted promise gets a pending task at version 0 that may be dispatched now, in the queue of its
    canonical target."""
    ask(conn, create("p", target="g"))
    row = ask(conn, ("select state, version, retry_at, queue, deadline from durable._tasks", ()))
    assert row == ("pending", 0, clock.now_ms, "g", NEVER)
    assert ask(conn, ("select target, tags ->> 'resonate:target' from durable._promises", ())) == (
        "poll://any@g",
        "g",
    )


def test_create_with_a_delay(conn: Connection, clock: Clock) -> None:
    """The first dispatch of a delayed task is not before its instant; one in the past means now."""
    ask(conn, create("later", target="g", delay=str(clock.now_ms + 50)))
    ask(conn, create("past", target="g", delay="5"))
    rows = conn.execute("select id, retry_at from durable._tasks order by id").fetchall()
    assert rows == [("later", clock.now_ms + 50), ("past", clock.now_ms)]
    assert conn.execute("select id from durable.task_offer('g')").fetchall() == [("past",)]


def test_create_with_a_preference(conn: Connection, clock: Clock) -> None:
    """An anycast that names a member waits for it while it is present."""
    ask(conn, ("select durable.worker_hello_v1('w1', '{g}', '{w}', '{1}', null)", ()))
    conn.execute("update durable._workers set present = true")
    for name in ("w1", "w2"):
        ask(conn, create(name, target=f"poll://any@g/{name}"))
    rows = conn.execute(
        "select id, queue, preference, prefer_until from durable._tasks order by id"
    ).fetchall()
    assert rows == [("w1", "g", "w1", clock.now_ms + 200), ("w2", "g", "w2", None)]


@pytest.mark.parametrize("settled", [False, True])
def test_create_again_changes_nothing(conn: Connection, clock: Clock, settled: bool) -> None:
    """An existing promise is answered as it is, whatever differs in the request, and is never an error."""
    ask(conn, create("p", external="true"))
    if settled:
        ask(conn, settle("p", "7"))
    clock.advance(10)
    before = ask(conn, ("select * from durable._promises", ()))
    assert ask(conn, create("p", 5, target="g")) == ("resolved" if settled else "pending",)
    assert ask(conn, ("select * from durable._promises", ())) == before
    assert task_of(conn, "p") is None


@pytest.mark.parametrize(
    ("tags", "state"),
    [
        ({"external": "true"}, "rejected_timedout"),
        ({"timer": "true"}, "resolved"),
        ({"target": "g"}, "rejected_timedout"),
    ],
)
def test_born_dead(conn: Connection, clock: Clock, tags: dict[str, str], state: str) -> None:
    """A timeout that has passed settles the promise at birth: created and settled at the timeout, task
    fulfilled at version 0."""
    assert ask(conn, create("p", clock.now_ms, **tags)) == (state,)
    row = ask(conn, ("select created_at, settled_at, value_data from durable._promises", ()))
    assert row == (clock.now_ms, clock.now_ms, None)
    assert task_of(conn, "p") is None
    if "target" in tags:
        assert ask(conn, ("select * from durable.task_get('p')", ())) == ("p", "fulfilled", 0, 0, None, None)


@pytest.mark.parametrize("id_", ["r.0", "r.7", "r.0.1", "r.5.0.2"])
def test_ids_below_a_run_are_reserved(conn: Connection, id_: str) -> None:
    """Only a run's own turn makes its children and theirs, also where no such child exists yet."""
    begin_run(conn, "r")
    assert refusal(conn, create(id_, external="true")) == "WF004"
    assert refusal(conn, start(id_)) == "WF004"


@pytest.mark.parametrize("id_", ["r.x", "r.0.x", "q.0", "r0", "r.1234567890"])
def test_ids_beside_a_run_are_free(conn: Connection, id_: str) -> None:
    """An id that no child can ever have is anybody's."""
    begin_run(conn, "r")
    assert refusal(conn, create(id_, external="true")) == ""


def test_get(conn: Connection) -> None:
    """A promise that nobody made is WF001."""
    assert refusal(conn, ("select durable.promise_get('none')", ())) == "WF001"
    ask(conn, create("p"))
    assert ask(conn, ("select state from durable.promise_get('p')", ())) == ("pending",)


def test_get_of_a_local_step(conn: Connection) -> None:
    """A local step has no row; its journal rows answer as its promise."""
    held = begin_run(conn, "r")
    outcomes = [done(0, '"out"'), broken(1), broken(2, retry_in=5), begun(3)]
    take_turn(conn, "W", report(held, outcomes=outcomes))
    rows = [
        ask(conn, ("select state, value_data from durable.promise_get(%s)", (f"r.{n}",))) for n in range(4)
    ]
    assert rows == [
        ("resolved", '"out"'),
        ("rejected", '{"type": "Oops"}'),
        ("pending", None),
        ("pending", None),
    ]
    assert refusal(conn, ("select durable.promise_get('r.4')", ())) == "WF001"
    shown = conn.execute(
        "select id, state, run, child from durable.steps where run = 'r' order by child"
    ).fetchall()
    assert shown == [(f"r.{n}", rows[n][0], "r", n) for n in range(4)]


@pytest.mark.parametrize(
    "verdict",
    [
        settle("r.1", "9"),
        settle("r.1", state="rejected_canceled"),
        ("select durable.resolve('r.1', '9')", ()),
        ("select durable.reject('r.1')", ()),
        ("select durable.task_fence_settle('t', 1, 'r.1', 'resolved', '9')", ()),
    ],
    ids=["settle", "cancel", "resolve", "reject", "fence"],
)
@pytest.mark.parametrize("outcome", [begun(1), broken(1, retry_in=5)], ids=["running", "to be tried again"])
def test_a_verdict_on_an_open_step_is_refused(
    conn: Connection, verdict: Call, outcome: dict[str, Any]
) -> None:
    """Who settles a step that its worker has not completed is told so, and by which run; a completed one is
    returned as it is, and one that is not there is WF001."""
    ask(conn, create("t", target="poll://any@g"))
    ask(conn, acquire("t"))
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, outcomes=[done(0, '"out"'), outcome]))
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        ask(conn, verdict)
    assert caught.value.sqlstate == "WF003"
    assert "'r.1' is a step of run 'r'; its worker completes it" in (caught.value.diag.message_primary or "")
    assert ask(conn, settle("r.0", "9"))[0] == "resolved"
    assert ask(conn, ("select value_data from durable.promise_get('r.0')", ())) == ('"out"',)
    assert refusal(conn, settle("r.2")) == "WF001"
    assert types_of(conn, "r") == (
        ["execution_started", "step_completed", "step_started"]
        if outcome == begun(1)
        else ["execution_started", "step_completed", "first_attempt_failed"]
    )


@pytest.mark.parametrize("state", ["pending", "rejected_timedout", "done", None])
def test_settle_to_what_is_no_verdict(conn: Connection, state: str | None) -> None:
    """Only resolved, rejected and rejected_canceled are a client's verdicts; that is looked at before
    existence."""
    assert refusal(conn, ("select durable.promise_settle('none', %s)", (state,))) == "WF004"


def test_settle(conn: Connection, clock: Clock) -> None:
    """A pending promise takes the verdict with its value and headers; a settled one is answered as it is."""
    assert refusal(conn, settle("none")) == "WF001"
    assert refusal(conn, ("select durable.promise_settle('', 'resolved')", ())) == "WF004"
    ask(conn, create("p"))
    clock.advance(5)
    call = ("select (durable.promise_settle('p', 'rejected', 'why', '{\"a\": \"b\"}')).*", ())
    found = ask(conn, call)
    assert found[1:6] == ("rejected", None, None, {"a": "b"}, "why")
    assert found[9] == clock.now_ms
    assert ask(conn, settle("p", "other")) == ("rejected", "why")


def test_settling_a_task_from_outside(conn: Connection) -> None:
    """Anyone may settle a targeted promise: its task is fulfilled and the holder's later calls are
    refused."""
    take(conn, "t")
    ask(conn, settle("t"))
    assert refusal(conn, ("select durable.task_fulfill('t', 1, 'resolved')", ())) == "WF002"
    assert refusal(conn, ("select durable.task_release('t', 1)", ())) == "WF002"
    assert ask(conn, ("select durable.task_heartbeat('P', '{t}', '{1}')", ())) == (0,)
    assert refusal(conn, acquire("t", 1)) == "WF003"


def test_verbs_for_people(conn: Connection, clock: Clock) -> None:
    """create_promise, resolve, reject and result speak JSON and intervals."""
    assert ask(conn, ("select durable.create_promise('p', '1 s')", ())) == ("p",)
    assert ask(conn, ("select external, timeout_at from durable._promises", ())) == (
        True,
        clock.now_ms + 1000,
    )
    assert ask(conn, ("select durable.resolve('p', '{\"ok\": true}')", ())) == ("resolved",)
    assert ask(conn, ("select durable.resolve('p', '{ \"ok\":true }')", ())) == ("resolved",)
    assert refusal(conn, ("select durable.resolve('p', '{\"ok\": false}')", ())) == "WF003"
    assert refusal(conn, ("select durable.reject('p')", ())) == "WF003"
    assert ask(conn, ("select * from durable.result('p')", ())) == ("resolved", {"ok": True}, None)
    ask(conn, ("select durable.create_promise('q')", ()))
    assert ask(conn, ("select * from durable.result('q')", ())) == ("pending", None, None)
    ask(conn, ("select durable.reject('q', '{\"type\": \"No\"}')", ()))
    assert ask(conn, ("select * from durable.result('q')", ())) == ("rejected", None, {"type": "No"})
    ask(conn, ("select durable.create_promise('r', '1 s')", ()))
    clock.advance(1000)
    assert refusal(conn, ("select durable.resolve('r')", ())) == "WF003"
    assert refusal(conn, ("select durable.resolve('none')", ())) == "WF001"


def test_create_promise_again(conn: Connection) -> None:
    """The same id is the same promise as it is; a run's id is refused, and so is what is no promise."""
    ask(conn, ("select durable.create_promise('p', '1 hour', tags => '{\"a\": \"b\"}')", ()))
    before = ask(conn, ("select p::text from durable._promises p", ()))
    assert ask(conn, ("select durable.create_promise('p')", ())) == ("p",)
    assert ask(conn, ("select p::text from durable._promises p", ())) == before
    begin_run(conn, "run")
    assert refusal(conn, ("select durable.create_promise('run')", ())) == "WF003"
    for wrong in (
        "''",
        "null",
        "'p', '0 s'",
        "'p', '-1 s'",
        "'p', tags => '[]'",
        "'p', tags => null",
        "'run.1'",
    ):
        assert refusal(conn, (f"select durable.create_promise({wrong})", ())) == "WF004", wrong


def test_a_step_is_settled_by_who_executes_it(conn: Connection) -> None:
    """The people's verbs refuse what the journal of a run alone may end."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, outcomes=[begun(0)]))
    assert refusal(conn, ("select durable.resolve('r.0', '1')", ())) == "WF003"


def test_due_in(conn: Connection, clock: Clock) -> None:
    """The next deadline is that of the first external pending promise: 0 if it has passed, null if there is
    none."""
    due = ("select durable._due_in(durable._now_ms())", ())
    ask(conn, create("internal", clock.now_ms + 1))
    ask(conn, create("never", external="true"))
    assert ask(conn, due) == (None,)
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[promise(0, 70), run(1, timeout=90)]))
    assert ask(conn, due) == (70,)
    clock.advance(80)
    assert ask(conn, due) == (0,)
    ask(conn, settle("r.0"))
    assert ask(conn, due) == (10,)


def test_an_internal_deadline_is_projected_and_stored_on_touch(conn: Connection, clock: Clock) -> None:
    """A promise that nobody awaits is not swept; who looks at it after its deadline stores the verdict."""
    ask(conn, create("internal", clock.now_ms + 5))
    clock.advance(5)
    ask(conn, ("select durable.tick_v1(10)", ()))
    assert promise_of(conn, "internal") == ("pending", None)
    assert ask(conn, ("select state from durable.promise_get('internal')", ())) == ("rejected_timedout",)
    assert promise_of(conn, "internal") == ("rejected_timedout", None)


def test_a_run_cannot_take_the_place_above_others(conn: Connection) -> None:
    """Where promises would be its descendants, a run of that id is refused; deeper names that are no
    descendants do not count."""
    ask(conn, create("a.1", external="true"))
    ask(conn, create("b.1.2", external="true"))
    ask(conn, create("c.x.1", external="true"))
    assert [refusal(conn, start(name)) for name in ("a", "b", "c")] == ["WF004", "WF004", ""]
    take(conn, "t")
    ask(conn, park("t", "a.1"))


def test_ids_below_a_run_are_its_own(conn: Connection) -> None:
    """A run numbers its calls, and what they call. A call of it that is no run belongs to whoever works on
    it, and has ids below it that are theirs."""
    take_turn(conn, "W", report(begin_run(conn, "r"), commands=[promise(0), run(1)]))
    below = ("r.0.1", "r.0.1.2", "r.0.3.1", "r.1.0", "r.1.0.1", "r.2", "r.2.1", "x.1")
    refused = [name for name in below if refusal(conn, create(name, external="true")) == "WF004"]
    assert refused == ["r.1.0", "r.1.0.1", "r.2", "r.2.1"]


def test_a_timer_with_a_target_is_refused_in_the_strict_profile_only(conn: Connection, clock: Clock) -> None:
    """Compatible: created, and resolved at its deadline like a timer; strict: WF004."""
    both = create("p", clock.now_ms + 100, target="g", timer="true")
    assert ask(conn, both) == ("pending",)
    clock.advance(100)
    assert ask(conn, ("select state from durable.promise_get('p')", ())) == ("resolved",)
    ask(conn, ("select durable.set_setting('conformance', 'strict')", ()))
    assert refusal(conn, both) == "WF004"
    conn.execute("delete from durable._promises")


@pytest.mark.parametrize(
    "settle",
    [
        pytest.param("select durable.resolve(%s, %s::text::jsonb)", id="resolve"),
        pytest.param(
            "select durable.promise_settle(%s, 'resolved', %s, '{\"codec\": \"json\"}')", id="settle"
        ),
    ],
)
def test_an_answer_of_another_type_is_refused_at_the_door(
    conn: Connection, clock: Clock, settle: str
) -> None:
    """A promise whose run declares a type is held to it."""
    is_held_to_its_type(conn, settle)


def test_a_fenced_answer_is_checked_too(conn: Connection, clock: Clock) -> None:
    """A task that settles under its lease passes the same door."""
    held = begin_run(conn, "r")
    take_turn(
        conn, "W", report(held, commands=[promise(0) | {"param": TYPED}], end=suspend(0), seen=held.next)
    )
    ask(conn, create("t", target="g"))
    ask(conn, acquire("t"))
    fenced = (
        "select state from durable.task_fence_settle('t', 1, 'r.0', 'resolved', %s, '{\"codec\": \"json\"}')"
    )
    assert refusal(conn, (fenced, ("7",))) == "WF004"
    assert ask(conn, (fenced, ('{"by": "Ada", "ok": true}',))) == ("resolved",)


@pytest.mark.parametrize(
    "value", ['{"by": "a\\u0000", "ok": 1}', '{"by": 1e400000, "ok": 1}'], ids=["NUL", "number"]
)
def test_an_answer_that_the_server_cannot_look_into_is_left_to_its_reader(
    conn: Connection, value: str
) -> None:
    """It is JSON all the same, and no text of another codec."""
    held = begin_run(conn, "r")
    take_turn(
        conn, "W", report(held, commands=[promise(0) | {"param": TYPED}], end=suspend(0), seen=held.next)
    )
    settles = "select state from durable.promise_settle('r.0', 'resolved', %s, '{\"codec\": \"json\"}')"
    assert ask(conn, (settles, (value,))) == ("resolved",)
