"""Law: members with streams of the older API get each message, however many they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from tests.conftest import Connection
from tests.doors.gateway.crowd import OlderCrowd
from tests.support.gateway import Gateway

GROUPS = 10
WAIT_S = 600


@pytest.mark.parametrize(
    ("streams", "messages"), [(10, 10), pytest.param(1_000, 2_000, marks=pytest.mark.full)]
)
def test_many_streams(
    opened: Callable[..., Gateway],
    conn: Connection,
    seed: int,
    streams: int,
    messages: int,
    figures: Callable[[str, str], None],
) -> None:
    """All are open at once; each task is completed once, and each subscriber gets its promise."""
    gateway = opened(older_port=0)
    ports = [urlsplit(url).port or 0 for url in (gateway.url, gateway.older_url)]
    crowd = asyncio.run(play(gateway, ports, seed, streams, messages))
    row = conn.execute("select count(*) from durable._promises where state = 'resolved'").fetchone()
    assert row == (2 * messages,)
    assert set(crowd.statuses) <= {200, 201, 403}
    text = f"{streams} streams of the older API on one gateway, {messages} tasks and as many subscriptions, "
    text += f"seed {seed}: {crowd.opened} streams opened, {crowd.offered.total()} offers, "
    text += f"{crowd.unblocked.total()} notices, answers {dict(sorted(crowd.statuses.items()))}; none lost"
    figures("older-streams", text)


async def play(gateway: Gateway, ports: list[int], seed: int, streams: int, messages: int) -> OlderCrowd:
    """Let the crowd work until nothing is left to do."""
    crowd = OlderCrowd(ports[:1], seed, ports[1:])
    for n in range(streams):
        crowd.member(f"g{n % GROUPS}", f"m{n}")
    async with asyncio.timeout(WAIT_S):
        while crowd.streams < streams:
            await asyncio.sleep(0.05)
        assert len(gateway.parts.older_members) == streams
        async with asyncio.TaskGroup() as group:
            for n in range(messages):
                member = f"g{n % GROUPS}/m{n % streams}"
                group.create_task(crowd.task(f"t{n}", f"poll://any@g{n % GROUPS}"))
                group.create_task(crowd.unblock(f"u{n}", f"poll://uni@{member}"))
        while len(crowd.unblocked) < messages or len(crowd.fulfilled) < messages:
            await asyncio.sleep(0.05)
    await crowd.leave()
    return crowd
