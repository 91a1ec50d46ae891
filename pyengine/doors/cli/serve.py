"""``pyengine serve``: the protocol over HTTP, for clients in any language.

Lives here: the options of a gateway, and the life of its process. May not: the work of a gateway.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pyengine.doors.cli.command import ListenUrl, command
from pyengine.doors.cli.database import Invocation
from pyengine.doors.cli.display.logs import LogOptions
from pyengine.doors.cli.output import redact
from pyengine.doors.program.foreground import ServingProcess
from pyengine.doors.program.foreground import serve as serve_until_signal
from pyengine.errors import InvalidRequest

if TYPE_CHECKING:
    from pyengine.doors.gateway.config import GatewayConfig
    from pyengine.doors.gateway.http_server import GatewayServer

_NEEDED = ("starlette", "uvicorn", "h11", "httpcore", "jwt", "cryptography", "prometheus_client")


def add_to(app: typer.Typer) -> None:
    """Make this function a command."""
    command(app)(serve)


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Where a gateway listens, and how others reach it."""

    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Its port; 0 takes a free one.")] = (
        8001
    )
    older_port: Annotated[
        int | None,
        typer.Option(
            "--older-port",
            min=0,
            max=65535,
            help="Port for streams of clients of the older API, which expect 8002.",
        ),
    ] = None
    public_url: Annotated[
        str | None,
        typer.Option("--public-url", metavar="URL", help="Where receivers of messages reach this gateway."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Which tokens requests need."""

    auth_key: Annotated[
        Path | None,
        typer.Option(
            "--auth-key",
            metavar="FILE",
            help="Public key of tokens, PEM or JWKS; without it no token is needed.",
        ),
    ] = None
    auth_issuer: Annotated[
        str | None, typer.Option("--auth-issuer", metavar="TEXT", help="Issuer that tokens must name.")
    ] = None
    auth_audience: Annotated[
        str | None, typer.Option("--auth-audience", metavar="TEXT", help="Audience that tokens must name.")
    ] = None
    insecure_no_auth: Annotated[
        bool,
        typer.Option(
            "--insecure-no-auth", help="Serve other machines without tokens: everybody may do everything."
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a gateway takes."""

    connections: Annotated[
        int, typer.Option("--connections", min=1, help="Database connections for requests.")
    ] = 16
    max_body_bytes: Annotated[
        int, typer.Option("--max-body", min=1024, metavar="BYTES", help="Largest body of a request.")
    ] = 16 * 1024 * 1024
    max_bodies_bytes: Annotated[
        int,
        typer.Option("--max-bodies", min=1024, metavar="BYTES", help="All bodies together, at most."),
    ] = 256 * 1024 * 1024
    max_outgoing_bytes: Annotated[
        int,
        typer.Option(
            "--max-outgoing",
            min=1024,
            metavar="BYTES",
            help="Answers and messages that clients have not taken yet, all together, at most.",
        ),
    ] = 128 * 1024 * 1024
    max_connections: Annotated[
        int,
        typer.Option("--max-connections", min=2, help="Open connections of clients, at most."),
    ] = 10_000
    max_streams: Annotated[
        int, typer.Option("--max-streams", min=1, help="Open streams of members, at most.")
    ] = 4096


@dataclass(frozen=True, kw_only=True)
class Pushes:
    """Messages to http addresses."""

    courier: Annotated[
        bool, typer.Option("--courier/--no-courier", help="Push messages to http addresses, or leave it out.")
    ] = True
    push_private: Annotated[
        list[str] | None,
        typer.Option(
            "--push-private",
            metavar="[.]HOST[:PORT]",
            help="Host that may be pushed to although its address is not public; .NAME: all below a name.",
        ),
    ] = None
    push_token: Annotated[
        Path | None,
        typer.Option("--push-token", metavar="FILE", help="Bearer token that receivers get, in a file."),
    ] = None
    push_connect_s: Annotated[
        float,
        typer.Option("--push-connect-timeout", min=0.1, metavar="SECONDS", help="For a connection."),
    ] = 10.0
    push_request_s: Annotated[
        float,
        typer.Option(
            "--push-timeout", min=1, metavar="SECONDS", help="For a request, in which a receiver may work."
        ),
    ] = 180.0


def serve(
    at: Invocation,
    listening: Listening,
    tokens: Tokens,
    limits: Limits,
    pushes: Pushes,
    log: LogOptions,
    debug: Annotated[
        bool, typer.Option("--debug", help="Allow the debug operations of the protocol, for tests.")
    ] = False,
    listen_url: ListenUrl = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="End at once, with 4, if the database cannot be reached.")
    ] = False,
) -> None:
    """Serve clients in other languages over HTTP until Ctrl-C or SIGTERM.

    Programs of the Resonate SDKs run against it unchanged, at http://HOST:PORT. Any number of gateways may
    serve one database.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidRequest(
            f"the packages of the gateway are not installed: {', '.join(missing)}",
            hint="pip install 'pyengine-durable[serve]'",
        )
    from pyengine.doors.gateway.config import GatewayConfig

    listen_url = listen_url or os.environ.get("PYENGINE_LISTEN_URL")
    config = GatewayConfig(
        database_url="",
        listen_url=listen_url,
        debug=debug,
        **asdict(listening),
        **asdict(tokens),
        **asdict(limits),
        **{**asdict(pushes), "push_private": tuple(pushes.push_private or ())},
    )
    config.check()
    # an embedded server runs as long as the gateway
    with ServingProcess() as process, at.database(create=True, wait=not no_wait) as db:
        db.conn.close()
        log.configure()
        process.run(
            _serve(at, replace(config, database_url=db.url, start_server=db.start_server), redact(db.place))
        )
    at.out.remark("gateway stopped")


async def _serve(at: Invocation, config: GatewayConfig, database: str) -> None:
    from pyengine.doors.gateway.http_server import GatewayServer

    @asynccontextmanager
    async def begun() -> AsyncIterator[GatewayServer]:
        async with GatewayServer(config) as gateway:
            about = {"process": os.getpid(), "url": gateway.url, "database": database}
            older = ""
            if (port := gateway.parts.older_port) is not None:
                about["older_port"] = port
                older = f", streams of the older API on port {port}"
            tokens = "with tokens" if config.auth_key is not None else "without tokens"
            at.out.answer(
                about,
                lambda console: console.print(
                    f"gateway {about['process']} serves {gateway.url} {tokens} from the {database}{older}; "
                    "Ctrl-C stops it",
                    soft_wrap=True,
                ),
            )
            yield gateway

    await serve_until_signal(begun, wait=False)
