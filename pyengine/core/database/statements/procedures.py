"""The statements of workers and clients.

Lives here: one `Procedure` for each function of schema `durable` that workers and clients call. May not: a
connection, a decision, the queries of the command line (admin/queries.py). Names that end in `_v1` are the
worker protocol: they live for two releases, so old and new processes can share a database.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from pyengine.core.rules import RULES

WORKER_PROTOCOL = 1
"""The version of the worker protocol that this package speaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Procedure:
    """One statement.

    Args:
        signature: parameters and results, for readers.
        sql: the statement with `$n`. In statements of clients the first use of each parameter casts it to its
            type, by which values are checked before they are sent (client/caller_connection.py).
    """

    signature: str
    sql: str

    @property
    def verb(self) -> str:
        """The name of the function or view without its version, as users call it in SQL."""
        return _name(self.sql).removesuffix("_v1")

    @property
    def takes(self) -> tuple[str, ...]:
        """The types of its parameters, in order."""
        return _types(self.sql)

    def name_of(self, number: int) -> str:
        """The name of a parameter, from 1; a place where the signature describes several at once."""
        names = re.findall(r"[(,] *(\w+)[^,()]*", self.signature.partition(" -> ")[0])
        return names[number - 1] if len(names) == len(self.takes) else f"argument {number}"


@cache
def _name(sql: str) -> str:
    found = re.search(r"(?:^select|from) durable\.(\w+)", sql)
    return found[1] if found is not None else sql


@cache
def _types(sql: str) -> tuple[str, ...]:
    casts = dict(reversed(re.findall(r"\$(\d+)::(\w+(?:\[\])?)", sql)))
    return tuple(casts[number] for number in sorted(casts, key=int))


VERSION = Procedure(
    signature="() -> (schema_version, lowest_worker_protocol, highest_worker_protocol)",
    sql="select schema_version, lowest_worker_protocol, highest_worker_protocol from durable.version()",
)

SESSION = Procedure(
    signature="() -> process id of this session; behind a pooler it is not the one that was reported",
    sql="select pg_backend_pid()",
)

IN_RECOVERY = Procedure(
    signature="() -> boolean, true if the server is a standby",
    sql="select pg_is_in_recovery()",
)

LEAVE_MARK = Procedure(
    signature="(number): takes a lock in this session, until it ends",
    sql="select pg_advisory_lock(1685417571, $1)",
)

SEE_MARK = Procedure(
    signature="(number) -> boolean, true if another session of this database has that lock",
    sql="select not pg_try_advisory_xact_lock_shared(1685417571, $1)",
)


class Hello(NamedTuple):
    """The parameters of `durable.worker_hello_v1`, in their order.

    Args:
        worker: id of the worker.
        queues: queues that it claims from.
        workflows: names of its workflows.
        versions: version of each.
        about: what it says about its process, as JSON.
        digests: digest of the code of each workflow.
        signals: the signals that each receives, as JSON; None: none is registered.
        own_queues: the queue that each declares; None for all keeps what was registered.
        rules: the newest rules of replay that it knows.
    """

    worker: str
    queues: list[str]
    workflows: list[str]
    versions: list[str]
    about: str
    digests: list[str]
    signals: str | None = None
    own_queues: list[str | None] | None = None
    rules: int = RULES


HELLO = Procedure(
    signature="(worker, queues[], workflows[], versions[], about jsonb, digests[],"
    " signals jsonb [{types {name: JSON schema}, any}], own queues[], rules)"
    " -> jsonb {number, settings, now, codes, registered, is_new, unannounced[],"
    " holders [{pid, user, state, age_ms, query}]}",
    sql="select durable.worker_hello_v1($1, $2, $3, $4, $5, $6, $7, $8, $9)",
)

BLOCKED = Procedure(
    signature="(worker, ids[] that it left out for long) -> json [{id, pid, user, state, age_ms, query}]",
    sql="select coalesce(durable.worker_blocked_v1($1, $2), '[]')",
)

UNREAD_SIGNALS = Procedure(
    signature="(executions[]) -> rows (execution, name, how many were not received)",
    sql="select execution, name, unread from durable.unread_signals_v1($1::bigint[])",
)

