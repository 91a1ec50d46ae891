"""Law: of a run that lives, earlier generations that ended long ago go, each with the trees of its children,
the oldest first and without a gap; the run keeps its beginning, the numbers of its generations, and the keys
of its signals; what anything that stays refers to stays.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.features.sql.test_retention import DAY_MS, end_run, left, purge, sweep
from tests.support.clock import Clock
from tests.support.stories import Command, Story, adopt, receive
from tests.support.verbs import (
    Connection,
    ask,
    begin_run,
    cancel,
    complete,
    continue_as_new,
    done,
    promise,
    refusal,
    report,
    run,
    send,
    settle,
    suspend,
    take_turn,
    tick,
    timer,
)


def renew(story: Story, *commands: Command, outcomes: tuple[Command, ...] = ()) -> None:
    """A generation does these things, ends after a day, and the next one begins."""
    story.report(commands=commands, outcomes=outcomes)
    story.clock.advance(DAY_MS)
    story.held = story.held or take_turn(story.conn, "W", want=1, queues=[f"q-{story.id}"]).tasks[0]
    query = "select next_child from durable._executions where execution = %s"
    (child,) = ask(story.conn, (query, (story.execution,)))
    story.report(end=continue_as_new(f"[{child}]", on=child))
    story.again()


def long_life(conn: Connection, clock: Clock, generations: int, id_: str = "r") -> Story:
    """A run in its nth generation, each of which did one step and lived for a day."""
    story = Story(conn, clock, id_, args='["first"]')
    for number in range(generations - 1):
        renew(story, outcomes=(done(number),))
    return story


def numbers(conn: Connection, id_: str = "r") -> list[int]:
    """The generations that are left."""
    rows = conn.execute("select generation from durable.generations(%s)", (id_,)).fetchall()
    return [number for (number,) in rows]


def test_old_generations_go_and_numbers_stay(conn: Connection, clock: Clock) -> None:
    """What ended that long ago goes with its journal; the generations that are left keep their numbers, the
    run its first input and instant; once the run has ended all of it goes.
    """
    began = clock.now_ms
    long_life(conn, clock, 6)
    before = left(conn)
    assert (before["_executions"], before["_journal"]) == (6, 16)
    assert purge(conn, "4 days")["generations"] == 0
    answer = purge(conn, "3 days")
    assert answer == {"runs": 0, "promises": 0, "generations": 1, "kept": {}, "more": None}
    assert numbers(conn) == [2, 3, 4, 5, 6]
    assert purge(conn, "1 day")["generations"] == 2
    assert numbers(conn) == [4, 5, 6]
    now = left(conn)
    assert (now["_executions"], now["_journal"]) == (3, 7)
    found = ask(
        conn,
        (
            "select args, extract(epoch from created_at) * 1000, state from durable.runs where id = 'r'",
            (),
        ),
    )
    assert found == (["first"], began, "running")
    moment = "select generation, status from durable.as_of('r', generation => %s)"
    assert ask(conn, (moment, (4,))) == (4, "completed")
    assert ask(conn, (moment, (6,))) == (6, "running")
    ask(conn, cancel("r", force=True))
    clock.advance(31 * DAY_MS)
    assert purge(conn)["runs"] == 1
    assert left(conn) == {}


def test_what_was_removed_is_named(conn: Connection, clock: Clock) -> None:
    """Who asks for a generation or an instant that is gone reads why."""
    long_life(conn, clock, 5)
    began = clock.now_ms - 4 * DAY_MS
    purge(conn, "2 days")
    for moment in ("generation => 1", f"at => to_timestamp({began + 10} / 1000.0)"):
        with pytest.raises(Exception, match="Generations 1 to 1 of run 'r' were removed"), conn.transaction():
            conn.execute(f"select * from durable.as_of('r', {moment})".encode())
    assert refusal(conn, ("select * from durable.as_of('r', generation => 6)", ())) == "WF004"


def test_the_one_before_the_present_stays(conn: Connection, clock: Clock) -> None:
    """However old it is, the generation before the present one stays: it says how the run got there."""
    long_life(conn, clock, 3)
    clock.advance(400 * DAY_MS)
    assert purge(conn, "0 days")["generations"] == 1
    assert numbers(conn) == [2, 3]
    assert purge(conn, "0 days")["generations"] == 0


def test_the_sweep_removes_them(conn: Connection, clock: Clock) -> None:
    """With retention_days they go by themselves, those of children too; without it nothing does."""
    parent = Story(conn, clock, "p")
    parent.report(commands=[run(0, queue="q-p.0")])
    parent.report(end=suspend(0))
    child = Story.__new__(Story)
    child.conn, child.clock, child.id = conn, clock, "p.0"
    child.again()
    for number in range(3):
        renew(child, outcomes=(done(number),))
    clock.advance(31 * DAY_MS)
    assert sweep(conn) == 0
    ask(conn, ("select durable.set_setting('retention_days', '30')", ()))
    assert sweep(conn) == 2
    assert numbers(conn, "p.0") == [3, 4]


def test_a_portion_is_bounded(conn: Connection, clock: Clock) -> None:
    """A purge removes as many runs and generations as asked and goes on from there; a portion of it is over
    once its generations have 10,000 events."""
    long_life(conn, clock, 6)
    clock.advance(31 * DAY_MS)
    first = purge(conn, max_runs=2)
    assert (first["generations"], numbers(conn)[0], "run" in first["more"]) == (2, 3, True)
    assert purge(conn)["generations"] == 2
    portion = "select generations, more ? 'run' from durable._purge(durable._now_ms(), null, 100)"
    story = long_life(conn, clock, 1, "big")
    for number in range(2):
        renew(story, outcomes=tuple(done(number * 2000 + place) for place in range(2000)))
    renew(story, outcomes=(done(4000),))
    renew(story, outcomes=(done(4001),))
    assert ask(conn, (portion, ())) == (2, True)
    assert numbers(conn, "big") == [3, 4, 5]
    assert ask(conn, (portion, ())) == (1, False)
    assert numbers(conn, "big") == [4, 5]


CHILDREN: dict[str, tuple[Command, bool]] = {
    "a child that runs": (run(0, queue="kids", abandon=True), True),
    "an open promise": (promise(0), True),
    "a timer": (timer(0, 900 * DAY_MS), False),
    "a promise that settled lately": (promise(0), True),
}
"""What a generation leaves, and whether it keeps the generation."""


@pytest.mark.parametrize("what", CHILDREN)
def test_children_keep_their_generation(conn: Connection, clock: Clock, what: str) -> None:
    """A generation stays while a child has not ended that long ago, and all that follow stay with it; a timer
    keeps nothing, because nobody waits for it."""
    command, keeps = CHILDREN[what]
    story = Story(conn, clock, "r")
    renew(story, command)
    for number in range(1, 4):
        renew(story, outcomes=(done(number),))
    clock.advance(31 * DAY_MS)
    if what == "a promise that settled lately":
        ask(conn, settle("r.0"))
    answer = purge(conn)
    assert answer["kept"] == ({"busy": 1} if keeps else {})
    assert numbers(conn) == ([1, 2, 3, 4, 5] if keeps else [4, 5])
    if not keeps:
        return
    if what == "an open promise":
        ask(conn, settle("r.0"))
    elif what == "a child that runs":
        ask(conn, cancel("r.0", force=True))
    clock.advance(31 * DAY_MS)
    answer = purge(conn)
    assert (answer["generations"], answer["promises"], answer["kept"]) == (3, 1, {})
    assert ask(conn, ("select count(*) from durable._promises where id <> 'r'", ())) == (0,)


def test_a_tree_goes_with_its_generation(conn: Connection, clock: Clock) -> None:
    """Children that ended go with their own children and leave nothing; their ids are not remembered."""
    story = Story(conn, clock, "r")
    story.report(commands=[run(0, queue="kids"), promise(1)])
    kid = story.kid(0)
    take_turn(
        conn, "V", report(kid, commands=[promise(0)], outcomes=[done(1)], end=complete(), seen=kid.next)
    )
    ask(conn, settle("r.1"))
    renew(story)
    for number in range(2, 4):
        renew(story, outcomes=(done(number),))
    clock.advance(31 * DAY_MS)
    assert purge(conn)["promises"] == 3
    assert numbers(conn) == [3, 4]
    assert ask(conn, ("select array_agg(id) from durable._promises", ())) == (["r"],)
    assert left(conn)["_executions"] == 2
    assert ask(conn, ("select count(*) from durable._removed", ())) == (0,)


def test_a_result_that_is_read_keeps_its_generation(conn: Connection, clock: Clock) -> None:
    """A generation stays while a journal that stays reads the result of a child: of another run, or of a
    later generation; if the reader goes too, both go.
    """
    story = Story(conn, clock, "r")
    story.report(commands=[promise(0)])
    ask(conn, settle("r.0"))
    renew(story)
    renew(story, adopt(1, "r.0"))
    renew(story, outcomes=(done(2),))
    renew(story, outcomes=(done(3),))
    reader = begin_run(conn, "reader")
    take_turn(conn, "W", report(reader, commands=[adopt(0, "r.0")]))
    clock.advance(31 * DAY_MS)
    assert purge(conn)["kept"] == {"journal": 1}
    assert numbers(conn) == [1, 2, 3, 4, 5]
    ask(conn, settle("reader", '"over"'))
    clock.advance(31 * DAY_MS)
    answer = purge(conn)
    assert (answer["runs"], answer["generations"]) == (1, 3)
    assert numbers(conn) == [4, 5]


def test_a_row_of_the_users_keeps_its_generation(conn: Connection, clock: Clock) -> None:
    """A child that a row of a user's table names keeps the generation; those of other runs go."""
    conn.execute("create table public.parts (run text references durable._promises (id))")
    for id_ in ("kept", "goes"):
        story = Story(conn, clock, id_)
        story.report(commands=[promise(0)])
        ask(conn, settle(f"{id_}.0"))
        renew(story)
        renew(story, outcomes=(done(1),))
    conn.execute("insert into public.parts values ('kept.0')")
    clock.advance(31 * DAY_MS)
    answer = purge(conn)
    assert (answer["generations"], answer["kept"]) == (1, {"row": 1})
    assert (numbers(conn, "kept"), numbers(conn, "goes")) == ([1, 2, 3], [2, 3])


