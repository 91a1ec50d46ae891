"""Law: gateways may be killed at any moment; no promise, task or unblock is lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import psycopg
import pytest

from tests.doors.gateway.crowd import Crowd
from tests.doors.gateway.http_client import WAIT_S, Client, EventStream
from tests.system.crash.processes import launch, stop


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large, and how often a gateway is killed."""

    streams: int
    tasks: int
    unblocks: int
    kills: int
    offer_ms: int
    wait_s: float


SMALL = Size(streams=10, tasks=30, unblocks=30, kills=1, offer_ms=1000, wait_s=120)
FULL = Size(streams=1_000, tasks=5_000, unblocks=5_000, kills=8, offer_ms=5000, wait_s=900)
GROUPS = 10


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


class Gateways:
    """Gateway processes on ports that stay the same."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, port: int, *options: str) -> int:
        """Start one, and wait until it serves."""
        self.running[port] = launch(self._dsn, "-m", "pyengine", "serve", "--port", str(port), *options)
        late = time.monotonic() + WAIT_S
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 200:
                    return port
            assert time.monotonic() < late and self.running[port].poll() is None
            time.sleep(0.05)

    def kill(self, port: int) -> None:
        """kill -9."""
        self.running[port].kill()
        self.running[port].wait()

    def stop(self, port: int) -> int:
        """Stop one in order; answers its exit code."""
        self.running[port].send_signal(signal.SIGTERM)
        return self.running[port].wait(WAIT_S)

    def end(self) -> None:
        """Stop all."""
        for process in self.running.values():
            stop(process)


@pytest.fixture
def gateways(dsn: str) -> Iterator[Gateways]:
    """Gateway processes before the test's own database."""
    made = Gateways(dsn)
    yield made
    made.end()


@pytest.mark.parametrize("size", [SMALL, pytest.param(FULL, marks=pytest.mark.full)], ids=["small", "full"])
def test_nothing_is_lost(
    dsn: str, gateways: Gateways, seed: int, size: Size, figures: Callable[[str, str], None]
) -> None:
    """Members, tasks and listeners of two gateways, one of which is killed now and then: each task is
    fulfilled once, each listener gets its promise."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("select durable.set_setting('retry_offer_ms', %s)", (str(size.offer_ms),))
    ports = [gateways.start(free_port()), gateways.start(free_port())]
    begun_s = time.monotonic()
    crowd = asyncio.run(play(gateways, ports, size, seed))
    spent_s = time.monotonic() - begun_s
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute("select count(*) from durable._promises where state = 'resolved'").fetchone()
    assert row == (size.tasks + size.unblocks,)
    assert set(crowd.statuses) <= {200, 404, 409, 503}
    text = (
        f"{size.streams} streams, {size.tasks} tasks and {size.unblocks} listeners over two gateways, "
        f"{size.kills} killed with SIGKILL and started again, seed {seed}: {spent_s:.0f} s; "
        f"{crowd.opened} streams opened, {crowd.offered.total()} offers, {crowd.unblocked.total()} unblocks, "
        f"answers {dict(sorted(crowd.statuses.items()))}; none lost"
    )
    figures("gateway-killed", text)


async def play(gateways: Gateways, ports: list[int], size: Size, seed: int) -> Crowd:
    """Let the crowd work while gateways are killed; returns when nothing is left to do."""
    choice = random.Random(seed)
    crowd = Crowd(ports, seed)
    for n in range(size.streams):
        crowd.member(f"g{n % GROUPS}", f"m{n}")
    async with asyncio.timeout(size.wait_s):
        while crowd.streams < size.streams:
            await asyncio.sleep(0.05)
        killing = asyncio.create_task(kill_some(gateways, ports, size, choice))
        async with asyncio.TaskGroup() as group:
            for n in range(size.tasks):
                target = f"poll://any@g{n % GROUPS}" + (f"/m{n % size.streams}" if n % 3 == 0 else "")
                group.create_task(crowd.task(f"t{n}", target))
            for n in range(size.unblocks):
                member = n % size.streams
                group.create_task(crowd.unblock(f"u{n}", f"poll://uni@g{member % GROUPS}/m{member}"))
        await killing
        while len(crowd.unblocked) < size.unblocks or len(crowd.offered) < size.tasks:
            await asyncio.sleep(0.05)
        while not await all_are_settled(crowd, size):
            await asyncio.sleep(0.2)
    await crowd.leave()
    return crowd


async def all_are_settled(crowd: Crowd, size: Size) -> bool:
    """Whether every task is fulfilled; an answer that was lost with its gateway counts too."""
    for n in range(size.tasks):
        id = f"t{n}"
        if id not in crowd.fulfilled:
            _, data = await crowd.ask("promise.get", id=id)
            if data["promise"]["state"] != "resolved":
                return False
            crowd.fulfilled.add(id)
    return True


async def kill_some(gateways: Gateways, ports: list[int], size: Size, choice: random.Random) -> None:
    """Kill one of the gateways now and then, and start it again."""
    for _ in range(size.kills):
        await asyncio.sleep(choice.uniform(0.2, 1.0) * (1 + size.tasks / 1000))
        port = choice.choice(ports)
        await asyncio.to_thread(gateways.kill, port)
        await asyncio.to_thread(gateways.start, port)


def test_a_stop_is_in_order(gateways: Gateways) -> None:
    """SIGTERM ends streams at once and cleanly, and the process with 0."""
    port = gateways.start(free_port())
    url = f"http://127.0.0.1:{port}"
    with Client(url) as client, EventStream(url, "g", "a") as stream:
        client.create("a")
        begun_s = time.monotonic()
        assert gateways.stop(port) == 0
        assert stream.next() is None
        assert time.monotonic() - begun_s < WAIT_S / 2
