"""Law: a start hands its run to an idle worker, as a claim would have, one for each idle registration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.verbs import (
    TTL_MS,
    Call,
    Connection,
    Held,
    Turn,
    ask,
    code,
    complete,
    done,
    dump,
    fail,
    refusal,
    report,
    run,
    take_turn,
    task_of,
    tick,
    timer,
)

WORD = "5e" * 16
CHANNEL, REPLIES = f"durable_to_{'0a' * 16}", f"durable_to_{'0b' * 16}"
ADDRESS, REPLY = f"{CHANNEL}:{WORD}", f"{REPLIES}:{WORD}"
TABLES = ("_promises", "_executions", "_journal", "_tasks", "_resumes", "_callbacks", "_workflows")
REST_MS = 60_000
PRESENT = (
    "select count(*) from pg_locks l join pg_database d on d.oid = l.database"
    " where d.datname = current_database() and l.classid = 1685417570"
)


def hello(worker: str = "W", queues: str = "{default}", digest: str = "ab") -> Call:
    """A worker that can run `w`."""
    return "select durable.worker_hello_v1(%s, %s, '{w}', '{1}', null, %s)", (worker, queues, [digest])


def idle(
    worker: str = "W", *, for_ms: int = REST_MS, queues: str = "{default}", digest: str = "ab", **more: Any
) -> Call:
    """Its word that it has nothing to do."""
    words = (worker, more.get("address", ADDRESS), queues, [code("w")], [digest], TTL_MS, for_ms)
    return "select durable.worker_idle_v1(%s, %s, %s, %s, %s, %s, %s)", words


def begin(id_: str | None, args: str = "[1]", *, tells: bool = True, **more: Any) -> Call:
    """A client's start: id, whether it was made, whether a worker was handed it."""
    return (
        "select id, created, handed_off from durable.start_v1("
        "%s, %s, %s, %s, %s, '1', %s, %s, 3, '{}', '', true, false, %s, %s)",
        (
            *(more.get("workflow", "w"), args, id_, more.get("key"), more.get("queue", "default")),
            *(more.get("delay"), more.get("timeout"), tells, more.get("reply")),
        ),
    )


def handed(conn: Connection, id_: str, args: str = "[1]", **more: Any) -> bool:
    """Start a run; whether a worker was handed it."""
    found, created, given = ask(conn, begin(id_, args, **more))
    assert (found, created) == (id_, True)
    return bool(given)


class Ears:
    """A session that holds the presence lock of a worker and hears what is noted to it."""

    def __init__(self, dsn: str, number: int, *channels: str) -> None:
        self.conn = psycopg.connect(dsn, autocommit=True)
        self.conn.execute("select pg_advisory_lock(1685417570, %s)", (number,))
        for channel in channels:
            self.conn.execute(f'listen "{channel}"'.encode())

    def heard(self) -> list[tuple[str, str]]:
        """Channel and words of what came since the last call."""
        self.conn.execute("select 1")
        return [(one.channel, one.payload) for one in self.conn.notifies(timeout=0)]


@pytest.fixture
def conn(session: Connection) -> Connection:
    """A session whose statements commit, for notes are sent by commits."""
    return session


@pytest.fixture
def ears(dsn: str, conn: Connection) -> Iterator[Ears]:
    """The ears of worker W, which is present and idle."""
    ears = present(dsn, conn)
    assert ask(conn, idle()) == (True,)
    yield ears
    ears.conn.close()


def present(dsn: str, conn: Connection, worker: str = "W", **options: Any) -> Ears:
    """A worker that has said hello and holds its presence lock."""
    number = ask(conn, hello(worker, **options))[0]["number"]
    ears = Ears(dsn, number, CHANNEL, REPLIES, "durable_ready", "durable_settled")
    assert ask(conn, ("select durable.worker_present_v1(%s, true)", (worker,))) == (True,)
    return ears


def direct_message(ears: Ears) -> Any:
    """The one note that came to the worker, and nothing else."""
    (found,) = ears.heard()
    assert found[0] == CHANNEL
    return payload_of(found)


def payload_of(found: tuple[str, str]) -> Any:
    """What a note says behind the word that begins it."""
    assert found[1].startswith(WORD)
    return json.loads(found[1].removeprefix(WORD))


