"""Law: a request over HTTP has the answer of the database, and its status as the status of HTTP."""

from __future__ import annotations

from tests.gateway.http_client import Client


def test_an_answer_is_an_envelope(client: Client) -> None:
    """Kind and correlation id come back, and the status of HTTP is that of the envelope."""
    assert client.create("a")["state"] == "pending"
    assert client.ask("promise.get", id="nothing")[0] == 404
