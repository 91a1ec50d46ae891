"""Time, random values and ids of `ctx`, the same at every replay.

Lives here: `ContextValues`. May not: a decision; the run takes and records each value. The functions behave
as those of the same name in `random` and `uuid`. Whatever they refuse is refused before a value is taken.
"""

from __future__ import annotations

import random
from collections.abc import MutableSequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar
from uuid import UUID

from pyengine.core.definitions.current_run import RecordedValues, within_run

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Choices(Protocol[T_co]):
    """Something with a length whose elements have numbers."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T_co: ...


class ContextValues:
    """The part of `ctx` that gives values which a replay finds again."""

    __slots__ = ()

    def now(self) -> datetime:
        """Return the time (UTC), the same at every replay."""
        return EPOCH + timedelta(milliseconds=_values("now()", "datetime.now(timezone.utc)").time_ms())

    def random(self) -> float:
        """Return a random number, 0 <= x < 1, the same at every replay."""
        return _values("random()", "random.random()").random()

    def randint(self, a: int, b: int) -> int:
        """Return a random whole number, a <= n <= b, the same at every replay.

        Args:
            a: the smallest.
            b: the largest.

        Raises:
            ValueError: b is less than a.
        """
        values = _values("randint()", "random.randint()")
        if b < a:
            raise ValueError(f"ctx.randint({a!r}, {b!r}): there is no number between them")
        return values.randint(a, b)

    def choice(self, options: _Choices[T]) -> T:
        """Return one element of a sequence at random, the same at every replay.

        Its position is recorded, so the sequence must be the same at every replay too.

        Args:
            options: a list, tuple, text or other sequence.

        Raises:
            IndexError: it is empty.
        """
        values = _values("choice()", "random.choice()")
        if not len(options):
            raise IndexError("ctx.choice: there is nothing to choose from")
        return options[values.choice(len(options))]

    def shuffle(self, items: MutableSequence[Any]) -> None:
        """Bring the elements of a list into a random order, in place, the same at every replay.

        Args:
            items: the list.
        """
        # of a seeded generator only `random` is the same in all versions of Python
        generator = random.Random(_values("shuffle()", "random.shuffle()").shuffle_seed())
        for last in range(len(items) - 1, 0, -1):
            other = int(generator.random() * (last + 1))
            items[last], items[other] = items[other], items[last]

    def uuid4(self) -> UUID:
        """Return a random UUID, the same at every replay."""
        return _values("uuid4()", "uuid.uuid4()").uuid4()

    def uuid7(self) -> UUID:
        """Return a UUID that sorts by the time at which it was made, the same at every replay."""
        return _values("uuid7()", "uuid.uuid7()").uuid7()


def _values(method: str, instead: str) -> RecordedValues:
    """Return the values of the run whose code is running; arguments and errors of `within_run`."""
    return within_run(method, instead).values
