"""Law: the task operations answer as the protocol's tables say; a task changes hands at one version, and
only by the allowed edges."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    NEVER,
    TTL_MS,
    Call,
    Connection,
    acquire,
    ask,
    begin_run,
    begun,
    claim,
    create,
    park,
    promise,
    promise_of,
    refusal,
    report,
    run,
    settle,
    suspend,
    take,
    take_turn,
    task_of,
    tick,
    types_of,
)

STATES = ("pending", "acquired", "suspended", "halted", "fulfilled", "dead")


def bring(conn: Connection, clock: Clock, state: str) -> None:
    """Make task t and bring it into a state, at version 1 unless it is pending from birth."""
    ask(conn, create("x", external="true"))
    ask(conn, create("t", clock.now_ms + 100 if state == "dead" else NEVER, target="g"))
    if state == "pending":
        return
    ask(conn, acquire("t"))
    if state == "suspended":
        ask(conn, park("t", "x"))
    elif state == "halted":
        ask(conn, ("select durable.task_halt('t')", ()))
    elif state == "fulfilled":
        ask(conn, settle("t"))
    elif state == "dead":
        clock.advance(100)


def column(conn: Connection, name: str) -> object:
    """A column of task t."""
    return ask(conn, (f"select {name} from durable._tasks where id = 't'", ()))[0]


# operation -> states in which it succeeds; anywhere else it is refused with the code
EDGES: dict[str, tuple[Call, set[str], str]] = {
    "acquire": (acquire("t", 0, "Q"), {"pending"}, "WF003"),
    "release": (("select durable.task_release('t', 1)", ()), {"acquired"}, "WF002"),
    "suspend": (park("t", "x"), {"acquired"}, "WF002"),
    "fulfill": (("select durable.task_fulfill('t', 1, 'resolved')", ()), {"acquired"}, "WF002"),
    "halt": (("select durable.task_halt('t')", ()), {"pending", "acquired", "suspended", "halted"}, "WF003"),
    "continue": (("select durable.task_continue('t')", ()), {"halted"}, "WF003"),
}
AFTER = {
    "acquire": "acquired",
    "release": "pending",
    "suspend": "suspended",
    "halt": "halted",
    "continue": "pending",
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("operation", EDGES)
def test_edges(conn: Connection, clock: Clock, operation: str, state: str) -> None:
    """An operation leads along the allowed edge or is refused and leaves the task as it is."""
    call, allowed, code = EDGES[operation]
    bring(conn, clock, state)
    before = conn.execute("select * from durable._tasks").fetchall()
    assert refusal(conn, call) == ("" if state in allowed else code)
    if state not in allowed:
        assert conn.execute("select * from durable._tasks").fetchall() == before
    elif operation != "fulfill":
        assert column(conn, "state") == AFTER[operation]
        assert column(conn, "version") == (1 if operation == "acquire" or state != "pending" else 0)


@pytest.mark.parametrize("operation", EDGES)
def test_operations_on_nothing(conn: Connection, operation: str) -> None:
    """A task that does not exist is WF001; so is a promise without a target."""
    ask(conn, create("x", external="true"))
    assert refusal(conn, EDGES[operation][0]) == "WF001"
    ask(conn, create("t", external="true"))
    assert refusal(conn, EDGES[operation][0]) == "WF001"
    assert refusal(conn, ("select durable.task_get('t')", ())) == "WF001"


@pytest.mark.parametrize(
    "call",
    [
        acquire("t", 0, ""),
        acquire("t", 0, "P", 0),
        ("select durable.task_acquire('t', 0, null, 5)", ()),
        ("select durable.task_acquire('t', 0, 'P', null)", ()),
        park("t"),
        park("t", "t"),
        park("t", "x", "x"),
        ("select durable.task_suspend('t', 1, null)", ()),
        ("select durable.task_suspend('t', 1, array['x', null])", ()),
        ("select durable.task_fulfill('t', 1, 'pending')", ()),
        ("select durable.task_fulfill('t', 1, 'rejected_timedout')", ()),
        ("select durable.task_fence_settle('t', 1, 't', 'resolved')", ()),
        ("select durable.task_fence_settle('t', 1, 'x', 'done')", ()),
        ("select durable.task_fence_create('t', 1, 't', 5)", ()),
        ("select durable.task_fence_create('t', 1, 'n', -1)", ()),
    ],
    ids=lambda call: call[0][15:60],
)
def test_malformed(conn: Connection, call: Call) -> None:
    """WF004 comes before everything that depends on stored state: the task does not even exist."""
    assert refusal(conn, call) == "WF004"


def test_get(conn: Connection, clock: Clock) -> None:
    """The answer shows state, version, number of wake reasons, ttl and holder; a dead task is fulfilled and
    stored as such."""
    ask(conn, create("t", clock.now_ms + 100, target="g"))
    get = ("select * from durable.task_get('t')", ())
    assert ask(conn, get) == ("t", "pending", 0, 0, None, None)
    ask(conn, acquire("t"))
    assert ask(conn, get) == ("t", "acquired", 1, 0, TTL_MS, "P")
    clock.advance(100)
    assert ask(conn, get) == ("t", "fulfilled", 1, 0, None, None)
    assert promise_of(conn, "t") == ("rejected_timedout", None)


def test_acquire(conn: Connection, clock: Clock) -> None:
    """An acquire raises the version by one, sets the lease and clears the wake reasons; it is exclusive:
    only the process that has it may ask again."""
    take(conn, "t")
    ask(conn, create("x", external="true"))
    ask(conn, park("t", "x"))
    ask(conn, settle("x"))
    clock.advance(9)
    assert [refusal(conn, acquire("t", version)) for version in (0, 2, 7)] == ["WF003"] * 3
    assert ask(conn, acquire("t", 1, "Q", 77)) == ("t", "acquired", 2, 0, 77, "Q")
    assert column(conn, "expires_at") == clock.now_ms + 77
    assert column(conn, "retry_at") is None
    assert refusal(conn, acquire("t", 1, "R", 77)) == "WF003"


def test_a_task_whose_leases_are_lost_for_ever_goes_on(conn: Connection, clock: Clock) -> None:
    """However often its clients were lost: it is acquired again, and so is all that is acquired with it."""
    for id_ in ("a", "b"):
        ask(conn, create(id_, target="g"))
    conn.execute("update durable._tasks set attempt = 32766, crashes = 32766, version = 32766 where id = 'a'")
    both = "select count(*) from durable._acquire(array['a', 'b'], 'p', 1000, durable._now_ms())"
    for _ in range(3):
        assert ask(conn, (both, ())) == (2,)
        clock.advance(3_600_000)
        # leases of the same client are revoked in turns
        assert sum(tick(conn)["leases"] for _ in range(2)) == 2
        lost = "select state, attempt, crashes from durable._tasks where id = 'a'"
        assert ask(conn, (lost, ())) == ("pending", 32767, 32767)


def test_release_keeps_version_and_reasons(conn: Connection, clock: Clock) -> None:
    """A released task may be dispatched at once and remembers why it was woken."""
    take(conn, "t")
    ask(conn, create("x", external="true"))
    ask(conn, ("select durable.promise_register_callback('x', 't')", ()))
    ask(conn, settle("x"))
    ask(conn, ("select durable.task_release('t', 1)", ()))
    assert ask(conn, ("select * from durable.task_get('t')", ())) == ("t", "pending", 1, 1, None, None)
    assert column(conn, "retry_at") == clock.now_ms


@pytest.mark.parametrize(
    ("awaited", "answer"),
    [
        (["x"], True),
        (["x", "y"], True),
        (["settled"], False),
        (["x", "settled"], False),
        (["due"], False),
        (["none"], "WF005"),
        (["internal"], "WF005"),
        (["settled", "none"], "WF005"),
        (["x", "internal"], "WF005"),
    ],
)
def test_suspend(conn: Connection, clock: Clock, awaited: list[str], answer: object) -> None:
    """All of them live: suspended. One settled: go on, nothing registered, lease untouched. One unsuitable:
    refused, nothing at all."""
    for name in ("x", "y", "settled"):
        ask(conn, create(name, external="true"))
    ask(conn, ("select durable.set_setting('conformance', 'strict')", ()))
    ask(conn, create("internal"))
    ask(conn, create("due", clock.now_ms + 10, external="true"))
    ask(conn, settle("settled"))
    take(conn, "t")
    conn.execute("insert into durable._resumes (task_id, awaited_id) values ('t', 'settled')")
    clock.advance(10)
    lease = column(conn, "expires_at")
    if isinstance(answer, str):
        assert refusal(conn, park("t", *awaited)) == answer
        assert conn.execute("select from durable._resumes").fetchall() == [()]
    else:
        assert ask(conn, park("t", *awaited)) == (answer,)
        assert conn.execute("select from durable._resumes").fetchall() == []
    registered = [
        name for (name,) in conn.execute("select awaited_id from durable._callbacks order by 1").fetchall()
    ]
    assert registered == (sorted(awaited) if answer is True else [])
    assert column(conn, "state") == ("suspended" if answer is True else "acquired")
    assert column(conn, "expires_at") == (None if answer is True else lease)


def test_suspend_again_on_the_remaining_promises(conn: Connection) -> None:
    """After a wake a task may suspend on what it has not seen settled; registrations that stand stay."""
    for name in ("x", "y"):
        ask(conn, create(name, external="true"))
    take(conn, "t")
    ask(conn, park("t", "x", "y"))
    ask(conn, settle("x"))
    ask(conn, acquire("t", 1))
    assert ask(conn, park("t", "x", "y", version=2)) == (False,)
    assert ask(conn, park("t", "y", version=2)) == (True,)
    assert conn.execute("select awaited_id, awaiter_id from durable._callbacks").fetchall() == [("y", "t")]


def test_fulfill(conn: Connection) -> None:
    """Fulfilling settles the task's own promise; the second time the lease is gone."""
    take(conn, "t")
    call: Call = ("select (durable.task_fulfill('t', 1, 'rejected', 'why')).state", ())
    assert ask(conn, call) == ("rejected",)
    assert promise_of(conn, "t") == ("rejected", "why")
    assert refusal(conn, call) == "WF002"


