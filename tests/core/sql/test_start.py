"""Law: a start is one run for one id or key, whoever repeats it; a run tells its result when asked and goes
on when it is resumed."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    NEVER,
    Call,
    Connection,
    ask,
    begin_run,
    create,
    done,
    refusal,
    report,
    settle,
    start,
    take_turn,
    task_of,
)

OFF, DUE = "cancelled", "the deadline passed"


def test_start(conn: Connection, clock: Clock) -> None:
    """A start makes promise, task, head and ExecutionStarted; its defaults are queue default, version 1, no
    deadline."""
    ask(conn, ("select durable.start('hello', '[\"world\"]', id => 'r')", ()))
    row = ask(
        conn,
        (
            "select state, target, param_data, param_headers, timeout_at, created_at from durable._promises",
            (),
        ),
    )
    assert row == ("pending", "poll://any@default", '["world"]', {"codec": "json"}, NEVER, clock.now_ms)
    row = ask(
        conn,
        (
            "select state, version, queue, priority, workflow, workflow_version, retry_at from "
            "durable._tasks",
            (),
        ),
    )
    assert row == ("pending", 0, "default", 0, "hello", "1", clock.now_ms)
    assert ask(conn, ("select status, next_seq, next_child, key from durable._executions", ())) == (
        "running",
        1,
        0,
        None,
    )


def test_start_with_everything(conn: Connection, clock: Clock) -> None:
    """Queue, version, delay, timeout, priority, tags, tenant and key arrive where they belong."""
    ask(
        conn,
        (
            "select durable.start('w', '{\"n\": 1}', key => 'k', queue => 'q', version => '7', delay "
            "=> '2 s', "
            "timeout => '9 s', priority => -3, tags => '{\"team\": \"blue\"}', tenant => 'acme')",
            (),
        ),
    )
    row = ask(conn, ("select queue, workflow_version, retry_at, deadline, priority from durable._tasks", ()))
    assert row == ("q", "7", clock.now_ms + 2000, clock.now_ms + 9000, -3)
    assert ask(conn, ("select tags, tenant, timeout_at from durable._promises", ())) == (
        {"team": "blue"},
        "acme",
        clock.now_ms + 9000,
    )
    assert ask(conn, ("select tenant, key from durable._executions", ())) == ("acme", "k")
    assert ask(conn, ("select state, tags from durable.runs", ())) == ("scheduled", {"team": "blue"})


def plain(**named: Any) -> Call:
    """durable.start of workflow w with named arguments."""
    casts = {"args": "::jsonb", "delay": "::interval", "timeout": "::interval", "tags": "::jsonb"}
    arguments = ", ".join(f"{name} => %s{casts.get(name, '')}" for name in named)
    return f"select durable.start({arguments})", tuple(named.values())


@pytest.mark.parametrize(
    "call",
    [
        plain(workflow=""),
        plain(workflow=None),
        plain(workflow="x" * 257),
        plain(workflow="w", args='"text"'),
        plain(workflow="w", args="1"),
        plain(workflow="w", args=None),
        plain(workflow="w", id=""),
        plain(workflow="w", id="x" * 513),
        plain(workflow="w", queue=""),
        plain(workflow="w", queue="a/b"),
        plain(workflow="w", queue="a@b"),
        plain(workflow="w", queue="a b"),
        plain(workflow="w", version=""),
        plain(workflow="w", version=None),
        plain(workflow="w", timeout="0"),
        plain(workflow="w", timeout="-1 s"),
        plain(workflow="w", delay="-1 s"),
        plain(workflow="w", delay="5 s", timeout="5 s"),
        plain(workflow="w", tags='{"resonate:timer": "true"}'),
        (
            "select from durable.start_v1('w', '?', 'r', null, 'q', '1', null, null, 0, '{}', '', true)",
            (),
        ),
    ],
    ids=lambda call: str(call[1])[:40] or "no json",
)
def test_malformed_starts(conn: Connection, call: Call) -> None:
    """A malformed start is WF004 and leaves nothing."""
    assert refusal(conn, call) == "WF004"
    assert conn.execute("select from durable._promises").fetchall() == []


AGAIN: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "same id": ({"id": "r"}, {"id": "r"}, ""),
    "same id, same input in other words": (
        {"id": "r", "args": '{"a": 1, "b": 2}'},
        {"id": "r", "args": '{"b":2,"a":1}'},
        "",
    ),
    "same id, other input": ({"id": "r", "args": "[1]"}, {"id": "r", "args": "[2]"}, "WF009"),
    "same id, other workflow": ({"id": "r"}, {"id": "r", "workflow": "v"}, "WF009"),
    "same id, other tenant": ({"id": "r", "tenant": "a"}, {"id": "r", "tenant": "b"}, "WF009"),
    "same key": ({"key": "k"}, {"key": "k"}, ""),
    "same key, other input": ({"key": "k", "args": "[1]"}, {"key": "k", "args": "[2]"}, "WF009"),
    "same key, its id": ({"key": "k", "id": "r"}, {"key": "k", "id": "r"}, ""),
    "same key, id left out": ({"key": "k", "id": "r"}, {"key": "k"}, ""),
    "same key, other id": ({"key": "k", "id": "r"}, {"key": "k", "id": "s"}, "WF009"),
}


@pytest.mark.parametrize("name", AGAIN)
@pytest.mark.parametrize("over", [False, True], ids=["pending", "settled"])
def test_start_again(conn: Connection, name: str, over: bool) -> None:
    """The same id or key is the same run as long as workflow, tenant and input agree, ended or not;
    otherwise WF009."""
    first, second, code = AGAIN[name]
    (id_,) = ask(conn, plain(**{"workflow": "w", **first}))
    if over:
        ask(conn, settle(id_))
    assert refusal(conn, plain(**{"workflow": "w", **second})) == code
    if not code:
        assert ask(conn, plain(**{"workflow": "w", **second})) == (id_,)
    assert len(conn.execute("select from durable._executions").fetchall()) == 1


def test_keys_are_of_a_tenant_and_a_workflow(conn: Connection) -> None:
    """The same key with another tenant or workflow is another run; without a key every start is."""
    ids = {
        ask(conn, plain(workflow=workflow, key="k", tenant=tenant))[0]
        for workflow in ("v", "w")
        for tenant in ("", "acme")
    }
    ids |= {ask(conn, plain(workflow="w"))[0] for _ in range(3)}
    assert len(ids) == 7
    assert all(len(id_) == 32 for id_ in ids)


def test_a_generated_id_is_a_function_of_its_parts(conn: Connection) -> None:
    """Parts are hashed with their lengths, so that no two divisions of one text give one id."""
    names = (
        "select durable._root_id('a', 'bc', 'd'), durable._root_id('ab', 'c', 'd'),"
        " durable._root_id('a', 'bc', 'd')"
    )
    one, other, again = ask(conn, (names, ()))
    assert one == again != other


def test_an_id_of_a_promise_is_no_run(conn: Connection) -> None:
    """A start whose id belongs to a promise without a journal is WF003."""
    ask(conn, create("p", target="g"))
    assert refusal(conn, start("p")) == "WF003"


def test_an_id_below_a_run_is_reserved(conn: Connection) -> None:
    """Only the run itself may give such ids; below what is no run they are ids as others."""
    ask(conn, plain(workflow="w", id="r"))
    for taken in ("r.5", "r.5.0"):
        assert refusal(conn, plain(workflow="w", id=taken)) == "WF004"
    for free in ("r.x", "s.5", "s.x.0"):
        assert ask(conn, plain(workflow="w", id=free)) == (free,)


def test_a_rolled_back_start_leaves_nothing(dsn: str) -> None:
    """A start is part of the caller's transaction."""
    with psycopg.connect(dsn) as own:
        own.execute("select durable.start('w', id => 'r', key => 'k')")
        own.rollback()
        for table in ("_promises", "_tasks", "_executions", "_journal"):
            assert own.execute(f"select count(*) from durable.{table}".encode()).fetchone() == (0,)


