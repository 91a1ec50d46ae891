"""Law: a call of a published name in its group is a run from its birth, which workers claim and nobody is
offered; every other task of the group stays with the clients that serve it."""

from __future__ import annotations

import base64
import json
from typing import Any

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.envelope import envelope, fence, make, say, settle, tags
from tests.support.envelope import take as take_task
from tests.support.verbs import (
    NEVER,
    Connection,
    ask,
    begin_run,
    cancelled,
    claim,
    complete,
    events_of,
    fail,
    refusal,
    report,
    take_turn,
)


def packed(value: Any) -> str:
    """As an SDK packs a value."""
    return base64.b64encode(json.dumps(value).encode()).decode()


def call(func: str = "f", *args: Any, version: Any = 1, **more: Any) -> dict[str, Any]:
    """The param of a call."""
    return {"data": packed({"func": func, "args": list(args), "version": version, **more})}


def begin(
    conn: Connection, id_: str = "c", param: Any = None, target: str = "poll://any@g", **more: str
) -> None:
    """A client calls a function."""
    param = call() if param is None else param
    say(conn, "promise.create", id=id_, timeoutAt=NEVER, param=param, tags=tags(target=target, **more))


def publish(conn: Connection, workflow: str = "w", queue: str = "g", *more: Any) -> int:
    """Publish; how many waiting calls became runs."""
    places = ", ".join(["%s"] * (2 + len(more)))
    row = conn.execute(f"select durable.publish({places})".encode(), (workflow, queue, *more)).fetchone()
    assert row is not None
    return int(row[0])


def run_of(conn: Connection, id_: str = "c") -> tuple[Any, ...] | None:
    """The workflow, version and arguments of a run."""
    return conn.execute(
        "select workflow, version, args, state from durable.runs where id = %s", (id_,)
    ).fetchone()


def offered(conn: Connection) -> list[str]:
    """What clients of the group are offered."""
    return [row[0] for row in conn.execute("select id from durable.task_offer('g')").fetchall()]


def test_a_call_is_a_run_from_its_birth(conn: Connection) -> None:
    """Our worker claims it with its arguments; clients are not offered it; the caller gets the result."""
    publish(conn, "w", "g", "f")
    begin(conn, param=call("f", 1, "two"))
    assert offered(conn) == []
    assert run_of(conn) == ("w", "1", [1, "two"], "queued")
    assert events_of(conn, "c") == ["ExecutionStarted"]
    answer = take_turn(conn, "W", want=1, queues=["g"])
    assert answer.handed[0]["param"] == '[1, "two"]'
    held = answer.tasks[0]
    take_turn(conn, "W", report(held, end=complete('{"ok": true}')))
    promise = say(conn, "promise.get", id="c").promise
    assert promise["state"] == "resolved"
    assert json.loads(base64.b64decode(promise["value"]["data"])) == {"ok": True}
    assert promise["param"] == call("f", 1, "two")


def test_an_error_is_in_the_form_of_the_sdks(conn: Connection) -> None:
    """Its class is the name."""
    publish(conn, "w", "g", "f")
    begin(conn)
    take_turn(conn, "W", report(claim(conn, "W", "g"), end=fail('{"type": "Boom", "message": "no"}')))
    value = say(conn, "promise.get", id="c").promise["value"]
    assert json.loads(base64.b64decode(value["data"])) == {"__type": "error", "name": "Boom", "message": "no"}


# other tasks of the group
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("another function", call("g")),
    ("another version", call("f", version=2)),
    ("a version that is no number", call("f", version="1")),
    ("no call", {"data": packed([1])}),
    ("no base64", {"data": "%%%"}),
    ("no param", {}),
    ("args that are no list", {"data": packed({"func": "f", "args": 1, "version": 1})}),
    ("our own codec", {"data": "{}", "headers": {"codec": "json"}}),
]


@pytest.mark.parametrize(("param"), [one for _, one in OTHERS[:2] + OTHERS[3:]], ids=str)
def test_other_tasks_stay_with_clients(conn: Connection, param: dict[str, Any]) -> None:
    """They are offered, and are no runs."""
    publish(conn, "w", "g", "f")
    begin(conn, param=param)
    assert run_of(conn) is None
    assert offered(conn) == ["c"]


def test_other_groups_stay_with_clients(conn: Connection) -> None:
    """A name is published in one group."""
    publish(conn, "w", "h", "f")
    begin(conn)
    begin(conn, "d", target="poll://uni@h/me")
    assert run_of(conn) is None is run_of(conn, "d")


