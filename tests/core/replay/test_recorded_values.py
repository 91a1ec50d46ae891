"""Law: random values of `ctx` behave as those of `random` and `uuid`, and a replay finds them again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import RFC_4122, UUID

import pytest

from pyengine.context import ctx
from pyengine.core.protocol.commands import Captured, Complete
from pyengine.core.protocol.journal import Row, RowType
from tests.core.replay.memory_run import STARTED_MS, MemoryRun, problem_of, workflow

LETTERS = "abcdefgh"


async def chances() -> list[Any]:
    """One of each."""
    items = list(LETTERS)
    ctx.shuffle(items)
    return [ctx.randint(1, 6), ctx.choice(LETTERS), items, str(ctx.uuid4()), str(ctx.uuid7())]


def test_a_replay_finds_them_again() -> None:
    """Each is recorded once, under its own number and name; another seed and time change nothing."""
    run = MemoryRun(workflow(chances))
    captured = [command for command in run.commands if isinstance(command, Captured)]
    assert [(one.child, one.kind, one.name) for one in captured] == [
        *((0, "random", "shuffle"), (1, "random", "randint"), (2, "random", "choice")),
        *((3, "random", "uuid4"), (4, "random", "uuid7")),
    ]
    number, letter, items, _, _ = run.value
    assert 1 <= number <= 6 and letter in LETTERS and sorted(items) == list(LETTERS)
    run.seed, run.now_ms = 99, 0
    assert run.cold().end == run.end


async def many() -> list[Any]:
    """Many draws of small ranges, and one each of large ones."""
    orders = []
    for _ in range(300):
        items = [1, 2, 3]
        ctx.shuffle(items)
        orders.append(tuple(items))
    numbers = [ctx.randint(-1, 1) for _ in range(300)]
    return [
        *(sorted(Counter(numbers).values()), sorted(Counter(map(str, orders)).values())),
        *(ctx.randint(7, 7), ctx.randint(0, 10**30), ctx.choice((5,))),
    ]


def test_every_outcome_comes() -> None:
    """All numbers of a range and all orders of a list come, none of them much likelier than another."""
    numbers, orders, only, large, chosen = MemoryRun(workflow(many)).value
    assert len(numbers) == 3 and numbers[0] > 60
    assert len(orders) == 6 and orders[0] > 20
    assert (only, chosen) == (7, 5) and 2**64 < large <= 10**30


def test_a_shuffle_of_nothing() -> None:
    """Empty and short lists stay as they are, and are recorded all the same."""

    async def code() -> list[Any]:
        none: list[int] = []
        one = [1]
        ctx.shuffle(none)
        ctx.shuffle(one)
        return [none, one]

    run = MemoryRun(workflow(code))
    assert run.value == [[], [1]] and len(run.commands) == 2


def test_uuid7() -> None:
    """Version and variant are those of RFC 9562, and the time is the run's."""

    async def code() -> list[str]:
        return [str(ctx.uuid7()), str(ctx.uuid7())]

    first, second = (UUID(one) for one in MemoryRun(workflow(code)).value)
    assert (first.version, first.variant) == (7, RFC_4122) and first != second
    made = datetime.fromtimestamp((first.int >> 80) / 1000, UTC)
    assert made == datetime.fromtimestamp(STARTED_MS / 1000, UTC)


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (lambda: ctx.randint(2, 1), "ValueError: ctx.randint(2, 1): there is no number between them"),
        (lambda: ctx.choice([]), "IndexError: ctx.choice: there is nothing to choose from"),
    ],
)
def test_refusals_leave_no_trace(use: Callable[[], Any], error: str) -> None:
    """Whatever is refused takes no number."""

    async def code() -> str:
        try:
            use()
        except (ValueError, IndexError) as refused:
            return f"{type(refused).__name__}: {refused}"
        return "nothing"

    run = MemoryRun(workflow(code))
    assert run.value == error and run.commands == []


def test_a_choice_from_less() -> None:
    """A position that the sequence does not have any more halts the run: the code was changed."""

    async def code() -> str:
        return ctx.choice("ab")

    rows = [
        Row(0, RowType.EXECUTION_STARTED),
        Row(1, RowType.RANDOM_GENERATED, 0, name="choice", data="2"),
    ]
    run = MemoryRun(workflow(code))
    assert "random value choice" in problem_of(run.cold(rows=rows))["message"]
    rows[1] = Row(1, RowType.RANDOM_GENERATED, 0, name="choice", data="1")
    assert run.cold(rows=rows).end == Complete(value='"b"')


def test_one_is_not_another() -> None:
    """A random value is recognised by its name."""

    async def code() -> int:
        return ctx.randint(0, 9)

    rows = [
        Row(0, RowType.EXECUTION_STARTED),
        Row(1, RowType.RANDOM_GENERATED, 0, name="choice", data="2"),
    ]
    message = problem_of(MemoryRun(workflow(code)).cold(rows=rows))["message"]
    assert "expects random value choice, the code made random value randint" in message
