"""The database's side of pushes.

Lives here: `Outbox`: what is due, what is claimed, held, acknowledged, put off and given up. May not:
requests, decisions about answers. Design: a claim is short, and is renewed while its request is open: no
other gateway sends the message meanwhile, and if this process is killed it is due again within seconds. An
acknowledgment that the database did not take is sent again, and its message is held until then.
"""

from __future__ import annotations

import logging
from typing import Any

from pyengine.core.database.pool import ConnectionPool
from pyengine.core.database.statements.procedures import Procedure
from pyengine.core.process import clock
from pyengine.core.process.backoff import backoff_pause
from pyengine.doors.gateway.courier.pushes import Offer, Push, Unblock
from pyengine.doors.gateway.statements.gateway import ACKNOWLEDGE, OFFERS
from pyengine.features.calls.statements.push import DEFER_OFFERS, DEFER_UNBLOCKS, DUE, EXPIRE, PUSHED_UNBLOCKS

logger = logging.getLogger("pyengine.gateway")

_CLAIM_MS = 5_000
# a claim is renewed when so much of it is left
_RENEW_S = 2.5
_REFUSED_MAX_MS = 60_000
_FORGET_S = 900.0


class Outbox:
    """Messages of the database for http addresses.

    Args:
        link: connections for messages.
        server_url: where receivers reach this gateway, or None.
    """

    def __init__(self, link: ConnectionPool, server_url: str | None) -> None:
        self._link = link
        self._server_url = server_url
        # what this process has claimed, and until when
        self._offers: dict[tuple[str, int], float] = {}
        self._unblocks: dict[tuple[str, str], float] = {}
        self._acknowledged: list[Unblock] = []
        self._put_off: list[tuple[Unblock, int]] = []
        self._put_off_offers: list[tuple[Offer, int]] = []
        # how often in a row an offer was refused, and when last
        self._refusals: dict[tuple[str, int], tuple[int, float]] = {}

    async def due(self) -> list[str]:
        """Return the addresses with something due."""
        return [row["address"] for row in await self._link.rows(DUE)]

    async def claim(self, rooms: dict[str, int]) -> list[Push]:
        """Claim messages that this process is not sending already.

        Args:
            rooms: for each address how many it has room for.
        """
        left = dict(rooms)
        unblocks = await self._claim(PUSHED_UNBLOCKS, left, _CLAIM_MS)
        offers = await self._claim(OFFERS, left)
        return [*filter(None, map(self._unblock, unblocks)), *filter(None, map(self._offer, offers))]

    def forget(self, pushes: list[Push]) -> None:
        """Let claims end, so that other gateways send these messages."""
        for push in pushes:
            if isinstance(push, Unblock):
                self._unblocks.pop((push.id, push.address), None)
            else:
                self._offers.pop((push.id, push.version), None)

    def release(self, offer: Offer) -> None:
        """Let an offer go: its task is acquired by now, or is offered again in time."""
        self._offers.pop((offer.id, offer.version), None)
        self._refusals.pop((offer.id, offer.version), None)

    def refuse(self, offer: Offer) -> None:
        """Let an offer that its receiver has refused be made again, after a pause that grows each time."""
        key, now_s = (offer.id, offer.version), clock.monotonic()
        for old in [key for key, (_, at_s) in self._refusals.items() if at_s < now_s - _FORGET_S]:
            del self._refusals[old]
        self._offers.pop(key, None)
        count, _ = self._refusals.get(key, (0, now_s))
        self._refusals[key] = count + 1, now_s
        pause_ms = round(backoff_pause(offer.retry_ms, _REFUSED_MAX_MS, count))
        self._put_off_offers.append((offer, pause_ms))

    def acknowledge(self, unblock: Unblock) -> None:
        """Delete an unblock with the next `flush`."""
        self._acknowledged.append(unblock)

    def put_off(self, unblock: Unblock, pause_s: float) -> None:
        """Let an unblock be claimed again after a pause, from the next `flush` on."""
        self._unblocks.pop((unblock.id, unblock.address), None)
        self._put_off.append((unblock, round(pause_s * 1000)))

    async def expire(self, address: str, age_s: float) -> int:
        """Delete the unblocks for an address that wait for so long; return how many there were."""
        count: int = (await self._link.rows(EXPIRE, address, round(age_s * 1000)))[0][0]
        return count

    async def flush(self) -> bool:
        """Acknowledge and put off what was decided; return whether locked rows have left a part of it."""
        unblocks, self._acknowledged = self._acknowledged, []
        delayed, self._put_off = self._put_off, []
        refused, self._put_off_offers = self._put_off_offers, []
        locked: set[tuple[str, str]] = set()
        try:
            if refused:
                await self._defer_offers([((one.id, one.version), ms) for one, ms in refused])
            if unblocks:
                ids, addresses = [one.id for one in unblocks], [one.address for one in unblocks]
                rows = await self._link.rows(ACKNOWLEDGE, ids, addresses)
                locked = {(row["promise_id"], row["address"]) for row in rows}
            if delayed:
                await self._defer_unblocks([((one.id, one.address), ms) for one, ms in delayed])
        except BaseException:
            self._acknowledged[:0], self._put_off[:0] = unblocks, delayed
            self._put_off_offers[:0] = refused
            raise
        for one in unblocks:
            if (one.id, one.address) in locked:
                self._acknowledged.append(one)
            else:
                self._unblocks.pop((one.id, one.address), None)
        return bool(locked)

    async def renew(self) -> None:
        """Renew the claims that end soon."""
        now_s = clock.monotonic()
        offers = [key for key, until_s in self._offers.items() if until_s < now_s + _RENEW_S]
        unblocks = [key for key, until_s in self._unblocks.items() if until_s < now_s + _RENEW_S]
        if offers:
            await self._defer_offers([(key, _CLAIM_MS) for key in offers])
        if unblocks:
            await self._defer_unblocks([(key, _CLAIM_MS) for key in unblocks])
        self._offers.update((key, now_s + _CLAIM_MS / 1000) for key in offers if key in self._offers)
        self._unblocks.update((key, now_s + _CLAIM_MS / 1000) for key in unblocks if key in self._unblocks)

    async def _claim(self, procedure: Procedure, left: dict[str, int], *more: Any) -> list[Any]:
        asked = {address: room for address, room in left.items() if room > 0}
        if not asked:
            return []
        rows = await self._link.rows(procedure, list(asked), list(asked.values()), *more)
        for row in rows:
            left[row["address"]] -= 1
        return rows

    def _unblock(self, row: Any) -> Unblock | None:
        key = (row["promise_id"], row["address"])
        is_new = key not in self._unblocks
        if not row["settled"]:
            # clients end their process on such a message
            logger.error("promise %s has an unblock message and is pending", row["promise_id"])
            return None
        self._unblocks[key] = clock.monotonic() + _CLAIM_MS / 1000
        return Unblock.from_row(row) if is_new else None

    def _offer(self, row: Any) -> Offer | None:
        key = (row["id"], row["version"])
        is_new = key not in self._offers
        self._offers[key] = clock.monotonic() + row["retry_ms"] / 1000
        return Offer.from_row(row, self._server_url) if is_new else None

    async def _defer_offers(self, deferred: list[tuple[tuple[str, int], int]]) -> None:
        ids = [id for (id, _), _ in deferred]
        versions = [version for (_, version), _ in deferred]
        await self._link.rows(DEFER_OFFERS, ids, versions, [ms for _, ms in deferred])

    async def _defer_unblocks(self, deferred: list[tuple[tuple[str, str], int]]) -> None:
        ids = [id for (id, _), _ in deferred]
        addresses = [address for (_, address), _ in deferred]
        await self._link.rows(DEFER_UNBLOCKS, ids, addresses, [ms for _, ms in deferred])
