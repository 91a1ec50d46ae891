"""Law: a transaction that the journal holds is found again, statement by statement, and the code goes on as
it did; one that it does not hold stops the coroutine until somebody answers; where the two disagree the run
halts.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from hashlib import sha256
from typing import Any

import anyio
import asyncpg
import pytest

from pyengine.context import ctx
from pyengine.core.definitions.current_run import RunInfo
from pyengine.core.protocol.commands import Complete, Fail, Halt, RolledBack
from pyengine.core.protocol.journal import Row, RowType
from pyengine.core.replay.advance import Advance
from pyengine.core.replay.asks import Outcome
from pyengine.core.replay.machine import Replay
from pyengine.core.values.codec import Codec
from pyengine.errors import InvalidRequest
from pyengine.features.sql.transaction_log import TransactionLog
from pyengine.features.sql.transaction_runner import overdue
from tests.core.replay.memory_run import STARTED_MS, MemoryRun, add, greet, workflow

Code = Callable[[], Coroutine[Any, Any, Any]]
COUNT, WRITE = "select count(*) from t", "insert into t values (1)"
NAME_HASH = sha256(b"transaction\0transaction").hexdigest()[:16]


def said(kind: str, query: str, value: Any) -> list[Any]:
    """A recorded statement."""
    return [sha256(f"{kind}\0{query}".encode()).hexdigest()[:8], ["value", value]]


def row(seq: int, child: int, *statements: list[Any], committed: bool = True, end: Any = None) -> Row:
    """The row of a transaction."""
    data = {"committed": committed, "said": list(statements)} | ({} if end is None else {"end": end})
    return Row(seq, RowType.STEP_COMPLETED, child, 1, "transaction", NAME_HASH, json.dumps(data))


def replay_of(code: Code, *rows: Row) -> Replay:
    """A coroutine and the journal that it is driven by."""
    codec = Codec({})
    run = RunInfo(id="r", execution=1, version=1, workflow=code.__name__, started_at_ms=STARTED_MS)
    one = Replay(workflow(code).definition, run, lambda: STARTED_MS, random.Random(1), codec)
    one.load((Row(0, RowType.EXECUTION_STARTED), *rows))
    return one


def front(one: Replay) -> TransactionLog:
    """The open transaction."""
    assert one.asks is not None
    assert isinstance(one.asks.front, TransactionLog)
    return one.asks.front


def asked(one: Replay) -> str:
    """What it waits for."""
    ask = front(one).ask
    assert ask is not None
    return ask.kind


def answer(one: Replay, value: Any = None, kind: str = "value") -> Advance:
    """Answer it, and go on."""
    ask = front(one).ask
    assert ask is not None
    outcome: Outcome = (kind, value)  # type: ignore[assignment]
    assert one.asks is not None
    assert one.asks.answer(ask, outcome)
    return one.advance()


async def count_and_write() -> int:
    """Two statements."""
    async with ctx.transaction() as tx:
        number = await tx.fetchval(COUNT)
        await tx.execute(WRITE)
    return int(number)


BOTH = (said("fetchval", COUNT, 5), said("execute", WRITE, "INSERT 0 1"))


def test_a_live_one_asks_and_waits() -> None:
    """Begin, each statement and the commit are asked for one after the other; nothing else happens."""
    one = replay_of(count_and_write)
    moves = one.advance()
    assert (moves.end, moves.commands, one.in_transaction, len(one.open_steps)) == (None, (), True, 0)
    kinds = [asked(one)]
    for value in (None, 5, "INSERT 0 1"):
        assert answer(one, value).end is None
        kinds.append(asked(one))
    assert kinds == ["begin", "fetchval", "execute", "commit"]
    assert answer(one).end == Complete(value="5")


def test_a_recorded_transaction_needs_no_worker() -> None:
    """The code comes to its end from the journal alone."""
    assert replay_of(count_and_write, row(1, 0, *BOTH)).advance().end == Complete(value="5")


@pytest.mark.parametrize(
    "statements",
    [
        BOTH[:1],
        BOTH[::-1],
        (*BOTH, BOTH[0]),
        (),
        (BOTH[0], said("execute", WRITE + " ", "INSERT 0 1")),
        (BOTH[0], said("fetch", WRITE, {"columns": [], "rows": []})),
    ],
    ids=["fewer", "other order", "more", "none", "other text", "other kind"],
)
def test_other_statements_halt_the_run(statements: tuple[list[Any], ...]) -> None:
    """A record that does not fit the code halts, and says at which statement."""
    end = replay_of(count_and_write, row(1, 0, *statements)).advance().end
    assert isinstance(end, Halt)
    assert "another statement in it: " in json.loads(end.problem)["message"]


@pytest.mark.parametrize("committed", [True, False])
def test_an_end_of_the_other_kind_halts_the_run(committed: bool) -> None:
    """Code that rolls back what was committed, or commits what was rolled back."""

    async def rolls_back() -> None:
        async with ctx.transaction() as tx:
            await tx.fetchval(COUNT)
            await tx.execute(WRITE)
            raise ValueError

    code: Code = rolls_back if committed else count_and_write
    assert isinstance(replay_of(code, row(1, 0, *BOTH, committed=committed)).advance().end, Halt)


@pytest.mark.parametrize(
    "other",
    [
        Row(1, RowType.STEP_COMPLETED, 0, 1, "add", "0" * 16, "1"),
        Row(1, RowType.RANDOM_GENERATED, 0, None, "random", None, "1"),
    ],
)
def test_the_row_of_another_call_halts_the_run(other: Row) -> None:
    """So does a step or a value where the code makes a transaction, and a row that cannot be read."""
    assert isinstance(replay_of(count_and_write, other).advance().end, Halt)
    broken = Row(1, RowType.STEP_COMPLETED, 0, 1, "transaction", NAME_HASH, '"replaced by hand"')
    assert isinstance(replay_of(count_and_write, broken).advance().end, Halt)


async def fails_and_goes_on() -> str:
    """An error of the database, then one of the commit."""
    words = []
    for query in (WRITE, COUNT):
        try:
            async with ctx.transaction() as tx:
                await tx.execute(query)
        except asyncpg.UniqueViolationError as error:
            words.append(str(error))
    return " ".join(words)


FIELDS = {"S": "ERROR", "C": "23505", "M": "twice"}


def test_a_rollback_is_recorded_as_a_command() -> None:
    """It is recorded with what it was answered, before anything that follows; a replay raises the same."""
    one = replay_of(fails_and_goes_on)
    one.advance()
    answer(one)
    answer(one, FIELDS, "database")
    assert asked(one) == "rollback"
    moves = answer(one)
    (first,) = moves.commands
    assert isinstance(first, RolledBack)
    answer(one)
    answer(one, "SELECT 1")
    assert asked(one) == "commit"
    moves = answer(one, FIELDS, "database")
    (second,) = moves.commands
    assert isinstance(second, RolledBack)
    assert moves.end == Complete(value='"twice twice"')
    rows = [
        Row(
            1 + 3 * place, RowType.STEP_COMPLETED, command.child, 1, command.name, command.hash, command.value
        )
        for place, command in enumerate((first, second))
    ]
    assert replay_of(fails_and_goes_on, *rows).advance().end == Complete(value='"twice twice"')


async def forgets() -> str:
    """Statements and an effect without an await."""
    said = []
    for verb in ("execute", "start"):
        try:
            async with ctx.transaction() as tx:
                await tx.fetchval(COUNT)
                getattr(tx, verb)(WRITE)
        except InvalidRequest as error:
            said.append(error.message)
    return " ".join(said)


@pytest.mark.filterwarnings("ignore:coroutine 'Transaction")
def test_a_call_without_await_rolls_back() -> None:
    """It is told before the commit, and by a replay; a block that older code committed stays committed."""
    one, rows = replay_of(forgets), []
    one.advance()
    for seq in (1, 2):
        for value in (None, 5):
            answer(one, value)
        assert asked(one) == "rollback"
        moves = answer(one)
        (told,) = moves.commands
        assert isinstance(told, RolledBack)
        rows.append(Row(seq, RowType.STEP_COMPLETED, told.child, 1, told.name, told.hash, told.value))
    assert isinstance(moves.end, Complete) and moves.end.value is not None
    for verb in ("execute", "start"):
        assert f"tx.{verb} was called and not awaited (test_transactions.py, line " in moves.end.value
    assert replay_of(forgets, *rows).advance().end == moves.end
    older = [row(seq, seq - 1, BOTH[0]) for seq in (1, 2)]
    assert replay_of(forgets, *older).advance().end == Complete(value='""')


async def goes_on_after_an_error() -> None:
    """What the database says after an error in the block."""
    async with ctx.transaction() as tx:
        try:
            await tx.execute("insert into t values (%s)")
        except Exception:
            await tx.execute(WRITE)


def test_errors_of_the_database_are_explained() -> None:
    """A statement after one that failed names it, and the savepoint; one with %s what to write."""
    one = replay_of(goes_on_after_an_error)
    one.advance()
    answer(one)
    answer(one, {"S": "ERROR", "C": "42601", "M": "syntax error"}, "database")
    answer(one, {"S": "ERROR", "C": "25P02", "M": "aborted"}, "database")
    end = answer(one).end
    assert isinstance(end, Fail)
    assert "savepoint()" in end.error and "$1, $2, ..., not %s" in end.error
    assert json.loads(end.error)["cause"]["message"] == "syntax error"


async def two_branches() -> list[str]:
    """A branch in a transaction and one that waits for a step."""
    order: list[str] = []

    async def write() -> None:
        async with ctx.transaction() as tx:
            order.append("begun")
            await tx.execute(WRITE)
            order.append(str(ctx.random() < 1))
        order.append("committed")
        await add(2, 2)

    async def wait() -> None:
        order.append(str(await add(1, 1)))
        await add(3, 3)

    await asyncio.gather(write(), wait())
    return order


def test_completions_during_a_transaction_are_deferred() -> None:
    """A completion that is loaded while the transaction is open reaches the code after its end; a replay
    gives the calls that follow the same numbers."""
    one = replay_of(two_branches)
    moves = one.advance()
    (step,) = moves.steps
    assert (step.child, asked(one)) == (1, "begin")
    answer(one)
    late = Row(1, RowType.STEP_COMPLETED, 1, 1, "add", step.hash, "2")
    one.load([late])
    assert one.advance().steps == ()
    assert answer(one, "INSERT 0 1").commands == ()
    data = front(one).data(committed=True)
    moves = answer(one)
    calls = {call.child: call.hash for call in moves.steps}
    assert sorted(calls) == [2, 3]
    again = replay_of(
        two_branches,
        late,
        Row(4, RowType.STEP_COMPLETED, 0, 1, "transaction", NAME_HASH, data),
    )
    assert {call.child: call.hash for call in again.advance().steps} == calls


def test_steps_completed_during_a_transaction_are_not_run_again() -> None:
    """A replay that stops at a transaction makes no attempt of a step whose completion stands in the journal
    and waits for the end of the transaction; one that was begun and not completed is attempted again."""

    async def code() -> list[Any]:
        return list(await asyncio.gather(add(1, 1), count_and_write(), add(2, 2)))

    first = replay_of(code)
    one, other = first.advance().steps
    begun = [
        Row(seq, RowType.STEP_STARTED, step.child, 1, "add", step.hash)
        for seq, step in ((1, one), (3, other))
    ]
    again = replay_of(code, *begun, Row(5, RowType.OPEN_STEP_COMPLETED, one.child, 1, None, None, "2"))
    assert [step.child for step in again.advance().steps] == [other.child]
    for value in (None, 5, "INSERT 0 1"):
        assert answer(again, value).steps == ()
    assert answer(again).steps == ()
    again.load([Row(9, RowType.OPEN_STEP_COMPLETED, other.child, 1, None, None, "4")])
    assert again.advance().end == Complete(value="[2,5,4]")


def test_it_is_dropped_with_the_coroutine() -> None:
    """Eviction leaves nothing that waits, and nobody can answer any more."""
    one = replay_of(count_and_write)
    one.advance()
    answer(one)
    ask = front(one).ask
    assert ask is not None
    one.evict()
    assert not one.in_transaction
    assert one.asks is not None
    assert not one.asks.answer(ask, ("value", 1))


def test_statements_come_one_after_the_other() -> None:
    """Two at once are refused, like on any connection; so is one after the end."""

    async def hasty() -> None:
        async with ctx.transaction() as tx:
            await asyncio.gather(tx.execute(WRITE), tx.execute(WRITE))

    async def tardy() -> None:
        async with ctx.transaction() as tx:
            pass
        await tx.execute(WRITE)

    one = replay_of(hasty)
    one.advance()
    answer(one)
    moves = answer(one)
    assert isinstance(moves.end, Fail)
    assert InvalidRequest.__name__ in moves.end.error
    late = replay_of(tardy)
    late.advance()
    answer(late)
    ended = answer(late).end
    assert isinstance(ended, Fail)
    assert "after its end" in ended.error


async def captures() -> list[bool]:
    """Values captured inside, and a mark of changed code."""
    async with ctx.transaction() as tx:
        first = ctx.random()
        await tx.execute(WRITE)
        second, changed = ctx.now(), ctx.patched("x")
    return [first < 2, second.year > 2000, changed]


def test_captured_values_stand_in_the_record() -> None:
    """They take no numbers and make no rows of their own; a replay finds them, and code that captures another
    one halts; a mark that the record does not hold tells that the code was past it."""
    one = replay_of(captures)
    one.advance()
    answer(one)
    answer(one, "INSERT 0 1")
    data = front(one).data(committed=True)
    moves = answer(one)
    assert (moves.commands, moves.end) == ((), Complete(value="[true,true,true]"))
    recorded = json.loads(data)
    whole = Row(1, RowType.STEP_COMPLETED, 0, 1, "transaction", NAME_HASH, data)
    assert replay_of(captures, whole).advance().end == moves.end
    recorded["said"].pop()
    older = Row(1, RowType.STEP_COMPLETED, 0, 1, "transaction", NAME_HASH, json.dumps(recorded))
    assert replay_of(captures, older).advance().end == Complete(value="[true,true,false]")
    recorded["said"].pop(0)
    other = Row(1, RowType.STEP_COMPLETED, 0, 1, "transaction", NAME_HASH, json.dumps(recorded))
    assert isinstance(replay_of(captures, other).advance().end, Halt)


def test_a_limit_around_it() -> None:
    """A transaction knows how long the limits last that would cancel its code: of asyncio and anyio, none of
    another task, and none outside of a shield. A recorded one needs none.
    """

    async def one_block() -> None:
        async with ctx.transaction() as tx:
            await tx.execute(WRITE)

    async def limited() -> None:
        async with asyncio.timeout(60), asyncio.timeout(5):
            await one_block()

    async def waited_for() -> None:
        await asyncio.wait_for(one_block(), 7)

    async def of_anyio() -> None:
        with anyio.fail_after(9):
            await one_block()

    async def of_another_task() -> None:
        async def waits() -> None:
            async with asyncio.timeout(5):
                await ctx.sleep(60)

        await asyncio.gather(waits(), one_block())

    async def shielded() -> None:
        async with asyncio.timeout(5), ctx.shield():
            await one_block()

    codes = (limited, waited_for, of_anyio, of_another_task, shielded, one_block)
    limits = []
    for code in codes:
        one = replay_of(code)
        one.advance()
        limits.append(front(one).limit_ms)
    assert limits == [5000, 7000, 9000, None, None, None]


def test_a_limit_that_has_begun() -> None:
    """It is measured from the instant at which its timer fires, not from the last row."""

    async def code() -> None:
        async with asyncio.timeout(5):
            await greet("a")
            async with ctx.transaction() as tx:
                await tx.execute(WRITE)

    run = MemoryRun(workflow(code))
    run.now_ms += 4000
    run.complete(1, "x")
    assert front(run.warm).limit_ms == 1000
    cold = run.replay()
    cold.load(run.rows)
    cold.advance()
    assert front(cold).limit_ms == 1000


def test_the_error_of_one_that_is_overdue() -> None:
    """It names the transaction, and the limit that was there."""
    log = TransactionLog(1, "transaction", NAME_HASH, 5000, None)
    assert overdue(log).message == "the transaction took longer than 5 s"
    log.limit_ms = -2.0
    assert overdue(log).message == "the limit around the block of the transaction was over before it began"
    log = TransactionLog(1, "pay", NAME_HASH, 5000, None)
    assert overdue(log).message == "transaction pay took longer than 5 s"