@pytest.mark.parametrize(
    ("param", "expected"),
    [
        (call("f", 1, 2), [1, 2]),
        (call("f", kwargs={"a": 1}), {"a": 1}),
        (call("f", 1, kwargs={"b": 2}), {"*": [1], "b": 2}),
        (call("f", kwargs={}), []),
        ({"data": packed({"func": "f", "version": 1})}, []),
        (call("f", 1, retry={"type": "never", "data": {}}), [1]),
        (call("f", "é", version=0), ["é"]),
        ({"data": packed({"func": "f", "args": [7]})}, [7]),
    ],
)
def test_arguments(conn: Connection, param: dict[str, Any], expected: Any) -> None:
    """By position, by name, or both; without a version the newest."""
    publish(conn, "w", "g", "f")
    begin(conn, param=param)
    assert run_of(conn) == ("w", "1", expected, "queued")


def test_versions(conn: Connection) -> None:
    """The exact one, or the newest."""
    publish(conn, "old", "g", "f", 1)
    publish(conn, "new", "g", "f", 3, "2")
    for number in (0, 1, 2, 3):
        begin(conn, f"c{number}", call("f", version=number))
    found = [run_of(conn, f"c{number}") for number in (0, 1, 2, 3)]
    assert [one and one[:2] for one in found] == [("new", "2"), ("old", "1"), None, ("new", "2")]


def test_a_publication_finds_calls_that_wait(conn: Connection) -> None:
    """Those that no client has begun; the others stay with it."""
    for id_ in ("c", "begun", "mother"):
        begin(conn, id_)
    say(conn, "task.acquire", id="begun", version=0, pid="P", ttl=9)
    say(conn, "task.release", id="begun", version=1)
    make(conn, "mother.1", external="true")
    assert publish(conn, "w", "g", "f") == 1
    assert [run_of(conn, id_) is not None for id_ in ("c", "begun", "mother")] == [True, False, False]
    assert sorted(offered(conn)) == ["begun", "mother"]
    assert publish(conn, "w", "g", "f") == 0


def test_a_call_that_its_maker_acquires_stays_with_it(conn: Connection) -> None:
    """task.create: an SDK runs its own function, and its child ids are its own."""
    publish(conn, "w", "g", "f")
    action = envelope(
        "promise.create", {"id": "c", "timeoutAt": NEVER, "param": call(), "tags": tags(target="g")}
    )
    assert say(conn, "task.create", pid="P", ttl=9, action=action).task["state"] == "acquired"
    assert run_of(conn) is None


def test_a_call_under_a_fence(conn: Connection, clock: Clock) -> None:
    """The rpc of an SDK's workflow is one as well."""
    publish(conn, "w", "h", "f")
    take_task(conn, "t")
    clock.advance(5)
    fence(
        conn,
        "t",
        1,
        "promise.create",
        id="t:1",
        timeoutAt=NEVER,
        param=call(),
        tags=tags(target="poll://any@h"),
    )
    assert run_of(conn, "t:1") == ("w", "1", [], "queued")


def test_a_scheduled_call(conn: Connection, clock: Clock) -> None:
    """An occurrence is a call like any other."""
    publish(conn, "w", "g", "f")
    schedule = {
        "id": "s",
        "cron": "* * * * *",
        "promiseId": "{{.id}}-{{.timestamp}}",
        "promiseTimeout": 10**9,
    }
    say(
        conn,
        "schedule.create",
        **schedule,
        promiseParam=call("f", 5),
        promiseTags=tags(target="poll://any@g"),
    )
    clock.advance(60_000)
    ask(conn, ("select durable.tick()", ()))
    rows = conn.execute("select workflow, args from durable.runs").fetchall()
    assert rows == [("w", [5])]


def test_a_deadline_and_a_timer(conn: Connection, clock: Clock) -> None:
    """A timer with a target is no call; a call has the caller's deadline."""
    publish(conn, "w", "g", "f")
    begin(conn, "nap", timer="true")
    say(conn, "promise.create", id="c", timeoutAt=clock.now_ms + 50, param=call(), tags=tags(target="g"))
    assert run_of(conn, "nap") is None
    clock.advance(50)
    ask(conn, ("select durable.tick()", ()))
    assert say(conn, "promise.get", id="c").promise["state"] == "rejected_timedout"


def test_the_end_of_a_publication(conn: Connection) -> None:
    """Later calls are for clients; runs go on."""
    publish(conn, "w", "g", "f")
    begin(conn)
    assert ask(conn, ("select durable.unpublish('f', 'g')", ())) == (True,)
    assert ask(conn, ("select durable.unpublish('f', 'g')", ())) == (False,)
    begin(conn, "d")
    assert offered(conn) == ["d"]
    assert claim(conn, "W", "g").id == "c"


def test_a_service_behind_a_name(conn: Connection) -> None:
    """A function of the database answers calls, in the envelope; so it does under its own address."""
    conn.execute("create function public.twice(n integer) returns integer language sql as 'select 2 * n'")
    conn.execute("select durable.serve('public.twice(integer)')")
    publish(conn, "sql://public.twice", "g", "double")
    begin(conn, "named", call("double", 4))
    begin(conn, "direct", call("anything", 5), target="sql://public.twice")
    for _ in range(2):
        conn.execute("select durable.serve_v1(n.id) from durable.next_service_v1() n")
    values = [say(conn, "promise.get", id=id_).promise["value"]["data"] for id_ in ("named", "direct")]
    assert [json.loads(base64.b64decode(value)) for value in values] == [8, 10]