def test_start_v1_reports_whether_it_started(conn: Connection) -> None:
    """Our clients learn whether the run was made by their call."""
    call = (
        "select id, created "
        "from durable.start_v1('w', '[]', 'r', null, 'q', '1', null, null, 0, '{}', '', true)",
        (),
    )
    assert ask(conn, call) == ("r", True)
    assert ask(conn, call) == ("r", False)


def test_result(conn: Connection, clock: Clock) -> None:
    """State, value or error as JSON, now; a run past its deadline is settled by the question."""
    for name in ("ok", "bad", "off"):
        ask(conn, start(name))
    ask(conn, start("late", timeout="1 s"))
    ask(conn, settle("ok", '{"a": 1}'))
    ask(conn, settle("bad", '{"type": "Boom"}', state="rejected"))
    ask(conn, ("select durable._settle_promise('off', 'rejected_canceled', null, null)", ()))
    clock.advance(1000)
    results = {
        name: ask(conn, ("select * from durable.result(%s)", (name,)))
        for name in ("ok", "bad", "off", "late")
    }
    assert results == {
        "ok": ("resolved", {"a": 1}, None),
        "bad": ("rejected", None, {"type": "Boom"}),
        "off": ("rejected_canceled", None, {"type": "Cancelled", "kind": "Cancelled", "message": OFF}),
        "late": ("rejected_timedout", None, {"type": "Timeout", "kind": "Timeout", "message": DUE}),
    }
    assert refusal(conn, ("select durable.result('none')", ())) == "WF001"
    assert task_of(conn, "late") is None


