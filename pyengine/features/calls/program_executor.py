"""Programs as adapters: what an adapter worker does with the attempts of `--adapter` names.

Lives here: `ProgramExecutor`. May not: leases and reports (adapter_worker.py), the process of one poll
(adapter_process.py). Design: a program that is not found here may be found elsewhere, or here after an
installation, so this process does not serve it for a while and then tries again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from pyengine.core.process import clock
from pyengine.errors import InvalidRequest
from pyengine.features.calls import adapter_process
from pyengine.features.calls.adapter_process import Adapter, Limits
from pyengine.features.calls.contract import CannotRun, Executed, Request

_ABSENT_S = 30.0


class ProgramExecutor:
    """Runs programs.

    Args:
        adapters: the adapters that it serves.
        limits: the limits of a poll.
        passed: names of further environment variables that programs get.
    """

    def __init__(
        self, adapters: Sequence[Adapter], *, limits: Limits | None = None, passed: Sequence[str] = ()
    ) -> None:
        self._adapters = {one.name: one for one in adapters}
        if not adapters or len(self._adapters) < len(adapters):
            raise InvalidRequest("a worker serves one adapter or more, each name once")
        self._limits = limits or Limits()
        self._passed = tuple(passed)
        self._absent_until_s: dict[str, float] = {}

    @property
    def adapters(self) -> list[str]:
        """The adapters that are not known to be absent here."""
        now_s = clock.monotonic()
        return [name for name in self._adapters if self._absent_until_s.get(name, 0.0) <= now_s]

    async def execute(self, adapter: str, request: Request, may_begin: Callable[[], bool]) -> Executed:
        """Run a program once; a cancellation ends its process group.

        Raises:
            CannotRun: it cannot be run here; then it is not served for a while.
            LeaseOver: it may not begin.
        """
        try:
            return await adapter_process.poll(
                self._adapters[adapter],
                request,
                limits=self._limits,
                passed=self._passed,
                may_begin=may_begin,
            )
        except CannotRun:
            self._absent_until_s[adapter] = clock.monotonic() + _ABSENT_S
            raise

    async def cancel(self, adapter: str, request: Request) -> None:
        """Run a program so that it ends a job, if it can be run here."""
        with contextlib.suppress(CannotRun):
            await self.execute(adapter, request, lambda: True)

    async def close(self) -> None:
        """Do nothing: a program runs only during a poll."""
