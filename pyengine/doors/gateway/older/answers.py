"""Answers of the older API.

Lives here: the forms of its answers and errors, and its codes. May not: which answer a request gets.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from pyengine.doors.gateway.older.fields import as_json

_CODES = {
    "already resolved": 40301,
    "already rejected": 40302,
    "already canceled": 40303,
    "already timedout": 40304,
    "already claimed": 40306,
    "already completed": 40307,
    "invalid counter": 40308,
    "invalid state": 40309,
    "already exists": 40901,
}
_PROMISE_EXISTS = 40900
_NOT_FOUND = {"promise": 40400, "schedule": 40401, "task": 40403}


def reported(row: Any, noun: str, body: str | None) -> Response:
    """Return the answer of the database: the body where it is content, else the error.

    Args:
        row: its status and word.
        noun: what the request is about: promise, schedule or task.
        body: the content as JSON text, or None.
    """
    status, word = row["status"], row["word"]
    if status >= 400:
        code = _NOT_FOUND[noun] if status == 404 else _CODES.get(word, status * 100)
        if status == 409 and noun == "promise":
            code = _PROMISE_EXISTS
        return error(status, code, f"{noun}: {word}")
    return Response(status_code=204) if status == 204 or body is None else json_response(status, body)


def json_response(status: int, body: str) -> Response:
    """Return an answer whose content is JSON text."""
    return Response(body, status, media_type="application/json")


def error(status: int, code: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """Return an error with one of the API's codes."""
    content = {"error": {"code": code, "message": message, "details": []}}
    return Response(as_json(content), status, headers, media_type="application/json")


def joined(**parts: str | None) -> str:
    """Return an object of parts that are JSON texts."""
    return "{" + ", ".join(f'"{name}": {text or "null"}' for name, text in parts.items()) + "}"
