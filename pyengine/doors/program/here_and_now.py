"""The wait of `app.run` for its run.

Lives here: `ended_here`, and the warning at Ctrl-C. May not: the worker that executes the run (app.py).
Design: the run is in the database and stays there when its process ends, and the next worker goes on with it.
The user who leaves it may not know that, so the log has its id and the next commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TypeVar

from pyengine.core.client.run import Run
from pyengine.core.client.run_status import ENDED
from pyengine.core.process import clock
from pyengine.errors import EngineError

logger = logging.getLogger("pyengine.app")

T = TypeVar("T")

_HALTED_CHECK_S = 2.0
_ASKED_S = 2.0


async def ended_here(run: Run[T], workflow: str) -> T:
    """Wait for the end of a run that a worker of this process serves, within the block of that worker.

    Args:
        run: the run.
        workflow: the name of its workflow.

    Raises:
        RunFailed: it failed.
        EngineError: it needs somebody's hand.
    """
    try:
        while True:
            try:
                return await run.result(timeout=_HALTED_CHECK_S)
            except TimeoutError:
                status = await run.get()
                if status.state in ("halted", "dead", "paused"):
                    raise EngineError(
                        f"run {run.id} is {status.state}: {status.problem}", hint=f"pyengine show {run.id}"
                    ) from None
    except asyncio.CancelledError:
        await _report_left(run, workflow)
        raise


async def _report_left(run: Run[T], workflow: str) -> None:
    """Warn of a run that stays behind."""
    state = "not known to have ended"
    with contextlib.suppress(EngineError, TimeoutError):
        async with clock.timeout(_ASKED_S):
            state = (await run.get()).state
    if state not in ENDED:
        logger.warning(
            "run %s of workflow %s is %s and stays in the database: the next worker or app.run of this code "
            "goes on with it. pyengine show %s shows it, pyengine cancel %s ends it",
            *(run.id, workflow, state, run.id, run.id),
        )
