"""Requests and answers of ctx.http as values: what is refused, what is recorded, what a server asks for."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pyengine import ctx
from pyengine.core.definitions.current_run import RunInfo
from pyengine.core.definitions.registry import make_workflow
from pyengine.core.definitions.retry import NO_RETRY, Retry
from pyengine.core.replay.machine import Replay
from pyengine.core.values.codec import Codec
from pyengine.errors import DecodeError, EncodeError, InvalidRequest
from pyengine.features.http.records import HttpError, HttpRequest, HttpResponse, HttpStatusError, Secret
from pyengine.features.http.requests import http_request, http_step, retry_after_s

NOW = datetime(2015, 10, 21, 7, 0, tzinfo=UTC)


def request(method: str = "GET", url: str = "https://host/path", **options: Any) -> HttpRequest:
    """A request with only what matters to a test."""
    given = {"headers": None, "json": None, "content": None, "expect": None, **options}
    return http_request(method, url, **given)


@pytest.mark.parametrize(
    "url",
    ["", "host/path", "ftp://host/", "https://", "https:///path", "https://host:x/", "https://ho st/", None],
)
def test_invalid_urls_are_refused(url: Any) -> None:
    """Only absolute http and https URLs are taken."""
    with pytest.raises(InvalidRequest, match="is no URL"):
        request(url=url)


@pytest.mark.parametrize("url", ["https://user:hunter2@host/", "https://hunter2@host/", "x://a:hunter2@b"])
def test_a_password_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    """A URL is recorded, so one with a password is refused; the error does not hold it."""
    with pytest.raises(InvalidRequest) as refused:
        request(url=url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "GET /"},
        {"method": ""},
        {"method": 7},
        {"headers": {"X A": "b"}},
        {"headers": {"X": "b\r\nY: c"}},
        {"headers": {"X": "gr\u00fc\u00df"}},
        {"headers": {"X": 1}},
        {"json": {}, "content": "x"},
        {"content": 7},
        {"expect": 42},
        {"expect": []},
        {"expect": "ok"},
        {"json": object()},
        {"json": float("nan")},
    ],
)
def test_invalid_requests_are_refused_at_the_call(options: dict[str, Any]) -> None:
    """Whatever is wrong with a request is said when it is made."""
    with pytest.raises((InvalidRequest, EncodeError)):
        request(**options)


def test_a_request_is_recorded_as_it_was_given() -> None:
    """The record comes back equal from its text, and holds a secret by name only."""
    made = request(
        "post",
        "https://host/a?b=c",
        headers={"Authorization": Secret("env:NAME", "Bearer {}"), "X": "y"},
        json={"b": [1], "a": None},
        expect={404, 200},
    )
    text = Codec().encode(made, HttpRequest, where="here")
    assert Codec().decode(text, HttpRequest, where="here") == made
    assert (made.method, made.text, made.expect) == ("POST", '{"a":null,"b":[1]}', (200, 404))
    assert '{"source":"env:NAME","form":"Bearer {}"}' in text
    assert made.headers["Content-Type"] == "application/json"
    assert made.place == "https://host/a"


def test_a_content_type_that_is_given_stays() -> None:
    """JSON under another type is sent under that type."""
    made = request(headers={"content-TYPE": "application/ld+json"}, json={})
    assert list(made.headers.items()) == [("content-TYPE", "application/ld+json")]


@pytest.mark.parametrize("source", ["NAME", "env:", "call:os.getcwd", ""])
def test_a_secret_says_where_it_is(source: str) -> None:
    """A secret is in the environment or in a file; anything else is refused."""
    with pytest.raises(InvalidRequest):
        Secret(source)
    with pytest.raises(InvalidRequest):
        Secret("env:NAME", "Bearer")


def test_a_secret_is_looked_up_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables and files are read when they are needed; what cannot be sent is not repeated in the error."""
    monkeypatch.setenv("NAME", "value{}")
    (tmp_path / "token").write_text("from file\n", encoding="utf-8")
    assert Secret("env:NAME", "Bearer {}").look_up() == "Bearer value{}"
    assert Secret(f"file:{tmp_path}/token").look_up() == "from file"
    monkeypatch.setenv("NAME", "hunter2\nX: y")
    for missing in (Secret("env:NAME"), Secret("env:NO_SUCH_NAME"), Secret(f"file:{tmp_path}/none")):
        with pytest.raises(HttpError) as failed:
            missing.look_up()
        assert failed.value.retryable is False
        assert "hunter2" not in str(failed.value)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "120"}, 120),
        ({"retry-after": " 0 "}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "1.5"}, None),
        # beyond the range of a time zone, and of a year
        ({"retry-after": "Mon, 01 Jan 2024 00:00:00 +" + "9" * 20}, None),
        ({"retry-after": "Mon, 01 Jan " + "9" * 20 + " 00:00:00 GMT"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 28 * 60),
        ({"retry-after": "Wed, 21 Oct 2015 06:28:00 GMT"}, 0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 -0000"}, 28 * 60),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT", "date": "Wed, 21 Oct 2015 07:27:00 GMT"}, 60),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT", "date": "today"}, 28 * 60),
    ],
)
def test_retry_after_delays(headers: dict[str, str], seconds: float | None) -> None:
    """Seconds, or a date by the server's own clock; what cannot be read asks for nothing."""
    assert retry_after_s(headers, NOW) == seconds


def test_an_answer_reads_as_json_of_a_type() -> None:
    """The body is read as what is asked for, or the error says why not."""
    answer = HttpResponse(status=200, text='{"a": [1, 2]}')
    assert answer.json(dict[str, tuple[int, int]]) == {"a": (1, 2)}
    with pytest.raises(DecodeError, match="status 200"):
        answer.json(list[int])
    with pytest.raises(DecodeError):
        HttpResponse(status=200, data=b"\x00").json()


def test_status_errors_survive_the_journal() -> None:
    """An error of a request comes back as itself, with what it carries."""
    with pytest.raises(HttpStatusError) as raised:
        HttpResponse(status=404, text="no").raise_for_status()
    codec = Codec()
    back = codec.decode_error(codec.encode_error(raised.value))
    assert isinstance(back, HttpStatusError)
    assert (back.status, back.text, back.retryable) == (404, "no", False)


def test_the_step_carries_the_options_of_the_call() -> None:
    """Policy and timeout are those of the call, and no part of the recorded input."""
    one, other = http_step(Retry(), 1000), http_step(None, None)
    assert (one.name, one.timeout_ms, one.retry) == ("http", 1000, Retry())
    assert (other.name, other.timeout_ms, other.retry) == ("http", None, NO_RETRY)
    assert one.key == other.key
    with pytest.raises(InvalidRequest):
        http_step(3, None)  # type: ignore[arg-type]


def test_outside_a_workflow_there_is_no_journal() -> None:
    """ctx.http needs a run, and says what to use without one."""
    with pytest.raises(InvalidRequest, match="outside a workflow"):
        ctx.http("GET", "https://host/")


@pytest.mark.parametrize(("rules", "name"), [(3, "http"), (4, "GET https://host/path")])
def test_runs_of_older_rules_keep_the_name_of_their_steps(rules: int, name: str) -> None:
    """Their journals say "http", and a replay must find that."""

    async def code() -> None:
        await ctx.http("GET", "https://host/path?key=1")

    run = RunInfo(id="r", execution=1, version=1, workflow="code", rules=rules)
    replay = Replay(make_workflow(code).definition, run, lambda: 0, random.Random(), Codec())
    assert [step.name for step in replay.advance().steps] == [name]
