"""Law: tasks of the older API are those of the newer protocol: claimed by a counter, which is the fence of
all that follows, and completed when their promise is, or waits."""

from __future__ import annotations

import pytest

from tests.doors.protocol.v0_calls import callback, completion, creation
from tests.support.clock import Clock
from tests.support.verbs import Call, Connection, ask, refusal

INVOKE = '{"resonate:invoke": "poll://any@g/w"}'
TTL_MS = 1000


def claim(
    id_: str = "p", counter: int | None = 1, process: str | None = "w", ttl: int | None = TTL_MS
) -> Call:
    """Claim."""
    return "select * from durable.task_claim_v0(%s, %s, %s, %s)", (id_, counter, process, ttl)


def complete(id_: str = "p", counter: int | None = 1) -> Call:
    """Complete."""
    return "select * from durable.task_complete_v0(%s, %s)", (id_, counter)


def drop(id_: str = "p", counter: int | None = 1) -> Call:
    """Drop."""
    return "select * from durable.task_drop_v0(%s, %s)", (id_, counter)


def heartbeat(process: str | None = "w") -> Call:
    """Heartbeat."""
    return "select durable.task_heartbeat_v0(%s)", (process,)


def with_task(id_: str = "p", key: str | None = "k", *, tags: str = INVOKE, strict: bool = False) -> Call:
    """Create a promise with its task."""
    return (
        "select * from durable.promise_task_v0(%s, %s, 'param', '{}', 9e15::bigint, %s, %s::jsonb, 'w', %s)",
        (id_, key, strict, tags, TTL_MS),
    )


def with_callback(id_: str = "p.2", key: str | None = "k", root: str = "p") -> Call:
    """Create a promise and the callback of a task that waits for it."""
    return (
        "select * from durable.promise_with_callback_v0(%s, %s, 'param', '{}', 9e15::bigint, false, '{}', "
        "'c', %s, 9e15::bigint, '\"poll://any@g/w\"')",
        (id_, key, root),
    )


def waiting(conn: Connection) -> list[tuple[str, int]]:
    """Messages of tasks for the group: type and counter."""
    found = conn.execute("select durable.messages_v0('poll://any@g/w')").fetchall()
    return [(one["type"], one["task"]["counter"]) for (one,) in found]


@pytest.fixture
def scene(conn: Connection, clock: Clock) -> Connection:
    """A promise p with a task, and promises p.1 and x without."""
    ask(conn, creation("p", tags=INVOKE))
    ask(conn, creation("p.1"))
    ask(conn, creation("x"))
    return conn


def test_a_claim(scene: Connection) -> None:
    """The message's counter claims it; the answer has the promise."""
    assert waiting(scene) == [("invoke", 1)]
    status, word, message = ask(scene, claim())
    assert (status, word, message["type"], set(message["promises"])) == (201, "OK", "invoke", {"root"})
    assert (message["promises"]["root"]["id"], message["promises"]["root"]["data"]["state"]) == (
        "p",
        "PENDING",
    )


def test_a_claim_after_a_resume(scene: Connection) -> None:
    """It also has the promise that completed; afterwards the resume is used up."""
    ask(scene, claim())
    ask(scene, callback(awaited="p.1", root="p", recv="poll://any@g/w"))
    assert ask(scene, complete()) == (201, "OK")
    assert waiting(scene) == []
    ask(scene, completion("resolve", "p.1", data="7"))
    assert waiting(scene) == [("resume", 2)]
    status, _, message = ask(scene, claim(counter=2))
    assert (status, message["type"]) == (201, "resume")
    assert message["promises"]["leaf"]["id"] == "p.1"
    assert message["promises"]["leaf"]["data"]["value"] == {"data": "7"}
    ask(scene, drop(counter=2))
    assert waiting(scene) == [("invoke", 3)]


def test_claims_that_are_refused(scene: Connection, clock: Clock) -> None:
    """Each with its word: the counter, the state, the promise."""
    assert ask(scene, claim("z")) == (404, "not found", None)
    assert ask(scene, claim("x")) == (404, "not found", None)
    for counter in (0, 2, None):
        assert ask(scene, claim(counter=counter)) == (403, "invalid counter", None)
    ask(scene, claim())
    assert ask(scene, claim(process="v")) == (403, "already claimed", None)
    ask(scene, callback(awaited="x", root="p", recv="g"))
    ask(scene, complete())
    assert ask(scene, claim(counter=2)) == (403, "already completed", None)
    ask(scene, ("select durable.task_halt('p')", ()))
    assert ask(scene, claim(counter=2)) == (403, "invalid state", None)
    ask(scene, completion("resolve", "p"))
    assert ask(scene, claim(counter=2)) == (403, "already completed", None)
    for call in (claim(process=""), claim(process=None), claim(ttl=0), claim(ttl=None)):
        assert refusal(scene, call) == "WF004"


def test_a_run_of_the_engine_has_no_counter(scene: Connection) -> None:
    """Its task belongs to a worker, whatever a client of the older API asks."""
    ask(scene, ("select durable.start('w', id => 'run')", ()))
    assert ask(scene, claim("run")) == (403, "invalid state", None)


def test_a_completion_with_its_promise(scene: Connection) -> None:
    """The promise is completed first, then the task; a repetition is the same, another counter is not."""
    ask(scene, claim())
    ask(scene, completion("resolve", "p"))
    assert ask(scene, complete()) == ask(scene, complete()) == (201, "OK")
    assert ask(scene, complete(counter=2)) == (403, "invalid counter")
    assert ask(scene, drop()) == (200, "deduplicated")


