"""Law: the older API answers every request in every state as its transition table says, stores what the table
says, and settles through the same chain as everybody, once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.doors.protocol.v0_calls import callback, completion, creation, stored, subscription
from tests.doors.protocol.v0_table import (
    CREATE,
    STATES,
    VERBS,
    Answer,
    Cell,
    State,
    by_rules,
    by_table,
    cells,
    rows_of,
)
from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.verbs import NEVER, Call, Connection, ask, create, park, take, task_of

Record = dict[str, Any]


def request(cell: Cell, id_: str, timeout_at: int = NEVER) -> Call:
    """The request of a row, with other data than what is there."""
    if cell.verb == CREATE:
        return creation(id_, cell.key, strict=cell.strict, data="second", timeout_at=timeout_at)
    return completion(cell.verb, id_, cell.key, strict=cell.strict, data="second", headers='{"n": "2"}')


def prepare(conn: Connection, state: State, id_: str, timeout_at: int) -> None:
    """Bring a promise into a state, with a listener and a task that wait for it from its birth on."""
    if state.name == "NONE":
        return
    assert ask(conn, creation(id_, state.ikc, timeout_at=timeout_at, data="first"))[0] == 201
    ask(conn, ("select durable.promise_register_listener(%s, 'poll://any@told')", (id_,)))
    ask(conn, ("select durable.promise_register_callback(%s, 'awaiter')", (id_,)))
    for verb, name in VERBS.items():
        if verb != CREATE and name == state.name:
            call = completion(verb, id_, state.iku, data="first", headers='{"n": "1"}')
            assert ask(conn, call)[:2] == (201, "OK")


def effects(conn: Connection, id_: str) -> tuple[int, int, int]:
    """Notifications sent, wake reasons noted, and what still waits for the promise."""
    counts = (
        "select count(*) from durable._unblocks where promise_id = %s",
        "select count(*) from durable._resumes where task_id = 'awaiter' and awaited_id = %s",
        "select (select count(*) from durable._callbacks c where c.awaited_id = p.id)"
        " + (select count(*) from durable._listeners l where l.awaited_id = p.id)"
        " from durable._promises p where p.id = %s",
    )
    told, woken, waiting = (int(ask(conn, (count, (id_,)))[0]) for count in counts)
    return told, woken, waiting


def state_of(record: Record | None) -> State:
    """The state that a record shows."""
    if record is None:
        return State(name="NONE")
    keys = (record.get("idempotencyKeyForCreate"), record.get("idempotencyKeyForComplete"))
    return State(name=record["state"], ikc=keys[0], iku=keys[1])


def check(conn: Connection, cell: Cell, id_: str, expected: Answer, value: tuple[Any, Any]) -> None:
    """Make the request of a row and compare: the answer, what is stored, what followed.

    Args:
        conn: the connection.
        cell: state and request.
        id_: a promise in that state.
        expected: the rest of the row.
        value: data and headers of the promise before, which only an effect may change.
    """
    before = stored(conn, id_)
    status, word, record = ask(conn, request(cell, id_))
    assert (status, word, state_of(record)) == (expected.status, expected.word, expected.after)
    after = stored(conn, id_)
    if after is None:
        assert record is None and expected.after.name == "NONE"
        return
    assert after[:3] == (expected.after.name, expected.after.ikc, expected.after.iku)
    if expected.status == 201 and cell.verb != CREATE:
        value = ("second", {"n": "2"})
    assert after[3:6] == ("second" if before is None else "first", *value)
    if before is not None and before[7] is not None:
        assert before == after
    assert (record["param"].get("data"), record["value"].get("data")) == after[3:5]
    assert (record["createdOn"], record.get("completedOn")) == after[6:]
    if before is not None:
        completed = expected.after.name != "PENDING"
        assert effects(conn, id_) == ((1, 1, 0) if completed else (0, 0, 2))


# -- the table


def test_the_rules_are_the_table() -> None:
    """Both ways to write the table give the same 324 rows, as many for each state as were printed."""
    rows = list(cells())
    assert len(set(rows)) == 324
    assert [by_rules(cell) for cell in rows] == [by_table(cell) for cell in rows]
    counts = [sum(1 for _ in rows_of(state)) for state in STATES]
    assert counts == [16, 16, 18, *[16, 22, 18, 24] * 3, 16, 18]


@pytest.mark.parametrize("state", STATES, ids=str)
def test_every_row_of_the_table(conn: Connection, clock: Clock, state: State) -> None:
    """Each row is answered, stored and followed as the table says: what is refused or deduplicated changes
    nothing, what is done is done once."""
    ask(conn, create("awaiter", target="g"))
    rows = {f"p{number}": cell for number, cell in enumerate(rows_of(state))}
    late = state.name == "REJECTED_TIMEDOUT"
    for id_ in rows:
        prepare(conn, state, id_, clock.now_ms + 1000 if late else NEVER)
    if late:
        clock.advance(1000)
        conn.execute("select durable.tick_v1(500)")
    clock.advance(10)
    value = (None, None) if state.name in ("PENDING", "NONE") or late else ("first", {"n": "1"})
    for id_, cell in rows.items():
        try:
            check(conn, cell, id_, by_rules(cell), value)
        except AssertionError as error:
            raise AssertionError(f"{cell}: {error}") from error


# a state that a deadline made, before anybody has looked; the tag that decides which it is
EXPIRED = [
    (State(name=name, ikc=ikc), tag)
    for name, tag in (("REJECTED_TIMEDOUT", "resonate:external"), ("RESOLVED", "resonate:timer"))
    for ikc in (None, "ikc")
]


@pytest.mark.parametrize(("state", "tag"), EXPIRED, ids=str)
def test_a_deadline_that_nobody_has_seen_counts_first(
    conn: Connection, clock: Clock, state: State, tag: str
) -> None:
    """A promise found past its deadline is timed out (a timer: resolved) at that instant, without a key, and
    then the request is judged: whoever resolves an expired timer is refused, strict or not."""
    ask(conn, create("awaiter", target="g"))
    deadline = clock.now_ms + 1000
    rows = {f"p{number}": cell for number, cell in enumerate(rows_of(state))}
    for id_ in rows:
        tags = json.dumps({tag: "true"})
        ask(conn, creation(id_, state.ikc, timeout_at=deadline, tags=tags, data="first"))
        ask(conn, ("select durable.promise_register_listener(%s, 'poll://any@told')", (id_,)))
        ask(conn, ("select durable.promise_register_callback(%s, 'awaiter')", (id_,)))
    clock.advance(1010)
    for id_, cell in rows.items():
        status, word, record = ask(conn, request(cell, id_))
        expected = by_rules(cell)
        assert (status, word, state_of(record)) == (expected.status, expected.word, state), str(cell)
        assert (record["completedOn"], record["value"]) == (deadline, {})
        assert effects(conn, id_) == (1, 1, 0)


def test_the_deadline_itself_is_too_late(conn: Connection, clock: Clock) -> None:
    """A completion one millisecond before the deadline is done, one at the deadline is not."""
    deadline = clock.now_ms + 1000
    for id_ in ("early", "late"):
        ask(conn, creation(id_, timeout_at=deadline))
    clock.advance(999)
    assert ask(conn, completion("resolve", "early", strict=True))[:2] == (201, "OK")
    clock.advance(1)
    assert ask(conn, completion("resolve", "late", strict=True))[:2] == (403, "already timedout")


@pytest.mark.parametrize(("tag", "state"), [("external", "REJECTED_TIMEDOUT"), ("timer", "RESOLVED")])
def test_a_timeout_in_the_past(conn: Connection, clock: Clock, tag: str, state: str) -> None:
    """A promise may be born completed: the creation is done, the key counts for the next one."""
    call = creation("p", "k", timeout_at=clock.now_ms, tags=json.dumps({f"resonate:{tag}": "true"}))
    status, word, record = ask(conn, call)
    assert (status, word, state_of(record)) == (201, "OK", State(name=state, ikc="k"))
    assert ask(conn, call)[0] == 200
    assert ask(conn, creation("p", "k", strict=True))[0] == 409


# -- two at once


def both(stage: Stage, first: Call, second: Call, *, commit: bool = True) -> tuple[Any, Any]:
    """Two sessions: the second waits for the first, which commits or not. Their statuses and words."""
    a, b = stage.player("a"), stage.player("b")
    a.begin()
    one = a.do(*first)
    two = b.do(*second)
    assert two.blocked
    (a.commit() if commit else a.rollback()).rows()
    return one.rows()[0][:2], two.rows()[0][:2]


@pytest.mark.parametrize(
    ("keys", "strict", "answer"),
    [
        (("k", "k"), True, (200, "deduplicated")),
        (("k", "k"), False, (200, "deduplicated")),
        (("k", "l"), False, (409, "already pending")),
        (("k", None), False, (409, "already pending")),
        ((None, None), False, (409, "already pending")),
    ],
)
def test_two_creations(
    conn: Connection, stage: Stage, keys: tuple[str | None, str | None], strict: bool, answer: tuple[int, str]
) -> None:
    """One of two creations at once is done; the other waits for it and is judged by its key."""
    first, second = (creation("p", key, strict=strict, data=str(n)) for n, key in enumerate(keys))
    assert both(stage, first, second) == ((201, "OK"), answer)
    found = stored(conn, "p")
    assert found is not None and found[1:4] == (keys[0], None, "0")


def test_a_creation_that_is_undone(conn: Connection, stage: Stage) -> None:
    """If the first rolls back, the second is the one that creates."""
    assert both(stage, creation("p", "k"), creation("p", "l"), commit=False) == ((201, "OK"), (201, "OK"))
    found = stored(conn, "p")
    assert found is not None and found[1] == "l"


@pytest.mark.parametrize(
    ("keys", "strict", "answer"),
    [
        ((None, None), False, (403, "already resolved")),
        (("u", "u"), False, (200, "deduplicated")),
        (("u", "u"), True, (403, "already resolved")),
        (("u", "v"), False, (403, "already resolved")),
    ],
)
def test_a_resolve_and_a_reject(
    conn: Connection, stage: Stage, keys: tuple[str | None, str | None], strict: bool, answer: tuple[int, str]
) -> None:
    """One verdict of two is stored; the other is judged by it, under the same lock."""
    ask(conn, create("awaiter", target="g"))
    prepare(conn, State(name="PENDING"), "p", NEVER)
    first = completion("resolve", "p", keys[0], strict=strict, data="yes")
    second = completion("reject", "p", keys[1], strict=strict, data="no")
    assert both(stage, first, second) == ((201, "OK"), answer)
    assert (stored(conn, "p") or ())[:5] == ("RESOLVED", None, keys[0], "first", "yes")
    assert effects(conn, "p") == (1, 1, 0)


def test_a_resolve_that_is_undone(conn: Connection, stage: Stage) -> None:
    """If the first verdict rolls back, the second is the one that is stored."""
    ask(conn, creation("p"))
    first, second = completion("resolve", "p", "u"), completion("reject", "p", "v")
    assert both(stage, first, second, commit=False) == ((201, "OK"), (201, "OK"))
    assert (stored(conn, "p") or ())[:3] == ("REJECTED", None, "v")


def asleep(conn: Connection) -> None:
    """A task t that waits for y, and a promise x."""
    take(conn, "t")
    ask(conn, creation("x"))
    ask(conn, creation("y"))
    ask(conn, park("t", "y"))


def test_a_callback_before_a_completion(conn: Connection, stage: Stage) -> None:
    """A completion waits for the callback that is being registered, and fires it."""
    asleep(conn)
    assert both(stage, callback(), completion("resolve", "x")) == ((201, "OK"), (201, "OK"))
    assert task_of(conn, "t") == ("pending", 1, None)


def test_a_completion_before_a_callback(conn: Connection, stage: Stage) -> None:
    """A callback waits for the completion that is under way, and is told of it instead of sleeping."""
    asleep(conn)
    answers = both(stage, completion("resolve", "x"), callback())
    assert answers == ((201, "OK"), (200, "already resolved"))
    assert task_of(conn, "t") == ("suspended", 1, None)
    assert conn.execute("select id from durable._callbacks where id <> ''").fetchall() == []


@pytest.mark.parametrize(("commit", "answer"), [(True, (200, "deduplicated")), (False, (201, "OK"))])
def test_one_callback_id_for_two_promises(
    conn: Connection, stage: Stage, commit: bool, answer: tuple[int, str]
) -> None:
    """An id is one callback, also where two promises are asked at once."""
    asleep(conn)
    assert both(stage, callback(), callback(awaited="y"), commit=commit) == ((201, "OK"), answer)
    rows = conn.execute("select awaited_id from durable._callbacks where id = 'c'").fetchall()
    assert rows == [("x" if commit else "y",)]


def test_a_subscription_before_a_completion(conn: Connection, stage: Stage) -> None:
    """A completion waits for the subscription that is being registered, and tells it."""
    ask(conn, creation("x"))
    assert both(stage, subscription("x"), completion("cancel", "x")) == ((201, "OK"), (201, "OK"))
    assert conn.execute("select promise_id from durable._unblocks").fetchall() == [("x",)]


def test_a_completion_before_a_subscription(conn: Connection, stage: Stage) -> None:
    """The subscription waits for the verdict, which is its answer."""
    ask(conn, creation("x"))
    answers = both(stage, completion("cancel", "x"), subscription("x"))
    assert answers == ((201, "OK"), (200, "already canceled"))
    assert conn.execute("select promise_id from durable._unblocks").fetchall() == []


def test_a_completion_at_the_deadline(conn: Connection, clock: Clock, stage: Stage) -> None:
    """A completion that was in time before it had to wait, and is late afterwards, is judged as late."""
    ask(conn, creation("x", timeout_at=clock.now_ms + 10))
    holder, late = stage.player("holder"), stage.player("late")
    holder.begin()
    holder.do("select from durable._promises where id = 'x' for update").rows()
    waiting = late.do(*completion("resolve", "x", "u", strict=True))
    assert waiting.blocked
    clock.advance(10)
    holder.rollback().rows()
    assert waiting.rows()[0][:2] == (403, "already timedout")
