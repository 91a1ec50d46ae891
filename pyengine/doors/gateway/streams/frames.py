"""Messages as bytes: bodies of requests, and frames of a stream of server-sent events.

Lives here: bytes of messages. May not: which messages, and to whom. Design: some published clients read bytes
and not events: they cut at a bare empty line, drop a chunk that ends within a UTF-8 sequence, and do not join
lines. So a frame is one line of ASCII without a name or a number, and is written at once.
"""

from __future__ import annotations

import json

CONNECTED = b": connected\n\n"
COMMENT = b": \n\n"


def execute_message(id: str, version: int, server_url: str | None) -> bytes:
    """Return the message that offers a task.

    Args:
        id: id of the task.
        version: its version.
        server_url: where the receiver reaches this gateway, if that is known.
    """
    head = {} if server_url is None else {"serverUrl": server_url}
    task = {"id": id, "version": version}
    return json.dumps({"kind": "execute", "head": head, "data": {"task": task}}).encode("ascii")


def unblock_message(promise: str) -> bytes:
    """Return the message that a promise settled.

    Args:
        promise: the promise as JSON text.
    """
    return f'{{"kind": "unblock", "head": {{}}, "data": {{"promise": {_ascii(promise)}}}}}'.encode("ascii")


def execute_frame(id: str, version: int, server_url: str | None) -> bytes:
    """Return the frame that offers a task; arguments as for `execute_message`."""
    return _frame(execute_message(id, version, server_url))


def unblock_frame(promise: str) -> bytes:
    """Return the frame that a promise settled; the promise as JSON text."""
    return _frame(unblock_message(promise))


def older_frame(message: str) -> bytes:
    """Return the frame of a message of the older API.

    Args:
        message: the message as JSON text.
    """
    return _frame(_ascii(message).encode("ascii"))


def notify_frame(promise: str) -> bytes:
    """Return the frame that reports a completed promise in the older API.

    Args:
        promise: the promise as JSON text.
    """
    return _frame(f'{{"type": "notify", "promise": {_ascii(promise)}}}'.encode("ascii"))


def _ascii(text: str) -> str:
    return text if text.isascii() else json.dumps(json.loads(text))


def _frame(message: bytes) -> bytes:
    return b"data: " + message + b"\n\n"