def test_fence_settle(conn: Connection) -> None:
    """Another promise is settled under the lease, which is not touched; one that is settled already is
    answered as it is."""
    take(conn, "t")
    ask(conn, create("x", external="true"))
    before = conn.execute("select * from durable._tasks").fetchall()
    call: Call = ("select state, value_data from durable.task_fence_settle('t', 1, 'x', 'resolved', '1')", ())
    assert ask(conn, call) == ("resolved", "1")
    assert ask(
        conn, ("select state, value_data from durable.task_fence_settle('t', 1, 'x', 'rejected', '2')", ())
    ) == (
        "resolved",
        "1",
    )
    assert refusal(conn, ("select durable.task_fence_settle('t', 1, 'none', 'resolved')", ())) == "WF001"
    assert conn.execute("select * from durable._tasks").fetchall() == before


def test_fence_settle_of_another_task(conn: Connection) -> None:
    """A fence may settle a promise that has a task of its own, held by somebody else."""
    take(conn, "t")
    take(conn, "other")
    ask(conn, ("select durable.task_fence_settle('t', 1, 'other', 'rejected_canceled')", ()))
    assert task_of(conn, "other") is None
    assert task_of(conn, "t") == ("acquired", 1, "P")


def test_fence_create(conn: Connection, clock: Clock) -> None:
    """A promise is created under the lease, or the existing one answered; past its deadline it is settled
    first."""
    take(conn, "t")
    call = (
        "select state from durable.task_fence_create('t', %s, %s, %s,"
        ' p_tags => \'{"resonate:external": "true"}\')'
    )
    assert ask(conn, (call, (1, "n", clock.now_ms + 10))) == ("pending",)
    assert ask(conn, (call, (1, "n", NEVER))) == ("pending",)
    assert refusal(conn, (call, (2, "m", NEVER))) == "WF002"
    assert promise_of(conn, "m") is None
    clock.advance(10)
    assert ask(conn, (call, (1, "n", NEVER))) == ("rejected_timedout",)
    assert ask(conn, (call, (1, "old", 5))) == ("rejected_timedout",)


