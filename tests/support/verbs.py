"""What tests of the schema say to it: statements as (text, parameters), reports of a worker's turn, and its
answer as an object.

One function for each thing a program does, so that the tests read as programs. Nothing here decides or
asserts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import TupleRow

from pyengine.core.rules import RULES
from pyengine.core.values.codec import input_hash

Connection = psycopg.Connection[TupleRow]
Call = tuple[str, tuple[Any, ...]]
NEVER = 9007199254740991
TTL_MS = 15_000
HASH = "00000000000000aa"
COMMITTED = '{"committed":true,"said":[]}'
"""Data of the row of a transaction without statements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A task that a worker holds: what it needs to report on it."""

    execution: int
    id: str
    version: int
    next: int
    rows: tuple[tuple[Any, ...], ...] = ()
    start: int = 0
    crashes: int = 0
    first_child: int = 0


HANDED = (
    *("execution", "id", "version", "workflow", "workflow_version", "param", "from", "next", "rows"),
    *("crashes", "started_at", "queue", "first_child", "reply", "rules"),
)
"""What a turn hands out of a claimed run, in its order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The answer of worker_turn_v1."""

    raw: dict[str, Any]

    @property
    def handed(self) -> list[dict[str, Any]]:
        """Tasks that the turn handed out, whole."""
        return [dict(zip(HANDED, each, strict=True)) for each in self.raw["tasks"]]

    @property
    def tasks(self) -> list[Held]:
        """Tasks that the turn handed out, by execution."""
        return [
            Held(
                execution=each["execution"],
                id=each["id"],
                version=each["version"],
                next=each["next"],
                rows=tuple(map(tuple, each["rows"])),
                start=each["from"],
                crashes=each["crashes"],
                first_child=each["first_child"],
            )
            for each in self.handed
        ]

    def of(self, held: Held) -> tuple[str, str]:
        """Verdict and state of one report; busy, if somebody holds what it needs, so that nothing of it was
        written.
        """
        if held.execution in self.raw["busy"]:
            return "busy", "acquired"
        about = self.raw["verdicts"]
        place = about["execution"].index(held.execution)
        return about["verdict"][place], about["state"][place]

    def next_of(self, held: Held) -> int:
        """Where the journal of one report ends now."""
        about = self.raw["verdicts"]
        return int(about["next"][about["execution"].index(held.execution)])

    def tail(self, held: Held) -> list[tuple[Any, ...]]:
        """Rows that others appended to a held run, before and after what its report wrote."""
        for execution, before, after in self.raw["tails"]:
            if execution == held.execution:
                return [tuple(row) for row in (*before, *after)]
        return []


def done(child: int, value: str = "1", *, attempt: int = 1, name: str = "step") -> dict[str, Any]:
    """An outcome: the step succeeded."""
    return {"child": child, "name": name, "hash": HASH, "attempt": attempt, "value": value}


def broken(
    child: int, *, attempt: int = 1, retry_in: int | None = None, name: str = "step"
) -> dict[str, Any]:
    """An outcome: the step failed, for good or to be tried again."""
    outcome = {"child": child, "name": name, "hash": HASH, "attempt": attempt, "error": '{"type": "Oops"}'}
    return outcome if retry_in is None else {**outcome, "retry_in": retry_in}


def begun(child: int, *, attempt: int = 1, name: str = "step") -> dict[str, Any]:
    """An outcome: the step is running."""
    return {"child": child, "name": name, "hash": HASH, "attempt": attempt, "begun": True, "param": "[]"}


def run(child: int, **more: Any) -> dict[str, Any]:
    """A command: start a child run."""
    about = {"name": "w", "version": "1", "queue": None, "param": "[]", "timeout": None, **more}
    digest = input_hash(about["name"], about["param"])
    return {"do": "run", "child": child, "hash": digest, "detached": False, **about}


def timer(child: int, ms: int) -> dict[str, Any]:
    """A command: sleep."""
    return {"do": "timer", "child": child, "duration": ms}


def promise(child: int, timeout: int | None = None) -> dict[str, Any]:
    """A command: make a promise that somebody outside settles."""
    return {"do": "promise", "child": child, "name": "label", "timeout": timeout}


def captured(child: int, value: str = "0.5", *, kind: str = "random") -> dict[str, Any]:
    """A command: a value that replay must not compute again."""
    return {"do": kind, "child": child, "name": kind, "value": value}


def intent(child: int, *, retry: str | None = None, name: str = "step") -> dict[str, Any]:
    """A command: begin a step ahead of its completion, under a retry policy (JSON text)."""
    return {"do": "intent", "child": child, "name": name, "hash": HASH, "param": "[]", "retry": retry}


def receive(child: int, name: str = "go") -> dict[str, Any]:
    """A command: take the next signal of a name, or wait for it."""
    return {"do": "receive", "child": child, "name": name}


def join_set(child: int) -> dict[str, Any]:
    """A command: make a join set."""
    return {"do": "join_set", "child": child}


def submit(child: int, to: int) -> dict[str, Any]:
    """A command: make a child a member of a join set."""
    return {"do": "submit", "child": child, "set": to}


def pick(child: int, of: int) -> dict[str, Any]:
    """A command: take the result of a member of a join set."""
    return {"do": "take", "child": child, "set": of}


def adopt(child: int, id_: str) -> dict[str, Any]:
    """A command: wait for a promise of somebody else, under a number of one's own."""
    return {"do": "adopt", "child": child, "name": id_}