def held_of(task: list[Any]) -> Held:
    """The run of a note, as a worker holds it."""
    return Turn(raw={"tasks": [task]}).tasks[0]


# -- what is handed over


@pytest.mark.session("notes")
@pytest.mark.parametrize("timeout", [None, 60_000])
def test_a_hand_off_gives_the_same_as_a_claim(
    dsn: str, conn: Connection, clock: Clock, ears: Ears, timeout: int | None
) -> None:
    """The note says what the turn of a claim answers, and all rows are those that start and claim leave;
    nobody gets a hint.
    """
    assert handed(conn, "r", '[1, "ü\\n"]', timeout=timeout, reply=REPLY)
    task, timeout_ms, reply = direct_message(ears)
    rows = dump(conn, TABLES)
    assert (timeout_ms, reply) == (timeout, REPLY)
    for table in ("_promises", "_executions", "_journal", "_tasks"):
        conn.execute(f"delete from durable.{table}".encode())
    conn.execute(
        "select setval('durable._executions_execution_seq', %s, false)",
        (rows["_executions"][0]["execution"],),
    )
    assert not handed(conn, "r", '[1, "ü\\n"]', timeout=timeout, tells=False)
    claimed = take_turn(conn, "W", want=1)
    assert claimed.raw["tasks"] == [task]
    again = dump(conn, TABLES)
    # an acquire may be sent again, a hand-off is not
    assert [row["_tasks"][0].pop("acquired_at") for row in (rows, again)] == [None, clock.now_ms]
    assert again == rows


@pytest.mark.session("notes")
def test_a_handed_off_run_is_reported_as_any_other(dsn: str, conn: Connection, ears: Ears) -> None:
    """It takes steps, renews, ends; its fence is 1, and another worker's report of it is refused."""
    assert handed(conn, "r")
    held = held_of(direct_message(ears)[0])
    assert task_of(conn, "r") == ("acquired", 1, "W")
    assert take_turn(conn, "X", report(held, end=complete())).of(held) == ("lost", "lost")
    answer = take_turn(conn, "W", report(held, outcomes=[done(0)]))
    assert answer.of(held) == ("ok", "acquired")
    ended = report(held, end=complete(), seen=answer.next_of(held))
    assert take_turn(conn, "W", ended).of(held) == ("ok", "done")


@pytest.mark.session("notes")
def test_one_run_for_each_idle_registration(dsn: str, conn: Connection, ears: Ears) -> None:
    """The second start tells all of its run; once the worker is idle again the next run is handed off,
    whatever the worker does with the first.
    """
    assert handed(conn, "a")
    assert direct_message(ears)[0][1] == "a"
    assert not handed(conn, "b")
    assert ears.heard() == [("durable_ready", "")]
    assert ask(conn, idle()) == (True,)
    assert handed(conn, "c")
    assert direct_message(ears)[0][1] == "c"
    assert task_of(conn, "b") == ("pending", 0, None)


# -- to whom, and what not

UNSUITED: dict[str, dict[str, Any]] = {
    "it is to be claimed later": {"delay": 1},
    "no worker serves its queue": {"queue": "other"},
    "no worker has its workflow": {"workflow": "v"},
    "its input does not fit into a note": {"args": json.dumps(["x" * 1300])},
    "its start tells nobody": {"tells": False},
}


@pytest.mark.session("notes")
@pytest.mark.parametrize("why", UNSUITED)
def test_unsuitable_starts_are_left_to_claims(dsn: str, conn: Connection, ears: Ears, why: str) -> None:
    """The task is pending, the hint is sent if the start tells, and the worker is still idle."""
    assert not handed(conn, "r", **UNSUITED[why])
    assert task_of(conn, "r") == ("pending", 0, None)
    assert ears.heard() == ([] if "tells" in UNSUITED[why] else [("durable_ready", "")])
    assert handed(conn, "s")


@pytest.mark.session("notes")
def test_a_worker_with_other_code_gets_no_hand_off(dsn: str, conn: Connection) -> None:
    """A worker whose code differs from that of the last hello would have to write that down: it claims."""
    ears = present(dsn, conn)
    assert ask(conn, idle(digest="cd")) == (True,)
    assert not handed(conn, "r")
    assert ears.heard() == [("durable_ready", "")]
    ears.conn.close()


