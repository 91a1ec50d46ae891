"""Gateways and their clients.

Lives here: one gateway for all tests that spoil nothing, and others before the test's own database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import TupleRow
from pytest_postgresql.executors import NoopExecutor

from tests.doors.gateway.http_client import Client
from tests.support.cluster import Server, broken_laws, create_database, drop_database, of_worker
from tests.support.gateway import Gateway

# longest silence of a body before it is given up
IDLE_S = 0.4
MAX_BODY = 200_000


@pytest.fixture(scope="session")
def house(server: Server, template: NoopExecutor, maintenance: psycopg.Connection[TupleRow]) -> Iterator[str]:
    """URL of a database for all tests that spoil nothing."""
    name = of_worker("gateway")
    create_database(maintenance, name, template.template_dbname)
    yield server.dsn(name)
    assert broken_laws(server.dsn(name)) == []
    drop_database(maintenance, name)


@pytest.fixture(scope="session")
def gateway(house: str) -> Iterator[Gateway]:
    """A gateway before that database, with small limits."""
    with Gateway(house, body_idle_s=IDLE_S, max_body_bytes=MAX_BODY) as started:
        yield started


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    """A client of that gateway."""
    with Client(gateway.url) as made:
        yield made


@pytest.fixture
def opened(dsn: str) -> Iterator[Callable[..., Gateway]]:
    """A function: a further gateway before the test's own database, with these options."""
    started: list[Gateway] = []

    def open_one(**options: Any) -> Gateway:
        started.append(Gateway(dsn, **options).__enter__())
        return started[-1]

    yield open_one
    for each in started:
        each.__exit__(None, None, None)
