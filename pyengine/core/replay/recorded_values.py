"""Values that a replay must find again: time, randomness, and which side of a code change a run took.

Lives here: `RecordedValues`. May not: calls that wait. The theory: each value is a command with a number of
its own, recorded in the turn in which the code took it. The code goes on with the value at once, so it is
recorded even where a cancellation request discards other commands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal
from uuid import UUID

import msgspec

from pyengine.core.definitions.retry import Randomness
from pyengine.core.protocol.commands import Captured
from pyengine.core.protocol.journal import RowType
from pyengine.core.replay.call_sequence import CallSequence
from pyengine.core.replay.history import describe_call

_ROWS = {"random": RowType.RANDOM_GENERATED, "time": RowType.TIME_RECORDED}


class RecordedValues:
    """Takes each value once, and reads it from the journal afterwards.

    Args:
        sequence: numbers and commands of the run.
        now_ms: reads the clock, epoch milliseconds; asked for new values only.
        randomness: source of new random values.
    """

    def __init__(self, sequence: CallSequence, now_ms: Callable[[], int], randomness: Randomness) -> None:
        self._sequence = sequence
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

    def randint(self, low: int, high: int) -> int:
        """Return the recorded random number, low <= n <= high."""
        return int(self._capture("random", "randint", lambda: str(low + self._below(high - low + 1))))

    def choice(self, count: int) -> int:
        """Return the recorded position in a sequence of so many elements."""
        return int(
            self._capture(
                "random", "choice", lambda: str(self._below(count)), fits=lambda text: int(text) < count
            )
        )

    def shuffle_seed(self) -> int:
        """Return the recorded seed of a random order."""
        # as a text, because readers of JSON may round numbers of this size
        text = self._capture("random", "shuffle", lambda: f'"{self._randomness.getrandbits(128):032x}"')
        return int(text.strip('"'), 16)

    def uuid4(self) -> UUID:
        """Return the recorded random UUID."""
        text = self._capture(
            "random", "uuid4", lambda: f'"{UUID(int=self._randomness.getrandbits(128), version=4)}"'
        )
        return msgspec.json.decode(text, type=UUID)

    def uuid7(self) -> UUID:
        """Return the recorded UUID that sorts by time."""
        text = self._capture(
            "random", "uuid7", lambda: f'"{_uuid7(self._now_ms(), self._randomness.getrandbits(74))}"'
        )
        return msgspec.json.decode(text, type=UUID)

    def _below(self, count: int) -> int:
        """Return a new random number, 0 <= n < count."""
        # with 64 bits more than it needs no number is noticeably likelier than another
        return self._randomness.getrandbits(count.bit_length() + 64) % count

    def patched(self, change: str) -> bool:
        """Return whether the run takes the new side of a change of code; the first answer stays.

        True if the run comes here for the first time, or took the new side when it did.
        """
        known = self._patched.get(change)
        if known is not None:
            return known
        sequence, name = self._sequence, f"patched:{change}"
        if sequence.capture_inside is not None and not sequence.dead:
            self._patched[change] = sequence.capture_inside(name, None) is not None
            return self._patched[change]
        row = sequence.row()
        taken = row is not None and (row.type, row.name) == (RowType.RANDOM_GENERATED, name)
        if not sequence.dead and not taken and not (row is None and sequence.at_frontier()):
            # the old code was past this point and recorded nothing here
            self._patched[change] = False
            return False
        self._capture("random", name, lambda: "true")
        self._patched[change] = True
        return True

    def _capture(
        self,
        kind: Literal["random", "time"],
        name: str,
        make: Callable[[], str],
        fits: Callable[[str], bool] = lambda text: True,
    ) -> str:
        """Return the JSON text recorded for a value, or make a new one.

        Args:
            kind: kind of the value.
            name: the call that takes it.
            make: makes a new one.
            fits: whether the code, as it is now, can use one that is recorded.
        """
        sequence = self._sequence
        if sequence.dead:
            sequence.loop.raise_evicted()
            return make()
        if sequence.capture_inside is not None:
            # the transaction's row holds the value, so that both are recorded or neither
            return sequence.capture_inside(name, make) or make()
        row = sequence.row()
        if row is not None and row.type == _ROWS[kind]:
            text = row.data or "null"
            # a row without a name is recognised by its value: only a UUID is a text
            known = (name == "uuid4") is text.startswith('"')
            same = row.name == name and fits(text) if row.name else known
        else:
            same, text = sequence.is_new(row), make()
            if same:
                command = Captured(child=sequence.next_child, kind=kind, name=name, value=text)
                sequence.commands.append(command)
        if not same:
            sequence.halt(describe_call("time" if kind == "time" else "random value", name), row)
            sequence.loop.raise_evicted()
        sequence.next_child += 1
        return text


def _uuid7(epoch_ms: int, bits: int) -> UUID:
    """Return the UUID of version 7 (RFC 9562) with that time and those 74 random bits."""
    high, low = bits >> 62, bits & (1 << 62) - 1
    return UUID(int=epoch_ms << 80 | 7 << 76 | high << 64 | 2 << 62 | low)
