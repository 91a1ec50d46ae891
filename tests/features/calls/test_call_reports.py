"""Law: reports are checked, an outcome is stored once, only a DAG that is here counts (9, 12, 13, 25)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.features.calls.scene import F, Scene, refusal
from tests.support.clock import Clock

OTHER = "dml+exec://fake/g"


@pytest.mark.parametrize(
    "report",
    [
        {},
        {"class": "finished"},
        {"class": "pending"},
        {"class": "pending", "token": ""},
        {"class": "pending", "token": 7},
        {"class": "pending", "token": "t", "poll_after_ms": "soon"},
        {"class": "pending", "token": "t", "started_at": -1},
        {"class": "done", "result": "ab" * 32},
        {"class": "done", "outcome": "fine", "result": "ab" * 32},
        {"class": "done", "outcome": "ok"},
        {"class": "done", "outcome": "ok", "result": "AB" * 32},
        {"class": "done", "outcome": "ok", "error": {"message": "no"}},
        {"class": "failed", "error": {"code": "x"}},
        {"class": "failed", "retryable": True},
        {"class": "failed", "retryable": True, "error": {"message": "x"}},
    ],
)
def test_s25_malformed_reports_are_refused(scene: Scene, report: dict[str, Any]) -> None:
    """The lease stays, and nothing is stored."""
    answer = scene.begin()
    (document,) = scene.lease()
    assert refusal(scene.conn, lambda: scene.report(document, **report)).startswith("WF004")
    assert scene.count("_call_polls") == 0
    assert scene.state(answer) == "poll_adapter"
    assert scene.done(document) == "completed_ok"


def test_s25_a_broken_answer_ends_the_attempt(scene: Scene) -> None:
    """The worker reports it as not retryable; nothing is cached, and the next call runs again."""
    answer = scene.begin()
    (document,) = scene.lease()
    assert scene.failed(document, "adapter_protocol", retryable=False) == "failed_terminal"
    assert scene.promise(answer)[1]["data"]["code"] == "adapter_protocol"
    assert scene.begin()["at"] == "started"
    assert scene.count("call_attempts") == 2


def test_many_reports_in_one_round_trip(scene: Scene) -> None:
    """One that is refused takes no other back."""
    for number in range(4):
        scene.begin([number])
    documents = scene.lease(most=3)
    assert len(documents) == 3
    reports = [
        {**each, "class": "pending", "token": "t", "poll_after_ms": 0, "version": each["version"] + shift}
        for each, shift in zip(documents, (0, 1, 0), strict=True)
    ]
    answers = [row[0] for row in scene.all("select * from durable.call_reports_v1(%s)", json.dumps(reports))]
    assert [each.get("state") or each["error"] for each in answers] == [
        "poll_adapter",
        "WF002",
        "poll_adapter",
    ]
    assert len(scene.lease()) == 3


def test_s12_the_result_comes_late(scene: Scene, clock: Clock) -> None:
    """The outcome waits for its objects; the adapter is not asked again."""
    answer = scene.begin()
    (document,) = scene.lease()
    with scene.conn.transaction(force_rollback=True):
        dag = scene.dag("late")
    late = {"class": "done", "outcome": "ok", "result": dag.hex()}
    assert scene.report(document, **late) == "integrate_ok"
    assert scene.integrate(document) == "retry_wait"
    assert scene.state(answer) == "retry_wait"
    clock.advance(1000)
    (document,) = scene.lease()
    assert document["phase"] == "integrate_ok"
    scene.dag("late")
    assert scene.integrate(document) == "completed_ok"
    assert len(scene.polls) == 1


def test_a_failure_is_integrated_in_its_own_state(scene: Scene, clock: Clock) -> None:
    """A failure whose DAG comes late waits for it, goes on in integrate_error, and is pinned as a failure."""
    answer = scene.begin()
    (document,) = scene.lease()
    with scene.conn.transaction(force_rollback=True):
        dag = scene.dag({"message": "late"})
    late = {"class": "done", "outcome": "error", "result": dag.hex()}
    assert scene.report(document, **late) == "integrate_error"
    assert scene.integrate(document) == "retry_wait"
    assert scene.count("_pins") == 0 and scene.promise(answer)[0] == "pending"
    clock.advance(1000)
    (document,) = scene.lease()
    assert document["phase"] == "integrate_error"
    scene.dag({"message": "late"})
    assert scene.integrate(document) == "completed_error"
    again = scene.begin()
    assert (again["at"], again["status"], again["dag"]) == ("pinned_hit", "error", dag.hex())
    assert len(scene.polls) == 1


def test_the_document_names_the_call(scene: Scene) -> None:
    """Node, function, inputs, attempt, snapshot and token, as the adapter gets them."""
    nodes = [scene.literal(1), scene.literal(2)]
    answer = scene.begin(nodes)
    (document,) = scene.lease()
    assert document["node"] == answer["node"]
    assert document["function"] == F
    assert document["inputs"] == [node.hex() for node in nodes]
    assert document["execution_uuid"] == str(scene.one("select uuid from durable._call_attempts"))
    assert document["token"] is None and "snapshot" in document
    scene.pending(document, "t1", poll_after_ms=0)
    assert scene.lease()[0]["token"] == "t1"


def test_a_result_that_never_comes_uses_the_budget(scene: Scene, clock: Clock) -> None:
    """It is a failure like others."""
    answer = scene.begin(request={"retries": 1})
    (document,) = scene.lease()
    scene.report(document, **{"class": "done", "outcome": "ok", "result": "ab" * 32})
    assert scene.integrate(document) == "retry_wait"
    clock.advance(1000)
    assert scene.integrate(scene.lease()[0]) == "failed_terminal"
    assert scene.promise(answer)[1]["data"]["code"] == "retry_budget_exhausted"


def test_s09_a_report_after_done_changes_nothing(scene: Scene) -> None:
    """The stored outcome stays."""
    answer = scene.begin()
    (document,) = scene.lease()
    assert scene.done(document, integrate=False) == "integrate_ok"
    assert scene.pending(document) == "already_done"
    assert scene.done(document, 8, outcome="error") == "already_done"
    assert scene.failed(document) == "already_done"
    assert scene.state(answer) == "integrate_ok"
    assert scene.integrate(document) == "completed_ok"
    assert scene.begin()["dag"] == scene.dag(7).hex()


@pytest.mark.parametrize("outcome", ["ok", "error"])
def test_s13_done_must_name_a_dag(scene: Scene, outcome: str) -> None:
    """A node is no result: the attempt ends, and nothing is cached."""
    answer = scene.begin()
    (document,) = scene.lease()
    literal = scene.literal(7).hex()
    report = {"class": "done", "outcome": outcome, "result": literal}
    assert scene.report(document, **report) == "failed_terminal"
    state, error = scene.promise(answer)
    assert (state, error["data"]["code"]) == ("rejected", "result_invalid")
    assert scene.count("_pins") == 0 and scene.count("_objects where kind = 'exec'") == 0
    assert scene.begin()["generation"] == 1


def test_short_forms_are_what_a_publisher_would_have_put(scene: Scene) -> None:
    """A value or an error in the report becomes a DAG with one literal, with the same id."""
    answers = [scene.begin([number]) for number in range(2)]
    leased = {each["execution_key"]: each for each in scene.lease()}
    first, second = (leased[each["execution_key"]] for each in answers)
    report: dict[str, Any] = {"class": "done", "outcome": "ok", "value": {"i64": 7}}
    assert scene.report(first, **report) == "completed_ok"
    assert scene.begin([0])["dag"] == scene.dag(7).hex()
    error = {"message": "no", "type": "Oops"}
    assert scene.report(second, **{"class": "done", "outcome": "error", "error": error}) == "completed_error"
    assert scene.begin([1])["dag"] == scene.dag(error).hex()


def test_objects_come_with_a_report(scene: Scene) -> None:
    """They are put before the result is looked for; a wrong id takes all of it back."""
    scene.begin()
    (document,) = scene.lease()
    with scene.conn.transaction(force_rollback=True):
        dag = scene.dag("inline")
        manifest = scene.one("select durable.objects_export(array[%s::bytea])", dag)
    objects = manifest["objects"]
    report = {"class": "done", "outcome": "ok", "result": dag.hex()}
    wrong = [{**objects[0], "id": "ab" * 32}, *objects[1:]]
    assert refusal(scene.conn, lambda: scene.report(document, **report, objects=wrong)).startswith("WF004")
    assert scene.report(document, **report, objects=objects) == "completed_ok"
    assert scene.begin()["dag"] == dag.hex()


TOKEN = "job-0123456789abcdef"


@pytest.mark.parametrize("outcome", ["ok", "error"])
def test_a_token_stands_in_its_attempt_alone(scene: Scene, clock: Clock, outcome: str) -> None:
    """It may be a secret: the executor puts it into no object, promise, journal or message of its own."""
    answer = scene.begin()
    scene.pending(scene.lease()[0], TOKEN, poll_after_ms=0)
    clock.advance(10)
    scene.done(scene.lease()[0], outcome=outcome)
    assert scene.state(answer) == f"completed_{outcome}"
    tables = "select tablename from pg_tables where schemaname = 'durable' order by tablename"
    told = []
    for (table,) in scene.all(tables):
        rows = f"select count(*) from durable.{table} x where strpos(x::text, %s) > 0"
        bytes_ = f"select count(*) from durable.{table} x where strpos(x::text, encode(%s, 'hex')) > 0"
        if scene.one(rows, TOKEN) + scene.one(bytes_, TOKEN.encode()) > 0:
            told.append(table)
    assert told == ["_call_attempts"]


def test_a_result_may_name_its_job(scene: Scene, clock: Clock) -> None:
    """An adapter whose token is the id of its job returns that id: a value is what its user chooses."""
    scene.begin()
    scene.pending(scene.lease()[0], TOKEN, poll_after_ms=0)
    clock.advance(10)
    assert scene.done(scene.lease()[0], TOKEN) == "completed_ok"
    assert scene.all("select law from durable.check()") == []


@pytest.mark.parametrize(
    ("pending", "shown"),
    [
        ({"progress": 0.4, "message": "reading"}, "40 %: reading"),
        ({"progress": 1}, "100 %"),
        ({"message": "reading"}, "reading"),
        ({}, None),
    ],
)
def test_progress_is_shown(scene: Scene, pending: dict[str, Any], shown: str | None) -> None:
    """How far a job is stands before the message of its poll, which people are shown."""
    scene.begin()
    (document,) = scene.lease()
    assert scene.report(document, **{"class": "pending", "token": "t", **pending}) == "poll_adapter"
    assert scene.one("select message from durable._call_polls") == shown
