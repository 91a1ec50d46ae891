"""Law: workflows, services in SQL and programs of the Python and the TypeScript SDK call each other, await
and settle what the others made, get errors by their message, and cancel.

| who | calls | awaits | settles | gets errors of | cancels |
|---|---|---|---|---|---|
| workflow | SDKs, services, workflows | what SDKs called | | SDKs | its calls to SDKs |
| SQL | workflows, services | what SDKs called | promises of SDKs | SDKs | runs that SDKs called |
| SDK | workflows, services, each other | runs | promises of workflows | workflows | runs |

A function of the database cannot wait for a call while it runs, so it starts one and reads its result. The
SDKs have no message of cancellation: the promise is settled as cancelled, and the code runs on until its next
durable call, so of a cancelled function of theirs only the fence is seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from tests.crash.processes import worker
from tests.support.cluster import Server, installed_database, of_worker
from tests.support.gateway import Gateway
from tests.support.sdk_house import LANGUAGES, SCENES, House
from tests.support.sdks import Sdk

JOB = "tests.protocol.calls_job:app"
# one of them by default, both with --full
ONE = (pytest.param("python", marks=pytest.mark.full), "typescript")
QUEUES = ("default", "ours", *(f"{language}-mixed" for language in LANGUAGES))
SERVICE = "create function public.add_up(a integer, b integer) returns integer language sql as 'select a + b'"


@pytest.fixture(scope="module")
def street(
    server: Server, sdk: Callable[[str], Sdk], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[House]:
    """A gateway, a worker of ours, published workflows and a published service."""
    with ExitStack() as stack:
        dsn = stack.enter_context(installed_database(server, of_worker("calls")))
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        conn.execute(SERVICE)
        conn.execute("select durable.serve('public.add_up(integer, integer)')")
        for name in ("add", "greet", "fail", "nap", "question"):
            conn.execute("select durable.publish(%s, 'ours', %s)", (f"ours.{name}", name))
        conn.execute("select durable.publish('sql://public.add_up', 'sums', 'add')")
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
    waiting, having, failing = (house.begin(language, "ours", "ask", each, "run") for each in prefixes)
    assert having.answers() == [42], house.said()
    house.until(
        "select address from durable._listeners where awaited_id = %s and address like 'poll://uni@%%'", open_
    )
    house.conn.execute("select durable.resolve(%s, '7')", (awaited,))
    assert waiting.answers() == [7], house.said()
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
    """It awaits a run of ours, settles the promise that the run waits for, and gets errors by message."""
    asked = begin(house, "ours.question")
    failed = begin(house, "ours.fail")
    open_ = house.until(
        "select id from durable.promises where id like %s and state = 'pending' and target is null",
        f"{asked}.%",
    )
    awaiting = house.begin(language, "ours", "await", asked, failed)
    assert house.begin(language, "ours", "settle", open_, "yes").answers() == []
    said, error = awaiting.answers()
    assert said == "they said yes", house.said()
    assert "no luck" in error["error"]


@pytest.mark.parametrize("language", ONE)
def test_ours_awaits_and_settles_what_an_sdk_made(house: House, language: str) -> None:
    """A workflow of ours waits for a call of an SDK, psql settles the promise that it waits for."""
    group = house.worker(language)
    asking = house.begin(language, group, "ask", f"{language}-theirs-", "human")
    waiting = begin(
        house,
        "ours.wait",
        house.until("select id from durable.promises where id = %s", f"{language}-theirs-human"),
    )
    open_ = house.until(
        "select id from durable.promises where id like %s and state = 'pending' and target is null",
        f"{language}-theirs-human:%",
    )
    house.conn.execute("select durable.resolve(%s, '\"yes\"')", (open_,))
    assert asking.answers() == ["they said yes"], house.said()
    assert result(house, waiting) == "they said yes"


@pytest.mark.parametrize("language", ONE)
def test_an_sdk_cancels_a_run_of_ours(house: House, language: str) -> None:
    """It is a request: the run ends as cancelled, and whoever awaits it is told so."""
    napping = begin(house, "ours.nap", 600_000)
    house.until("select id from durable.runs where id = %s and state = 'waiting'", napping)
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