@pytest.mark.parametrize(
    "wrong",
    [
        ("w", "g", "f", 0),
        ("w", "g/h", "f", 1),
        ("w", "g", "", 1),
        ("w", "g", "f" * 257, 1),
        ("", "g", "f", 1),
    ],
)
def test_a_publication_refuses_what_is_malformed(conn: Connection, wrong: tuple[Any, ...]) -> None:
    """WF004."""
    assert refusal(conn, ("select durable.publish(%s, %s, %s, %s)", wrong)) == "WF004"


def test_an_unknown_workflow_is_not_published(conn: Connection) -> None:
    """Once workers have announced others."""
    conn.execute("insert into durable._workflows (seen_at, name, version) values (0, 'known', '1')")
    assert refusal(conn, ("select durable.publish('unknown', 'g')", ())) == "WF001"
    assert publish(conn, "known", "g") == 0
    row = conn.execute(
        "select name, version, queue, workflow, workflow_version from durable.published"
    ).fetchone()
    assert row == ("known", 1, "g", "known", "1")


def test_no_settlement_from_outside_ends_a_run(conn: Connection) -> None:
    """Its code does; clients, people and other tasks are refused, and nothing is written."""
    begin_run(conn, "r")
    take_task(conn, "t")
    for state in ("resolved", "rejected"):
        assert settle(conn, "r", state, data="NQ==").status == 409
        assert fence(conn, "t", 1, "promise.settle", id="r", state=state).status == 409
    for verb in ("resolve('r')", "reject('r')", "promise_settle('r', 'rejected_canceled')"):
        assert refusal(conn, (f"select durable.{verb}", ())) == "WF003"
    row = conn.execute("select * from durable.settle_many('{r}')").fetchone()
    assert row == ("r", "refused", "pending")
    assert events_of(conn, "r") == ["ExecutionStarted"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", None),
        (packed({"__type": "error", "name": "Error", "message": "enough"}), "enough"),
        (packed({"code": 7}), {"code": 7}),
    ],
)
def test_a_client_that_cancels_a_run_requests_it(conn: Connection, data: str, reason: Any) -> None:
    """It gets the run as it is; the code may clean up; the value is the reason."""
    held = begin_run(conn, "r")
    promise = settle(conn, "r", "rejected_canceled", data=data).promise
    assert promise["state"] == "pending"
    text = "select payload from durable.journal_events where id = 'r' and event = 'CancelRequested'"
    payload = conn.execute(text.encode())
    assert payload.fetchall() == [({"reason": reason},)]
    seen = take_turn(conn, "W", report(held, end=cancelled(), seen=2))
    assert seen.raw["verdicts"]
    assert settle(conn, "r", "rejected_canceled").promise["state"] == "rejected_canceled"


def test_a_run_that_never_began_is_cancelled_at_once(conn: Connection) -> None:
    """There is nothing to clean up."""
    conn.execute("select durable.start('w', id => 'r')")
    assert settle(conn, "r", "rejected_canceled").promise["state"] == "rejected_canceled"


def test_a_run_that_has_ended_answers_any_settlement(conn: Connection) -> None:
    """As any promise that is settled."""
    take_turn(conn, "W", report(begin_run(conn, "r"), end=complete("1")))
    for state in ("resolved", "rejected", "rejected_canceled"):
        assert settle(conn, "r", state).promise["state"] == "resolved"


@pytest.mark.session("its lock_timeout")
def test_a_publication_that_somebody_holds(dsn: str) -> None:
    """An open transaction over its row stops no call, no turn and no tick; only its own change waits."""
    with psycopg.connect(dsn, autocommit=True) as conn, psycopg.connect(dsn) as user:
        publish(conn, "w", "g", "f")
        user.execute("select from durable._published for update")
        conn.execute("set lock_timeout = '2s'")
        begin(conn)
        assert run_of(conn) is not None
        take_turn(conn, "W", report(claim(conn, "W", "g"), end=complete()))
        ask(conn, ("select durable.tick()", ()))
        assert publish(conn, "w", "g", "other") == 0
        with pytest.raises(psycopg.errors.LockNotAvailable):
            publish(conn, "new", "g", "f")
        user.rollback()
        assert publish(conn, "new", "g", "f") == 0


def test_no_client_executes_a_run(conn: Connection) -> None:
    """A program that would execute a call itself gets 409, upon which SDKs wait for the promise."""
    publish(conn, "w", "g", "f")
    begin(conn)
    new = {"id": "c", "timeoutAt": NEVER, "param": call(), "tags": tags(target="g")}
    answer = say(conn, "task.create", pid="P", ttl=9, action=envelope("promise.create", new))
    assert (answer.status, "is a run" in answer.data) == (409, True)
    assert claim(conn, "W", "g").id == "c"