def test_halt_and_continue_keep_what_was_there(conn: Connection, clock: Clock) -> None:
    """A halt keeps version, reasons and callbacks; wakes that come meanwhile are kept; continue offers the
    task at once."""
    for name in ("x", "y"):
        ask(conn, create(name, external="true"))
    take(conn, "t")
    ask(conn, park("t", "x", "y"))
    ask(conn, ("select durable.task_halt('t')", ()))
    ask(conn, settle("x"))
    assert ask(conn, ("select * from durable.task_get('t')", ())) == ("t", "halted", 1, 1, None, None)
    assert conn.execute("select awaited_id from durable._callbacks").fetchall() == [("y",)]
    clock.advance(5)
    ask(conn, ("select durable.task_continue('t')", ()))
    assert ask(conn, ("select * from durable.task_get('t')", ())) == ("t", "pending", 1, 1, None, None)
    assert column(conn, "retry_at") == clock.now_ms


def test_a_halted_run_says_why(conn: Connection) -> None:
    """A halt by hand notes a problem on the run, which goes when it is continued."""
    begin_run(conn, "r")
    ask(conn, ("select durable.task_halt('r')", ()))
    assert ask(conn, ("select state, problem ->> 'type' from durable.runs", ())) == ("halted", "Halted")
    ask(conn, ("select durable.resume('r')", ()))
    assert ask(conn, ("select state, problem from durable.runs", ())) == ("queued", None)


