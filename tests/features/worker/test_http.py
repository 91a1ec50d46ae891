"""HTTP requests as steps, against a real server on the loopback interface."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import psycopg
import pytest
from pydantic import BaseModel

from pyengine import App, HttpConnectionError, HttpResponse, HttpStatusError, Retry, Secret, ctx
from pyengine.errors import DecodeError, InvalidRequest, RunFailed, StepTimeout
from tests.core.worker.test_retries import an_hour_later, row_types

Connection = psycopg.Connection[tuple[object, ...]]
FAST = Retry(max_attempts=3, initial="1ms", jitter=0)


class Made(BaseModel):
    """A body as a model of pydantic."""

    made: int


class Seen(NamedTuple):
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Reply(NamedTuple):
    """What to answer."""

    status: int = 200
    headers: dict[str, str] = {}  # noqa: RUF012 - nobody changes it
    body: bytes = b"{}"


@dataclass
class Site:
    """The server: what it got, and what it answers; the last answer is repeated."""

    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    replies: list[Reply | Callable[[], Reply]] = field(default_factory=lambda: [Reply()])

    def answer(self, request: Seen) -> Reply:
        """Note a request and choose the answer."""
        self.seen.append(request)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return reply if isinstance(reply, Reply) else reply()

    def headers(self, name: str) -> list[str | None]:
        """One header of each request."""
        return [one.headers.get(name) for one in self.seen]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A server, for the length of a test."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    # on a busy machine the first request takes a second, after which its attempt would have a row of its own
    monkeypatch.setattr("pyengine.core.worker.worker._LONG_S", 60.0)
    made = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = made.answer(Seen(self.command, self.path, headers, body))
            if reply.status == 0:
                self.close_connection = True
                return
            self.send_response_only(reply.status)
            for name, value in {"content-length": str(len(reply.body)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body)

        do_POST = do_PUT = do_GET  # noqa: N815 - the names that the base class calls

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield made
        server.shutdown()
        thread.join()


def get(dsn: str, url: str, **options: Any) -> Any:
    """Run a workflow that makes one request and returns the answer."""
    app = App(dsn)
    method = options.pop("method", "GET")

    @app.workflow
    async def go() -> HttpResponse:
        return await ctx.http(method, url, **{"retry": FAST, **options})

    return app.run(go)


def test_a_request_is_one_row_in_the_journal(dsn: str, conn: Connection, site: Site) -> None:
    """The answer comes back as it was recorded: status, headers, text; the step has its name."""
    site.replies = [Reply(201, {"content-type": "application/json", "x-one": "1"}, b'{"made": 7}')]
    answer = get(dsn, f"{site.url}/things?page=2", method="post", json={"name": "x"}, headers={"X-A": "b"})
    assert (answer.status, answer.headers["x-one"], answer.json()) == (201, "1", {"made": 7})
    assert answer.json(dict[str, int]) == {"made": 7}
    assert answer.json(Made) == Made(made=7)
    with pytest.raises(DecodeError, match="the body of an answer with status 201: "):
        answer.json(list[Made])
    (seen,) = site.seen
    assert (seen.method, seen.path, json.loads(seen.body)) == ("POST", "/things?page=2", {"name": "x"})
    assert (seen.headers["x-a"], seen.headers["content-type"]) == ("b", "application/json")
    assert row_types(conn) == ["step_completed"]
    name = f"POST {site.url}/things"
    assert conn.execute("select name from durable._journal where child = 0").fetchone() == (name,)


def test_a_request_has_the_name_that_the_code_gives(dsn: str, conn: Connection, site: Site) -> None:
    """In place of method and URL, which may hold a key."""
    get(dsn, f"{site.url}/slow", name="pay")
    assert conn.execute("select name from durable._journal where child = 0").fetchone() == ("pay",)
    with pytest.raises(RunFailed, match="'' is no name"):
        get(dsn, site.url, name="")


def test_a_body_that_is_no_text_comes_back_as_bytes(dsn: str, site: Site) -> None:
    """What Postgres cannot hold as text is recorded as base64; content is sent as it is."""
    raw = bytes(range(256))
    site.replies = [Reply(200, {"content-type": "application/octet-stream"}, raw)]
    answer = get(dsn, site.url, method="PUT", content=raw)
    assert (answer.data, answer.content, answer.text) == (raw, raw, "")
    assert site.seen[0].body == raw


@pytest.mark.parametrize("charset", ["utf-8", "latin-1"])
def test_text_is_read_in_its_own_encoding(dsn: str, site: Site, charset: str) -> None:
    """The declared charset counts, and the bytes can be had again."""
    body = "grüß".encode(charset)
    site.replies = [Reply(200, {"content-type": f"text/plain; charset={charset}"}, body)]
    answer = get(dsn, site.url)
    assert (answer.text, answer.content) == ("grüß", body)


@pytest.mark.parametrize("status", [0, 408, 425, 429, 500, 502, 503, 504])
def test_not_now_is_tried_again_with_the_same_key(
    dsn: str, conn: Connection, site: Site, status: int
) -> None:
    """A broken connection and the statuses that mean "not now" are failed attempts; all attempts send the
    same idempotency key, which is the step's.
    """
    site.replies = [Reply(status), Reply(status), Reply(200)]
    assert get(dsn, site.url, method="POST").status == 200
    assert row_types(conn) == ["first_attempt_failed", "attempt_failed", "last_attempt_completed"]
    (run_id,) = conn.execute("select id from durable.runs").fetchone() or ("",)
    assert site.headers("idempotency-key") == [f"{run_id}.0"] * 3


def test_the_caller_may_choose_the_key(dsn: str, site: Site) -> None:
    """An idempotency key that is given is sent instead, whatever its case."""
    get(dsn, site.url, headers={"idempotency-KEY": "mine"})
    assert site.headers("idempotency-key") == ["mine"]


def test_other_statuses_are_errors_and_final(dsn: str, site: Site) -> None:
    """A status that was not expected is the step's error at once, with what the server said."""
    site.replies = [Reply(404, {}, b"no such thing")]
    with pytest.raises(RunFailed, match="status 404") as failed:
        get(dsn, f"{site.url}/x?token=abc")
    error = failed.value.__cause__
    assert isinstance(error, HttpStatusError)
    assert (error.status, error.text, error.url) == (404, "no such thing", f"{site.url}/x")
    assert len(site.seen) == 1