def suspend(*on: int, kind: str | None = None) -> dict[str, Any]:
    """An end: wait for children."""
    return {"do": "suspend", "on": list(on), "kind": kind or ("single" if len(on) == 1 else "any")}


def complete(value: str = '"done"') -> dict[str, Any]:
    """An end: the run has its result."""
    return {"do": "complete", "value": value}


def fail(error: str = '{"type": "Boom"}') -> dict[str, Any]:
    """An end: the run failed."""
    return {"do": "fail", "error": error}


def cancelled() -> dict[str, Any]:
    """An end: the run gave in to a request of cancellation."""
    return {"do": "cancel"}


def continue_as_new(value: str = '["next"]', on: int = 0) -> dict[str, Any]:
    """An end: go on with new arguments in a new journal, whose children are numbered from `on`."""
    return {"do": "continue", "value": value, "on": [on]}


def refuse(error: str = '{"type": "Boom"}', problem: str = '{"type": "Unreadable"}') -> dict[str, Any]:
    """The code cannot read what is recorded."""
    return {"do": "refuse", "error": error, "problem": problem}


def release(retry_in: int = 0) -> dict[str, Any]:
    """An end: give the run back."""
    return {"do": "release", "retry_in": retry_in}


def halt(problem: str = '{"type": "Nondeterminism"}') -> dict[str, Any]:
    """An end: set the run aside."""
    return {"do": "halt", "problem": problem}