def test_offer(conn: Connection, clock: Clock) -> None:
    """Due tasks of the queue are offered with their version, by priority, and again after retry_offer_ms
    unless acquired."""
    for name in ("a", "b", "c"):
        ask(conn, create(name, target="g"))
    ask(conn, create("other", target="h"))
    conn.execute("update durable._tasks set priority = -1 where id = 'c'")
    offer = "select id, version from durable.task_offer('g', %s)"
    assert sorted(conn.execute(offer, (2,)).fetchall()) == [("a", 0), ("c", 0)]
    assert conn.execute(offer, (10,)).fetchall() == [("b", 0)]
    assert conn.execute(offer, (10,)).fetchall() == []
    ask(conn, acquire("a"))
    clock.advance(5000)
    assert sorted(conn.execute(offer, (10,)).fetchall()) == [("b", 0), ("c", 0)]


def test_offer_passes_over_dead_tasks(conn: Connection, clock: Clock) -> None:
    """No dead dispatch: a task past its deadline is not offered, swept or not."""
    ask(conn, create("t", clock.now_ms + 10, target="g"))
    clock.advance(10)
    assert conn.execute("select from durable.task_offer('g')").fetchall() == []


def parked_run(conn: Connection, kind: str = "any") -> None:
    """A run that W suspended on its children 0 and 1."""
    held = begin_run(conn, "r")
    answer = take_turn(conn, "W", report(held, commands=[promise(0), promise(1)]))
    take_turn(conn, "W", report(held, end=suspend(0, 1, kind=kind), seen=answer.next_of(held)))


