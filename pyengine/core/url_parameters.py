"""The parameters of a database URL: what each of libpq's means here, whichever driver connects.

Lives here: `pairs_of`, which refuses by its name what one of the drivers cannot do; `asyncpg_pairs`, those
that asyncpg is to see. May not: hosts and their order (servers.py), connecting. Design: half of this package
connects by libpq (psycopg) and half by asyncpg, which knows fewer parameters and sends all others to the
server as settings. A parameter that only one of them heeds would hold for `pyengine db status` and not for
the worker. So it is refused everywhere, unless its value asks for nothing that asyncpg does otherwise.
"""

from __future__ import annotations

from urllib.parse import unquote

from pyengine.errors import InvalidRequest

# both drivers do the same with them
_COMMON = frozenset(
    {
        *("host", "port", "dbname", "user", "password", "passfile", "options", "target_session_attrs"),
        *("sslmode", "sslcert", "sslkey", "sslpassword", "sslrootcert", "sslcrl", "sslnegotiation"),
        *("ssl_min_protocol_version", "ssl_max_protocol_version", "krbsrvname", "gsslib"),
    }
)
# the engine sets them itself, or they change nothing that is seen
_OURS = frozenset(
    {
        *("application_name", "fallback_application_name", "client_encoding", "connect_timeout"),
        *("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout"),
        *("load_balance_hosts", "sslcompression"),
    }
)
# these values ask for what asyncpg does anyway
_ANYWAY = {
    "channel_binding": {"disable", "prefer"},
    "gssencmode": {"disable", "prefer"},
    "gssdelegation": {"0"},
    "replication": {"false", "off", "no", "0"},
    "require_auth": {""},
    "sslcertmode": {"allow"},
    "sslsni": {"1"},
}
_ADVICE = {
    "channel_binding": "leave it out; sslmode=verify-full with sslrootcert makes sure of the server",
    "gssencmode": "leave it out; sslmode=verify-full encrypts",
    "hostaddr": "write the address as the host",
    "replication": "leave it out; no connection of the engine replicates",
    "service": "write what the service says into the URL: host, port, dbname, user, sslmode",
    "sslcrldir": "name a file: sslcrl=/path/to/root.crl",
    "sslrootcert": "name a file: sslrootcert=/etc/ssl/certs/ca-certificates.crt",
}
_ONLY_LIBPQ = frozenset(
    {
        *(*_ANYWAY, *_ADVICE, "servicefile", "requirepeer", "requiressl", "sslkeylogfile"),
        *("scram_client_key", "scram_server_key", "min_protocol_version", "max_protocol_version"),
        *("oauth_issuer", "oauth_scope", "oauth_client_id", "oauth_client_secret"),
    }
)


def pairs_of(query: str) -> list[tuple[str, str]]:
    """Return name and value of each parameter of a URL, as they stand there.

    Args:
        query: the part behind the question mark.

    Raises:
        InvalidRequest: libpq does not know one, or asyncpg cannot do what it asks for.
    """
    found = []
    for part in query.split("&"):
        name, _, value = part.partition("=")
        # libpq takes this one from URLs of JDBC
        pair = ("sslmode", "require") if (name, value) == ("ssl", "true") else (name, value)
        if part:
            # a password with a question mark looks like parameters up to its @
            _check(*pair, said=name if "@" not in query else "that cannot be read")
            found.append(pair)
    return found


def asyncpg_pairs(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return those parameters that are for asyncpg too."""
    return [(name, value) for name, value in pairs if name in _COMMON]


def _check(name: str, value: str, *, said: str) -> None:
    if name == "sslrootcert" and value == "system":
        raise _only_libpq("sslrootcert=system", _ADVICE[name])
    if name in _COMMON | _OURS or unquote(value) in _ANYWAY.get(name, ()):
        return
    if name in _ONLY_LIBPQ:
        raise _only_libpq(name, _ADVICE.get(name, "leave it out"))
    raise InvalidRequest(
        f"the database URL has a parameter {said}, which libpq does not know",
        hint="leave it out: the schema of the engine is always called durable, and a pooler is detected; "
        "write a setting of the server as options=-c%20name%3Dvalue",
    )


def _only_libpq(what: str, advice: str) -> InvalidRequest:
    return InvalidRequest(
        f"asyncpg, the driver of workers, cannot do what the database URL asks for by {what}",
        hint=advice,
    )