IDLE = Procedure(
    signature=(
        "(worker, address, queues[], codes[] of hello, digests[], all three as text, ttl_ms, for ms) "
        "-> boolean, true if it is believed"
    ),
    sql=(
        "select durable.worker_idle_v1($1, $2, $3::text::text[], $4::text::text[], $5::text::text[], $6, $7)"
    ),
)

TURN = Procedure(
    signature=(
        "(worker, queues[], codes[] of hello, digests[], all three as text, want, reports jsonb, ttl_ms, "
        "with the hint, idle for ms, rules) -> json"
    ),
    sql=(
        "select durable.worker_turn_v1($1, $2::text::text[], $3::text::text[], $4::text::text[], "
        "$5, $6, $7, $8, $9, $10)"
    ),
)

JOURNAL = Procedure(
    signature="(worker, execution, id, version) -> json {next, rows} or null if the lease is lost",
    sql="select durable.worker_journal_v1($1, $2, $3, $4)",
)

TRANSACTION_LIMITS = Procedure(
    signature="(statement milliseconds text, idle milliseconds text), for the transaction only",
    sql=(
        "select set_config('statement_timeout', $1, true), set_config('lock_timeout', '0', true), "
        "set_config('idle_in_transaction_session_timeout', $2, true)"
    ),
)

HEARTBEAT = Procedure(
    signature=(
        "(worker, executions[], ids[], versions[], ms since its last tick) "
        "-> (executions[]: lost ones, as negative numbers those not renewed and not recorded, and a null if "
        "the worker is not registered; newest number of a run or null)"
    ),
    sql="select durable.worker_heartbeat_v1($1, $2, $3, $4, $5), durable.worker_newest_v1()",
)

TAKE_PRESENCE = Procedure(
    signature="(number) -> boolean, true if this session holds the lock now",
    sql="select pg_try_advisory_lock(1685417570, ($1::bigint & 2147483647)::integer)",
)

PRESENT = Procedure(
    signature="(worker, present) -> boolean, true if it is believed",
    sql="select durable.worker_present_v1($1, $2)",
)

RELEASE_UNKNOWN = Procedure(
    signature="(worker, known executions[], ids[] of those) -> ids[] given back",
    sql="select durable.worker_release_unknown_v1($1, $2, $3)",
)

BYE = Procedure(signature="(worker) -> number of tasks given back", sql="select durable.worker_bye_v1($1)")

TICK = Procedure(
    signature=(
        "(limit, schedules, worker) -> "
        "(jsonb {promises, leases, schedules, waits, next_due_ms, more, hints, gone_in_ms}, "
        "workers that watch, ms or null)"
    ),
    sql=(
        "select durable.tick_v1($1, $2) as answer, durable.worker_watch_v1($3) as watch, "
        "durable.services_due_v1() as services"
    ),
)

HINT = Procedure(signature="(ready, settled)", sql="select durable.hint_v1($1::boolean, $2::boolean)")


class StartRequest(NamedTuple):
    """The parameters of `durable.start_v1` that a client sends, in their order.

    Args:
        workflow: name of the workflow, or address of a service.
        args: JSON text of the arguments.
        id: id of the run.
        key: idempotency key.
        queue: queue name; None for the one that the workflow declares.
        version: version of the workflow.
        delay_ms: milliseconds before the run may start.
        timeout_ms: milliseconds until its deadline; None for none.
        priority: smaller is claimed first.
        tags: JSON text of its tags.
        tenant: tenant.
        any_workflow: the name need not be registered, because the caller knows the code.
        fresh: the id was made at random for this start, so no other run can have it.
    """

    workflow: str
    args: str
    id: str | None = None
    key: str | None = None
    queue: str | None = None
    version: str = "1"
    delay_ms: int | None = None
    timeout_ms: int | None = None
    priority: int = 0
    tags: str = "{}"
    tenant: str = ""
    any_workflow: bool = False
    fresh: bool = False

    def shared(self) -> tuple[Any, ...]:
        """The parameters that starts of one `START_FRESH` have in common."""
        return (
            self.workflow,
            self.queue,
            self.version,
            self.delay_ms,
            self.timeout_ms,
            self.priority,
            self.tags,
            self.tenant,
            self.any_workflow,
        )


