"""The smallest feature that asks its worker: a block of code, in the place of transactions.

Lives here: what `style/test_core_alone.py` lays beside a copy of the core, as `pyengine/asks.py`. May not: an
import of a feature, a value of a statement, or the error of one. Design: the core knows a block that asks by
`replay/asks.py`; its tests need one, and this one has a row, is discarded by a cancellation, and
does nothing.
"""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any, Self

from pyengine.core.protocol.commands import RolledBack
from pyengine.core.protocol.journal import RowType
from pyengine.core.replay.asks import Ask, AskKind, Outcome
from pyengine.core.replay.call_matcher import CallMatcher
from pyengine.core.replay.call_sequence import NOTHING, ignore_cancel
from pyengine.core.replay.history import describe_call
from pyengine.errors import EngineError

HASH = "00000000000000aa"


class Block:
    """One block of code that asks."""

    def __init__(self, matcher: CallMatcher, name: str) -> None:
        self.name, self.hash, self.child, self.live = name, HASH, 0, True
        self.ask: Ask | None = None
        self._sequence = matcher.sequence
        self._blocks = blocks_of(matcher)

    def data(self, *, committed: bool) -> str:
        """Return the JSON text of its row."""
        return json.dumps({"committed": committed})

    async def execute(self, query: str) -> str:
        """Ask for a statement."""
        return str(await self._request("execute", query))

    async def __aenter__(self) -> Self:
        sequence = self._sequence
        if sequence.restricted and (dead := sequence.admit("step", self.name)) is not None:
            await dead
        row, child = sequence.row(), sequence.next_child
        if row is not None:
            if (row.type, row.name, row.hash) != (RowType.STEP_COMPLETED, self.name, HASH):
                await sequence.disagree(describe_call("transaction", self.name), row, "step", self.name)
            self.live = False
        elif sequence.restricted and sequence.cancellation.discards_transaction(child):
            call = sequence.take_call("step", self.name, NOTHING, discarded=True)
            call.on_cancel = ignore_cancel
            await call
        self.child, sequence.next_child = child, child + 1
        self._blocks.queue.append(self)
        try:
            await self._request("begin")
        except BaseException:
            self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._request("commit" if error is None else "rollback")
        finally:
            self._leave()

    async def _request(self, kind: AskKind, query: str = "") -> Any:
        if self._sequence.dead:
            await self._sequence.dead_call("step", self.name)
        ask = self.ask = Ask(kind, query, (), self._sequence.loop.new_future())
        try:
            return await ask.future
        finally:
            if self.ask is ask:
                self.ask = None

    def _leave(self) -> None:
        if self in self._blocks.queue:
            self._blocks.queue.remove(self)
        self._sequence.in_transaction = None
        self._sequence.update_restricted()


class Blocks:
    """The blocks of a run, in the order of asking."""

    def __init__(self, matcher: CallMatcher) -> None:
        self._sequence = matcher.sequence
        self.queue: list[Block] = []

    @property
    def front(self) -> Block | None:
        """The one that is open, or begins next."""
        return self.queue[0] if self.queue else None

    @property
    def live(self) -> bool:
        """Whether a worker has to answer."""
        return bool(self.queue) and self.queue[0].live and not self._sequence.dead

    @property
    def stuck(self) -> bool:
        """Whether its code waits for something else."""
        return self.live and self.queue[0].ask is None

    def answer_recorded(self) -> bool:
        """Answer from the journal."""
        block = self.front
        if block is None or block.live or block.ask is None or self._sequence.dead:
            return False
        self._deliver(block, block.ask, ("value", None))
        return True

    def answer(self, ask: Ask, outcome: Outcome) -> bool:
        """Answer as a worker found."""
        block = self.front
        if block is None or block.ask is not ask or ask.future.done():
            return False
        if ask.kind == "rollback" or (ask.kind == "commit" and outcome[0] != "value"):
            self._sequence.commands.append(
                RolledBack(
                    child=block.child, name=block.name, hash=block.hash, value=block.data(committed=False)
                )
            )
        self._deliver(block, ask, outcome)
        return True

    def _deliver(self, block: Block, ask: Ask, outcome: Outcome) -> None:
        if ask.kind == "begin":
            self._sequence.in_transaction = block.name
            self._sequence.restricted = True
        block.ask = None
        if outcome[0] == "value":
            ask.future.set_result(outcome[1])
        else:
            ask.future.set_exception(EngineError(str(outcome[1])))


def blocks_of(matcher: CallMatcher) -> Blocks:
    """Return the blocks of a run, which are made at their first use."""
    found = matcher.asks
    if not isinstance(found, Blocks):
        found = matcher.asks = Blocks(matcher)
    return found