def report(
    held: Held,
    *,
    outcomes: Sequence[dict[str, Any]] = (),
    commands: Sequence[dict[str, Any]] = (),
    end: dict[str, Any] | None = None,
    seen: int | None = None,
    progress: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What one run reports; `seen` is what it was handed out with unless told otherwise."""
    return ({} if progress is None else {"progress": progress}) | {
        "execution": held.execution,
        "id": held.id,
        "version": held.version,
        "seen": held.next if seen is None else seen,
        "outcomes": list(outcomes),
        "commands": list(commands),
        "end": end,
    }


def progress(held: Held, seq: int, done: float | None = None, **more: Any) -> dict[str, Any]:
    """What a run has set when its journal had been read up to a number: its progress, or values by name."""
    given = {name: more.pop(name) for name in ("total", "note") if name in more}
    named = {name: [held.execution, seq, json.dumps(value)] for name, value in more.items()}
    counts = {} if done is None else {"seq": seq, "done": done, **given}
    return counts | ({"named": named} if named else {})


def code(workflow: str, version: str = "1") -> str:
    """What a worker can run, as `durable._code` writes it."""
    return f"{len(workflow.encode())}:{workflow}{version}"


def turn(
    worker: str,
    *reports: dict[str, Any],
    want: int = -1,
    queues: Sequence[str] = ("default",),
    workflows: Sequence[str] = ("w",),
    digest: str = "ab",
    ttl_ms: int = TTL_MS,
    tells: bool = False,
    idle_ms: int = 0,
    rules: int = RULES,
) -> Call:
    """A worker's turn; it claims nothing unless `want` says so."""
    names = list(workflows)
    return "select durable.worker_turn_v1(%s, %s, %s, %s, %s, %s::jsonb, %s, %s, %s, %s)", (
        worker,
        list(queues),
        [code(name) for name in names],
        [digest] * len(names),
        want,
        json.dumps(reports),
        ttl_ms,
        tells,
        idle_ms,
        rules,
    )


def heartbeat(worker: str, *held: Held) -> Call:
    """A worker's sign of life; answers which of the runs that it believes to hold it has lost."""
    return "select durable.worker_heartbeat_v1(%s, %s, %s, %s)", (
        worker,
        [one.execution for one in held],
        [one.id for one in held],
        [one.version for one in held],
    )


def journal(worker: str, held: Held) -> Call:
    """The whole journal of a run that a worker holds, and the number after it."""
    given = (worker, held.execution, held.id, held.version)
    return "select durable.worker_journal_v1(%s, %s, %s, %s)", given


def release_unknown(worker: str, *known: Held) -> Call:
    """Give back what a worker holds and does not know; answers which."""
    numbers, ids = [one.execution for one in known], [one.id for one in known]
    return "select durable.worker_release_unknown_v1(%s, %s, %s)", (worker, numbers, ids)


def commit(
    held: Held,
    child: int = 0,
    *effects: dict[str, Any],
    worker: str = "W",
    version: int | None = None,
    seen: int | None = None,
) -> Call:
    """The last statement of a workflow's transaction."""
    return "select durable.worker_commit_v1(%s, %s, %s, %s, %s, %s, 'move', %s, %s, %s::jsonb)", (
        worker,
        held.execution,
        held.id,
        held.version if version is None else version,
        held.next if seen is None else seen,
        child,
        HASH,
        COMMITTED,
        json.dumps(effects),
    )


def run_of(id_: str, workflow: str = "w") -> dict[str, Any]:
    """An effect of a commit: start a run."""
    options = {"queue": "default", "version": "1", "priority": 0, "any_workflow": True}
    return {"do": "start", "workflow": workflow, "args": "[1]", "id": id_, **options}


def signal_to(id_: str, name: str = "go") -> dict[str, Any]:
    """An effect of a commit: send a signal."""
    return {"do": "signal", "id": id_, "name": name, "payload": "7"}


def settling(id_: str, value: str = "1", state: str = "resolved") -> dict[str, Any]:
    """An effect of a commit: settle a promise."""
    return {"do": "settle", "id": id_, "state": state, "value": value}


def settle(id_: str, value: str = "1", *, state: str = "resolved") -> Call:
    """Settle a promise, or end a run as its worker would; durable.promise_settle refuses to end a run."""
    return "select state, value_data from durable._settle_promise(%s, %s, %s, null)", (id_, state, value)


def send(id_: str, name: str = "go", payload: str | None = "1", *, key: str | None = None) -> Call:
    """Send a signal to a run; answers its number, whether it is new, whether the run became ready."""
    return "select * from durable.signal_v1(%s, %s, %s, %s)", (id_, name, payload, key)


def cancel(id_: str, reason: str | None = None, *, grace_ms: int | None = None, force: bool = False) -> Call:
    """Request the cancellation of a run; answers its state and whether something became ready."""
    return "select * from durable.cancel_v1(%s, %s, %s, %s)", (id_, reason, grace_ms, force)


def create(id_: str, timeout_at: int = NEVER, **tags: str) -> Call:
    """Create a free-standing promise; tags are named without their prefix."""
    named = json.dumps({f"resonate:{name}": text for name, text in tags.items()})
    return "select state from durable.promise_create(%s, %s, p_tags => %s::jsonb)", (id_, timeout_at, named)


def start(id_: str, args: str = "[]", *, workflow: str = "w", key: str | None = None, **more: Any) -> Call:
    """Start a run; `more` are named arguments of durable.start."""
    extra = "".join(f", {name} => %s" for name in more)
    text = f"select durable.start(%s, %s::jsonb, id => %s, key => %s{extra})"
    return text, (workflow, args, id_, key, *more.values())


def ask(conn: Connection, call: Call) -> tuple[Any, ...]:
    """Run a statement and return its first row."""
    row = conn.execute(call[0].encode(), call[1]).fetchone()
    assert row is not None, f"no row: {call[0]}"
    return tuple(row)


def server_pid(conn: Connection) -> int:
    """The number of a session as its server knows it; a pooler tells its clients another one."""
    return int(ask(conn, ("select pg_backend_pid()", ()))[0])


def dump(conn: Connection, tables: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """All columns of all rows of tables of the engine, in an order that does not depend on their places."""
    rows = "(select coalesce(jsonb_agg(to_jsonb(t) order by to_jsonb(t)::text), '[]') from durable.{} t)"
    found = conn.execute(f"select {', '.join(map(rows.format, tables))}".encode()).fetchone()
    return dict(zip(tables, found or (), strict=True))


def take_turn(conn: Connection, worker: str, *reports: dict[str, Any], **options: Any) -> Turn:
    """Run a worker's turn."""
    return Turn(raw=ask(conn, turn(worker, *reports, **options))[0])


def begin_run(conn: Connection, id_: str, worker: str = "W", **options: Any) -> Held:
    """Start a run of its own queue and let the worker claim it."""
    ask(conn, start(id_, queue=f"q-{id_}", **options))
    return claim(conn, worker, f"q-{id_}")


def claim(conn: Connection, worker: str, queue: str, **options: Any) -> Held:
    """Claim the one ready task of a queue."""
    tasks = take_turn(conn, worker, want=1, queues=[queue], **options).tasks
    assert len(tasks) == 1, f"{len(tasks)} tasks in queue {queue}"
    return tasks[0]


def at_end(held: Held, number: int) -> Held:
    """The same run, whose coroutine has seen its whole journal."""
    return Held(execution=held.execution, id=held.id, version=held.version, next=number)


def task_of(conn: Connection, id_: str) -> tuple[Any, ...] | None:
    """State, version and pid of a task as stored; None once it is fulfilled."""
    return conn.execute("select state, version, pid from durable._tasks where id = %s", (id_,)).fetchone()


def promise_of(conn: Connection, id_: str) -> tuple[Any, ...] | None:
    """State and value of a promise as stored."""
    return conn.execute("select state, value_data from durable._promises where id = %s", (id_,)).fetchone()


def events_of(conn: Connection, id_: str) -> list[str]:
    """The logical events of a run, in order."""
    rows = conn.execute("select event from durable.journal_events where id = %s order by seq", (id_,))
    return [event for (event,) in rows]


def types_of(conn: Connection, id_: str) -> list[str]:
    """The row types of a run's journal, in order."""
    rows = conn.execute(
        "select j.type::text from durable._journal j "
        "join durable._executions h on h.execution = j.execution where h.id = %s order by j.seq",
        (id_,),
    )
    return [row[0] for row in rows]


def refusal(conn: Connection, call: Call) -> str:
    """SQLSTATE with which a statement is refused; empty if it is not. Inside a transaction only the
    statement is undone."""
    try:
        with conn.transaction():
            ask(conn, call)
    except psycopg.Error as error:
        return error.sqlstate or "?"
    return ""


def tick(conn: Connection, limit: int = 500) -> dict[str, Any]:
    """One round of housekeeping."""
    answer: dict[str, Any] = ask(conn, ("select durable.tick_v1(%s)", (limit,)))[0]
    return answer


def acquire(id_: str, version: int = 0, pid: str = "P", ttl_ms: int = TTL_MS) -> Call:
    """A protocol client takes a task."""
    return "select * from durable.task_acquire(%s, %s, %s, %s)", (id_, version, pid, ttl_ms)


def park(id_: str, *awaited: str, version: int = 1) -> Call:
    """A protocol client suspends its task."""
    return "select durable.task_suspend(%s, %s, %s)", (id_, version, list(awaited))


def take(conn: Connection, id_: str, timeout_at: int = NEVER, pid: str = "P") -> None:
    """Create a protocol task and acquire it, at version 1."""
    ask(conn, create(id_, timeout_at, target="g"))
    ask(conn, acquire(id_, pid=pid))
