"""Law: gateways may be killed while they push; no offer and no report is lost, and few come twice."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass

import psycopg
import pytest

from tests.doors.gateway.http_client import WAIT_S, Client
from tests.doors.gateway.receivers import Got, Receiver, Reply, Shim
from tests.doors.gateway.test_killed import Gateways, free_port
from tests.doors.gateway.test_killed import gateways as gateways
from tests.doors.gateway.test_push import Opened, report, until
from tests.doors.gateway.test_push import pushing as pushing


@dataclass(frozen=True, kw_only=True)
class Size:
    """How many offers and reports are pushed, and how often a gateway is killed."""

    pushes: int
    kills: int


SMALL = Size(pushes=30, kills=1)
FULL = Size(pushes=1_000, kills=8)


@pytest.mark.full
@pytest.mark.parametrize("size", [SMALL, FULL], ids=["small", "full"])
def test_nothing_pushed_is_lost(dsn: str, gateways: Gateways, pushing: Opened, seed: int, size: Size) -> None:
    """Two gateways push to a shim and to a listener, and one of them is killed now and then."""
    choice = random.Random(seed)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("select durable.set_setting('retry_offer_ms', '1000')")

    def slow(got: Got) -> Reply:
        time.sleep(0.2)
        return Reply()

    # the shim works at the one that lives
    url, port = pushing().url, free_port()
    options = "--push-private", "127.0.0.1", "--public-url", url
    gateways.start(port, *options)
    with ExitStack() as stack:
        shim, listener = stack.enter_context(Shim(work_s=0.2)), stack.enter_context(Receiver(slow))
        client = stack.enter_context(Client(url))
        kills = choice.sample(range(size.pushes // 4, size.pushes), size.kills)
        for n in range(size.pushes):
            report(client, f"report-{n}", listener.url)
            client.create(f"task-{n}", shim.url)
            if n in kills:
                gateways.kill(port)
                gateways.start(port, *options)
        until_done(dsn, size)
        again = Counter(got.id for got in listener.got)
        assert set(again) == {f"report-{n}" for n in range(size.pushes)}
        assert max(again.values()) <= 1 + size.kills
        until(lambda: shim.statuses.count(200) == size.pushes)


def until_done(dsn: str, size: Size) -> None:
    """Wait until each promise is resolved and no report waits."""
    late = time.monotonic() + WAIT_S * (1 + size.pushes / 200)
    with psycopg.connect(dsn, autocommit=True) as conn:
        while True:
            row = conn.execute(
                "select count(*) filter (where state = 'resolved'), (select count(*) from durable._unblocks) "
                "from durable._promises"
            ).fetchone()
            if row == (2 * size.pushes, 0):
                return
            assert time.monotonic() < late, row
            time.sleep(0.05)
