"""A model that always answers the same to the same conversation: it looks things up, books, and answers.

Run it with `python -m tests.examples.agent.model`. It stands in for a real one.
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Model(ThreadingHTTPServer):
    """The model at a port of loopback; it counts the questions."""

    def __init__(self, port: int) -> None:
        self.asked: list[int] = []
        super().__init__(("127.0.0.1", port), Handler)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}/chat"

    def reply(self, conversation: list[dict[str, Any]]) -> dict[str, Any]:
        """Look things up, then book, then answer."""
        self.asked.append(len(conversation))
        results = [one["text"] for one in conversation if one["role"] == "tool"]
        if not results:
            return assistant(
                {"id": "1", "tool": "trains", "arguments": {"start": "Ulm", "end": "Bonn"}},
                {"id": "2", "tool": "weather", "arguments": {"city": "Bonn"}},
                {"id": "3", "tool": "weather", "arguments": {"town": "Bonn"}},
            )
        if len(results) == 3:
            return assistant({"id": "4", "tool": "book", "arguments": {"train": "8:15 Ulm to Bonn"}})
        return {"role": "assistant", "text": " | ".join(results)}


def assistant(*calls: dict[str, Any]) -> dict[str, Any]:
    """A message of the model with calls of tools."""
    return {"role": "assistant", "calls": calls}


class Handler(BaseHTTPRequestHandler):
    """One question."""

    server: Model

    def do_POST(self) -> None:
        """Answer it."""
        conversation = json.loads(self.rfile.read(int(self.headers["content-length"])))
        body = json.dumps(self.server.reply(conversation)).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing about requests."""


if __name__ == "__main__":
    Model(8080).serve_forever()