@pytest.mark.session("notes")
def test_a_dead_idle_worker_gets_nothing(dsn: str, conn: Connection, ears: Ears) -> None:
    """Its presence lock is free at once, so no run waits for its lease; people see that it is missing,
    although no tick has noted it."""
    seen = "select presence from durable.workers where id = 'W'"
    assert ask(conn, (seen, ())) == ("present",)
    ears.conn.execute("select pg_advisory_unlock_all()")
    assert ask(conn, (seen, ())) == ("missing",)
    assert ask(conn, ("select present, missing_at from durable._workers", ())) == (True, None)
    assert not handed(conn, "r")
    assert task_of(conn, "r") == ("pending", 0, None)


@pytest.mark.session("notes")
def test_an_idle_registration_ends(dsn: str, conn: Connection, clock: Clock, ears: Ears) -> None:
    """By its time, and by the worker's word."""
    clock.advance(REST_MS)
    assert not handed(conn, "a")
    assert ask(conn, idle()) == (True,)
    assert ask(conn, idle(for_ms=0)) == (True,)
    assert not handed(conn, "b")


@pytest.mark.session("notes")
def test_no_hand_off_above_read_committed(dsn: str, conn: Connection, ears: Ears) -> None:
    """There the row of a worker that became idle since the snapshot could only be refused."""
    conn.execute("set default_transaction_isolation = 'repeatable read'")
    assert ask(conn, begin(None))[1:] == (True, False)
    conn.execute("reset default_transaction_isolation")
    assert ask(conn, begin(None))[1:] == (True, True)


@pytest.mark.session("notes")
@pytest.mark.parametrize("text", ["\\n" * 300, '"' * 300, "ü" * 500, "\x01" * 150])
def test_the_longest_hand_off_fits_a_notification(dsn: str, conn: Connection, ears: Ears, text: str) -> None:
    """What is handed over never meets the limit of Postgres for a notification, however JSON writes it."""
    left = 1250 - len(b"w1default") - len(json.dumps([text], ensure_ascii=False).encode()) - len(REPLY)
    id_ = "\x01" * min(left, 512)
    assert handed(conn, id_, json.dumps([text], ensure_ascii=False), reply=REPLY)
    assert direct_message(ears)[0][1] == id_


@pytest.mark.session("notes")
def test_sent_again_it_is_the_same_run(dsn: str, conn: Connection, ears: Ears) -> None:
    """A start whose answer got lost is sent twice: the second is handed to nobody, and tells nobody."""
    assert handed(conn, "r", key="k")
    assert ask(conn, idle()) == (True,)
    assert ask(conn, begin("r", key="k")) == ("r", False, False)
    assert len(ears.heard()) == 1


@pytest.mark.session("notes")
def test_a_rolled_back_start_leaves_the_worker_idle(dsn: str, conn: Connection, ears: Ears) -> None:
    """Nothing was noted, and the next start is handed over."""
    with conn.transaction(force_rollback=True):
        assert handed(conn, "a")
    assert ears.heard() == []
    assert handed(conn, "b")
    assert direct_message(ears)[0][1] == "b"


# -- whose commit waits for the disk

LEVELS = ("off", "local", "remote_write", "on", "remote_apply")
DOORS: dict[str, Call] = {
    "start": ("select durable.start('w', '[1]', id => 'r')", ()),
    "start_many": ("select durable.start_many('w', '{[1]}', ids => '{r}')", ()),
    "start_v1": (
        "select s.id, durable._hint('durable_ready', durable._now_ms()) "
        "from durable.start_v1('w', '[1]', 'r', null, 'default', '1', null, null, 0, '{}', '', true) s",
        (),
    ),
}


