"""HTTP requests as steps: `ctx.http`.

Lives here: the built-in step "http" and the check of its arguments. May not: an import of httpx (only
processes that make requests pay for it), state of a run. The theory: the request is the step's recorded
input, so that another worker can repeat it after a crash with the same idempotency key. A temporary status or
a missing answer is retried, as the policy allows; if the server names a time, that is the delay. Any other
status that the caller did not expect is the step's error. Redirects are not followed: they could carry
headers to another server.
"""

from __future__ import annotations

import re
import ssl
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from email.message import Message
from email.utils import parsedate_to_datetime
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyengine.core.definitions.current_run import current_step
from pyengine.core.definitions.definition import StepDef
from pyengine.core.definitions.registry import NAME_BYTES, make_step
from pyengine.core.definitions.retry import NO_RETRY, Retry, not_a_retry
from pyengine.core.process.own_threads import in_a_thread
from pyengine.core.values.codec import MAX_PAYLOAD_BYTES, refuse_non_finite, unwritable
from pyengine.core.values.shapes import SORTED
from pyengine.errors import InvalidRequest
from pyengine.features.http.records import (
    TEXT_SHOWN,
    HttpConnectionError,
    HttpError,
    HttpRequest,
    HttpResponse,
    HttpStatusError,
    Secret,
    one_line,
)

if TYPE_CHECKING:
    import httpx

RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Temporary statuses, which are retried."""

DEFAULT_RETRY = Retry()

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def http_request(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str | Secret] | None,
    json: Any,
    content: str | bytes | None,
    expect: int | Collection[int] | None,
) -> HttpRequest:
    """Return a checked request; arguments as for `ctx.http`.

    Raises:
        InvalidRequest: it is not valid.
        EncodeError: the JSON body cannot be written.
    """
    _check_url(url)
    _check_method(method)
    sent = dict(headers or {})
    for name, value in sent.items():
        _check_header(name, value)
    text, data = _body(content)
    if json is not None:
        if content is not None:
            raise InvalidRequest("ctx.http: a body is given either as json or as content")
        text = _json_text(json)
        if not _has(sent, "content-type"):
            sent["Content-Type"] = "application/json"
    return HttpRequest(
        method=method.upper(), url=url, headers=sent, text=text, data=data, expect=_statuses(expect)
    )


def _check_method(method: object) -> None:
    if not (isinstance(method, str) and _TOKEN.fullmatch(method)):
        raise InvalidRequest(f"ctx.http: {method!r} is no method", hint='"GET", "POST", ...')


def _check_url(url: object) -> None:
    try:
        parts = urlsplit(url) if isinstance(url, str) and url.isprintable() and " " not in url else None
        fits = parts is not None and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        parts = fits = None
    if parts is not None and "@" in parts.netloc:
        raise InvalidRequest(
            "ctx.http: a URL is recorded, so it must not hold a password",
            hint='headers={"Authorization": Secret("env:NAME", "Basic {}")}',
        )
    if not fits:
        raise InvalidRequest(f"ctx.http: {url!r} is no URL", hint="https://host/path")


def _body(content: object) -> tuple[str | None, bytes | None]:
    if content is None or isinstance(content, str):
        return content, None
    if isinstance(content, bytes | bytearray):
        return None, bytes(content)
    raise InvalidRequest(f"ctx.http: content is text or bytes, not {type(content).__name__}")


def _statuses(expect: object) -> tuple[int, ...] | None:
    if expect is None:
        return None
    several: Any = {expect} if isinstance(expect, int) else expect
    try:
        statuses = tuple(sorted({int(one) for one in several}))
    except (TypeError, ValueError):
        statuses = ()
    if not statuses or not 100 <= statuses[0] <= statuses[-1] <= 599:
        raise InvalidRequest(f"ctx.http: expect is a status or several, 100 to 599, not {expect!r}")
    return statuses


def _check_header(name: Any, value: Any) -> None:
    if not (isinstance(name, str) and _TOKEN.fullmatch(name)):
        raise InvalidRequest(f"ctx.http: {name!r} is no name of a header")
    if not isinstance(value, Secret) and not (isinstance(value, str) and one_line(value)):
        # the value is not shown: it may be a secret
        raise InvalidRequest(f"ctx.http: header {name} is one line of ASCII or a Secret")


def _json_text(value: Any) -> str:
    where = "the json of ctx.http"
    try:
        text = SORTED.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise unwritable(where, error, value) from error
    if "null" in text:
        refuse_non_finite(value, where)
    return text


def _has(headers: Mapping[str, Any], name: str) -> bool:
    return any(one.lower() == name for one in headers)


# -- the step


async def _http(request: HttpRequest) -> HttpResponse:
    """Make one attempt."""
    if "httpx" not in sys.modules:
        # importing it takes a while and reads files
        await in_a_thread(_tls)
    import httpx

    headers = {
        name: value.look_up() if isinstance(value, Secret) else value
        for name, value in request.headers.items()
    }
    step = current_step.get()
    if step is not None and not _has(headers, "idempotency-key"):
        headers["Idempotency-Key"] = step.idempotency_key
    body = request.data if request.text is None else request.text.encode()
    method, url = request.method, request.place
    try:
        # the timeout is the step's
        async with (
            httpx.AsyncClient(verify=_tls(), timeout=None, follow_redirects=False) as client,
            client.stream(method, request.url, headers=headers, content=body) as answer,
        ):
            response = _response(answer, await _read(answer, f"{method} {url}"))
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
        raise HttpError(f"{method} {url}: {error}", method=method, url=url) from None
    except httpx.HTTPError as error:
        # without the cause, which holds the request with all its headers
        message = f"{method} {url}: {type(error).__name__}: {error}"
        raise HttpConnectionError(message, method=method, url=url, retryable=True) from None
    if request.expect is None and 200 <= response.status <= 299:
        return response
    if request.expect is not None and response.status in request.expect:
        return response
    raise _unexpected(request, response)


_HTTP = make_step(_http, name="http")


@lru_cache(maxsize=256)
def http_step(retry: Retry | None, timeout_ms: int | None) -> StepDef:
    """Return the built-in step with these options; it is named "http".

    Args:
        retry: when a failed attempt is made again; None means never.
        timeout_ms: limit of one attempt, milliseconds; None means no limit.
    """
    if retry is not None and not isinstance(retry, Retry):
        raise not_a_retry("ctx.http", retry)
    return replace(_HTTP.definition, retry=retry or NO_RETRY, timeout_ms=timeout_ms)


def name_of(request: HttpRequest) -> str:
    """Return the name of the step that makes a request: its method and its URL without the query."""
    name = f"{request.method} {request.place}".encode()
    return name[:NAME_BYTES].decode(errors="ignore")


@cache
def _tls() -> ssl.SSLContext:
    """Return the one TLS context of this process; making one takes longer than a request."""
    import httpx

    return httpx.create_ssl_context()


async def _read(answer: httpx.Response, where: str) -> bytes:
    body = bytearray()
    async for part in answer.aiter_bytes():
        body += part
        if len(body) > MAX_PAYLOAD_BYTES:
            raise HttpError(
                f"{where}: the answer is longer than {MAX_PAYLOAD_BYTES} bytes",
                hint="fetch it in a step of your own and store it elsewhere",
            )
    return bytes(body)


def _response(answer: httpx.Response, body: bytes) -> HttpResponse:
    status, headers = answer.status_code, dict(answer.headers)
    declared = Message()
    declared["content-type"] = headers.get("content-type", "")
    charset = str(declared.get_content_charset("utf-8"))
    try:
        text = body.decode(charset)
        # Postgres has no NUL, and the text must encode to the same body
        if "\0" not in text and text.encode(charset) == body:
            return HttpResponse(status=status, headers=headers, text=text, charset=charset)
    except (LookupError, UnicodeError):
        pass
    return HttpResponse(status=status, headers=headers, data=body)


def _unexpected(request: HttpRequest, response: HttpResponse) -> HttpStatusError:
    retryable = response.status in RETRIED
    hint = None
    if 300 <= response.status <= 399:
        hint = f"redirects are not followed; it leads to {response.headers.get('location')}"
    return HttpStatusError(
        f"{request.method} {request.place}: status {response.status}",
        status=response.status,
        text=response.text[:TEXT_SHOWN],
        retry_after=retry_after_s(response.headers, datetime.now(UTC)) if retryable else None,
        method=request.method,
        url=request.place,
        retryable=retryable,
        hint=hint,
    )


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the delay in seconds that a server asks for; None if it asks for none.

    Args:
        headers: of its answer, names in lower case. A Retry-After date is compared with the Date header.
        now: the current instant, used if there is no Date header.
    """
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    until = _instant(text)
    if until is None:
        return None
    return max(0.0, (until - (_instant(headers.get("date", "")) or now)).total_seconds())


def _instant(text: str) -> datetime | None:
    try:
        instant = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