def test_a_row_that_may_not_go_keeps_its_run_alone(conn: Connection, clock: Clock) -> None:
    """Where a delete of a user's row is refused by another key of his, that generation stays alone."""
    conn.execute(
        "create table orders (run text primary key references durable._promises (id) on delete cascade)"
    )
    conn.execute("create table lines (run text references orders (run))")
    for id_ in ("kept", "goes"):
        story = Story(conn, clock, id_)
        story.report(commands=[promise(0)])
        ask(conn, settle(f"{id_}.0"))
        renew(story)
        renew(story, outcomes=(done(1),))
    conn.execute("insert into orders values ('kept.0'), ('goes.0')")
    conn.execute("insert into lines values ('kept.0')")
    clock.advance(31 * DAY_MS)
    answer = purge(conn)
    assert (answer["generations"], answer["kept"]) == (1, {"row": 1})
    assert (numbers(conn, "kept"), numbers(conn, "goes")) == ([1, 2, 3], [2, 3])


def test_keys_of_signals_are_remembered(conn: Connection, clock: Clock) -> None:
    """A signal that a removed generation got is not delivered again under its key, for removed_ids_days; then
    the key is forgotten, or with its run.
    """
    for id_ in ("r", "s"):
        story = Story(conn, clock, id_)
        ask(conn, send(id_, key="k"))
        renew(story, receive(0, "go"))
        ask(conn, send(id_, "later", key="k"))
        renew(story, outcomes=(done(1),))
        renew(story, outcomes=(done(2),))
    clock.advance(31 * DAY_MS)
    assert purge(conn)["generations"] == 4
    before = left(conn)["_journal"]
    assert ask(conn, send("r", key="k")) == (1, False, False)
    assert ask(conn, ("select outcome from durable.signal_many('{r}', 'go', '1', dedup => 'k')", ())) == (
        "already",
    )
    assert ask(conn, send("r", "later", key="k")) == (1, False, False)
    assert left(conn)["_journal"] == before
    tick(conn)
    clock.advance(60 * DAY_MS)
    ask(conn, cancel("s", force=True))
    clock.advance(31 * DAY_MS)
    purge(conn)
    kept = "select array_agg(id || ' ' || name order by id, name) from durable._removed_signals"
    assert ask(conn, (kept, ())) == (["r go", "r later"],)
    sweep(conn)
    assert ask(conn, (kept, ())) == (None,)
    assert ask(conn, send("r", key="k")) == (1, True, False)


