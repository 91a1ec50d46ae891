"""Requests of a courier.

Lives here: `HttpClient`: one POST, from the check of its host to its answer. May not: which messages, what
becomes of them. Design: a connection is made to a checked address of the host (hosts.py), so nothing may lead
past the check: no redirect is followed, no proxy of the environment is used. TLS is verified against the
name. The status decides, so of a body only as much is read as lets the connection serve again.
"""

from __future__ import annotations

import base64
import contextlib
import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpcore
import httpx

from pyengine.core.process import clock
from pyengine.doors.gateway.courier.answers import Answer
from pyengine.doors.gateway.courier.hosts import Forbidden, Hosts
from pyengine.errors import InvalidRequest
from pyengine.features.http.requests import retry_after_s

logger = logging.getLogger("pyengine.gateway")

# what the request itself says; a receiver's own headers change none of it
_OURS = frozenset(
    [
        *("host", "content-type", "content-length", "transfer-encoding", "connection", "keep-alive"),
        *("expect", "te", "trailer", "upgrade", "proxy-authorization", "proxy-connection"),
    ]
)
# servers close connections that were idle for 5 s
_IDLE_S = 4.0
_IDLE_MAX = 64
_BODY_MAX = 65_536
_BODY_S = 5.0


class HttpClient:
    """Sends messages to http addresses.

    Args:
        hosts: the hosts that they may be sent to.
        token: bearer token for receivers, or None.
        connect_s: seconds for a connection.
        request_s: seconds for a request, connection and answer included.
    """

    def __init__(self, hosts: Hosts, *, token: str | None, connect_s: float, request_s: float) -> None:
        self._hosts = hosts
        self._token = token
        self._request_s = request_s
        self._timeouts = {"timeout": {"connect": connect_s}}
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=httpx.create_ssl_context(),
            max_connections=None,
            max_keepalive_connections=_IDLE_MAX,
            keepalive_expiry=_IDLE_S,
            network_backend=_CheckedNetwork(hosts),
        )

    async def post(self, address: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Send a message, and return what becomes of it.

        Args:
            address: the http address.
            headers: what its receiver wants to be sent.
            body: the message.
        """
        try:
            async with clock.timeout(self._request_s):
                return await self._post(httpx.URL(address), headers, body)
        except Forbidden as forbidden:
            return Answer(None, "forbidden", str(forbidden))
        except (TimeoutError, httpcore.TimeoutException):
            return Answer(None, "timeout")
        except httpcore.ConnectError as error:
            return Answer(None, "unreachable", str(error))
        except (OSError, httpcore.NetworkError, httpcore.ProtocolError, httpx.InvalidURL) as error:
            return Answer(None, "unreachable", f"{type(error).__name__} {error}".strip())
        except Exception as error:  # the boundary of a request: a message must not be held for ever
            logger.error("a push has failed for a reason of this gateway's own", exc_info=error)
            return Answer(None, "unreachable", type(error).__name__)

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.aclose()

    async def _post(self, url: httpx.URL, headers: Mapping[str, str], body: bytes) -> Answer:
        place = httpcore.URL(
            scheme=url.scheme.encode("ascii"), host=url.raw_host, port=url.port, target=url.raw_path
        )
        sent = self._headers(url, headers, len(body))
        async with self._pool.stream(
            "POST", place, headers=sent, content=body, extensions=self._timeouts
        ) as response:
            got = {name.lower(): value for name, value in response.headers}
            texts = {name.decode("latin-1"): value.decode("latin-1") for name, value in got.items()}
            answer = Answer(response.status, retry_after_s=retry_after_s(texts, datetime.now(UTC)))
            with contextlib.suppress(TimeoutError, httpcore.NetworkError, httpcore.ProtocolError):
                async with clock.timeout(_BODY_S):
                    await _read(response)
        return answer

    def _headers(self, url: httpx.URL, headers: Mapping[str, str], length: int) -> list[tuple[bytes, bytes]]:
        """Return the headers of a request: ours, then the receiver's own, then what identifies us."""
        own = {name.lower(): value.strip() for name, value in headers.items() if name.lower() not in _OURS}
        if "authorization" not in own and url.userinfo:
            own["authorization"] = f"Basic {base64.b64encode(_user(url)).decode('ascii')}"
        if "authorization" not in own and self._token is not None and self._may_know(url):
            own["authorization"] = f"Bearer {self._token}"
        return [
            (b"host", url.netloc),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % length),
            *((_name(name), value.encode()) for name, value in own.items()),
        ]

    def _may_know(self, url: httpx.URL) -> bool:
        """Return whether the token may be sent there: encrypted, or to a host that the operator has named."""
        return url.scheme == "https" or self._hosts.is_named(url.raw_host.decode("ascii"), url.port or 80)


class _CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Connects to checked addresses of a host."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address of a host that takes the connection."""
        async with clock.timeout(timeout):
            addresses = await self._hosts.addresses(host, port)
            share_s = None if timeout is None else timeout / len(addresses)
            for address in addresses[:-1]:
                with contextlib.suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                    return await self._network.connect_tcp(address, port, share_s)
            return await self._network.connect_tcp(addresses[-1], port, timeout)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        """Refuse: no address means a socket of this machine."""
        raise httpcore.ConnectError("no socket of this machine")

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await clock.sleep(seconds)


def read_token(path: Path) -> str:
    """Return the bearer token in a file.

    Raises:
        InvalidRequest: it cannot be read, or a header cannot carry it.
    """
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not ASCII"
        raise InvalidRequest(f"the token for receivers in {path} cannot be read: {reason}") from None
    if not token or not token.isprintable() or " " in token:
        raise InvalidRequest(f"{path} has no token for receivers: a line of characters without blanks")
    return token


async def _read(response: httpcore.Response) -> None:
    """Read an answer to its end, if that is near."""
    length = 0
    async for part in response.aiter_stream():
        length += len(part)
        if length > _BODY_MAX:
            return


def _user(url: httpx.URL) -> bytes:
    return f"{url.username}:{url.password}".encode()


def _name(header: str) -> bytes:
    if not header.isascii():
        raise httpcore.LocalProtocolError("a header that its receiver wants has a name that is not ASCII")
    return header.encode("ascii")
