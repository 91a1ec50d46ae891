"""Law: SDKs before the envelope call workflows and services of ours and functions of newer SDKs, and are
called by them, as far as each reads what the others write.

cells.toml has for each cell the test, or why it cannot be. 0.4 has no call that waits for a promise of
somebody else, reads no calls without kwargs and no cancellations, and writes errors without their text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest
from pytest_postgresql.executors import NoopExecutor

from tests.doors.protocol.test_who_calls_whom import JOB, OPEN, POSTPONED, SERVICES, begin, result, waiting
from tests.support.cluster import Server, installed_database, of_worker
from tests.support.gateway import Gateway
from tests.support.sdk_house import LANGUAGES, OLDER, UNSETTLED, WAIT_S, House
from tests.support.sdks import Sdk
from tests.system.crash.processes import worker

SDKS = ("python-0.6", "python-0.4")
EVERY = (*SDKS, *LANGUAGES)
# newer ones among themselves are in test_who_calls_whom.py
MIXED = [(who, whom) for who in EVERY for whom in EVERY if who in SDKS or whom in SDKS]
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def street(
    server: Server,
    template: NoopExecutor,
    sdk: Callable[[str], Sdk],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[House]:
    """A gateway for both APIs, a worker of ours, published workflows and services."""
    with ExitStack() as stack:
        dsn = stack.enter_context(
            installed_database(server, of_worker("older_calls"), template.template_dbname)
        )
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        conn.execute(SERVICES)
        for service, name in (("add_up", "add"), ("refuse", "refuse"), ("later", "later")):
            conn.execute("select durable.publish(%s, 'sums', %s)", (f"sql://public.{service}", name))
        stack.enter_context(worker(dsn, "--queue", "default", job=JOB))
        gateway = stack.enter_context(Gateway(dsn, older_port=0))
        older = {"python-0": f"{gateway.url},{gateway.older_url}"}
        house = House(gateway.url, conn, sdk, tmp_path_factory.mktemp("older_calls"), **older)
        stack.callback(house.end)
        yield house


def question(house: House, language: str, prefix: str) -> tuple[str, str]:
    """A call of a worker of this SDK by a client of it, and the promise for which it waits."""
    called = f"{prefix}human"
    house.begin(language, house.worker(language), "ask", prefix, "human")
    if language in SDKS:
        return called, house.until(OPEN, f"{called}.%")
    return called, house.until(UNSETTLED, called)


def states(house: House, called: str) -> tuple[str, str]:
    """Of a promise and its task."""
    return (
        house.until("select state from durable.promises where id = %s and state <> 'pending'", called),
        house.until("select state from durable.tasks where id = %s", called),
    )


@pytest.mark.parametrize("language", ["python-0.6", *OLDER])
def test_a_workflow_calls_an_older_sdk(house: House, language: str) -> None:
    """It gets the value and the error with its message, also of functions that make calls, whose ids go on
    with a dot. psql reads the value in the promise that the workflow made."""
    group = house.worker(language)
    slept = begin(house, "ours.call", group, "nap", [1])
    failed = begin(house, "ours.call", group, "refuses" if language == "python-0.6" else "fail", [])
    assert result(house, slept) == "awake", house.said()
    assert "no luck" in result(house, failed)["error"]
    row = house.conn.execute("select value from durable.promises where id = %s", (f"{slept}.0",)).fetchone()
    assert row == ("awake",)


def test_a_cancelled_workflow_cancels_its_call(house: House) -> None:
    """The function of the SDK is fenced."""
    calling = begin(house, "ours.call", house.worker("python-0.6"), "nap", [600])
    text = "select id from durable.tasks where id like %s and state = 'suspended'"
    napping = house.until(text, f"{calling}.%")
    house.conn.execute("select durable.cancel(%s)", (calling,))
    house.until("select id from durable.runs where id = %s and state = 'cancelled'", calling)
    assert states(house, napping) == ("rejected_canceled", "fulfilled")


@pytest.mark.parametrize("language", SDKS)
def test_an_older_sdk_calls_a_service(house: House, language: str) -> None:
    """It gets the value and the error, whose message 0.4 does not read."""
    adding = house.begin(language, "sums", "call", f"{language}-sum", "add", "[2, 3]")
    assert adding.answers() == [5], house.said()
    (refused,) = house.begin(language, "sums", "call", f"{language}-refused", "refuse", "[7]").answers()
    assert refused.keys() == {"error"}
    assert language == "python-0.4" or "7 is refused" in refused["error"]


def test_an_older_sdk_awaits_ours(house: House) -> None:
    """Runs of a workflow and of a service, one that fails too."""
    asked, failed = begin(house, "ours.question"), begin(house, "ours.fail")
    summed = begin(house, "sql://public.add_up", 2, 3)
    open_ = house.until(OPEN, f"{asked}.%")
    awaiting = house.begin("python-0.6", "ours", "await", failed, summed, asked)
    house.conn.execute("select durable.resolve(%s, '\"yes\"')", (open_,))
    error, sum_, said = awaiting.answers()
    assert (sum_, said) == (5, "they said yes"), house.said()
    assert "no luck" in error["error"]


@pytest.mark.parametrize("language", SDKS)
def test_an_older_sdk_settles_and_cancels_ours(house: House, language: str) -> None:
    """The promise for which a run waits; a run of a workflow, and of a service before its next attempt."""
    asked = begin(house, "ours.question")
    house.begin(language, "ours", "settle", house.until(OPEN, f"{asked}.%"), "yes").answers()
    assert result(house, asked) == "they said yes"
    napping, later = begin(house, "ours.nap", 600_000), begin(house, "sql://public.later", 7)
    house.begin(language, "ours", "cancel", waiting(house, napping)).answers()
    house.begin(language, "ours", "cancel", house.until(POSTPONED, later)).answers()
    for run in (napping, later):
        house.until("select id from durable.runs where id = %s and state = 'cancelled'", run)


@pytest.mark.parametrize("language", SDKS)
def test_ours_awaits_and_settles_what_an_older_sdk_made(house: House, language: str) -> None:
    """A workflow waits for a call of the SDK, and another one, or a service, settles the promise for which
    the call waits. psql waits for the call too."""
    for by in ("ours.say_yes", "sql://public.say_yes"):
        called, open_ = question(house, language, f"{language}-{by[:3]}-")
        awaits = begin(house, "ours.wait", called)
        result(house, begin(house, by, open_))
        assert result(house, awaits) == "they said yes", house.said()
        row = house.conn.execute("call durable.wait(%s)", (called,)).fetchone()
        assert row == ("resolved", "they said yes", None)


@pytest.mark.parametrize("language", SDKS)
def test_sql_reads_errors_of_an_older_sdk_and_cancels_its_calls(house: House, language: str) -> None:
    """The message is in the error, if the SDK writes it, as 0.4 does not. A promise that is settled as
    cancelled leaves its task to nobody."""
    group = house.worker(language)
    house.begin(language, group, "call", f"{language}-failed", "refuses", "[]").answers()
    text = "select state, error::text from durable.result(%s)"
    row = house.conn.execute(text, (f"{language}-failed",)).fetchone()
    assert row is not None and row[0] == "rejected"
    assert language == "python-0.4" or "no luck" in row[1]
    called = f"{language}-by-psql"
    house.begin(language, group, "call", called, "nap", "[600]")
    house.until("select id from durable.tasks where id = %s and state = 'suspended'", called)
    house.conn.execute("select durable.promise_settle(%s, 'rejected_canceled')", (called,))
    assert states(house, called) == ("rejected_canceled", "fulfilled")


@pytest.mark.parametrize("language", LANGUAGES)
def test_sdks_call_an_older_sdk(house: House, language: str) -> None:
    """They get the value and the error, in which TypeScript finds no message."""
    group = house.worker("python-0.6")
    adding = house.begin(language, group, "call", f"{language}-older-add", "add", "[2, 3]")
    assert adding.answers() == [5], house.said()
    (refused,) = house.begin(language, group, "call", f"{language}-older-fail", "refuses", "[]").answers()
    assert refused.keys() == ({"error"} if language == "python" else set()), house.said()


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_older_sdk_calls_sdks(house: House, language: str) -> None:
    """It gets the value, and the error with its message in it."""
    group = house.worker(language)
    adding = house.begin("python-0.6", group, "call", f"older-{language}-add", "add", "[2, 3]")
    assert adding.answers() == [5], house.said()
    (refused,) = house.begin("python-0.6", group, "call", f"older-{language}-fail", "fail", "[]").answers()
    assert "no luck" in refused["error"], house.said()


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_older_sdk_awaits_what_sdks_made_and_they_what_it_made(house: House, language: str) -> None:
    """Each gets the value of the other's workflow."""
    for who, whom in (("python-0.6", language), (language, "python-0.6"), (language, "python-0.4")):
        called, open_ = question(house, whom, f"{who}-awaits-{whom}-")
        awaiting = house.begin(who, "asks", "await", called)
        house.conn.execute("select durable.resolve(%s, '\"yes\"')", (open_,))
        assert awaiting.answers() == ["they said yes"], house.said()