@pytest.mark.session("notes")
@pytest.mark.parametrize("caller", LEVELS)
@pytest.mark.parametrize("worker", LEVELS)
def test_only_who_waits_for_the_disk_as_the_worker_does_hands_over(
    dsn: str, conn: Connection, ears: Ears, worker: str, caller: str
) -> None:
    """The note tells nothing of the disk: what it hands over could be lost when the worker has acted on it.
    What is left to a claim is as safe as that is. This server has no standbys.
    """
    conn.execute(f"set synchronous_commit = {worker}".encode())
    assert ask(conn, idle()) == (True,)
    conn.execute(f"set synchronous_commit = {caller}".encode())
    assert handed(conn, "r") is (caller != "off" or worker == "off")
    assert ask(conn, ("show synchronous_commit", ())) == (caller,)


@pytest.mark.parametrize("standbys", ["", "*"])
def test_levels_of_safety(conn: Connection, standbys: str) -> None:
    """With standbys each waits for more than the one before it; without them there is only the disk."""
    safe = "select durable._is_as_durable(%s, %s, %s)"
    for high, caller in enumerate(LEVELS):
        for low, worker in enumerate(LEVELS):
            expected = high >= low if standbys else high > 0 or low == 0
            assert ask(conn, (safe, (caller, worker, standbys))) == (expected,), (caller, worker)


@pytest.mark.session("notes")
def test_of_two_idle_workers_the_one_whose_commits_wait_for_no_more_is_handed_it(
    dsn: str, conn: Connection, ears: Ears
) -> None:
    """Whichever registered first."""
    conn.execute("set synchronous_commit = on")
    other = present(dsn, conn, "A")
    assert ask(conn, idle("A")) == ask(conn, idle()) == (True,)
    conn.execute("set synchronous_commit = off")
    assert not handed(conn, "r")
    assert ask(conn, idle()) == (True,)
    assert handed(conn, "s")
    assert task_of(conn, "s") == ("acquired", 1, "W")
    other.conn.close()


@pytest.mark.session("notes")
@pytest.mark.parametrize("door", DOORS)
def test_no_hand_off_in_a_transaction_of_the_caller(
    dsn: str, conn: Connection, ears: Ears, door: str
) -> None:
    """Nobody knows how its commit will wait: that can be set until then."""
    with conn.transaction():
        ask(conn, DOORS[door])
        conn.execute("set local synchronous_commit = off")
    assert task_of(conn, "r") == ("pending", 0, None)
    assert ears.heard() == [("durable_ready", "")]


# -- sessions that meet


@pytest.mark.session("notes")
def test_two_starts_do_not_wait_for_one_worker(stage: Stage, conn: Connection, ears: Ears) -> None:
    """The second leaves its run to claims, while the first has the worker's row; so does the worker's word
    that it is idle.
    """
    first, second = stage.player("first"), stage.player("second")
    first.begin()
    assert first.do(*begin("a")).rows() == [("a", True, True)]
    later = second.do(*begin("b"))
    assert not later.blocked and later.rows() == [("b", True, False)]
    said = second.do(*idle())
    assert not said.blocked and said.value() is False
    first.commit()
    assert [channel for channel, _ in ears.heard()] == ["durable_ready", CHANNEL]


@pytest.mark.session("notes")
def test_a_goodbye_waits_for_no_start(stage: Stage, conn: Connection, clock: Clock, ears: Ears) -> None:
    """What it is handed at that moment it cannot give back: its presence lock tells that it is gone."""
    start, bye = stage.player("start"), stage.player("bye")
    start.begin()
    assert start.do(*begin("r")).rows() == [("r", True, True)]
    leaving = bye.do("select durable.worker_bye_v1('W')")
    assert not leaving.blocked and leaving.value() == 0
    start.commit()
    assert task_of(conn, "r") == ("acquired", 1, "W")
    ears.conn.close()
    while ask(conn, (PRESENT, ())) != (0,):
        pass
    tick(conn)
    clock.advance(1000)
    assert tick(conn)["leases"] == 1
    assert task_of(conn, "r") == ("pending", 1, None)
    assert ask(conn, ("select count(*) from durable._idle_workers", ())) == (0,)
    assert ask(conn, ("select count(*) from durable._workers", ())) == (0,)


