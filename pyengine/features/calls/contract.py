"""The contract between the engine and adapters, version 1: one JSON document in, one out, and an exit code.

Lives here: `Request` (stdin), the strict reading of an answer (stdout), the meaning of exit codes, and the
names of adapters. May not: a process, a file, a clock, the database. Design: exit code 0 promises a valid
answer, so anything else on stdout is an error of the adapter and never a result. JSON is read more strictly
than by most readers, because a value that two readers understand differently must not be pinned.
"""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Literal, NoReturn, TypeAlias

import msgspec

from pyengine.errors import EngineError, InvalidRequest

VERSION = 1
STDOUT_LIMIT = 1 << 20
"""Bytes of an answer."""
STDOUT_LIMIT_WITH_OBJECTS = 16 << 20
"""Bytes of an answer that has objects in it."""
STDERR_TAIL = 64 << 10
"""Bytes of stderr that are stored, from its end."""
STDERR_LIMIT = 64 << 20
"""Bytes of stderr after which an adapter is ended."""
_HEAD = 512
_TOKEN_LIMIT = 65536
_LARGEST_MS = 1 << 53
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")
_ID = re.compile(r"[0-9a-f]{64}\Z")
_SURROGATE = re.compile("[\ud800-\udfff]")

_TEMPORARY = {75: "a temporary failure"}
_PERMANENT = {64: "wrong usage", 65: "wrong data", 77: "no permission", 78: "wrong configuration"}
_BROKEN = {126: "it cannot be executed", 127: "a command was not found"}

RULES: dict[str, str] = {
    "size": "stdout has at most 1 MiB, or 16 MiB if the answer has objects",
    "utf8": "stdout is UTF-8, without a byte order mark",
    "json": "stdout is JSON",
    "one_document": "stdout is one document",
    "object": "the document is an object",
    "duplicate_key": "no object has a key twice",
    "number": "every number is finite and fits 64 bits",
    "text": "no text has a NUL or half of a surrogate pair",
    "depth": "objects and lists are at most 100 levels deep",
    "version": "v is 1",
    "status": "status is pending, done or failed",
    "token": "a pending answer has a token, a text of 1 to 65536 bytes",
    "poll_after_ms": "poll_after_ms is a whole number, 0 or more",
    "message": "message is a text",
    "progress": "progress is a number from 0 to 1",
    "outcome": "the outcome of a done answer is ok or error",
    "result": "a done answer has one of result and its short form: value if ok, error if error",
    "value": "value is a tagged value, and objects are records with their ids",
    "id": "result is the id of a DAG: 64 digits of lower-case hex",
    "error": "an error is an object with a message",
    "retryable": "a failed answer says whether it is retryable: true or false",
    "stderr": "stderr has at most 64 MiB",
    "objects": "objects is a list of objects, and comes with a result",
}
"""The rules of an answer: each name stands in the error that an answer against it gets."""


class ProtocolError(Exception):
    """An answer breaks the contract.

    Args:
        rule: the broken rule, a key of `RULES`.
        found: the part of the answer that breaks it, for people.
    """

    def __init__(self, rule: str, found: str) -> None:
        super().__init__(f"{RULES[rule]}: {found}")
        self.rule = rule


class Request(msgspec.Struct, kw_only=True):
    """The document that an adapter reads from stdin.

    Args:
        v: version of the contract.
        op: poll, or cancel; the answer to cancel is ignored.
        node: id of the call's node.
        function: the URI of the function, also the only argument of the adapter.
        inputs: ids of the nodes that go in.
        execution_key: the same for every poll of one attempt, and for no other attempt.
        execution_uuid: names the attempt towards snapshots.
        generation: how many attempts of the same call came before.
        snapshot: where objects are exchanged: ref, commit, remote; or None.
        token: of the last pending answer; None at the first poll.
        deadline_ms: when the attempt is given up, epoch milliseconds; or None.
        request: what the caller asked for beside the call: queue, priority, labels.
        values: the inputs as tagged values, if the worker passes them on.
    """

    v: int = VERSION
    op: Literal["poll", "cancel"] = "poll"
    node: str
    function: str
    inputs: list[str]
    execution_key: str
    execution_uuid: str
    generation: int = 0
    snapshot: dict[str, str | None] | None = None
    token: str | None = None
    deadline_ms: int | None = None
    request: dict[str, Any] | None = None
    values: list[Any] | msgspec.UnsetType = msgspec.UNSET

    def document(self) -> bytes:
        """Return the bytes for stdin."""
        return msgspec.json.encode(self) + b"\n"


