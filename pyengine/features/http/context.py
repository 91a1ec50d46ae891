"""The HTTP requests of `ctx`.

Lives here: `ctx.http`. May not: what a request is (http/requests.py), a decision.
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from pyengine.core.definitions.current_run import within_run
from pyengine.core.definitions.registry import NAME_BYTES
from pyengine.core.definitions.retry import Duration, Retry, optional_duration
from pyengine.core.rules import HTTP_NAMES_RULES
from pyengine.core.values.texts import is_text
from pyengine.errors import InvalidRequest
from pyengine.features.http.records import HttpResponse, Secret
from pyengine.features.http.requests import DEFAULT_RETRY, http_request, http_step, name_of


class ContextHttp:
    """The part of `ctx` that makes HTTP requests."""

    __slots__ = ()

    def http(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str | Secret] | None = None,
        json: Any = None,
        content: str | bytes | None = None,
        timeout: Duration | None = "30s",
        retry: Retry | None = DEFAULT_RETRY,
        expect: int | Collection[int] | None = None,
        name: str | None = None,
    ) -> Coroutine[None, None, HttpResponse]:
        """Make an HTTP request as a step and return the answer.

        Tried again, five times in all: no answer, no answer in time, and the statuses 408, 425, 429, 500,
        502, 503 and 504; a Retry-After header sets the delay, up to a day. The header Idempotency-Key is
        the same at every attempt, also after a crash. Redirects are not followed.

        Args:
            method: "GET", "POST", ...
            url: https://host/path; it is recorded.
            headers: a text is recorded, `Secret("env:NAME", "Bearer {}")` only by its name.
            json: body, as JSON.
            content: body, unchanged.
            timeout: limit of one attempt.
            retry: when a failed attempt is made again; None means never.
            expect: statuses to return instead of raising; 200 to 299 by default.
            name: of the step, in the journal, the log and `pyengine show`. By default it is the method and
                the URL without its query: "GET https://api.example.com/orders/7". Give one where that URL
                holds a key.

        Raises (when awaited):
            HttpStatusError: the answer has another status.
            HttpConnectionError: no answer came.
            StepTimeout: it took too long.
            InvalidRequest: the request is not valid; raised at once, nothing is recorded.
        """
        within = within_run("http()", "httpx")
        request = http_request(method, url, headers=headers, json=json, content=content, expect=expect)
        step = http_step(retry, optional_duration(timeout, what="ctx.http"))
        if name is not None and not is_text(name, NAME_BYTES):
            raise InvalidRequest(f"ctx.http: {name!r} is no name", hint="a text of 1 to 255 bytes, no NUL")
        if name is not None or within.run.rules >= HTTP_NAMES_RULES:
            step = replace(step, name=name or name_of(request))
        return within.call_step(step, (request,), {})