@pytest.mark.session("notes")
def test_two_workers_get_one_each(dsn: str, stage: Stage, conn: Connection, ears: Ears) -> None:
    """Two starts at the same time, two idle workers."""
    other = present(dsn, conn, "X")
    assert ask(conn, idle("X", address=REPLY)) == (True,)
    first, second = stage.player("first"), stage.player("second")
    first.begin()
    assert first.do(*begin("a")).rows() == [("a", True, True)]
    assert second.do(*begin("b")).rows() == [("b", True, True)]
    first.commit()
    holders = conn.execute("select pid from durable._tasks order by pid").fetchall()
    assert holders == [("W",), ("X",)]
    other.conn.close()


# -- workers that come and go


def test_only_present_workers_are_idle(dsn: str, conn: Connection) -> None:
    """Whose death nobody would notice at once, behind a pooler, is not idle; nor is a stranger."""
    ask(conn, hello())
    assert ask(conn, idle()) == (False,)
    assert ask(conn, idle("stranger")) == (False,)
    assert ask(conn, ("select count(*) from durable._idle_workers", ())) == (0,)


@pytest.mark.session("notes")
def test_a_returning_worker_is_idle_under_its_new_number(dsn: str, conn: Connection, ears: Ears) -> None:
    """The presence lock of the old number would be found free."""
    conn.execute("delete from durable._workers")
    assert ask(conn, idle()) == (False,)
    ears.conn.close()
    ears = present(dsn, conn)
    assert not handed(conn, "a")
    assert ask(conn, idle()) == (True,)
    assert handed(conn, "b")
    ears.conn.close()


@pytest.mark.session("notes")
def test_a_tick_removes_idle_rows_of_removed_workers(dsn: str, conn: Connection, ears: Ears) -> None:
    """And keeps those of the others."""
    tick(conn)
    assert ask(conn, ("select count(*) from durable._idle_workers", ())) == (1,)
    conn.execute("delete from durable._workers")
    tick(conn)
    assert ask(conn, ("select count(*) from durable._idle_workers", ())) == (0,)


@pytest.mark.parametrize(
    ("broken", "law"),
    [
        ("ttl = 0", "lease_ms_positive"),
        ("address = 'durable_ready:' || repeat('a', 32)", "message_address_is_random"),
        ("digests = '[]'", "code_digests_are_an_object"),
    ],
)
@pytest.mark.session("notes")
def test_the_laws_of_an_idle_row(conn: Connection, ears: Ears, broken: str, law: str) -> None:
    """Of its columns: a start that only ends the rest does not ask them again."""
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        conn.execute(f"update durable._idle_workers set {broken}".encode())
    assert refused.value.diag.constraint_name == law


def test_idle_rows_are_unlogged(conn: Connection) -> None:
    """Losing them is harmless, and a worker says so after each lone run."""
    assert ask(
        conn, ("select relpersistence from pg_class where oid = 'durable._idle_workers'::regclass", ())
    ) == ("u",)


def test_updates_of_idle_rows_stay_in_their_page(alone: str) -> None:
    """Nothing that a hand-off changes is indexed: the versions of a row go when it is next
    read, without a vacuum, and a start finds its worker by the index.
    """
    with psycopg.connect(alone, autocommit=True) as conn:
        ears = present(alone, conn)
        assert ask(conn, idle()) == (True,)
        conn.execute("select pg_stat_reset()")
        for number in range(200):
            assert handed(conn, f"r{number}")
            assert ask(conn, idle()) == (True,)
        conn.execute("select pg_stat_force_next_flush()")
        found = ask(
            conn,
            (
                "select n_tup_upd, n_tup_hot_upd, seq_scan, pg_relation_size(relid) "
                "from pg_stat_user_tables where relname = '_idle_workers'",
                (),
            ),
        )
        ears.conn.close()
    # all 400 versions take 25 pages and more
    assert found == (400, 400, 0, 8192)


def test_an_address_that_could_be_guessed_is_refused(dsn: str, conn: Connection) -> None:
    """Who knows the name could send the worker runs that nobody has started."""
    ears = present(dsn, conn)
    assert refusal(conn, idle(address="durable_to_me")) == "23514"
    ears.conn.close()


