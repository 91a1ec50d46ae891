"""The loop of a courier.

Lives here: `Courier`: when messages are asked for, how many are sent at once, and what becomes of a message
after its answer. May not: a request (http_client.py), a statement (outbox.py). Design: an offer needs no
second try here, because the database offers a task again until it is acquired; a receiver that refuses it is
only asked less and less often. An unblock message is sent until its receiver has taken it, refuses
such messages for ever, or has been away for a day. Clients choose the addresses, and some hang: no host gets
more than half of what the others leave, and a quarter is kept for hosts that answer and have nothing open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from dataclasses import dataclass

from pyengine.core.process import clock
from pyengine.core.process.background import Background
from pyengine.core.process.backoff import backoff_pause
from pyengine.doors.gateway.courier.answers import Answer
from pyengine.doors.gateway.courier.circuits import Circuits
from pyengine.doors.gateway.courier.http_client import HttpClient
from pyengine.doors.gateway.courier.outbox import Outbox
from pyengine.doors.gateway.courier.pushes import Push, Unblock, shown
from pyengine.doors.gateway.metrics import Metrics
from pyengine.doors.gateway.poller import Poller
from pyengine.errors import EngineError

logger = logging.getLogger("pyengine.gateway")

_LONGEST_S = 1.0
# hints come by the hundred where many runs start, and most gateways have nothing to push
_GAP_S = 0.05
_RENEW_EVERY_S = 0.5
_LAST_FLUSH_S = 2.0
_GIVE_UP_S = 24 * 3600.0
_FIRST_S = 1.0
_BACKOFF_MAX_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PushLimits:
    """How many requests may be open.

    Args:
        per_address: to one address.
        in_all: to all of them.
    """

    per_address: int = 16
    in_all: int = 256

    @property
    def per_host(self) -> int:
        """To all addresses of one host, which may hang with all of them."""
        return max(self.per_address, self.in_all // 4)

    @property
    def reserved(self) -> int:
        """For hosts with nothing open, at addresses whose last request was answered."""
        return self.in_all // 4


class Courier:
    """Pushes messages to http addresses.

    Args:
        outbox: the database's side.
        client: sends requests.
        metrics: counts what is sent.
        limits: how many requests may be open.
    """

    def __init__(self, outbox: Outbox, client: HttpClient, metrics: Metrics, limits: PushLimits) -> None:
        self._outbox = outbox
        self._client = client
        self._metrics = metrics
        self._limits = limits
        self._circuits = Circuits()
        self._background = Background(self._fail)
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests: dict[asyncio.Task[None], Push] = {}
        self._not_before_s = 0.0
        self._stopping = asyncio.Event()
        self.poller = Poller(self._poll, "pushes", _LONGEST_S)
        # apart from the polls, because a row that a user has locked can stop an acknowledgment
        self._flusher = Poller(self._flush, "the acknowledgment of pushes", _LONGEST_S)
        metrics.gauge("pushes_open", "Requests to receivers that are open.", lambda: len(self._requests))
        metrics.gauge("circuits_open", "Addresses that have failed too often.", self._circuits.open_count)

    async def run(self) -> None:
        """Push for ever. Requests that are open at the end are cut off; their messages come again."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.poller.run())
                group.create_task(self._flusher.run())
                group.create_task(self._renew())
                group.create_task(self._failure())
        finally:
            await self._background.cancel()
            with contextlib.suppress(EngineError, TimeoutError):
                async with clock.timeout(_LAST_FLUSH_S):
                    await self._outbox.flush()
            await self._client.close()

    def _fail(self, error: BaseException) -> None:
        """A request has failed by a fault of ours: its message would not be sent again while this runs."""
        if not self._broken.done():
            self._broken.set_exception(error)

    async def _failure(self) -> None:
        await self._broken

    async def drain(self, patience_s: float) -> None:
        """Send nothing further, and wait for the requests that are open.

        Args:
            patience_s: so many seconds at most.
        """
        self._stopping.set()
        if self._requests:
            await clock.wait(self._requests, patience_s)

    async def _poll(self) -> bool | None:
        """Ask for what is due, and begin to send it."""
        await clock.sleep(self._not_before_s - clock.monotonic())
        now_s = clock.monotonic()
        self._circuits.forget(now_s)
        if self._stopping.is_set() or len(self._requests) >= self._limits.in_all:
            return None
        rooms = self._rooms(await self._outbox.due(), now_s)
        pushes = await self._outbox.claim(rooms) if rooms else []
        if self._stopping.is_set():
            # the stop waits for the requests that were open when it began; this claim ends by itself
            self._outbox.forget(pushes)
            return None
        for push in pushes:
            self._circuits.of(push.address).begun(now_s)
            request = self._background.start(self._send(push))
            self._requests[request] = push
            request.add_done_callback(self._requests.pop)
        self._not_before_s = 0.0 if pushes else now_s + _GAP_S
        return bool(pushes)

    def _rooms(self, addresses: list[str], now_s: float) -> dict[str, int]:
        """Return how many messages each address may get now: first one each, then the rest."""
        left = self._limits.in_all - len(self._requests)
        at_hosts = Counter(shown(push.address) for push in self._requests.values())
        random.shuffle(addresses)
        rooms: Counter[str] = Counter()
        for most in (1, self._limits.per_address):
            for address in addresses:
                host, circuit = shown(address), self._circuits.of(address)
                own = min(most, circuit.room(now_s, self._limits.per_address)) - rooms[address]
                is_reserved = circuit.answers and not at_hosts[host]
                free = left if is_reserved else left - self._limits.reserved
                more = min(free, own, self._share(free + at_hosts[host]) - at_hosts[host])
                if more > 0:
                    rooms[address] += more
                    at_hosts[host] += more
                    left -= more
        return rooms

    def _share(self, rest: int) -> int:
        """Return how many requests a host may have open of those that the other hosts leave."""
        return min(self._limits.per_host, max(1, rest // 2))

    async def _send(self, push: Push) -> None:
        begun_s = clock.monotonic()
        answer = await self._client.post(push.address, push.headers, push.body)
        self._metrics.pushed(push.kind, answer.outcome, clock.monotonic() - begun_s)
        self._update_circuit(push, answer, begun_s)
        if isinstance(push, Unblock):
            await self._finish_unblock(push, answer)
        elif answer.is_delivered or answer.is_failure:
            self._outbox.release(push)
        else:
            self._outbox.refuse(push)
        self._flusher.wake()
        self.poller.wake()

    def _update_circuit(self, push: Push, answer: Answer, begun_s: float) -> None:
        """Close or open the circuit of an address; each change is logged once."""
        circuit, now_s, place = self._circuits.of(push.address), clock.monotonic(), shown(push.address)
        if not answer.is_failure:
            if circuit.succeeded(now_s):
                logger.warning("pushes to %s work again", place)
            if not answer.is_delivered:
                # a 500 is an ordinary answer to an offer that came twice
                is_new = answer.status not in (500, circuit.status)
                log = logger.warning if is_new else logger.debug
                log("%s for %s to %s: %s", push.kind, push.id, place, answer)
            circuit.status = answer.status
        elif circuit.failed(
            begun_s,
            now_s,
            at_once=answer.problem == "forbidden",
            retry_after_s=answer.retry_after_s,
        ):
            logger.warning("pushes to %s fail, and are tried now and then: %s", place, answer)

    async def _finish_unblock(self, unblock: Unblock, answer: Answer) -> None:
        if answer.is_delivered:
            self._outbox.acknowledge(unblock)
        elif answer.is_final:
            self._give_up(unblock, answer)
        elif unblock.age_ms >= _GIVE_UP_S * 1000:
            await self._give_up_old(unblock, answer)
        else:
            pause_s = backoff_pause(_FIRST_S, _BACKOFF_MAX_S, unblock.attempt - 1)
            pause_s *= random.uniform(0.8, 1.2)
            self._outbox.put_off(unblock, max(pause_s, min(answer.retry_after_s or 0.0, _BACKOFF_MAX_S)))

    def _give_up(self, unblock: Unblock, answer: Answer) -> None:
        self._outbox.acknowledge(unblock)
        self._metrics.pushes_given_up.inc()
        logger.warning(
            "the unblock of promise %s to %s is given up: %s", unblock.id, shown(unblock.address), answer
        )

    async def _give_up_old(self, unblock: Unblock, answer: Answer) -> None:
        """Give up all that waits for this address for a day, so that it does not take a request each."""
        try:
            count = await self._outbox.expire(unblock.address, _GIVE_UP_S)
        except EngineError:
            self._outbox.put_off(unblock, _FIRST_S)
            return
        self._outbox.acknowledge(unblock)
        self._metrics.pushes_given_up.inc(count)
        if count:
            logger.warning(
                "unblocks to %s are given up after a day, %d of them: %s",
                shown(unblock.address),
                count,
                answer,
            )

    async def _flush(self) -> bool | None:
        # what is left is tried again soon, without a hint
        return False if await self._outbox.flush() else None

    async def _renew(self) -> None:
        while True:
            await clock.sleep(_RENEW_EVERY_S)
            with contextlib.suppress(EngineError):
                await self._outbox.renew()