class Pending(msgspec.Struct, tag_field="class", tag="pending", frozen=True, omit_defaults=True):
    """The work goes on; poll again with this token."""

    token: str
    poll_after_ms: int | None = None
    message: str | None = None
    progress: float | None = None


class Done(msgspec.Struct, tag_field="class", tag="done", frozen=True, omit_defaults=True):
    """The work has ended: with a result, or with an error that is a result too.

    Args:
        outcome: ok or error.
        result: id of a DAG, or None if there is a short form.
        value: the short form of a result, a tagged value.
        error: the short form of an error.
        objects: records that the result refers to.
    """

    outcome: Literal["ok", "error"]
    result: str | None = None
    value: Any = msgspec.UNSET
    error: dict[str, Any] | None = None
    objects: list[dict[str, Any]] | None = None


class Failed(msgspec.Struct, tag_field="class", tag="failed", frozen=True, omit_defaults=True):
    """The poll failed, which says nothing about the work.

    Args:
        retryable: whether a later poll may succeed.
        error: code, message, and for a broken contract rule and stdout, its first bytes.
    """

    retryable: bool
    error: dict[str, Any]


Answer: TypeAlias = Pending | Done | Failed


class CannotRun(EngineError):
    """This process cannot run the adapter, which says nothing about the adapter or the work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """A poll that has ended.

    Args:
        answer: its answer.
        stderr: the end of its log.
        started_ms: when it began, epoch milliseconds by the clock of this machine; None: not known.
        took_s: how long it took.
        exit_code: of its process; below 0 it is a signal, None if there was none.
        group: the process group that it had.
    """

    answer: Answer
    stderr: str = ""
    started_ms: int | None = None
    took_s: float = 0.0
    exit_code: int | None = None
    group: int | None = None

    def with_answer(self, answer: Answer) -> Executed:
        """Return the same poll with another answer."""
        return replace(self, answer=answer)


def check_name(name: str) -> str:
    """Return the name of an adapter.

    Raises:
        InvalidRequest: it is none.
    """
    if not _NAME.match(name):
        raise InvalidRequest(
            f"{readable(name.encode(errors='surrogatepass'), 80)!r} is no name of an adapter",
            hint="1 to 64 of a-z 0-9 . _ -, beginning with a letter or digit: batch, or batch=/opt/bin/x",
        )
    return name


def exit_answer(code: int, stdout: bytes) -> Answer:
    """Return the answer of an adapter that has ended by itself.

    Args:
        code: its exit code; below 0 it is a signal.
        stdout: what it printed.
    """
    if code == 0:
        try:
            return read_answer(stdout)
        except ProtocolError as error:
            return broken(error.rule, str(error), stdout)
    if code < 0:
        return Failed(True, _error("adapter_exit", f"the adapter was ended by signal {_signal_name(-code)}"))
    if code in _BROKEN:
        return Failed(False, _error("adapter_broken", f"the adapter exited with {code}: {_BROKEN[code]}"))
    meaning = (_TEMPORARY | _PERMANENT).get(code)
    message = f"the adapter exited with {code}" + (f": {meaning}" if meaning else "")
    return Failed(code not in _PERMANENT, _error("adapter_exit", message))


def broken(rule: str, message: str, stdout: bytes = b"") -> Failed:
    """Return the failure for an answer that breaks the contract, which no retry repairs."""
    error = _error("adapter_protocol", message) | {"rule": rule}
    return Failed(False, error | {"stdout": readable(stdout, _HEAD)} if stdout else error)


def read_answer(stdout: bytes) -> Answer:
    """Return the answer that an adapter printed.

    Raises:
        ProtocolError: it breaks a rule.
    """
    if len(stdout) > STDOUT_LIMIT_WITH_OBJECTS:
        raise ProtocolError("size", f"more than {STDOUT_LIMIT_WITH_OBJECTS} bytes")
    document = _read_json(stdout)
    if not isinstance(document, dict):
        raise ProtocolError("object", _shown(document))
    if len(stdout) > STDOUT_LIMIT and not (document.get("status") == "done" and "objects" in document):
        raise ProtocolError("size", f"{len(stdout)} bytes")
    if not _is_whole(document.get("v")) or document["v"] != VERSION:
        raise ProtocolError("version", _shown(document.get("v")))
    readers: dict[str, Callable[[dict[str, Any]], Answer]]
    readers = {"pending": _pending, "done": _done, "failed": _failed}
    status = document.get("status")
    if not isinstance(status, str) or status not in readers:
        raise ProtocolError("status", _shown(status))
    return readers[status](document)


def readable(data: bytes, limit: int) -> str:
    """Return the beginning of some output as a text that every JSON reader accepts."""
    return data[:limit].decode(errors="backslashreplace").replace("\0", "\\x00")


# -- JSON


def _read_json(stdout: bytes) -> Any:
    try:
        text = stdout.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError("utf8", f"byte {error.start} is none") from None
    if text.startswith("\ufeff"):
        raise ProtocolError("utf8", "it begins with one")
    if not text.strip(" \t\r\n"):
        raise ProtocolError("json", "it is empty")
    try:
        document = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        rule = "one_document" if error.msg == "Extra data" else "json"
        raise ProtocolError(rule, f"{error.msg} at {place}") from None
    except RecursionError:
        raise ProtocolError("depth", "it is deeper") from None
    _check_parts(document, 0)
    return document


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ProtocolError("duplicate_key", _shown(key))
    return made


def _constant(name: str) -> NoReturn:
    raise ProtocolError("number", name)


def _integer(digits: str) -> int:
    if len(digits) > 20 or not -(1 << 63) <= int(digits) < 1 << 63:
        raise ProtocolError("number", digits[:40])
    return int(digits)


def _float(digits: str) -> float:
    if not isfinite(number := float(digits)):
        raise ProtocolError("number", digits[:40])
    return number


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer, parse_float=_float
)


def _check_parts(value: Any, depth: int) -> None:
    """Refuse texts and depths that other readers of JSON do not take."""
    if isinstance(value, str):
        if "\0" in value:
            raise ProtocolError("text", "a NUL")
        if _SURROGATE.search(value):
            raise ProtocolError("text", "half of a surrogate pair")
    elif isinstance(value, dict | list):
        if depth == 100:
            raise ProtocolError("depth", "it is deeper")
        for part in (*value, *value.values()) if isinstance(value, dict) else value:
            _check_parts(part, depth + 1)


# -- documents


def _pending(document: dict[str, Any]) -> Pending:
    token = document.get("token")
    if not isinstance(token, str) or not 1 <= len(token.encode()) <= _TOKEN_LIMIT:
        raise ProtocolError("token", _shown(token))
    pause_ms = document.get("poll_after_ms")
    if pause_ms is not None and not (_is_whole(pause_ms) and 0 <= pause_ms <= _LARGEST_MS):
        raise ProtocolError("poll_after_ms", _shown(pause_ms))
    message, progress = document.get("message"), document.get("progress")
    if message is not None and not isinstance(message, str):
        raise ProtocolError("message", _shown(message))
    if progress is not None and not (
        isinstance(progress, int | float) and not isinstance(progress, bool) and 0 <= progress <= 1
    ):
        raise ProtocolError("progress", _shown(progress))
    return Pending(token, pause_ms, message, progress)


def _done(document: dict[str, Any]) -> Done:
    outcome = document.get("outcome")
    if outcome not in ("ok", "error"):
        raise ProtocolError("outcome", _shown(outcome))
    given = [name for name in ("result", "value", "error") if name in document]
    short = "value" if outcome == "ok" else "error"
    if given not in (["result"], [short]):
        raise ProtocolError("result", f"outcome {outcome} with {' and '.join(given) or 'neither'}")
    objects = document.get("objects")
    if "objects" in document and not (
        isinstance(objects, list) and all(isinstance(each, dict) for each in objects) and "result" in document
    ):
        raise ProtocolError("objects", _shown(objects))
    if "result" in document:
        result = document["result"]
        if not isinstance(result, str) or not _ID.match(result):
            raise ProtocolError("id", _shown(result))
        return Done(outcome, result=result, objects=objects)
    if outcome == "ok":
        return Done("ok", value=document["value"])
    return Done("error", error=_checked_error(document["error"]))


def _failed(document: dict[str, Any]) -> Failed:
    retryable = document.get("retryable")
    if not isinstance(retryable, bool):
        raise ProtocolError("retryable", _shown(retryable))
    error = _checked_error(document.get("error"))
    return Failed(retryable, {"code": "adapter_failed"} | error)


def _checked_error(error: Any) -> dict[str, Any]:
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        raise ProtocolError("error", _shown(error))
    for name in ("code", "type", "origin"):
        if not isinstance(error.get(name, ""), str):
            raise ProtocolError("error", f"{name} is {_shown(error[name])}")
    stack = error.get("stack", [])
    if not isinstance(stack, list) or not all(isinstance(frame, dict) for frame in stack):
        raise ProtocolError("error", f"stack is {_shown(stack)}")
    return error


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _error(code: str, message: str) -> dict[str, Any]:
    return {"code": code, "message": message}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