@pytest.mark.session("notes")
@pytest.mark.parametrize("many", [True, False], ids=["among others", "alone"])
@pytest.mark.parametrize(
    "told",
    [
        {"end": complete()},
        {"outcomes": [done(0)]},
        {"outcomes": [done(0), done(1)], "end": complete()},
        {"commands": [run(0), timer(1, 10)]},
    ],
    ids=["end", "outcome", "outcomes", "commands"],
)
def test_a_number_with_the_id_of_another_run_is_lost(
    dsn: str, conn: Connection, ears: Ears, told: dict[str, Any], many: bool
) -> None:
    """After a crash of the server a number may be given again; what was reported of the run that had it
    first changes nothing.
    """
    assert handed(conn, "r")
    held = held_of(direct_message(ears)[0])
    assert handed(conn, "s") is False
    other = take_turn(conn, "W", want=1).tasks[0]
    before = dump(conn, TABLES)
    wrong = report(held, **told) | {"id": "lost"}
    more = [report(other, end=complete())] if many else []
    answer = take_turn(conn, "W", wrong, *more)
    assert answer.of(held) == ("lost", "lost")
    if many:
        assert answer.of(other) == ("ok", "done")
        before, now = (
            [row for row in each["_journal"] if row["execution"] == held.execution]
            for each in (before, dump(conn, TABLES))
        )
        assert now == before
        assert task_of(conn, "r") == ("acquired", 1, "W")
    else:
        assert dump(conn, TABLES) == before
    assert take_turn(conn, "W", wrong | {"id": "r"}).of(held)[0] == "ok"


# -- how the end is noted


@pytest.mark.session("notes")
@pytest.mark.parametrize(
    ("end", "row"),
    [
        (complete('{"a": [1, null]}'), ["r", "resolved", '{"a": [1, null]}', None]),
        (complete("null"), ["r", "resolved", "null", None]),
        (fail('{"type": "Boom"}'), ["r", "rejected", None, '{"type": "Boom"}']),
    ],
)
def test_a_single_end_is_sent_to_the_starter(
    dsn: str, conn: Connection, ears: Ears, end: dict[str, Any], row: list[Any]
) -> None:
    """The note is the row that results_v1 answers, and comes before the hint."""
    assert handed(conn, "r", reply=REPLY)
    task, _, reply = direct_message(ears)
    held = held_of(task)
    take_turn(conn, "W", report(held, end=end) | {"reply": reply}, tells=True)
    (noted, hint) = ears.heard()
    assert (noted[0], payload_of(noted)) == (REPLIES, row)
    assert hint == ("durable_settled", "")
    assert list(ask(conn, ("select * from durable.results_v1('{r}')", ()))) == row


@pytest.mark.session("notes")
def test_no_direct_message_without_a_hint(dsn: str, conn: Connection, ears: Ears) -> None:
    """A notification takes a lock of the whole database: who may not send the hint sends no note either."""
    assert handed(conn, "r", reply=REPLY)
    held = held_of(direct_message(ears)[0])
    ended = report(held, end=complete()) | {"reply": REPLY}
    assert take_turn(conn, "W", ended).of(held) == ("ok", "done")
    assert ears.heard() == []


@pytest.mark.session("notes")
@pytest.mark.parametrize(
    "address",
    [
        "",
        "durable_ready",
        "x" * 100,
        *(REPLIES, f"{REPLY}x", REPLY.upper(), f"x\n{REPLY}", REPLY.replace(":", "0")),
        *(f"{REPLY[:-1]}é", f"x{REPLY[:-1]}"),
    ],
)
def test_an_invalid_address_gets_no_message(dsn: str, conn: Connection, ears: Ears, address: str) -> None:
    """A caller's odd word spoils no turn, and nobody is woken by it."""
    assert handed(conn, "r", reply=address)
    task, _, reply = direct_message(ears)
    held = held_of(task)
    ended = report(held, end=complete()) | {"reply": reply}
    assert take_turn(conn, "W", ended, tells=True).of(held) == ("ok", "done")
    assert ears.heard() == [("durable_settled", "")]


@pytest.mark.session("notes")
def test_too_long_direct_messages_are_not_sent(dsn: str, conn: Connection, ears: Ears) -> None:
    """Postgres would refuse the whole transaction."""
    for size in (7900, 10_000, 7899):
        ask(conn, ("select count(*) from durable._send_message(%s, %s)", (ADDRESS, "x" * size)))
    assert ears.heard() == [(CHANNEL, WORD + "x" * 7899)]
