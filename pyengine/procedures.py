"""Every SQL text of the asynchronous side, and nothing else.

What lives here: one `Procedure` for each function of schema `durable` that workers and clients call: its
name, what it takes and answers, and the statement with `$n`. What may not: a connection, a decision; what
the command line asks (cli/queries.py). Names that end in `_v1` are the worker protocol: they live two
releases, so old and new processes share a database.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "AS_OF",
    "BYE",
    "CANCEL",
    "FORK",
    "HEARTBEAT",
    "HELLO",
    "HINT",
    "JOURNAL",
    "JOURNALS",
    "JOURNAL_LIST",
    "LIST_RUNS",
    "PAUSE",
    "PRESENT",
    "PROMISE_CALLBACK",
    "PROMISE_CANCEL",
    "PROMISE_CREATE",
    "PROMISE_READ",
    "PROMISE_REJECT",
    "PROMISE_RESOLVE",
    "PROMISE_SEARCH",
    "PROMISE_SUBSCRIBE",
    "REDRIVE",
    "RELEASE_UNKNOWN",
    "RESULTS",
    "RESUME",
    "RUN",
    "SESSION",
    "SIGNAL",
    "SIGNAL_WITHIN",
    "START",
    "START_WITHIN",
    "TAKE_PRESENCE",
    "TICK",
    "TURN",
    "VERSION",
    "WORKER_PROTOCOL",
    "Procedure",
]

WORKER_PROTOCOL = 1
"""The `_vN` that this package speaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Procedure:
    """One statement.

    Args:
        name: what errors and logs call it.
        signature: what it takes and answers, for readers.
        sql: the statement with `$n`.
    """

    name: str
    signature: str
    sql: str

    @property
    def verb(self) -> str:
        """What people call it in SQL."""
        return self.name.removesuffix("_v1")


VERSION = Procedure(
    name="version",
    signature="() -> (schema_version, lowest_worker_protocol, highest_worker_protocol)",
    sql="select schema_version, lowest_worker_protocol, highest_worker_protocol from durable.version()",
)

SESSION = Procedure(
    name="session",
    signature="() -> the server's process of this session; behind a pooler another one than was announced",
    sql="select pg_backend_pid()",
)

HELLO = Procedure(
    name="worker_hello_v1",
    signature="(worker, queues[], workflows[], versions[], about jsonb) -> jsonb {number, settings, now}",
    sql="select durable.worker_hello_v1($1, $2, $3, $4, $5)",
)

TURN = Procedure(
    name="worker_turn_v1",
    signature="(worker, queues[], workflows[], versions[], digests[], want, bundles jsonb, ttl_ms) -> json",
    sql="select durable.worker_turn_v1($1, $2, $3, $4, $5, $6, $7, $8)",
)

JOURNAL = Procedure(
    name="worker_journal_v1",
    signature="(worker, execution, version) -> json {next, rows} or null if the lease is lost",
    sql="select durable.worker_journal_v1($1, $2, $3)",
)

HEARTBEAT = Procedure(
    name="worker_heartbeat_v1",
    signature="(worker, executions[], versions[]) -> executions[] that are lost",
    sql="select durable.worker_heartbeat_v1($1, $2, $3)",
)

TAKE_PRESENCE = Procedure(
    name="presence lock",
    signature="(number) -> boolean, true if this session holds the lock now",
    sql="select pg_try_advisory_lock(1685417570, $1)",
)

PRESENT = Procedure(
    name="worker_present_v1",
    signature="(worker, present) -> boolean, true if it is believed",
    sql="select durable.worker_present_v1($1, $2)",
)

RELEASE_UNKNOWN = Procedure(
    name="worker_adrift_v1",
    signature="(worker, known executions[]) -> number of tasks given back",
    sql="select durable.worker_adrift_v1($1, $2)",
)

BYE = Procedure(
    name="worker_bye_v1",
    signature="(worker) -> number of tasks given back",
    sql="select durable.worker_bye_v1($1)",
)

TICK = Procedure(
    name="tick_v1",
    signature=(
        "(limit, schedules, worker) -> "
        "(jsonb {promises, leases, schedules, next_due_ms, more, hints}, workers that watch)"
    ),
    sql="select durable.tick_v1($1, $2) as answer, durable.worker_watch_v1($3) as watch",
)

HINT = Procedure(
    name="hint_v1",
    signature="(ready, settled)",
    sql="select durable.hint_v1($1, $2)",
)

START = Procedure(
    name="start_v1",
    signature=(
        "(workflow, args, id, key, queue, version, delay_ms, timeout_ms, priority, tags jsonb, tenant, "
        "any_workflow) -> (id, created)"
    ),
    sql="select id, created from durable.start_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
)

START_WITHIN = Procedure(
    name="start_v1",
    signature="the same inside a caller's transaction, which sends the hint when it commits",
    sql=(
        "select s.id, s.created, "
        "case when s.created then durable._hint('durable_ready', durable._now_ms()) end "
        "from durable.start_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) s"
    ),
)

SIGNAL = Procedure(
    name="signal_v1",
    signature="(run, name, payload, key) -> (delivery, created, woken)",
    sql="select delivery, created, woken from durable.signal_v1($1, $2, $3, $4)",
)

SIGNAL_WITHIN = Procedure(
    name="signal_v1",
    signature="the same inside a caller's transaction, which sends the hint when it commits",
    sql=(
        "select s.delivery, s.created, case when s.created then durable._hint("
        "case when s.woken then 'durable_ready' else 'durable_settled' end, durable._now_ms()) end "
        "from durable.signal_v1($1, $2, $3, $4) s"
    ),
)