def test_a_waiting_attempt_says_how_it_failed(conn: Connection, clock: Clock) -> None:
    """A run that is tried again in a year says why, though the attempts before the last are gone."""
    story = Story(conn, clock, "r")
    for attempt in range(3):
        again = {**continue_as_new("[]"), "error": f'{{"type": "Boom{attempt}"}}', "retry_in": 365 * DAY_MS}
        story.report(end=again)
        if attempt < 2:
            clock.advance(365 * DAY_MS)
            story.again()
    clock.advance(31 * DAY_MS)
    assert purge(conn)["generations"] == 2
    rows = conn.execute(
        "select generation, attempt, error ->> 'type' from durable.generations('r')"
    ).fetchall()
    assert rows == [(3, 3, "Boom2"), (4, 4, None)]
    (why,) = ask(conn, ("select string_agg(w::text, ' ') from durable.why('r') w", ()))
    assert "Boom2" in why


@pytest.mark.unlawful
@pytest.mark.parametrize(
    ("damage", "law"),
    [
        ("generations_removed = null where generations_removed = 2", "generation_follows_one_that_ended"),
        ("generations_removed = 1 where generations_removed is null", "removed_generations_are_gone"),
        ("generations_removed = 0 where generations_removed = 2", "removed_generations_are_counted"),
        ("previous = null where generations_removed = 2", "removed_generations_are_counted"),
    ],
)
def test_check_sees_a_chain_that_is_not_right(conn: Connection, clock: Clock, damage: str, law: str) -> None:
    """The oldest generation that is left says that there were others, and no other one does."""
    long_life(conn, clock, 4)
    clock.advance(31 * DAY_MS)
    assert purge(conn)["generations"] == 2
    assert conn.execute("select * from durable.check()").fetchall() == []
    assert conn.execute(f"update durable._executions set {damage}".encode()).rowcount == 1
    assert law in {row[0] for row in conn.execute("select law from durable.check()").fetchall()}


@pytest.mark.unlawful
def test_check_sees_keys_of_nobody(conn: Connection, clock: Clock) -> None:
    """Keys of removed signals are of a run that exists."""
    end_run(conn, "r")
    columns = "removed_at, delivery, id, name, key"
    row = f"insert into durable._removed_signals ({columns}) values (1, 1, %s, 'go', 'k')"
    conn.execute(row.encode(), ("r",))
    assert conn.execute("select * from durable.check()").fetchall() == []
    conn.execute(row.encode(), ("x",))
    laws: list[Any] = conn.execute("select law, id from durable.check()").fetchall()
    assert laws == [("removed_signals_are_of_a_run", "x")]
