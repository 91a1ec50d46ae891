"""Values that a replay must find again: time, randomness, and which code a run has taken.

What lives here: `RecordedValues`. What may not: calls that wait. The theory: such a value is a command of its
own with a number of its own, recorded in the turn that it happened in; and since the code goes on with it at
once, it is recorded also where a request of cancellation has overtaken everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal
from uuid import UUID

import msgspec

from pyengine.definitions.retry import Randomness
from pyengine.protocol.commands import Captured
from pyengine.replay.call_sequence import CallSequence
from pyengine.replay.history import described

__all__ = ["RecordedValues"]


class RecordedValues:
    """Takes values once and finds them again.

    Args:
        ledger: numbers of the run.
        now_ms: reads the clock, epoch milliseconds; asked for new values only.
        randomness: source of new random values.
    """

    def __init__(self, ledger: CallSequence, now_ms: Callable[[], int], randomness: Randomness) -> None:
        self._ledger = ledger
        self._now_ms = now_ms
        self._randomness = randomness
        self._patched: dict[str, bool] = {}

    def time_ms(self) -> int:
        """Return the recorded time, epoch milliseconds."""
        return int(msgspec.json.decode(self._capture("time", "now", lambda: str(self._now_ms()))))

    def random(self) -> float:
        """Return the recorded random number, 0 <= x < 1."""
        return float(
            msgspec.json.decode(self._capture("random", "random", lambda: repr(self._randomness.random())))
        )

    def uuid4(self) -> UUID:
        """Return the recorded random UUID."""
        text = self._capture(
            "random", "uuid4", lambda: f'"{UUID(int=self._randomness.getrandbits(128), version=4)}"'
        )
        return msgspec.json.decode(text, type=UUID)

    def patched(self, change: str) -> bool:
        """Return whether the run takes the new side of a change of code; the first answer stays.

        It does if it comes here for the first time, or took it then.
        """
        known = self._patched.get(change)
        if known is not None:
            return known
        ledger, name = self._ledger, f"patched:{change}"
        if ledger.keep_inside is not None and not ledger.dead:
            self._patched[change] = ledger.keep_inside(name, None) is not None
            return self._patched[change]
        row = ledger.row()
        taken = row is not None and (row.type, row.name) == ("n", name)
        if not ledger.dead and not taken and not (row is None and ledger.at_frontier()):
            # the old code was past this point, and recorded nothing here
            self._patched[change] = False
            return False
        self._capture("random", name, lambda: "true")
        self._patched[change] = True
        return True

    def _capture(self, kind: Literal["random", "time"], name: str, make: Callable[[], str]) -> str:
        """Return the JSON text recorded for a value, or make a new one."""
        ledger = self._ledger
        if ledger.dead:
            ledger.loop.raise_evicted()
            return make()
        if ledger.keep_inside is not None:
            # a transaction's row holds what was captured inside, so that they are recorded together or not
            return ledger.keep_inside(name, make) or make()
        row = ledger.row()
        if row is not None and row.type == ("n" if kind == "random" else "m"):
            text = row.data or "null"
            # rows without a name are told apart by their values: only a UUID is a text
            same = row.name == name if row.name else (name == "uuid4") is text.startswith('"')
        else:
            same, text = ledger.is_new(row), make()
            if same:
                ledger.commands.append(Captured(child=ledger.next_child, kind=kind, name=name, value=text))
        if not same:
            ledger.halt(described("time" if kind == "time" else "random value", name, None), row)
            ledger.loop.raise_evicted()
        ledger.next_child += 1
        return text