# a driver or a user may have set up its own conversion of json, so JSON crosses clients' connections as text
_REQUEST = (
    "$1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::bigint, $8::bigint, $9::integer, "
    "$10::text::jsonb, $11::text, $12::boolean, $13::boolean"
)

START = Procedure(
    signature=(
        f"({', '.join(StartRequest._fields)}, with the hint, address for the result) "
        "-> (id, created, handed_off)"
    ),
    sql=f"select s.id, s.created, s.handed_off from durable.start_v1({_REQUEST}, $14::boolean, $15::text) s",
)

START_FRESH = Procedure(
    signature=(
        "(workflow, queue, version, delay_ms, timeout_ms, priority, tags jsonb, tenant, any_workflow, "
        "args[] of JSON text, ids[], with the hint) -> started: all or none"
    ),
    sql=(
        "select durable.start_fresh_v1($1::text, $2::text, $3::text, $4::bigint, $5::bigint, $6::integer, "
        "$7::text::jsonb, $8::text, $9::boolean, $10::text[], $11::text[], $12::boolean) as started"
    ),
)

START_WITHIN = Procedure(
    signature=(
        f"({', '.join(StartRequest._fields)}) -> (id, created), within a caller's transaction, with its hint"
    ),
    sql=(
        "select s.id, s.created, "
        "case when s.created then durable._hint('durable_ready', durable._now_ms()) end "
        f"from durable.start_v1({_REQUEST}) s"
    ),
)

START_NAMED_WITHIN = Procedure(
    signature=(
        f"({', '.join(StartRequest._fields)}) -> (id, created, recorded), as START_WITHIN; null, null and "
        "the recorded input if a run with this id or key has another one"
    ),
    # the recorded input is read first, because an error would end the transaction of the caller
    sql=(
        "select (s.started).id, (s.started).created, s.recorded, "
        "case when (s.started).created then durable._hint('durable_ready', durable._now_ms()) end "
        "from (select r.input as recorded, case when r.input is null or r.input = $2::text "
        f"then (select s from durable.start_v1({_REQUEST}) s) end as started "
        "from (select (durable.recorded_inputs_v1($1::text, array[coalesce($3::text, '')], "
        "array[coalesce($4::text, '')]))[1] as input offset 0) r offset 0) s"
    ),
)

RECORDED_INPUTS = Procedure(
    signature="(workflow, ids[], keys[], '' for none) -> inputs[], null where there is no run",
    sql="select durable.recorded_inputs_v1($1::text, $2::text[], $3::text[]) as inputs",
)

SIGNAL = Procedure(
    signature="(run, name, payload, key, with the hint) -> (delivery, created, woken)",
    sql=(
        "select s.delivery, s.created, s.woken, "
        "case when $5::boolean and s.created then durable.hint_v1(s.woken, not s.woken) end "
        "from durable.signal_v1($1::text, $2::text, $3::text, $4::text) s"
    ),
)

SIGNAL_WITHIN = Procedure(
    signature=(
        "(run, name, payload, key) -> (delivery, created), within a caller's transaction, with its hint"
    ),
    sql=(
        "select s.delivery, s.created, case when s.created then durable._hint("
        "case when s.woken then 'durable_ready' else 'durable_settled' end, durable._now_ms()) end "
        "from durable.signal_v1($1::text, $2::text, $3::text, $4::text) s"
    ),
)

CANCEL = Procedure(
    signature="(id, reason jsonb, grace_ms, force) -> state",
    sql=(
        "select durable.cancel("
        "$1::text, $2::text::jsonb, $3::bigint * interval '1 millisecond', $4::boolean) as state"
    ),
)

PAUSE = Procedure(signature="(id)", sql="select durable.pause($1::text)")

RESUME = Procedure(signature="(id)", sql="select durable.resume($1::text)")

REDRIVE = Procedure(
    signature="(id or null for all) -> number of runs", sql="select durable.redrive($1::text) as number"
)

