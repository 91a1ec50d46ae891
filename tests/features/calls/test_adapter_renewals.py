"""Law: a renewal of leases tells of a lease that is lost, and of no poll that has ended meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pyengine.core.process.lease_terms import LeaseTerms
from pyengine.features.calls.adapter_worker import AdapterWorker


@pytest.mark.parametrize("ends", [True, False])
def test_a_poll_that_ends_meanwhile_is_no_lost_lease(ends: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Its report has given the lease back during the renewal; one that still runs has lost its own."""
    caplog.set_level("INFO")
    worker = AdapterWorker([], "postgresql://127.0.0.1/nowhere")

    class Played:
        async def renew(self, leased: list[Any]) -> int:
            if ends:
                worker._running.clear()
            return 0

        async def run(self, *_: Any) -> Any:
            raise asyncio.CancelledError

    async def main() -> None:
        worker.use(cast("Any", Played()))
        worker._side = cast("Any", Played())
        worker._terms = LeaseTerms(1)
        worker._ticker = cast("Any", SimpleNamespace(since_tick_ms=lambda: 0))
        poll = asyncio.create_task(asyncio.sleep(0))
        worker._running[poll] = cast("Any", SimpleNamespace(version=1, key="this"))
        with pytest.raises(asyncio.CancelledError):
            await worker._renew(0)

    asyncio.run(main())
    assert ("the lease of attempt this was not renewed" in caplog.text) is not ends
