"""Worker processes that kill themselves with SIGKILL at a chosen place of a chosen turn: python -m
tests.system.crash.victim

For each line `QUEUE PLACE TURN` that it reads, this process forks a worker and prints the worker's exit code.
It is forked, because the imports of a new interpreter would take longer than its life.

PLACE is `before` (the call was not sent), `commit` (the turn is committed, its answer was not read) or
`answer` (the answer was read and the loop has gone on once). Only turns that carry bundles or that brought
tasks count. It ends by itself, with exit code 0, when the queue has nothing more to do before that turn.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import traceback
from typing import Any

import asyncpg

from tests.support.turns import Send, carries, intercept
from tests.system.crash.job import app


def die() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


class Assassin:
    """Counts turns and strikes."""

    def __init__(self, place: str, turn: int) -> None:
        self.place = place
        self.turn = turn
        self.count = 0

    async def watch(self, send: Send, sent: tuple[Any, ...]) -> Any:
        """Run one turn, or die."""
        if carries(sent) and self.place == "before" and self.count + 1 == self.turn:
            die()
        answer = await send()
        if carries(sent) or json.loads(answer)["tasks"]:
            self.count += 1
            if self.count == self.turn:
                if self.place == "commit":
                    die()
                asyncio.get_running_loop().call_soon(die)
        return answer


async def main(queue: str, place: str, turn: int) -> None:
    """Serve one queue until death or until its runs are settled."""
    intercept(Assassin(place, turn).watch)
    # no named statement: there may be a pooler
    conn = await asyncpg.connect(os.environ["PYENGINE_DATABASE_URL"], statement_cache_size=0)
    async with app.worker(queues=[queue]):
        while await conn.fetchval("select count(*) from durable._tasks where queue = $1", queue):
            await asyncio.sleep(0.02)
    await conn.close()


def fork(queue: str, place: str, turn: int) -> int:
    """Serve one queue in a process of its own; answers its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        asyncio.run(main(queue, place, turn))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    for line in sys.stdin:
        queue, place, turn = line.split()
        print(fork(queue, place, int(turn)), flush=True)
