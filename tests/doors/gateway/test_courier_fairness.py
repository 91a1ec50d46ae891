"""Law: receivers that hang leave requests for others, however many hosts a client names."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from pyengine.doors.gateway.courier.answers import Answer
from pyengine.doors.gateway.courier.courier import Courier, PushLimits
from pyengine.doors.gateway.courier.hosts import Hosts
from pyengine.doors.gateway.courier.http_client import HttpClient
from pyengine.doors.gateway.courier.outbox import Outbox
from pyengine.doors.gateway.courier.pushes import Offer, Push, shown
from pyengine.doors.gateway.metrics import Metrics
from tests.doors.gateway.http_client import WAIT_S

GOOD = "https://good.example/"


class Endless(Outbox):
    """An outbox with any number of messages for each address that is due."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self._made = 0

    async def due(self) -> list[str]:
        """Give the addresses."""
        return list(self.addresses)

    async def claim(self, rooms: dict[str, int]) -> list[Push]:
        """Give all that there is room for."""
        found: list[Push] = []
        for address, room in rooms.items():
            for _ in range(room):
                self._made += 1
                id = f"t{self._made}"
                found.append(Offer(address=address, id=id, version=0, retry_ms=9, headers={}, body=b"{}"))
        return found

    def release(self, offer: Offer) -> None:
        """Forget it."""

    async def flush(self) -> bool:
        """Leave nothing."""
        return False

    async def renew(self) -> None:
        """Do nothing."""


class Hanging(HttpClient):
    """A client whose receivers answer at once or never."""

    def __init__(self) -> None:
        super().__init__(Hosts(()), token=None, connect_s=1, request_s=1)
        self.hung: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.hanging: set[str] = set()

    async def post(self, address: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Answer, or never."""
        if shown(address) in self.hanging:
            self.hung[shown(address)] += 1
            await asyncio.Event().wait()
        self.answered[address] += 1
        await asyncio.sleep(0)
        return Answer(200)


@asynccontextmanager
async def running(limits: PushLimits) -> AsyncIterator[tuple[Endless, Hanging, Courier]]:
    """A courier at work."""
    outbox, client = Endless(), Hanging()
    courier = Courier(outbox, client, Metrics(), limits)
    task = asyncio.create_task(courier.run())
    try:
        async with asyncio.timeout(WAIT_S):
            yield outbox, client, courier
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def answered(courier: Courier, address: str) -> None:
    """Let a receiver have answered once."""
    circuit, now_s = courier._circuits.of(address), asyncio.get_running_loop().time()
    circuit.begun(now_s)
    circuit.succeeded(now_s)


async def hang(outbox: Endless, client: Hanging, courier: Courier, hosts: list[str]) -> None:
    """Let these hosts take all that they can get, with a hundred addresses each, and never answer."""
    client.hanging |= set(hosts)
    outbox.addresses = [f"{host}/{n}" for host in hosts for n in range(100)]
    before, quiet = -1, 0
    while quiet < 5:
        courier.poller.wake()
        await asyncio.sleep(0.06)
        quiet = quiet + 1 if client.hung.total() == before else 0
        before = client.hung.total()


async def serve(outbox: Endless, client: Hanging, courier: Courier, address: str) -> None:
    """Return when a receiver has been sent something."""
    outbox.addresses.append(address)
    before = client.answered[address]
    while client.answered[address] == before:
        courier.poller.wake()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "hosts",
    [
        [f"https://h{n}.example" for n in range(4)],
        [f"https://h.example:{n}" for n in range(1, 5)],
        [f"https://h{n}.example" for n in range(8)],
    ],
    ids=["four hosts", "four ports", "eight hosts"],
)
@pytest.mark.parametrize("have_answered", [False, True])
def test_a_few_hosts_that_hang(hosts: list[str], have_answered: bool) -> None:
    """A receiver that nobody knows yet is sent its task, also if those that hang have answered before."""

    async def main() -> None:
        limits = PushLimits()
        async with running(limits) as (outbox, client, courier):
            if have_answered:
                for host in hosts:
                    for n in range(100):
                        answered(courier, f"{host}/{n}")
            await hang(outbox, client, courier, hosts)
            assert max(client.hung.values()) <= limits.per_host
            assert client.hung.total() < limits.in_all
            await serve(outbox, client, courier, GOOD)

    asyncio.run(main())


def test_any_number_of_hosts_that_hang() -> None:
    """A receiver that has answered before is sent its task; what is open stays within the bound."""

    async def main() -> None:
        limits = PushLimits()
        async with running(limits) as (outbox, client, courier):
            await serve(outbox, client, courier, GOOD)
            await hang(outbox, client, courier, [f"https://h{n}.example" for n in range(400)])
            assert client.hung.total() == limits.in_all - limits.reserved
            for _ in range(3):
                await serve(outbox, client, courier, GOOD)

    asyncio.run(main())


def test_the_bound_in_all() -> None:
    """Hosts that have answered use all of it, and no more."""

    async def main() -> None:
        limits = PushLimits(per_address=16, in_all=40)
        hosts = [f"https://h{n}.example" for n in range(100)]
        async with running(limits) as (outbox, client, courier):
            for host in hosts:
                answered(courier, f"{host}/0")
            client.hanging |= set(hosts)
            outbox.addresses = [f"{host}/0" for host in hosts]
            while client.hung.total() < limits.in_all:
                courier.poller.wake()
                await asyncio.sleep(0.01)
            courier.poller.wake()
            await asyncio.sleep(0.2)
            assert client.hung.total() == limits.in_all

    asyncio.run(main())