def test_a_protocol_client_may_serve_a_run(conn: Connection) -> None:
    """A run that a client acquires and suspends on its children is journalled like any other."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, commands=[promise(0), run(1)]))
    ask(conn, ("select durable.task_release('r', 1)", ()))
    ask(conn, acquire("r", 1))
    ask(conn, create("foreign", external="true"))
    assert ask(conn, park("r", "r.0", "r.1", version=2)) == (True,)
    assert types_of(conn, "r") == [
        *("execution_started", "promise_registered", "child_run_scheduled", "execution_awaiting"),
    ]
    ask(conn, settle("r.0"))
    assert types_of(conn, "r") == [
        *("execution_started", "promise_registered", "child_run_scheduled", "execution_awaiting"),
        *("child_settled", "execution_resumed"),
    ]
    ask(conn, acquire("r", 2))
    assert ask(conn, park("r", "foreign", version=3)) == (True,)
    assert types_of(conn, "r") == [
        *("execution_started", "promise_registered", "child_run_scheduled", "execution_awaiting"),
        *("child_settled", "execution_resumed", "promise_registered", "execution_awaiting"),
    ]


@pytest.mark.parametrize(("awaited", "code"), [(["r.0", "r.1"], ""), (["r.0"], "WF003")])
def test_a_client_that_continues_a_blocked_run(conn: Connection, awaited: list[str], code: str) -> None:
    """A run that is blocked already may wait for the same again, which writes nothing, and for nothing else
    (R20)."""
    parked_run(conn)
    ask(conn, ("select durable.task_halt('r')", ()))
    ask(conn, ("select durable.task_continue('r')", ()))
    ask(conn, acquire("r", 1))
    assert refusal(conn, park("r", *awaited, version=2)) == code
    assert types_of(conn, "r") == [
        *("execution_started", "promise_registered", "promise_registered", "execution_awaiting"),
    ]


def test_release_of_a_run_closes_its_steps(conn: Connection) -> None:
    """A run that is given back by hand has no open attempt left; the next worker tries again."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, outcomes=[begun(0)]))
    ask(conn, ("select durable.task_release('r', 1)", ()))
    assert types_of(conn, "r") == ["execution_started", "step_started", "open_attempt_failed"]
    assert claim(conn, "V", "q-r").version == 2


def make(
    id_: str = "t",
    *,
    timeout_at: int = NEVER,
    pid: str = "P",
    ttl: int = 1000,
    tags: str = '{"resonate:target": "g"}',
) -> Call:
    """task.create."""
    text = "select state, version, pid, ttl from durable.task_create(%s, %s, %s, %s, p_tags => %s::jsonb)"
    return text, ("t", timeout_at, pid, ttl, tags)


def test_create_with_its_task(conn: Connection, clock: Clock) -> None:
    """Born acquired at version 1 with its lease, untold to workers; the same call again finds it taken."""
    assert ask(conn, make()) == ("acquired", 1, "P", 1000)
    assert column(conn, "expires_at") == clock.now_ms + 1000
    assert refusal(conn, make()) == "WF003"


@pytest.mark.parametrize(
    ("before", "answer"),
    [
        ("pending", ("acquired", 1, "P", 1000)),
        ("delayed", ("acquired", 1, "P", 1000)),
        ("released", ("acquired", 2, "P", 1000)),
        ("acquired", "WF003"),
        ("suspended", "WF003"),
        ("halted", "WF003"),
        ("fulfilled", ("fulfilled", 1, None, None)),
        ("dead", ("fulfilled", 1, None, None)),
        ("untargeted", "WF010"),
    ],
)
def test_create_of_a_task_that_exists(conn: Connection, clock: Clock, before: str, answer: object) -> None:
    """Pending: whoever comes takes it, at whatever version. Held, parked or halted: WF003. Fulfilled, also by
    a deadline that nobody settled yet: answered. No task: WF010."""
    ask(conn, create("x", external="true"))
    if before in ("pending", "delayed"):
        ask(conn, create("t", target="g", **({"delay": str(NEVER - 1)} if before == "delayed" else {})))
    elif before == "untargeted":
        ask(conn, create("t"))
    else:
        take(conn, "t", timeout_at=clock.now_ms + 100 if before == "dead" else NEVER)
    after = {
        "released": ("select durable.task_release('t', 1)", ()),
        "suspended": park("t", "x"),
        "halted": ("select durable.task_halt('t')", ()),
        "fulfilled": settle("t"),
    }
    if before in after:
        ask(conn, after[before])
    if before == "dead":
        clock.advance(100)
    call = make()
    assert (refusal(conn, call) if isinstance(answer, str) else ask(conn, call)) == answer


