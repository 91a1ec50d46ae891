"""A gateway before the test's own database, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.http_client import Client
from tests.support.gateway import Gateway


@pytest.fixture
def gateway(dsn: str) -> Iterator[Gateway]:
    """A gateway before the test's own database."""
    with Gateway(dsn) as started:
        yield started


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    """A client of that gateway."""
    with Client(gateway.url) as made:
        yield made
