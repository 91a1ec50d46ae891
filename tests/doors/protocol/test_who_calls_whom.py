"""Law: workflows, services in SQL and programs of the Python and the TypeScript SDK call each other, await
and settle what the others made, get errors by their message, and cancel.

cells.toml has the whole table: for each cell the test, or why the cell cannot be. The SDKs have no message of
cancellation: the promise is settled as cancelled, and the code runs on until its next durable call, so of a
cancelled function of theirs only the fence is seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from pytest_postgresql.executors import NoopExecutor

from tests.support.cluster import Server, installed_database, of_worker
from tests.support.gateway import Gateway
from tests.support.sdk_house import LANGUAGES, SCENES, UNSETTLED, House
from tests.support.sdks import Sdk
from tests.system.crash.processes import worker

JOB = "tests.doors.protocol.calls_job:app"
# one of them by default, both with --full
ONE = (pytest.param("python", marks=pytest.mark.full), "typescript")
# who of the SDKs, and whom
PAIRS = [(who, whom) for who in LANGUAGES for whom in LANGUAGES]
QUEUES = ("default", "ours", *(f"{language}-mixed" for language in LANGUAGES))
SERVICES = """
create function public.add_up(a integer, b integer) returns integer language sql as 'select a + b';
create function public.refuse(n integer) returns integer language plpgsql as $$
begin raise exception '% is refused', n; end $$;
create function public.later(n integer) returns integer language plpgsql as $$
begin raise exception 'not now'; end $$;
create function public.begin(workflow text, args jsonb) returns text language sql as $$
select durable.start(begin.workflow, begin.args) $$;
create function public.say_yes(id text) returns text language sql as $$
select durable.resolve(say_yes.id, '"yes"') $$;
select durable.serve('public.add_up(integer, integer)');
select durable.serve('public.refuse(integer)', attempts => 1);
select durable.serve('public.later(integer)', attempts => 2, backoff => '1 hour');
select durable.serve('public.begin(text, jsonb)');
select durable.serve('public.say_yes(text)');
"""
# a service whose first attempt failed waits for its next one
POSTPONED = """
select t.id from durable.tasks t
where t.id = %s and t.state = 'pending' and t.version > 0 and t.retry_at > now()
"""
LISTENING = "select 1 from durable._listeners where awaited_id = %s and address like 'poll://uni@%%/' || %s"
OPEN = "select id from durable.promises where id like %s and state = 'pending' and target is null"


@pytest.fixture(scope="module")
def street(
    server: Server,
    template: NoopExecutor,
    sdk: Callable[[str], Sdk],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[House]:
    """A gateway, a worker of ours, published workflows and a published service."""
    with ExitStack() as stack:
        dsn = stack.enter_context(installed_database(server, of_worker("calls"), template.template_dbname))
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        conn.execute(SERVICES)
        for name in ("add", "greet", "fail", "nap", "question"):
            conn.execute("select durable.publish(%s, 'ours', %s)", (f"ours.{name}", name))
        for service, name in (("add_up", "add"), ("refuse", "refuse"), ("later", "later")):
            conn.execute("select durable.publish(%s, 'sums', %s)", (f"sql://public.{service}", name))
        for language in LANGUAGES:
            conn.execute("select durable.publish('ours.add', %s, 'add')", (f"{language}-mixed",))
        options = [option for queue in QUEUES for option in ("--queue", queue)]
        stack.enter_context(worker(dsn, *options, job=JOB))
        house = House(stack.enter_context(Gateway(dsn)).url, conn, sdk, tmp_path_factory.mktemp("calls"))
        stack.callback(house.end)
        yield house


def begin(house: House, workflow: str, *args: Any, id_: str | None = None) -> str:
    """Start a workflow of ours."""
    text = "select durable.start(%s, %s, id => %s)"
    row = house.conn.execute(text, (workflow, json.dumps(args), id_)).fetchone()
    assert row is not None
    return str(row[0])


def result(house: House, id_: str) -> Any:
    """Its value, once it has one."""
    return house.until("select value from durable.result(%s) where state = 'resolved'", id_)


def waiting(house: House, id_: str) -> str:
    """A run of ours, once it waits."""
    return str(house.until("select id from durable.runs where id = %s and state = 'waiting'", id_))


def test_a_workflow_calls_workflows_and_services(house: House) -> None:
    """It gets values, and errors by their message."""
    calls = [["ours.add", [2, 3]], ["sql://public.add_up", [2, 3]], ["ours.fail", []]]
    sums = result(house, begin(house, "ours.relay", [*calls, ["sql://public.refuse", [7]]]))
    assert sums[:2] == [5, 5]
    assert "no luck" in sums[2]["error"]
    assert "7 is refused" in sums[3]["error"]


def test_a_workflow_awaits_and_settles_what_others_began(house: House) -> None:
    """A run of a workflow that waits for a promise, which another workflow settles; a run of a service."""
    asked = begin(house, "ours.question")
    awaits = waiting(house, begin(house, "ours.wait", asked))
    result(house, begin(house, "ours.say_yes", house.until(OPEN, f"{asked}.%")))
    assert result(house, awaits) == "they said yes"
    summed = begin(house, "sql://public.add_up", 2, 3)
    assert result(house, begin(house, "ours.wait", summed)) == 5


def test_a_service_calls_and_settles(house: House) -> None:
    """It starts a workflow or a service, whose result is read later, and settles what a workflow waits for.
    psql waits for each of them."""
    for workflow in ("ours.add", "sql://public.add_up"):
        begun = result(house, begin(house, "sql://public.begin", workflow, [2, 3]))
        row = house.conn.execute("call durable.wait(%s)", (begun,)).fetchone()
        assert row == ("resolved", 5, None)
    for workflow, args, said in (("ours.fail", [], "no luck"), ("sql://public.refuse", [7], "7 is refused")):
        begun = result(house, begin(house, "sql://public.begin", workflow, args))
        row = house.conn.execute("call durable.wait(%s)", (begun,)).fetchone()
        assert row is not None and row[0] == "rejected"
        assert said in row[2]["message"]
    asked = begin(house, "ours.question")
    assert result(house, begin(house, "sql://public.say_yes", house.until(OPEN, f"{asked}.%"))) == "resolved"
    assert result(house, asked) == "they said yes"


@pytest.mark.parametrize(("name", "args"), [("ours.nap", [600_000]), ("sql://public.later", [7])])
def test_sql_cancels_what_a_workflow_called(house: House, name: str, args: list[Any]) -> None:
    """The cancellation of a run reaches the workflow or the service that it called; one of the called run
    reaches the caller as an error."""
    for parent in (True, False):
        calling = begin(house, "ours.relay", [[name, args]])
        called = house.until("select id from durable.runs where id like %s", f"{calling}.%")
        if name == "ours.nap":
            waiting(house, called)
        else:
            house.until(POSTPONED, called)
        house.conn.execute("select durable.cancel(%s)", (calling if parent else called,))
        house.until("select id from durable.runs where id = %s and state = 'cancelled'", called)
        if parent:
            house.until("select id from durable.runs where id = %s and state = 'cancelled'", calling)
        else:
            assert "ancel" in result(house, calling)[0]["error"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_workflow_calls_an_sdk(house: House, language: str) -> None:
    """It gets the value, and the error by its message."""
    group = house.worker(language)
    runs = [begin(house, "ours.call", group, "add", [2, 3]), begin(house, "ours.call", group, "fail", [])]
    assert result(house, runs[0]) == 5, house.said()
    assert "no luck" in result(house, runs[1])["error"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_sdk_calls_workflows_and_services(house: House, language: str) -> None:
    """A published name answers as a function of an SDK does: the value, the error, once for an id."""
    asking = house.begin(language, "ours", "ask", f"{language}-ours-", "rpc", "rejected", "again", "sleep")
    assert asking.answers() == [5, "no luck", [2, 2], "awake"], house.said()
    summing = house.begin(language, "sums", "ask", f"{language}-sums-", "rpc")
    assert summing.answers() == [5], house.said()
    text = "select workflow from durable.runs where id = any (%s) order by id"
    ids = [f"{language}-{group}-rpc" for group in ("ours", "sums")]
    assert house.conn.execute(text, (ids,)).fetchall() == [("ours.add",), ("sql://public.add_up",)]


@pytest.mark.parametrize("language", ONE)
def test_an_sdk_is_told_of_errors(house: House, language: str) -> None:
    """A client and a workflow of an SDK get the error of a service by its message, whether it is called by
    its published name or by its address, and a workflow that of a function of ours and of the other SDK."""
    asking = house.begin(language, "sums", "call", f"{language}-refused", "refuse", "[7]")
    assert asking.answers() == [{"error": "7 is refused"}], house.said()
    (other,) = {*LANGUAGES} - {language}
    calls = [
        ("poll://any@sums", "refuse", [7]),
        ("sql://public.refuse", "refuse", [8]),
        ("poll://any@ours", "fail", []),
        (f"poll://any@{house.worker(other)}", "fail", []),
        (f"poll://any@{other}", "add", [2, 3]),
    ]
    group = house.worker(language)
    asking = house.begin(language, group, "call", f"{language}-told", "relay", json.dumps([calls]))
    ((*errors, sum_),) = asking.answers()
    said = ("7 is refused", "8 is refused", "no luck", "no luck")
    assert errors == [{"error": each} for each in said], house.said()
    assert sum_ == 5


@pytest.mark.parametrize("language", ONE)
def test_sql_reads_the_error_of_an_sdk(house: House, language: str) -> None:
    """durable.promises has it decoded as the SDK wrote it, durable.result in the form of the engine."""
    failed = f"{language}-failed"
    asking = house.begin(language, house.worker(language), "call", failed, "fail", "[]")
    assert asking.answers() == [{"error": "no luck"}], house.said()
    text = "select state, value ->> '__type', value ->> 'message' from durable.promises where id = %s"
    assert house.conn.execute(text, (failed,)).fetchone() == ("rejected", "error", "no luck")
    text = "select state, error ->> 'type', error ->> 'message' from durable.result(%s)"
    assert house.conn.execute(text, (failed,)).fetchone() == ("rejected", "Error", "no luck")
    row = house.conn.execute("call durable.wait(%s)", (failed,)).fetchone()
    assert row is not None and row[2]["message"] == "no luck"


@pytest.mark.parametrize("language", ONE)
def test_an_sdk_calls_ours_with_names(house: House, language: str) -> None:
    """A workflow that takes arguments by name gets them. The Python SDK sends them with each call, the
    TypeScript SDK in promises that are made by hand; what comes by position is refused with a sentence."""
    asking = house.begin(language, "ours", "ask", f"{language}-", "named")
    ((right, refused),) = asking.answers()
    assert right == "hello ANN", house.said()
    assert "workflow ours.greet: too many positional arguments" in refused


@pytest.mark.parametrize("language", ONE)
def test_an_sdk_runs_what_is_a_run_of_ours(house: House, language: str) -> None:
    """The id is that of a run which exists, and runs or has ended: the SDK executes nothing, and gets what
    our run comes to, its error too."""
    prefixes = [f"{language}-{state}-" for state in ("open", "ended", "failed")]
    awaited = f"{language}-awaited"
    house.conn.execute("select durable.promise_create(%s, 9e15::bigint)", (awaited,))
    open_ = begin(house, "ours.wait", awaited, id_=f"{prefixes[0]}run")
    ended = begin(house, "ours.add", 40, 2, id_=f"{prefixes[1]}run")
    failed = begin(house, "ours.fail", id_=f"{prefixes[2]}run")
    assert result(house, ended) == 42
    house.until("select state from durable.runs where id = %s and state = 'failed'", failed)
    holding, having, failing = (house.begin(language, "ours", "ask", each, "run") for each in prefixes)
    assert having.answers() == [42], house.said()
    house.until(
        "select address from durable._listeners where awaited_id = %s and address like 'poll://uni@%%'", open_
    )
    house.conn.execute("select durable.resolve(%s, '7')", (awaited,))
    assert holding.answers() == [7], house.said()
    with pytest.raises(AssertionError, match="no luck"):
        failing.answers()


@pytest.mark.parametrize("language", ONE)
def test_a_workflow_of_an_sdk_calls_ours(house: House, language: str) -> None:
    """In a group that both serve: the published name is ours, all other functions are of the SDK."""
    group = f"{language}-mixed"
    house.begin(language, group, "worker")
    asking = house.begin(language, group, "ask", f"{language}-mixed-", "fan-out")
    assert asking.answers() == [SCENES["fan-out"]], house.said()
    row = house.conn.execute(
        "select count(*) from durable.runs where workflow = 'ours.add' and queue = %s", (group,)
    ).fetchone()
    assert row == (20,)


@pytest.mark.parametrize("language", ONE)
def test_an_sdk_awaits_and_settles_ours(house: House, language: str) -> None:
    """It awaits a run of ours, settles the promise that the run waits for, and gets errors by message. It
    awaits a run of a service too."""
    asked = begin(house, "ours.question")
    failed = begin(house, "ours.fail")
    summed = begin(house, "sql://public.add_up", 2, 3)
    open_ = house.until(OPEN, f"{asked}.%")
    awaiting = house.begin(language, "ours", "await", asked, failed, summed)
    assert house.begin(language, "ours", "settle", open_, "yes").answers() == []
    said, error, sum_ = awaiting.answers()
    assert said == "they said yes", house.said()
    assert "no luck" in error["error"]
    assert sum_ == 5


@pytest.mark.parametrize("language", ONE)
def test_ours_awaits_and_settles_what_an_sdk_made(house: House, language: str) -> None:
    """A workflow of ours waits for a call of an SDK, and another one, or a service, settles the promise that
    the call waits for. psql waits for the call too."""
    group = house.worker(language)
    for by in ("ours.say_yes", "sql://public.say_yes"):
        asking = house.begin(language, group, "ask", f"{language}-{by[:3]}-", "human")
        called = house.until("select id from durable.promises where id = %s", f"{language}-{by[:3]}-human")
        awaits = begin(house, "ours.wait", called)
        result(house, begin(house, by, house.until(OPEN, f"{called}:%")))
        assert asking.answers() == ["they said yes"], house.said()
        assert result(house, awaits) == "they said yes"
        row = house.conn.execute("call durable.wait(%s)", (called,)).fetchone()
        assert row == ("resolved", "they said yes", None)


@pytest.mark.full
@pytest.mark.parametrize(("who", "whom"), PAIRS)
def test_an_sdk_awaits_and_settles_what_another_made(house: House, who: str, whom: str) -> None:
    """A program awaits a workflow that another program called, and settles the promise for which the
    workflow waits; both get what it comes to."""
    group = house.worker(whom)
    asking = house.begin(whom, group, "ask", f"{who}-{whom}-", "human")
    called = f"{who}-{whom}-human"
    open_ = house.until(UNSETTLED, called)
    awaiting = house.begin(who, group, "await", called)
    house.until(LISTENING, called, awaiting.pid)
    assert house.begin(who, group, "settle", open_, "yes").answers() == []
    assert [*asking.answers(), *awaiting.answers()] == ["they said yes"] * 2, house.said()


@pytest.mark.full
@pytest.mark.parametrize(("who", "whom"), PAIRS)
def test_an_sdk_cancels_what_another_called(house: House, who: str, whom: str) -> None:
    """The caller is told so, and the task has no state in which its worker can go on."""
    group, called = house.worker(whom), f"{who}-cancels-{whom}"
    asking = house.begin(whom, group, "call", called, "nap", "[600000]")
    house.until("select id from durable.tasks where id = %s and state = 'suspended'", called)
    house.begin(who, group, "cancel", called).answers()
    assert asking.answers() == [{"error": "Promise canceled"}], house.said()
    row = house.conn.execute(
        "select p.state, t.state from durable.promises p join durable.tasks t on t.id = p.id where p.id = %s",
        (called,),
    ).fetchone()
    assert row == ("rejected_canceled", "fulfilled")


@pytest.mark.full
@pytest.mark.parametrize("language", LANGUAGES)
def test_sql_cancels_a_call_of_an_sdk(house: House, language: str) -> None:
    """The promise is settled as cancelled, because the SDKs have no request of cancellation."""
    called = f"{language}-by-psql"
    asking = house.begin(language, house.worker(language), "call", called, "nap", "[600000]")
    house.until("select id from durable.tasks where id = %s and state = 'suspended'", called)
    house.conn.execute("select durable.promise_settle(%s, 'rejected_canceled')", (called,))
    assert asking.answers() == [{"error": "Promise canceled"}], house.said()


@pytest.mark.parametrize("language", ONE)
def test_sql_cancels_a_run_that_an_sdk_called(house: House, language: str) -> None:
    """A client is told so, a workflow of the SDK gets the reason."""
    napping = f"{language}-napping"
    asking = house.begin(language, "ours", "call", napping, "nap", "[600000]")
    calls = json.dumps([[("poll://any@ours", "nap", [600_000])]])
    relaying = house.begin(language, house.worker(language), "call", f"{language}-relaying", "relay", calls)
    called = house.until("select id from durable.runs where id like %s", f"{language}-relaying:%")
    for run in (napping, called):
        house.conn.execute("select durable.cancel(%s, '\"closing time\"')", (waiting(house, run),))
    assert asking.answers() == [{"error": "Promise canceled"}], house.said()
    assert relaying.answers() == [[{"error": "closing time"}]], house.said()
    rows = house.conn.execute("select state from durable.runs where id = any (%s)", ([napping, called],))
    assert rows.fetchall() == [("cancelled",)] * 2


@pytest.mark.full
@pytest.mark.parametrize("language", LANGUAGES)
def test_an_sdk_cancels_a_call_of_a_service(house: House, language: str) -> None:
    """One that waits for its next attempt makes none. To settle it with a value is refused."""
    called = f"{language}-later"
    asking = house.begin(language, "sums", "call", called, "later", "[7]")
    house.until(POSTPONED, called)
    with pytest.raises(AssertionError, match="409"):
        house.begin(language, "sums", "settle", called, "yes").answers()
    house.begin(language, "sums", "cancel", called).answers()
    assert asking.answers() == [{"error": "Promise canceled"}], house.said()
    house.until("select id from durable.runs where id = %s and state = 'cancelled'", called)


@pytest.mark.parametrize("language", ONE)
def test_an_sdk_cancels_a_run_of_ours(house: House, language: str) -> None:
    """It is a request: the run ends as cancelled, and whoever awaits it is told so."""
    napping = waiting(house, begin(house, "ours.nap", 600_000))
    awaiting = house.begin(language, "ours", "await", napping)
    house.begin(language, "ours", "cancel", napping).answers()
    house.until("select id from durable.runs where id = %s and state = 'cancelled'", napping)
    events = house.conn.execute("select event from durable.journal_events where id = %s", (napping,))
    assert ("CancelRequested",) in events.fetchall()
    assert "ancel" in awaiting.answers()[0]["error"], house.said()


@pytest.mark.parametrize("language", ONE)
def test_a_cancelled_workflow_cancels_its_call(house: House, language: str) -> None:
    """The function of the SDK is fenced."""
    group = house.worker(language)
    calling = begin(house, "ours.call", group, "nap", [600_000])
    napping = house.until(
        "select id from durable.tasks where id like %s and state = 'suspended'", f"{calling}.%"
    )
    house.conn.execute("select durable.cancel(%s)", (calling,))
    house.until("select id from durable.runs where id = %s and state = 'cancelled'", calling)
    assert house.until("select state from durable.promises where id = %s", napping) == "rejected_canceled"


@pytest.mark.parametrize("language", ONE)
def test_psql_calls_an_sdk_through_a_workflow(house: House, language: str) -> None:
    """durable.start and durable.result are the call of SQL; the value is readable in psql."""
    group = house.worker(language)
    called = begin(house, "ours.call", group, "add", [40, 2])
    assert result(house, called) == 42
    row = house.conn.execute(
        "select param, value from durable.promises where id = %s", (f"{called}.0",)
    ).fetchone()
    assert row == ({"func": "add", "args": [40, 2], "version": 1}, 42)
