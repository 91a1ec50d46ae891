"""The options of a gateway.

Lives here: `GatewayConfig`, and which hosts are of this machine alone. May not: reading options of the
command line, starting anything.
"""

from __future__ import annotations

import ipaddress
import math
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pyengine.errors import InvalidRequest

MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_BODIES_BYTES = 256 * 1024 * 1024
MAX_OUTGOING_BYTES = 128 * 1024 * 1024
MAX_STREAM_BYTES = 1024 * 1024

# a name or all names below one, an address, or an address in brackets; all but a bare IPv6 one with a port
_HOST = re.compile(
    r"(\.?[a-z0-9_-][a-z0-9._-]*|\[[0-9a-f:.]+\])(:[0-9]+)?|[0-9a-f.]*:[0-9a-f:.]*:[0-9a-f:.]*", re.I
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """How a gateway serves.

    Args:
        database_url: URL of the database.
        listen_url: URL of the same database past its pooler, for hints.
        start_server: starts a server of our own again, if it was killed; None: it is not ours.
        host: the address to listen on.
        port: its port; 0 takes any that is free.
        older_port: the port of streams for clients of the older API, or None.
        public_url: where receivers of messages reach this gateway, or None.
        debug: allow the debug operations of the protocol, and requests as of another instant.
        auth_key: file with the public key of tokens, PEM or JWKS; None means that requests need no token.
        auth_issuer: the issuer that tokens must name.
        auth_audience: the audience that tokens must name.
        insecure_no_auth: serve without tokens on an address that other machines reach.
        connections: the largest number of database connections for requests.
        max_waiting: requests that may wait for one; further ones get 503.
        max_body_bytes: the largest body of a request.
        max_bodies_bytes: the bodies of all requests together; further bytes get 503.
        max_outgoing_bytes: the answers and messages that clients have not taken yet, all together; further
            answers get 503, and further messages come later.
        max_stream_bytes: the messages that wait on one stream; a single one may be larger.
        max_connections: the largest number of open connections of clients, streams included.
        max_streams: the largest number of open streams.
        max_unacquired: tasks that a member is offered without having acquired them.
        body_idle_s: seconds without a byte after which a body is given up.
        comment_s: seconds of silence after which a stream gets a comment.
        stream_life_s: the shortest and the longest life of a stream, in seconds. Some clients stop listening
            300 s after they connected.
        closing_s: the last seconds of a stream, in which nothing new is sent on it.
        stop_s: seconds that requests have to end when the gateway stops.
        courier: push messages to http addresses.
        push_private: hosts that may be pushed to although their addresses are not public.
        push_token: file with a bearer token for receivers, or None.
        push_connect_s: seconds for the connection to a receiver.
        push_request_s: seconds for a request to a receiver, which may run a whole pass meanwhile.
        push_per_address: requests to one address that may be open.
        push_in_all: requests to receivers that may be open.
    """

    database_url: str
    listen_url: str | None = None
    start_server: Callable[[], object] | None = None
    host: str = "127.0.0.1"
    port: int = 8001
    older_port: int | None = None
    public_url: str | None = None
    debug: bool = False
    auth_key: Path | None = None
    auth_issuer: str | None = None
    auth_audience: str | None = None
    insecure_no_auth: bool = False
    connections: int = 16
    max_waiting: int = 512
    max_body_bytes: int = MAX_BODY_BYTES
    max_bodies_bytes: int = MAX_BODIES_BYTES
    max_outgoing_bytes: int = MAX_OUTGOING_BYTES
    max_stream_bytes: int = MAX_STREAM_BYTES
    max_connections: int = 10_000
    max_streams: int = 4096
    max_unacquired: int = 64
    body_idle_s: float = 30.0
    comment_s: float = 15.0
    stream_life_s: tuple[float, float] = (200.0, 270.0)
    closing_s: float = 5.0
    stop_s: float = 20.0
    courier: bool = True
    push_private: tuple[str, ...] = ()
    push_token: Path | None = None
    push_connect_s: float = 10.0
    push_request_s: float = 180.0
    push_per_address: int = 16
    push_in_all: int = 256

    def check(self) -> None:
        """Refuse to serve without tokens where other machines can reach, and options that make no sense.

        Raises:
            InvalidRequest: there is one of these.
        """
        if self.public_url is not None:
            _check_url(self.public_url)
        for seconds, option in (
            (self.push_connect_s, "--push-connect-timeout 10"),
            (self.push_request_s, "--push-timeout 180"),
        ):
            if not math.isfinite(seconds):
                raise InvalidRequest(f"{seconds} is no number of seconds", hint=option)
        for name in self.push_private:
            if not _HOST.fullmatch(name):
                raise InvalidRequest(
                    f"{name!r} is no host that messages may be pushed to",
                    hint="NAME, or .NAME for all names below it, and :PORT behind it for one port",
                )
        if self.auth_key is None and not self.insecure_no_auth and not is_loopback(self.host):
            raise InvalidRequest(
                f"{self.host} can be reached from other machines, and no key for tokens is given",
                hint="--auth-key FILE, or --insecure-no-auth if everybody who reaches it may do everything",
            )
        if self.max_bodies_bytes < self.max_body_bytes:
            raise InvalidRequest(
                f"all bodies together may have {self.max_bodies_bytes} bytes, and one {self.max_body_bytes}",
                hint="--max-bodies is at least --max-body",
            )
        if self.max_connections <= self.max_streams:
            raise InvalidRequest(
                f"{self.max_connections} connections leave none beside {self.max_streams} streams",
                hint="--max-connections is larger than --max-streams",
            )


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        # reading the port checks it
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole or re.search(r"[\s?#@]", url):
        raise InvalidRequest(
            f"{url!r} is no address of a gateway", hint="--public-url https://gateway.example:8001"
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host.

    Raises:
        InvalidRequest: the name cannot be resolved.
    """
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InvalidRequest(f"the host {host!r} cannot be resolved: {error}") from None
    return all(ipaddress.ip_address(str(one[4][0]).partition("%")[0]).is_loopback for one in found)
