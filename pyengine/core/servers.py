"""The servers that a database URL names, for a database that moves from one to another.

Lives here: `Servers`, which makes a URL for each server and knows which one served last; `libpq_url`, the
same choice for libpq; `is_standby`. May not: connecting, or the meaning of parameters (url_parameters.py).
Design: a standby takes over when the primary fails, so a URL may name both. Each server is tried alone, with
a time limit of its own, because a machine that is switched off does not answer at all, and the next one must
still get its turn. A standby only reads, so of several servers the primary is meant, unless the URL has
`target_session_attrs`.
"""

from __future__ import annotations

import os
from typing import Any

from pyengine.core.passwords import ESCAPE, is_unescaped
from pyengine.core.url_parameters import asyncpg_pairs, pairs_of
from pyengine.errors import InvalidRequest

_ATTRIBUTES = "target_session_attrs"
_PREFER_STANDBY = "prefer-standby"
_ALONE_S = 10.0
_AMONG_OTHERS_S = 4.0


class Servers:
    """The servers of one database URL.

    Args:
        dsn: the URL; it names one server or several.

    Raises:
        InvalidRequest: user or password are not escaped, or it has a parameter that not every driver heeds.

    Attributes:
        several: whether there are several.
        means_primary: whether it names several without saying which kind is meant.
        timeout_s: seconds for a connection to one of them: `connect_timeout` of the URL, or the default.
    """

    def __init__(self, dsn: str) -> None:
        if is_unescaped(dsn):
            what = "the user or password of the database URL has @ / ? or # that is not escaped"
            raise InvalidRequest(what, hint=ESCAPE)
        head, _, query = dsn.partition("?")
        pairs = pairs_of(query)
        given = dict(pairs)
        addresses = _addresses(head, given)
        self.several = len(addresses) > 1
        kind = given.get(_ATTRIBUTES) or os.environ.get("PGTARGETSESSIONATTRS")
        self.means_primary = self.several and kind is None
        limit = given.get("connect_timeout") or os.environ.get("PGCONNECT_TIMEOUT") or ""
        default_s = _AMONG_OTHERS_S if self.several else _ALONE_S
        # libpq takes 0 for no limit, and no less than 2 s
        self.timeout_s = max(2.0, float(limit)) if limit.isdigit() and int(limit) else default_s
        kept = asyncpg_pairs(pairs)
        self._ordered = kind == _PREFER_STANDBY
        kinds = ("standby", "any") if self._ordered else (None,)
        self._urls: tuple[str, ...] = (_url(head, kept),)
        if self.several:
            self._urls = tuple(_one(head, kept, address, kind) for kind in kinds for address in addresses)

    def in_order(self) -> tuple[str, ...]:
        """Return the URL of each server, in the order in which to try them: the last that served first."""
        return self._urls

    def served(self, url: str) -> None:
        """Record that a connection to this server was made."""
        if url != self._urls[0] and not self._ordered:
            self._urls = (url, *(other for other in self._urls if other != url))


def libpq_url(dsn: str) -> str:
    """Return a URL for libpq that asks for the primary if it names several servers and no kind.

    Raises:
        InvalidRequest: it has a parameter that not every driver heeds.
    """
    if "://" not in dsn or not Servers(dsn).means_primary:
        return dsn
    return f"{dsn}{'&' if '?' in dsn else '?'}{_ATTRIBUTES}=primary"


def is_standby(conn: Any) -> bool:
    """Return whether the server of a connection of asyncpg only reads, as it last reported."""
    return getattr(conn.get_settings(), "in_hot_standby", None) == "on"


def _addresses(head: str, given: dict[str, str]) -> list[tuple[str, str]]:
    """Return host and port of each server; a port is empty if none is given."""
    hosts = head.partition("://")[2].partition("/")[0].rpartition("@")[2]
    ports = (given.get("port") or os.environ.get("PGPORT") or "").split(",")
    hosts = hosts or given.get("host") or os.environ.get("PGHOST") or ""
    found = []
    for number, host in enumerate(hosts.split(",")):
        name, port = host, ""
        if not host.startswith("/") and not host.endswith("]") and ":" in host:
            name, _, port = host.rpartition(":")
        found.append((name, port or ports[min(number, len(ports) - 1)]))
    return found


def _one(head: str, pairs: list[tuple[str, str]], address: tuple[str, str], kind: str | None) -> str:
    """Return the URL of one of several servers."""
    scheme, _, rest = head.partition("://")
    authority, slash, path = rest.partition("/")
    user, at, _ = authority.rpartition("@")
    host, port = address
    replaced = {"host", "port"} | ({_ATTRIBUTES} if kind else set())
    others = [(name, value) for name, value in pairs if name not in replaced]
    place = f"{host}:{port}" if port else host
    if host.startswith("/"):
        # the folder of a socket has no place before the path
        others += [(name, value) for name, value in (("host", host), ("port", port)) if value]
        place = ""
    others += [(_ATTRIBUTES, kind)] if kind else []
    return _url(f"{scheme}://{user}{at}{place}{slash or '/'}{path}", others)


def _url(head: str, pairs: list[tuple[str, str]]) -> str:
    return "?".join(filter(None, (head, "&".join(f"{name}={value}" for name, value in pairs))))
