"""Law: a page of a search is one look. What it shows as timed out is stored for all who come later, and
its instant is the one at which its rows were read.
"""

from __future__ import annotations

import pytest

from tests.support.barrier import Player, Stage, Step
from tests.support.clock import Clock
from tests.support.verbs import Call, Connection, acquire, ask, create, refusal

SEARCHES: dict[str, Call] = {
    "promises": ("select array(select id || ' ' || state from durable.promise_search())", ()),
    "promises with tags": (
        "select array(select id || ' ' || state from durable.promise_search(p_tags => %s))",
        ('{"resonate:target": "q"}',),
    ),
    "promises of the older API": (
        "select array(select each ->> 'id' || ' ' || lower(each ->> 'state') "
        "from durable.promise_search_v0() s, jsonb_array_elements(s.promises) each)",
        (),
    ),
    "tasks": ("select array(select id || ' ' || state || version from durable.task_search())", ()),
}
OVER = {name: " fulfilled0" if name == "tasks" else " rejected_timedout" for name in SEARCHES}
GATE = 1685417997
BEHIND_A_GATE = """
create sequence test_clock.readings;
create or replace function durable._now_ms() returns bigint language plpgsql volatile as $$
declare
  v_now bigint := (select i.now_ms from test_clock.instant i);
begin
  if current_setting('application_name') = 'player slow' and nextval('test_clock.readings') = {reading} then
    perform pg_advisory_lock_shared({gate});
    perform pg_advisory_unlock_shared({gate});
    v_now := {late};
  end if;
  return v_now;
end
$$
"""


def waiting_search(stage: Stage, conn: Connection, clock: Clock, search: Call) -> tuple[Player, Player, Step]:
    """A search that has found `a` past its deadline, but not `b`, and waits for somebody who has `a`."""
    ask(conn, create("a", clock.now_ms + 5, target="q"))
    ask(conn, create("b", clock.now_ms + 20, target="q"))
    clock.advance(5)
    blocker, seeker = stage.player("blocker"), stage.player("seeker")
    blocker.begin()
    blocker.do("select from durable._promises where id = 'a' for no key update").rows()
    waiting = seeker.do(*search)
    assert waiting.blocked
    return blocker, seeker, waiting


def come_to_rest(stage: Stage, player: Player, step: Step) -> None:
    """Wait until a step that went on is done, or waits for the next one's lock."""
    while not step.done and not stage.blockers(player.pid):
        pass


def stored(conn: Connection) -> list[tuple[str, str]]:
    """The promises as they stand in their table."""
    return conn.execute("select id, state from durable._promises order by id").fetchall()


@pytest.mark.parametrize("name", SEARCHES)
def test_states_in_a_page_are_stored(stage: Stage, conn: Connection, clock: Clock, name: str) -> None:
    """Also a deadline that passes while the search waits: whoever looks afterwards, with whatever clock,
    finds it settled."""
    blocker, _, waiting = waiting_search(stage, conn, clock, SEARCHES[name])
    clock.advance(15)
    blocker.rollback().rows()
    assert waiting.value() == [f"a{OVER[name]}", f"b{OVER[name]}"]
    assert stored(conn) == [("a", "rejected_timedout"), ("b", "rejected_timedout")]


def test_a_fulfilled_task_in_a_page_has_its_last_version(
    stage: Stage, conn: Connection, clock: Clock
) -> None:
    """Who acquires a task before its deadline and commits after it has had it: a search that finds the
    deadline passed tells of that version."""
    blocker, seeker, waiting = waiting_search(stage, conn, clock, SEARCHES["tasks"])
    holder = stage.player("holder")
    holder.begin()
    holder.do(*acquire("b", pid="P")).rows()
    clock.advance(15)
    blocker.rollback().rows()
    come_to_rest(stage, seeker, waiting)
    holder.commit().rows()
    assert waiting.value() == ["a fulfilled0", "b fulfilled1"]


def slow_search(stage: Stage, conn: Connection, search: Call, reading: int, late: str) -> Step:
    """A search that waits in one of its readings of the clock, with the instant that it saw before the wait
    or with the one after."""
    conn.execute(BEHIND_A_GATE.format(gate=GATE, reading=reading, late=late).encode())
    conn.execute("select pg_advisory_lock(%s)", (GATE,))
    waiting = stage.player("slow").do(*search)
    assert waiting.blocked
    return waiting


@pytest.mark.parametrize("name", SEARCHES)
def test_a_page_is_not_older_than_its_rows(stage: Stage, conn: Connection, clock: Clock, name: str) -> None:
    """Somebody is refused a task that is past its deadline, and then makes another: no page shows the other,
    and the first alive."""
    ask(conn, create("b", clock.now_ms + 20, target="q"))
    waiting = slow_search(stage, conn, SEARCHES[name], 1, "v_now")
    clock.advance(20)
    assert refusal(conn, acquire("b", pid="P")) == "WF003"
    ask(conn, create("c", target="q"))
    conn.execute("select pg_advisory_unlock(%s)", (GATE,))
    found = waiting.value()
    assert [each.split()[0] for each in found] == ["b"] or found[0] == f"b{OVER[name]}"


@pytest.mark.parametrize("name", SEARCHES)
def test_a_page_is_not_younger_than_missing_rows(
    stage: Stage, conn: Connection, clock: Clock, name: str
) -> None:
    """Somebody makes a task before the deadline of another: no page lacks it and calls the other over."""
    ask(conn, create("b", clock.now_ms + 20, target="q"))
    waiting = slow_search(stage, conn, SEARCHES[name], 2, "(select i.now_ms from test_clock.instant i)")
    ask(conn, create("c", target="q"))
    clock.advance(20)
    conn.execute("select pg_advisory_unlock(%s)", (GATE,))
    found = waiting.value()
    assert [each.split()[0] for each in found] == ["b", "c"] or found[0] != f"b{OVER[name]}"
