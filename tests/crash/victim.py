"""A worker process that kills itself with SIGKILL at a chosen place of a chosen turn: python -m tests.crash.victim QUEUE PLACE TURN

PLACE is `before` (the call was not sent), `commit` (the turn is committed, its answer was not read) or `answer` (the answer was read and the
loop has gone on once). Only turns that carry bundles or that brought tasks count. It ends by itself, with exit code 0, when the queue has
nothing more to do before that turn.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

import asyncpg
from asyncpg.prepared_stmt import PreparedStatement

from tests.crash.job import app


def die() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


class Assassin:
    """Counts turns and strikes."""

    def __init__(self, place: str, turn: int) -> None:
        self.place = place
        self.turn = turn
        self.count = 0

    async def watch(self, call: Any, sent: tuple[Any, ...]) -> Any:
        """Run one turn, or die."""
        carries = any(isinstance(value, str) and value.startswith("[{") for value in sent)
        if carries and self.place == "before" and self.count + 1 == self.turn:
            die()
        answer = await call()
        if carries or json.loads(answer)["tasks"]:
            self.count += 1
            if self.count == self.turn:
                if self.place == "commit":
                    die()
                asyncio.get_running_loop().call_soon(die)
        return answer


def arm(assassin: Assassin) -> None:
    """Put the assassin between the worker and its turns."""
    plain, prepared = asyncpg.Connection.fetchval, PreparedStatement.fetchval

    async def fetchval(self: Any, query: str, *args: Any, **more: Any) -> Any:
        if "worker_turn_v1" not in query:
            return await plain(self, query, *args, **more)
        return await assassin.watch(lambda: plain(self, query, *args, **more), args)

    async def fetchval_prepared(self: Any, *args: Any, **more: Any) -> Any:
        if "worker_turn_v1" not in self.get_query():
            return await prepared(self, *args, **more)
        return await assassin.watch(lambda: prepared(self, *args, **more), args)

    asyncpg.Connection.fetchval = fetchval
    PreparedStatement.fetchval = fetchval_prepared


async def main(queue: str, place: str, turn: int) -> None:
    """Serve one queue until death or until its runs are settled."""
    arm(Assassin(place, turn))
    conn = await asyncpg.connect(os.environ["PYENGINE_DATABASE_URL"])
    async with app.worker(queues=[queue]):
        while await conn.fetchval("select count(*) from durable._tasks where queue = $1", queue):
            await asyncio.sleep(0.02)
    await conn.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