def test_results_of_many(conn: Connection, clock: Clock) -> None:
    """Only what is settled or unknown is answered, as text; what is due is settled first, so the answer
    never changes."""
    for name in ("ok", "bad", "open"):
        ask(conn, start(name))
    ask(conn, start("late", timeout="1 s"))
    ask(conn, settle("ok", "1"))
    ask(conn, settle("bad", '{"type": "Boom"}', state="rejected"))
    clock.advance(1000)
    rows = conn.execute("select * from durable.results_v1('{ok,bad,open,late,none}') order by id").fetchall()
    assert rows == [
        ("bad", "rejected", None, '{"type": "Boom"}'),
        (
            "late",
            "rejected_timedout",
            None,
            '{"type": "Timeout", "kind": "Timeout", "message": "the deadline passed"}',
        ),
        ("none", None, None, None),
        ("ok", "resolved", "1", None),
    ]
    assert ask(conn, ("select state from durable._promises where id = 'late'", ())) == ("rejected_timedout",)
    assert conn.execute("select * from durable.results_v1('{}')").fetchall() == []


def test_version_lists_the_protocols(conn: Connection) -> None:
    """Programs learn the schema's version and the worker protocols it serves."""
    schema, lowest, highest = ask(conn, ("select * from durable.version()", ()))
    assert schema >= 0
    assert (lowest, highest) == (1, 1)


def test_an_absurd_timeout_is_never(conn: Connection) -> None:
    """A timeout beyond the last instant means no deadline."""
    ask(conn, start("r", timeout="200000 years"))
    ask(conn, start("s", timeout="290000 years"))
    assert ask(conn, ("select timeout_at from durable._promises where id = 's'", ())) == (NEVER,)


def test_resume(conn: Connection) -> None:
    """A halted run is ready again with its journal; one that is not halted is WF003."""
    held = begin_run(conn, "r")
    take_turn(
        conn,
        "W",
        report(held, outcomes=[done(0)], end={"do": "halt", "problem": '{"type": "Nondeterminism"}'}),
    )
    assert ask(conn, ("select state, problem from durable.runs", ())) == (
        "halted",
        {"type": "Nondeterminism"},
    )
    ask(conn, ("select durable.resume('r')", ()))
    assert refusal(conn, ("select durable.resume('r')", ())) == "WF003"
    assert refusal(conn, ("select durable.resume('none')", ())) == "WF001"
    again = take_turn(conn, "V", want=1, queues=["q-r"]).tasks[0]
    assert [row[1] for row in again.rows] == ["execution_started", "step_completed"]


@pytest.mark.parametrize(
    "option",
    [
        "priority => 100000",
        "priority => null",
        "tags => null",
        "tags => '[]'",
        "tags => '{\"a\": 1}'",
        "tenant => null",
        "key => ''",
        "key => repeat('k', 513)",
        "queue => repeat('q', 257)",
        "delay => '-1 s'",
        "timeout => '0 s'",
    ],
)
def test_options_are_checked_first(conn: Connection, option: str) -> None:
    """A malformed option of a start is WF004, and nothing is written."""
    assert refusal(conn, (f"select durable.start('hello', '[]', id => 'o', {option})", ())) == "WF004"
    assert ask(conn, ("select count(*) from durable._promises", ())) == (0,)


def test_an_id_keeps_its_key(conn: Connection) -> None:
    """A start that names a run by its id with another idempotency key is a conflict; without a key it is the
    same run."""
    first = "select durable.start('hello', '[]', id => 'k', key => 'one')"
    assert ask(conn, (first, ())) == ("k",)
    assert ask(conn, (first, ())) == ("k",)
    assert ask(conn, ("select durable.start('hello', '[]', id => 'k')", ())) == ("k",)
    assert refusal(conn, ("select durable.start('hello', '[]', id => 'k', key => 'two')", ())) == "WF009"


def test_far_instants_are_null(conn: Connection) -> None:
    """What lies beyond the year 9999 is shown as null, so that every driver can read the views."""
    assert ask(conn, ("select durable._at(253402300800000) is null", ())) == (True,)
    assert ask(conn, ("select isfinite(durable._at(253402300799000))", ())) == (True,)


def register(conn: Connection, *workflows: str) -> None:
    """Let a worker say hello that can run these."""
    names = list(workflows)
    ask(conn, ("select durable.worker_hello_v1('W', '{q}', %s, %s, '{}')", (names, ["1"] * len(names))))


def test_a_name_that_no_worker_registered_is_refused(conn: Connection) -> None:
    """Before the first worker every name is taken; then a stranger is WF001, with names like it, unless the
    caller insists or the setting says so. A worker that left is remembered."""
    ask(conn, start("before", workflow="helo"))
    register(conn, "hello", "other")
    ask(conn, ("select durable.worker_bye_v1('W')", ()))
    ask(conn, start("known", workflow="hello"))
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        ask(conn, start("stranger", workflow="helo"))
    assert caught.value.sqlstate == "WF001"
    assert "'helo'" in (caught.value.diag.message_primary or "")
    assert "'hello', 'other'" in (caught.value.diag.message_hint or "")
    ask(conn, start("insisting", workflow="helo", any_workflow=True))
    ask(conn, ("select durable.set_setting('unknown_workflow', 'queue')", ()))
    ask(conn, start("queued", workflow="helo"))
    ids = conn.execute("select id from durable.runs order by id").fetchall()
    assert ids == [("before",), ("insisting",), ("known",), ("queued",)]