@pytest.mark.parametrize(("who", "whom"), MIXED)
def test_sdks_settle_and_cancel_what_others_made(house: House, who: str, whom: str) -> None:
    """A workflow goes on with the value; a cancelled one is left to nobody. 0.4 dies of an answer without
    data, once it has settled."""
    called, open_ = question(house, whom, f"{who}-settles-{whom}-")
    settling = house.begin(who, "asks", "settle", open_, "yes")
    settling.process.communicate(timeout=WAIT_S)
    assert result(house, called) == "they said yes", house.said()
    called, _ = question(house, whom, f"{who}-cancels-{whom}-")
    house.until("select id from durable.tasks where id = %s and state = 'suspended'", called)
    house.begin(who, "asks", "cancel", called).answers()
    assert states(house, called) == ("rejected_canceled", "fulfilled")


def test_an_older_sdk_calls_and_awaits_another(house: House) -> None:
    """0.6 gets what 0.4 comes to, and what another program of its own version has called."""
    adding = house.begin("python-0.6", house.worker("python-0.4"), "call", "six-calls-four", "add", "[2, 3]")
    assert adding.answers() == [5], house.said()
    for whom in SDKS:
        called, open_ = question(house, whom, f"six-awaits-{whom}-")
        awaiting = house.begin("python-0.6", "asks", "await", called)
        house.conn.execute("select durable.resolve(%s, '\"yes\"')", (open_,))
        assert awaiting.answers() == ["they said yes"], house.said()