def test_a_completion_that_waits(scene: Connection) -> None:
    """With callbacks the task is suspended, on its own children and on promises of others; again is no
    error."""
    for awaited in ("p.1", "x"):
        counter = 1 if awaited == "p.1" else 2
        ask(scene, claim(counter=counter))
        ask(scene, callback(f"c-{awaited}", awaited=awaited, root="p", recv="g"))
        assert ask(scene, complete(counter=counter)) == ask(scene, complete(counter=counter)) == (201, "OK")
        assert scene.execute("select state from durable._tasks where id = 'p'").fetchone() == ("suspended",)
        ask(scene, completion("resolve", awaited))
    assert waiting(scene) == [("resume", 3)]


def test_a_callback_that_fired_before_the_completion(scene: Connection) -> None:
    """The task is not suspended, but offered at once, with what it has not seen."""
    ask(scene, claim())
    ask(scene, callback("c1", awaited="p.1", root="p", recv="g"))
    ask(scene, callback("c2", awaited="x", root="p", recv="g"))
    ask(scene, completion("reject", "x"))
    assert ask(scene, complete()) == (201, "OK")
    assert waiting(scene) == [("resume", 2)]


def test_a_completion_without_anything_to_wait_for(scene: Connection, clock: Clock) -> None:
    """Nobody would ever look at the promise again, so the task is offered again, less and less often."""
    pauses = []
    for counter in range(1, 7):
        ask(scene, claim(counter=counter))
        assert ask(scene, complete(counter=counter)) == (201, "OK")
        pauses.append(0)
        while not waiting(scene):
            clock.advance(100)
            pauses[-1] += 100
    assert pauses == [0, 100, 500, 2000, 5000, 5000]


def test_others_may_not_complete(scene: Connection, clock: Clock) -> None:
    """Neither before the claim nor after the lease; a task that is not there is an answer too."""
    assert ask(scene, complete()) == (403, "invalid counter")
    ask(scene, claim())
    clock.advance(TTL_MS)
    ask(scene, ("select durable.tick()", ()))
    assert ask(scene, complete()) == ask(scene, drop()) == (403, "invalid state")
    ask(scene, claim(counter=2, process="v"))
    assert ask(scene, complete()) == ask(scene, drop()) == (403, "invalid counter")
    assert ask(scene, complete("x")) == ask(scene, drop("z")) == (404, "not found")


def test_a_drop(scene: Connection) -> None:
    """The task is offered again under the next counter; dropped again it stays as it is."""
    ask(scene, claim())
    assert ask(scene, drop()) == (204, "OK")
    assert waiting(scene) == [("invoke", 2)]
    assert ask(scene, drop()) == (403, "invalid state")


def test_a_heartbeat(scene: Connection, clock: Clock) -> None:
    """It renews all leases of the process, whatever the profile, and says how many."""
    assert ask(scene, heartbeat()) == (0,)
    ask(scene, claim())
    ask(scene, with_task("q"))
    scene.execute("select durable.set_setting('conformance', 'strict')")
    for _ in range(3):
        clock.advance(TTL_MS - 1)
        assert ask(scene, heartbeat()) == (2,)
    assert ask(scene, heartbeat("v")) == (0,)
    assert refusal(scene, heartbeat(None)) == refusal(scene, heartbeat("")) == "WF004"


def test_a_promise_with_its_task(scene: Connection) -> None:
    """Created now: claimed from birth. Again with its key: the promise, and no task, for the first caller has
    it."""
    status, word, promise, task = ask(scene, with_task("q"))
    assert (status, word, promise["state"], promise["createdOn"]) == (201, "OK", "PENDING", task["createdOn"])
    assert (task["id"], task["rootPromiseId"], task["counter"], task["processId"]) == ("q", "q", 1, "w")
    assert ask(scene, with_task("q", strict=True)) == (200, "deduplicated", promise, None)
    assert ask(scene, with_task("q", "other"))[:2] == (409, "already pending")
    ask(scene, completion("resolve", "q"))
    assert ask(scene, complete("q")) == (201, "OK")
    assert ask(scene, with_task("q", strict=True))[:2] == (409, "already resolved")


@pytest.mark.parametrize(
    "tags",
    ["{}", "[]", "null", '{"resonate:invoke": "a b"}', '{"resonate:invoke": "g", "resonate:delay": "9"}'],
)
def test_a_task_needs_somebody_to_run_it(scene: Connection, tags: str) -> None:
    """Without a target, or with a delay, nothing is created."""
    assert refusal(scene, with_task("q", tags=tags)) == "WF004"


def test_a_promise_with_its_callback(scene: Connection) -> None:
    """Both or neither: a promise of another key stays as it is, a callback that is refused leaves none."""
    ask(scene, claim())
    status, word, promise, waits = ask(scene, with_callback())
    assert (status, word, promise["state"]) == (201, "OK", "PENDING")
    assert (waits["id"], waits["promiseId"], waits["rootPromiseId"]) == ("c", "p.2", "p")
    assert ask(scene, with_callback())[:2] == (200, "deduplicated")
    assert ask(scene, with_callback(key=None)) == (409, "already pending", promise, None)
    assert ask(scene, complete()) == (201, "OK")
    ask(scene, completion("resolve", "p.2"))
    assert waiting(scene) == [("resume", 2)]
    status, _, promise, waits = ask(scene, with_callback())
    assert (status, promise["state"], waits) == (200, "RESOLVED", None)
    assert refusal(scene, with_callback("q.1", root="q")) == "WF010"
    assert ask(scene, ("select count(*) from durable._promises where id = 'q.1'", ())) == (0,)
