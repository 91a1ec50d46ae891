"""Law: where published clients, the specification's checker and the engine disagreed, the ruling holds.

One test for each finding, by its letter, with the smallest case that showed it. What published clients do
with the answers is tried with them in test_sdks.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.doors.protocol.test_traps import PROFILES, TIMED_OUT, count, offered, play, state
from tests.support.clock import Clock
from tests.support.envelope import Said, acquire, fence, make, say, settle, tags, take
from tests.support.verbs import NEVER, Connection, ask, tick

MINUTE = 60_000


def offers(conn: Connection, pid: str | None) -> list[tuple[str, int]]:
    """What is offered to a member of group g now; None: to a caller that names nobody."""
    return conn.execute("select id, version from durable.task_offer('g', 100, %s)", (pid,)).fetchall()


@pytest.mark.parametrize(("profile", "status"), [("strict", 400), ("compatible", 200)])
@pytest.mark.parametrize("address", ["nowhere", "poll://default", "poll://default/id", "HTTP://host"])
def test_a_a_listener_at_a_short_address(conn: Connection, address: str, profile: str, status: int) -> None:
    """A: an address without a scheme or without an @ is 400 in the strict profile, as specified; the
    compatible one completes it."""
    play(conn, profile)
    make(conn, "x", external="true")
    assert say(conn, "promise.register_listener", awaited="x", address=address).status == status
    assert count(conn, "_listeners") == (status == 200)
    for whole in ("poll://any@g", "poll://uni@g/id", "http://host", "https://host/path"):
        assert say(conn, "promise.register_listener", awaited="x", address=whole).status == 200


@pytest.mark.parametrize("verdict", ["pending", TIMED_OUT])
def test_b_a_fence_around_a_verdict_that_is_not_for_clients(conn: Connection, verdict: str) -> None:
    """B: in the strict profile the lease is judged first (404, 409), and who holds it is told 400 inside."""
    play(conn, "strict")
    assert fence(conn, "none", 1, "promise.settle", id="x", state=verdict).status == 404
    take(conn, "t")
    make(conn, "x", external="true")
    assert fence(conn, "t", 7, "promise.settle", id="x", state=verdict).status == 409
    said = fence(conn, "t", 1, "promise.settle", id="x", state=verdict)
    assert (said.status, said.data["action"]["head"]["status"]) == (200, 400)
    assert isinstance(said.data["action"]["data"], str)
    assert say(conn, "promise.get", id="x").promise["state"] == "pending"


def test_b_a_fence_around_a_creation_that_is_refused(conn: Connection) -> None:
    """B: the same of a creation: a timer with a target is refused inside the answer."""
    play(conn, "strict")
    refused = {"id": "n", "timeoutAt": NEVER, "tags": tags(timer="true", target="g")}
    assert fence(conn, "none", 1, "promise.create", **refused).status == 404
    take(conn, "t")
    assert fence(conn, "t", 2, "promise.create", **refused).status == 409
    said = fence(conn, "t", 1, "promise.create", **refused)
    assert (said.status, said.data["action"]["head"]["status"]) == (200, 400)
    assert say(conn, "promise.get", id="n").status == 404


def test_b_a_task_that_fences_itself_is_refused_first(conn: Connection) -> None:
    """B: that an action is about the task's own promise is said of the fence, whoever holds the lease."""
    play(conn, "strict")
    assert fence(conn, "none", 1, "promise.settle", id="none", state=TIMED_OUT).status == 400
    take(conn, "t")
    assert fence(conn, "t", 1, "promise.settle", id="t", state=TIMED_OUT).status == 400


@PROFILES
def test_d_a_heartbeat_without_tasks(conn: Connection, clock: Clock, profile: str) -> None:
    """D: 200. The strict profile renews nothing, as specified; the compatible one all that the process holds,
    as an older SDK means it."""
    play(conn, profile)
    for name, pid in (("t", "P"), ("u", "P"), ("v", "Q")):
        take(conn, name, pid=pid, ttl=10)
    due = clock.now_ms + 10
    clock.advance(5)
    assert say(conn, "task.heartbeat", pid="P", tasks=[]) == Said(status=200, data={})
    renewed = {"strict": 0, "compatible": 2}[profile]
    assert count(conn, f"_tasks where expires_at = {due + 5}") == renewed
    assert count(conn, f"_tasks where expires_at = {due}") == 3 - renewed