def test_a_task_born_dead_is_fulfilled(conn: Connection, clock: Clock) -> None:
    """With a timeout in the past there is nothing to hold: version 0."""
    assert ask(conn, make(timeout_at=clock.now_ms)) == ("fulfilled", 0, None, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"pid": ""},
        {"ttl": 0},
        {"tags": "{}"},
        {"tags": '{"resonate:target": "g", "resonate:delay": "5"}'},
        {"tags": '{"resonate:target": ""}'},
    ],
)
def test_create_with_its_task_refuses_malformed_requests(conn: Connection, wrong: dict[str, Any]) -> None:
    """WF004 before any state is looked at."""
    assert refusal(conn, make(**wrong)) == "WF004"
    take(conn, "t")
    assert refusal(conn, make(**wrong)) == "WF004"


def test_search_of_tasks(conn: Connection, clock: Clock) -> None:
    """By state as it is now, in the order of ids; fulfilled ones are found by their promises, and what is
    past its deadline is settled before it is told."""
    query = "select array(select id || ' ' || state from durable.task_search(%s, %s, %s))"
    for name in ("a", "b", "c", "d"):
        take(conn, name, timeout_at=clock.now_ms + 10 if name == "d" else NEVER)
    ask(conn, create("e", target="g"))
    ask(conn, create("no task"))
    ask(conn, settle("b"))
    ask(conn, ("select durable.task_halt('c')", ()))
    assert ask(conn, (query, ("acquired", 9, None))) == (["a acquired", "d acquired"],)
    clock.advance(10)
    assert ask(conn, (query, ("acquired", 9, None))) == (["a acquired"],)
    assert ask(conn, (query, ("fulfilled", 9, None))) == (["b fulfilled", "d fulfilled"],)
    assert ask(conn, (query, (None, 2, "b"))) == (["c halted", "d fulfilled"],)
    assert ask(conn, (query, ("pending", 9, "d"))) == (["e pending"],)
    assert refusal(conn, (query, ("nowhere", 9, None))) == "WF004"


def test_an_offer_honours_the_preferred_worker(conn: Connection, clock: Clock) -> None:
    """A task that prefers a present worker is offered to that one at once, to another only after prefer_ms,
    and to a caller that names nobody at once."""
    offer = "select array(select id from durable.task_offer('g', 9, %s))"
    conn.execute(
        "insert into durable._workers (id, present, seen_at, started_at, queues, workflows, versions) "
        "values ('W', true, 0, 0, '{}', '{}', '{}')"
    )
    ask(conn, create("t", target="poll://any@g/W"))
    assert ask(conn, (offer, ("V",))) == ([],)
    assert ask(conn, (offer, ("W",))) == (["t"],)
    clock.advance(5000)
    assert ask(conn, (offer, ("V",))) == (["t"],)
    ask(conn, create("u", target="poll://any@g/W"))
    assert ask(conn, (offer, (None,))) == (["u"],)


def test_a_suspend_closes_open_attempts(conn: Connection) -> None:
    """A run that is suspended through the protocol's door leaves no attempt of a step open."""
    held = begin_run(conn, "r")
    take_turn(conn, "W", report(held, outcomes=[begun(0)], commands=[promise(1)]))
    ask(conn, park("r", "r.1"))
    assert ask(conn, ("select open_attempts, open_running from durable._executions where id = 'r'", ())) == (
        [2],
        [False],
    )