RESCHEDULE = Procedure(
    signature="(id, instant or null, delay_ms or null) -> instant of the start",
    sql=(
        "select durable.reschedule("
        "$1::text, $2::timestamptz, $3::bigint * interval '1 millisecond') as start_at"
    ),
)

FORK = Procedure(
    signature="(id, seq, step, set_values jsonb, new_id, queue, version) -> id",
    sql=(
        "select durable.fork("
        "$1::text, $2::integer, $3::text, $4::text::jsonb, $5::text, $6::text, $7::text) as id"
    ),
)

AS_OF = Procedure(
    signature="(id, seq, at, generation) -> one durable.as_of_record",
    sql=(
        "select generation, seq, at, status, next_child, waiting_on, "
        "running::text, children::text, signals::text "
        "from durable.as_of($1::text, $2::integer, $3::timestamptz, $4::integer)"
    ),
)

WHY = Procedure(
    signature="(id, limit) -> rows of durable.why, details as text",
    sql=(
        "select depth, id, cause, sentence, since, until, details::text "
        "from durable.why($1::text, $2::integer)"
    ),
)

WHY_MANY = Procedure(
    signature="(ids[], limit for each) -> rows of durable.why with the id that was asked about, in order",
    sql=(
        "select u.id as asked, w.depth, w.id, w.cause, w.sentence, w.since, w.until, w.details::text "
        "from unnest($1::text[]) with ordinality as u (id, n) "
        "cross join lateral durable.why(u.id, $2::integer) with ordinality "
        "as w (depth, id, cause, sentence, since, until, details, place) order by u.n, w.place"
    ),
)

WHY_ALL = Procedure(
    signature="(limit) -> rows of durable.why_all",
    sql="select cause, name, runs, oldest, example, sentence from durable.why_all($1::integer)",
)

RESULTS = Procedure(
    signature="(ids[]) -> (id, state, value text, error text) of those settled or unknown (state null)",
    sql="select id, state, value, error from durable.results_v1($1::text[])",
)

# Python's years end with 9999: a later deadline counts as none, as infinity does
_STATUS = (
    "select id, workflow, version, state, queue, priority, args::text, result::text, error::text, "
    "problem::text, worker, crashes, waits_for, created_at, settled_at, "
    "case when deadline < '10000-01-01' then deadline end as deadline, parent, key, events, tags::text, "
    "(select row_to_json(p)::text from durable.progress p where p.id = r.id) as progress"
)
_FILTER = "($1::text is null or workflow = $1) and ($2::text is null or state = $2)"

RUN = Procedure(
    signature="(id) -> one row of the view durable.runs, with its children counted",
    sql=(
        f"{_STATUS}, (select row_to_json(c)::text from durable.child_counts(r.id) c) as children "
        "from durable.runs r where id = $1::text"
    ),
)

VALUE = Procedure(
    signature="(id, name) -> the last value that the run has set under this name, as JSON text",
    sql="select durable.get_value($1::text, $2::text)::text as value",
)

LIST_RUNS = Procedure(
    signature="(workflow or null, state or null, limit) -> rows of the view durable.newest, in its order",
    sql=f"{_STATUS}, null as children from durable.newest r where {_FILTER} limit $3::bigint",
)

LIST_LIVE = Procedure(
    signature="(workflow or null, state or null, limit) -> rows of the view durable.live, newest first",
    sql=(
        f"{_STATUS}, null as children from durable.live r where {_FILTER} "
        "order by execution desc limit $3::bigint"
    ),
)

LIST_FAILED = Procedure(
    signature="(workflow or null, state, limit) -> rows of the view durable.failed, newest first",
    sql=(
        f"{_STATUS}, null as children from durable.failed r "
        "where ($1::text is null or workflow = $1) and state = $2::text "
        "order by execution desc limit $3::bigint"
    ),
)

LIST_TAGGED = Procedure(
    signature="(workflow or null, state or null, limit, tags jsonb) -> rows of durable.runs, newest first",
    sql=(
        f"{_STATUS}, null as children from durable.runs r where {_FILTER} "
        "and tags <> '{}' and tags @> $4::text::jsonb order by execution desc limit $3::bigint"
    ),
)