@PROFILES
@pytest.mark.parametrize("id_", ["root", "root:1", "root:1.1", "root.1", "root:d0123", "root.:", "root:"])
def test_f_what_belongs_to_an_origin(conn: Connection, id_: str, profile: str) -> None:
    """F: the origin itself, and what follows it after a colon or a dot."""
    play(conn, profile)
    assert make(conn, id_, origin="root", branch="root", parent="root", target="g").status == 200


@PROFILES
@pytest.mark.parametrize("tag", ["origin", "branch", "parent"])
@pytest.mark.parametrize("id_", ["rooty", "roo", "root1", "root/1", "x:root", "root-1:1"])
def test_f_what_does_not_belong(conn: Connection, id_: str, tag: str, profile: str) -> None:
    """F: everything else is 400, for each of the three tags."""
    play(conn, profile)
    assert make(conn, id_, **{tag: "root"}).status == 400


def test_f_schedules_follow_the_same_rule(conn: Connection, clock: Clock) -> None:
    """F: ids of a template are judged by it; what a schedule makes is a root of its own, whatever its id."""
    clock.set(clock.now_ms // MINUTE * MINUTE)
    plan = {"cron": "* * * * *", "promiseTimeout": 10**9}
    for separator, status in ((":", 200), (".", 200), ("-", 400)):
        template = "root" + separator + "{{.timestamp}}"
        said = say(conn, "schedule.create", id=f"s{separator}", promiseId=template,
                   promiseTags=tags(origin="root"), **plan)  # fmt: skip
        assert said.status == status
    say(
        conn,
        "schedule.create",
        id="v1.2",
        promiseId="{{.id}}-{{.timestamp}}",
        promiseTags=tags(target="g"),
        **plan,
    )
    clock.advance(MINUTE)
    tick(conn)
    id_ = f"v1.2-{clock.now_ms}"
    tree = dict.fromkeys(("origin", "branch", "parent", "prefix"), id_)
    made = say(conn, "promise.get", id=id_).promise
    assert made["tags"] == tags(target="g", schedule="v1.2", **tree)


@PROFILES
def test_g_an_origin_may_have_dots(conn: Connection, profile: str) -> None:
    """G: older clients detach under ids with a dot, and name a parent that is none when they do so twice."""
    play(conn, profile)
    assert make(conn, "o1.dab", origin="o1.dab", branch="o1.dab", parent="o1", prefix="o1").status == 200
    assert make(conn, "o1.dcd", origin="o1.dcd", branch="o1.dcd", parent="o1.dab", prefix="o1").status == 200
    assert (
        make(conn, "o1.dcd.0", origin="o1.dcd", branch="o1.dcd", parent="o1.dcd", prefix="a.b").status == 200
    )
    assert make(conn, "o1.dcd.1", origin="o1.dcd", branch="o1.dcd", parent="o1.dab").status == 400


def test_j_offers_are_for_strangers(conn: Connection) -> None:
    """J: a run of the engine is never offered to workers that acquire by message, whatever their group is
    called."""
    conn.execute("select durable.start('greet', '[\"q\"]')")
    make(conn, "t", target="default")
    assert offered(conn, "default") == [("t", 0)]


def test_j_offers_pass_over_runs_without_looking_at_them(conn: Connection) -> None:
    """J: however many runs wait in the queue, an offer reads as little."""
    conn.execute("select durable.start('greet', queue => 'g') from generate_series(1, 2000)")
    make(conn, "t", target="g")
    conn.execute("vacuum analyze durable._tasks")
    assert offered(conn, "warm") == []
    plan = ask(conn, ("explain (analyze, buffers, format json) select durable.task_offer('g')", ()))[0]
    assert plan[0]["Plan"]["Shared Hit Blocks"] < 40
    assert (offered(conn), state(conn, "t")) == ([], "pending")


@pytest.fixture
def give_back(conn: Connection, clock: Clock) -> Callable[[str], int]:
    """A function: this member is offered task t and releases it; answers how long it waited for the offer."""

    def once(pid: str) -> int:
        began = clock.now_ms
        while not (offer := offers(conn, pid)):
            clock.advance(50)
        waited = clock.now_ms - began
        [(id_, version)] = offer
        assert acquire(conn, id_, version, pid=pid).status == 200
        assert say(conn, "task.release", id=id_, version=version + 1).status == 200
        return waited

    return once


def test_k_who_gives_a_task_back_waits_for_it(
    conn: Connection, clock: Clock, give_back: Callable[[str], int]
) -> None:
    """K: a task that is released comes back to who released it at once, then after 0.1, 0.5, 2 and 5 s."""
    make(conn, "t", target="g")
    assert [give_back("P") for _ in range(7)] == [0, 0, 100, 500, 2000, 5000, 5000]


def test_k_another_worker_gets_it_at_once(
    conn: Connection, clock: Clock, give_back: Callable[[str], int]
) -> None:
    """K: one who has not released it is offered it at once; who names nobody waits, as who has."""
    make(conn, "t", target="g")
    assert [give_back(pid) for pid in "PPPP"] == [0, 0, 100, 500]
    assert offers(conn, None) == []
    assert offers(conn, "P") == []
    assert give_back("Q") == 0
    assert [offers(conn, pid) for pid in ("P", "Q")] == [[], []]
    assert give_back("R") == 0
    clock.advance(5000)
    assert offers(conn, None) == [("t", 6)]


def test_k_many_workers_without_the_function_make_no_loop(
    conn: Connection, clock: Clock, give_back: Callable[[str], int]
) -> None:
    """K: when as many have released it as are remembered, everybody waits."""
    make(conn, "t", target="g")
    assert [give_back(f"P{n}") for n in range(16)] == [0] * 16
    assert [give_back(pid) for pid in ("P16", "P17", "P0")] == [5000] * 3


def test_k_getting_on_ends_the_waiting(
    conn: Connection, clock: Clock, give_back: Callable[[str], int]
) -> None:
    """K: once a worker has suspended the task, the next release is the first again."""
    make(conn, "t", target="g")
    make(conn, "x", external="true")
    assert [give_back("P") for _ in range(4)] == [0, 0, 100, 500]
    clock.advance(2000)
    [(_, version)] = offers(conn, "P")
    acquire(conn, "t", version)
    assert ask(conn, ("select durable.task_suspend('t', %s, '{x}')", (version + 1,))) == (True,)
    settle(conn, "x")
    assert [give_back("P") for _ in range(3)] == [0, 0, 100]
    assert offered(conn) == []


@pytest.mark.parametrize("door", ["promise.create", "task.fence", "schedule"])
def test_a_timer_with_a_target_is_offered_to_nobody(conn: Connection, clock: Clock, door: str) -> None:
    """SDKs give each sleep a target, which the compatible profile accepts: it resolves by its deadline, and
    nobody is asked."""
    clock.set(clock.now_ms // MINUTE * MINUTE)
    due = clock.now_ms + 2 * MINUTE
    nap = {"timeoutAt": due, "tags": tags(timer="true", target="g")}
    if door == "promise.create":
        assert say(conn, "promise.create", id="nap", **nap).status == 200
    elif door == "task.fence":
        take(conn, "t")
        assert fence(conn, "t", 1, "promise.create", id="nap", **nap).status == 200
    else:
        say(conn, "schedule.create", id="s", cron="* * * * *", promiseId="nap", promiseTimeout=MINUTE,
            promiseTags=nap["tags"])  # fmt: skip
        clock.advance(MINUTE)
        tick(conn)
    for _ in range(3):
        assert offers(conn, "P") == []
        clock.set((clock.now_ms + due) // 2)
    assert state(conn, "nap") == "pending"
    clock.set(due)
    assert offers(conn, "P") == []
    tick(conn)
    assert (say(conn, "promise.get", id="nap").promise["state"], state(conn, "nap")) == (
        "resolved",
        "fulfilled",
    )