def test_what_is_expected_is_returned(dsn: str, site: Site) -> None:
    """Expected statuses are answers, also those that would be tried again; then 200 is not."""
    site.replies = [Reply(404), Reply(503), Reply(200)]
    assert get(dsn, site.url, expect=404).status == 404
    answer = get(dsn, site.url, expect=[200, 503])
    assert answer.status == 503
    with pytest.raises(HttpStatusError):
        answer.raise_for_status()
    with pytest.raises(RunFailed, match="status 200"):
        get(dsn, site.url, expect={201})


def test_redirects_are_not_followed(dsn: str, site: Site) -> None:
    """A redirect is a status like any other; the error tells where it leads."""
    site.replies = [Reply(302, {"location": "http://127.0.0.1:1/elsewhere"})]
    with pytest.raises(RunFailed, match="elsewhere"):
        get(dsn, site.url)
    assert len(site.seen) == 1


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_sets_the_delay(dsn: str, conn: Connection, site: Site, form: str) -> None:
    """The delay is what the server asks for, in seconds or as a date by its own clock; not the policy's."""
    asked = {"seconds": "3600", "date": "Wed, 21 Oct 2015 08:28:00 GMT"}[form]
    site.replies = [
        Reply(503, {"retry-after": asked, "date": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        Reply(429, {"retry-after": "0"}),
        Reply(200),
    ]
    app = App(dsn)

    @app.workflow
    async def go() -> int:
        return (
            await ctx.http("GET", site.url, retry=Retry(max_attempts=3, initial="1d", max_delay="1d"))
        ).status

    async def main() -> int:
        async with app.client() as client:
            run = await client.start(go)
            async with app.worker():
                while (await run.get()).state != "scheduled":
                    await asyncio.sleep(0.01)
            (delay,) = conn.execute(
                "select (data::jsonb ->> 'retry_at')::bigint - ts from durable._journal "
                "where type = 'first_attempt_failed'"
            ).fetchone() or (0,)
            assert 3_590_000 <= int(str(delay)) <= 3_600_000
            an_hour_later(conn)
            async with app.worker():
                return await run.result(timeout=20)

    assert asyncio.run(main()) == 200
    assert len(site.seen) == 3


def test_the_last_error_decides(dsn: str, site: Site) -> None:
    """When the attempts are used up the workflow gets the last error."""
    site.replies = [Reply(500), Reply(502), Reply(503)]
    with pytest.raises(RunFailed, match="status 503"):
        get(dsn, site.url)
    assert len(site.seen) == 3


def test_nobody_there(dsn: str) -> None:
    """A server that cannot be reached is an error of its own kind, after all attempts."""
    with pytest.raises(RunFailed) as failed:
        get(dsn, "http://127.0.0.1:1/")
    assert isinstance(failed.value.__cause__, HttpConnectionError)


def test_an_answer_that_takes_too_long(dsn: str, site: Site) -> None:
    """The timeout is the limit of one attempt; one that is over is tried again."""
    hang = threading.Event()

    def late() -> Reply:
        hang.wait(20)
        return Reply(500)

    site.replies = [late, Reply(200)]
    try:
        assert get(dsn, site.url, timeout="500ms").status == 200
        site.replies = [late]
        with pytest.raises(RunFailed) as failed:
            get(dsn, site.url, timeout="50ms", retry=None)
    finally:
        hang.set()
    assert isinstance(failed.value.__cause__, StepTimeout)


def test_secrets_are_looked_up_and_never_recorded(
    dsn: str, conn: Connection, site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A secret header reaches the server; neither the journal nor a log line nor an error holds it."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("SHOP_TOKEN", "hunter2-hunter2")
    site.replies = [Reply(503), Reply(401)]
    with pytest.raises(RunFailed):
        get(dsn, site.url, headers={"Authorization": Secret("env:SHOP_TOKEN", "Bearer {}")})
    assert site.headers("authorization") == ["Bearer hunter2-hunter2"] * 2
    rows = conn.execute("select to_jsonb(j)::text from durable._journal j").fetchall()
    promises = conn.execute("select to_jsonb(p)::text from durable._promises p").fetchall()
    assert "hunter2" not in f"{rows} {promises} {caplog.text}"


def test_a_secret_that_is_not_there_is_final(dsn: str, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker without the secret says which one, once."""
    monkeypatch.delenv("SHOP_TOKEN", raising=False)
    with pytest.raises(RunFailed, match="env:SHOP_TOKEN is not set"):
        get(dsn, site.url, headers={"Authorization": Secret("env:SHOP_TOKEN")})
    assert site.seen == []


def test_a_wrong_request_is_refused_before_anything_is_recorded(dsn: str, conn: Connection) -> None:
    """What is wrong with a request is said at the call, and the journal has no row of it."""
    with pytest.raises(RunFailed) as failed:
        get(dsn, "ftp://127.0.0.1/")
    assert isinstance(failed.value.__cause__, InvalidRequest)
    assert row_types(conn) == []


def test_the_name_is_taken() -> None:
    """No step of an application can be named http."""
    app = App()

    with pytest.raises(InvalidRequest, match=r"belongs to ctx\.http"):

        @app.step
        async def http() -> None:
            pass
