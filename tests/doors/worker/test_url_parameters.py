"""Law: a parameter of a database URL holds for every driver: workers, clients, installer and commands take
it, or all of them refuse it by its name, with the same sentence. None drops what somebody asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import pytest

from pyengine.core.database.connection import Database
from pyengine.doors.admin import migrate
from pyengine.doors.cli.database import connect
from pyengine.doors.embedded.server import database_url
from pyengine.errors import InvalidRequest
from pyengine.sync import Client

TAKEN = [
    "sslmode=disable",
    "ssl_min_protocol_version=TLSv1.2",
    "ssl_max_protocol_version=TLSv1.3",
    "sslnegotiation=postgres",
    "sslcrl=/x",
    "channel_binding=prefer",
    "channel_binding=disable",
    "gssencmode=disable",
    "gssdelegation=0",
    "sslsni=1",
    "require_auth=",
    "sslcertmode=allow",
    "replication=false",
    "options=-c%20search_path%3Dx",
    "fallback_application_name=shop",
    "application_name=shop",
    "client_encoding=latin1",
    "passfile=/nope",
    "krbsrvname=p",
    "gsslib=gssapi",
    "sslcompression=0",
    "tcp_user_timeout=1000",
    "connect_timeout=5",
    "keepalives=1",
    "keepalives_idle=3",
    "keepalives_interval=3",
    "keepalives_count=3",
    "target_session_attrs=read-write",
    "load_balance_hosts=random",
    "sslcert=/x",
    "sslkey=/x",
    "sslrootcert=/x",
    "sslpassword=x",
]
REFUSED = [
    "channel_binding=require",
    "gssencmode=require",
    "gssdelegation=1",
    "sslsni=0",
    "require_auth=none",
    "sslcertmode=disable",
    "sslrootcert=system",
    "sslcrldir=/x",
    "requirepeer=postgres",
    "hostaddr=127.0.0.1",
    "service=x",
    "servicefile=/x",
    "replication=database",
    "sslkeylogfile=/x",
    "min_protocol_version=3.0",
    "max_protocol_version=3.2",
    "scram_client_key=x",
    "scram_server_key=x",
    "oauth_issuer=x",
    "oauth_client_id=x",
    "oauth_client_secret=x",
    "oauth_scope=x",
    "schema=public",
    "pgbouncer=true",
    "jit=off",
]


def by_asyncpg(url: str) -> None:
    """Connect as workers do."""

    async def main() -> None:
        conn = await Database(url).connect("client")
        assert await conn.fetchval("select current_setting('client_encoding')") == "UTF8"
        await conn.close()

    asyncio.run(main())


def by_client(url: str) -> None:
    """Connect as the client that blocks."""
    with Client(url) as client:
        client.run("x").id  # noqa: B018


def by_installer(url: str) -> None:
    """Connect as the installer."""
    with migrate.connected(url) as conn:
        assert conn.info.encoding == "utf-8"


def by_command(url: str) -> None:
    """Connect as commands do."""
    with connect(url, database_url(url)) as conn:
        assert conn.info.encoding == "utf-8"


DOORS = (by_asyncpg, by_client, by_installer, by_command)


def outcome(door: Callable[[str], None], url: str) -> str:
    """What a door says: nothing, or its refusal."""
    try:
        door(url)
    except InvalidRequest as error:
        return error.message
    return ""


@pytest.mark.parametrize("parameter", TAKEN)
def test_taken(dsn: str, parameter: str) -> None:
    """What both drivers do, or what asks for nothing special, is taken at every door (C060)."""
    url = f"{dsn}{'&' if '?' in dsn else '?'}{parameter}"
    assert [outcome(door, url) for door in DOORS] == [""] * len(DOORS)


@pytest.mark.parametrize("parameter", REFUSED)
def test_refused(dsn: str, parameter: str) -> None:
    """What only one driver would heed is refused at every door, by its name (C060)."""
    url = f"{dsn}{'&' if '?' in dsn else '?'}{parameter}"
    said = {outcome(door, url) for door in DOORS}
    assert len(said) == 1
    assert parameter.partition("=")[0] in said.pop()


def test_all_of_libpq() -> None:
    """Every parameter that this machine's libpq knows is named in one of the two lists."""
    known = {one.keyword.decode() for one in psycopg.pq.Conninfo.get_defaults()}
    listed = {each.partition("=")[0] for each in (*TAKEN, *REFUSED)}
    obsolete = {"authtype", "tty", "requiressl", "sslhostname"}
    assert known - listed - obsolete <= {"host", "port", "dbname", "user", "password", "oauth_ca_file"}


@pytest.mark.parametrize("url", ["postgresql://bob:p?s3cret=@h/db", "postgresql://bob:p?s3cret&x@h:1/db"])
def test_a_password_with_a_question_mark(url: str) -> None:
    """What may be a part of a password is not repeated."""
    with pytest.raises(InvalidRequest) as caught:
        Database(url)
    assert "s3cret" not in f"{caught.value}{caught.value.hint}"
