"""Requests and responses of `ctx.http`.

Lives here: `Secret`, the request and the response as they are recorded, and the errors. May not: making a
request (http/requests.py). The theory: every reader of the journal can read a recorded value, for good. So a
secret header is a `Secret`, which is recorded by its name; errors show a URL without its query, which often
holds keys, and never a header that was sent.
"""

from __future__ import annotations

import builtins
import os
from pathlib import Path
from typing import Any, TypeVar, overload

import msgspec

from pyengine.core.values.codec import type_codec
from pyengine.errors import DecodeError, EngineError, InvalidRequest

T = TypeVar("T")

TEXT_SHOWN = 1000
"""Characters of a body that an error carries, at most."""


def one_line(value: str) -> bool:
    """Whether a text can be the value of a header."""
    return value.isascii() and value.isprintable()


class HttpError(EngineError):
    """An HTTP request failed.

    Args:
        method: method of the request.
        url: its URL, without the query.
        retryable: whether the same request may succeed later.
    """

    method: str = ""
    url: str = ""
    retryable: bool = False


class HttpConnectionError(HttpError):
    """No answer came: the server could not be reached, or the connection broke."""


class HttpStatusError(HttpError):
    """The answer has a status that was not expected.

    Args:
        status: the status.
        text: the beginning of the body, if it is text.
        retry_after: seconds that the server asks to wait, or None.
    """

    status: int = 0
    text: str = ""
    retry_after: float | None = None


class Secret(msgspec.Struct, frozen=True):
    """The value of a header that is looked up when the request is made, and never recorded or logged.

    Args:
        source: "env:NAME", a variable in the environment of the worker, or "file:/path", a file there.
        form: template of the header; `{}` stands for the value, e.g. "Bearer {}".
    """

    source: str
    form: str = "{}"

    def __post_init__(self) -> None:
        kind, _, name = self.source.partition(":")
        if kind not in ("env", "file") or not name:
            raise InvalidRequest('a Secret names where its value is: "env:NAME" or "file:/path"')
        if self.form.count("{}") != 1:
            raise InvalidRequest(
                f"Secret({self.source!r}): the form {self.form!r} has no place for the value"
            )

    def look_up(self) -> str:
        """Return the value.

        Raises:
            HttpError: it is missing, or not one line of ASCII.
        """
        kind, _, name = self.source.partition(":")
        try:
            value = os.environ[name] if kind == "env" else Path(name).read_text(encoding="utf-8").strip()
        except (KeyError, OSError, UnicodeError) as error:
            reason = (
                "is not set" if isinstance(error, KeyError) else f"cannot be read ({type(error).__name__})"
            )
            message = f"{self.source} {reason} where this worker runs"
            raise HttpError(
                message, hint="a Secret is looked up by the worker that makes the request"
            ) from None
        sent = self.form.replace("{}", value)
        if not one_line(sent):
            raise HttpError(
                f"what {self.source} holds cannot be sent in a header: it is not one line of ASCII"
            )
        return sent


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request as it is recorded; at most one of text and data is given."""

    method: str
    url: str
    headers: dict[str, str | Secret] = {}
    text: str | None = None
    data: bytes | None = None
    expect: tuple[int, ...] | None = None

    @property
    def place(self) -> str:
        """The URL as errors show it: without the query, which often holds keys."""
        return self.url.partition("?")[0]


class HttpResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer as it is recorded.

    Args:
        status: its status.
        headers: its headers; names in lower case.
        text: its body, if that is text; else "".
        data: its body, if that is no text; else None. In the journal it is base64.
        charset: how the text was encoded.
    """

    status: int
    headers: dict[str, str] = {}
    text: str = ""
    data: bytes | None = None
    charset: str = "utf-8"

    @property
    def content(self) -> bytes:
        """The body as bytes."""
        return self.text.encode(self.charset) if self.data is None else self.data

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, type: builtins.type[T]) -> T: ...
    @overload
    def json(self, type: Any) -> Any: ...
    def json(self, type: Any = Any) -> Any:
        """Return the body read as JSON.

        Args:
            type: type of the value: any type that the result of a step may have.

        Raises:
            DecodeError: it is not JSON, or does not fit the type.
        """
        try:
            return type_codec(type).unpack(self.content if self.data is not None else self.text)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise DecodeError(f"the body of an answer with status {self.status}: {error}") from None

    def raise_for_status(self) -> None:
        """Raise if the status says that the request failed.

        Raises:
            HttpStatusError: it is 400 or higher.
        """
        if self.status >= 400:
            raise HttpStatusError(f"status {self.status}", status=self.status, text=self.text[:TEXT_SHOWN])