CANCEL = Procedure(
    name="cancel",
    signature="(id, reason jsonb, grace_ms, force) -> state",
    sql="select durable.cancel($1, $2, $3::bigint * interval '1 millisecond', $4) as state",
)

PAUSE = Procedure(name="pause", signature="(id)", sql="select durable.pause($1)")

RESUME = Procedure(name="resume", signature="(id)", sql="select durable.resume($1)")

REDRIVE = Procedure(
    name="redrive",
    signature="(id or null for all) -> number of runs",
    sql="select durable.redrive($1) as number",
)

FORK = Procedure(
    name="fork",
    signature="(id, seq, step, set_values jsonb, new_id, queue, version) -> id",
    sql="select durable.fork($1, $2, $3, $4, $5, $6, $7) as id",
)

AS_OF = Procedure(
    name="as_of",
    signature="(id, seq, at, generation) -> one durable.as_of_record",
    sql=(
        "select generation, seq, at, status, next_child, waiting_on, running, children, signals "
        "from durable.as_of($1, $2, $3, $4)"
    ),
)

JOURNAL_LIST = Procedure(
    name="journal_list_v1",
    signature="(workflows[] or null, finished ones too) -> (workflow, version, executions[], events[])",
    sql="select workflow, version, executions, events from durable.journal_list_v1($1, $2)",
)

JOURNALS = Procedure(
    name="journals_v1",
    signature=(
        "(executions[]) -> (execution, id, workflow, version, param, started_at, queue, first_child, state, "
        "outcome, waiting_on[], rows json)"
    ),
    sql=(
        "select execution, id, workflow, version, param, started_at, queue, first_child, state, outcome, "
        "waiting_on, rows from durable.journals_v1($1)"
    ),
)

RESULTS = Procedure(
    name="results_v1",
    signature="(ids[]) -> (id, state, value text, error text) of those settled or unknown (state null)",
    sql="select id, state, value, error from durable.results_v1($1)",
)

# Python's years end with 9999: a later deadline, and none, which is infinity, is told as none
_STATUS = (
    "select id, workflow, version, state, queue, priority, args::text, result::text, error::text, "
    "problem::text, worker, crashes, waits_for, created_at, settled_at, "
    "case when deadline < '10000-01-01' then deadline end as deadline, parent, key, events from durable.runs"
)

RUN = Procedure(
    name="run",
    signature="(id) -> one row of the view durable.runs",
    sql=f"{_STATUS} where id = $1",
)

LIST_RUNS = Procedure(
    name="runs",
    signature="(workflow or null, state or null, limit) -> rows of the view durable.runs, newest first",
    sql=(
        f"{_STATUS} where ($1::text is null or workflow = $1) and ($2::text is null or state = $2) "
        "order by execution desc limit $3"
    ),
)

# a promise's deadline: an instant, or a span from the database's now; neither means never
PROMISE_CREATE = Procedure(
    name="promise_create_v0",
    signature=(
        "(id, key, param, headers jsonb, instant, span, strict, tags jsonb) -> (status, word, promise jsonb)"
    ),
    sql=(
        "select status, word, promise from durable.promise_create_v0("
        "$1, $2, $3, $4, coalesce($5, durable._later(durable._now_ms(), $6)), $7, $8)"
    ),
)

PROMISE_RESOLVE = Procedure(
    name="promise_resolve_v0",
    signature="(id, key, value, headers jsonb, strict) -> (status, word, promise jsonb)",
    sql="select status, word, promise from durable.promise_resolve_v0($1, $2, $3, $4, $5)",
)

PROMISE_REJECT = Procedure(
    name="promise_reject_v0",
    signature="(id, key, value, headers jsonb, strict) -> (status, word, promise jsonb)",
    sql="select status, word, promise from durable.promise_reject_v0($1, $2, $3, $4, $5)",
)

PROMISE_CANCEL = Procedure(
    name="promise_cancel_v0",
    signature="(id, key, value, headers jsonb, strict) -> (status, word, promise jsonb)",
    sql="select status, word, promise from durable.promise_cancel_v0($1, $2, $3, $4, $5)",
)

PROMISE_CALLBACK = Procedure(
    name="promise_callback_v0",
    signature=(
        "(id, promise id, root promise id, instant, span, recv jsonb) "
        "-> (status, word, callback jsonb, promise jsonb)"
    ),
    sql=(
        "select status, word, callback, promise from durable.promise_callback_v0("
        "$1, $2, $3, coalesce($4, durable._later(durable._now_ms(), $5)), $6)"
    ),
)

PROMISE_SUBSCRIBE = Procedure(
    name="promise_subscribe_v0",
    signature="(promise id, recv jsonb) -> (status, word, promise jsonb)",
    sql="select status, word, promise from durable.promise_subscribe_v0($1, $2)",
)

PROMISE_READ = Procedure(
    name="promise_read_v0",
    signature="(id) -> (status, word, promise jsonb)",
    sql="select status, word, promise from durable.promise_read_v0($1)",
)

PROMISE_SEARCH = Procedure(
    name="promise_search_v0",
    signature="(id pattern, state or null, tags jsonb, limit, cursor or null) -> (promises jsonb, cursor)",
    sql="select promises, cursor from durable.promise_search_v0($1, $2, $3, $4, $5)",
)
