"""The statements of the older API.

Lives here: procedures for its promises, tasks, schedules and messages, in the form of
database/statements/procedures.py. May not: runs, workers, a decision. An answer is a status, a word, and what
was asked for as JSON text.
"""

from __future__ import annotations

from pyengine.core.database.statements.procedures import Procedure
from pyengine.doors.gateway.statements.gateway import claim_of_unblocks

# payloads in the form that older SDKs read
_ANSWER = "select a.status, a.word, durable._wire_v0(a.promise)::text as promise"

CREATE = Procedure(
    signature="(id, key, data, headers json, timeout, strict, tags json) -> (status, word, promise json)",
    sql=(
        f"{_ANSWER} from durable.promise_create_v0("
        "$1::text, $2::text, $3::text, $4::text::jsonb, $5::bigint, $6::boolean, $7::text::jsonb) a"
    ),
)

CREATE_WITH_TASK = Procedure(
    signature=(
        "(id, key, data, headers json, timeout, strict, tags json, process id, ttl) "
        "-> (status, word, promise json, task json)"
    ),
    sql=(
        f"{_ANSWER}, a.task::text as task "
        "from durable.promise_task_v0($1::text, $2::text, $3::text, $4::text::jsonb, $5::bigint, "
        "$6::boolean, $7::text::jsonb, $8::text, $9::bigint) a"
    ),
)

CREATE_WITH_CALLBACK = Procedure(
    signature=(
        "(id, key, data, headers json, timeout, strict, tags json, callback id, root id, callback timeout, "
        "recv json) -> (status, word, promise json, callback json)"
    ),
    sql=(
        f"{_ANSWER}, a.callback::text as callback "
        "from durable.promise_with_callback_v0($1::text, $2::text, $3::text, $4::text::jsonb, $5::bigint, "
        "$6::boolean, $7::text::jsonb, $8::text, $9::text, $10::bigint, $11::text::jsonb) a"
    ),
)

_SETTLE = (
    _ANSWER + " from durable.promise_{}_v0($1::text, $2::text, $3::text, $4::text::jsonb, $5::boolean) a"
)
_SETTLE_SIGNATURE = "(id, key, data, headers json, strict) -> (status, word, promise json)"

SETTLE = {
    "RESOLVED": Procedure(signature=_SETTLE_SIGNATURE, sql=_SETTLE.format("resolve")),
    "REJECTED": Procedure(signature=_SETTLE_SIGNATURE, sql=_SETTLE.format("reject")),
    "REJECTED_CANCELED": Procedure(signature=_SETTLE_SIGNATURE, sql=_SETTLE.format("cancel")),
}

READ = Procedure(
    signature="(id) -> (status, word, promise json)",
    sql=f"{_ANSWER} from durable.promise_read_v0($1::text) a",
)

SEARCH = Procedure(
    signature="(pattern, state, tags json, limit, cursor) -> (promises json, cursor)",
    sql=(
        "select (select coalesce(jsonb_agg(durable._wire_v0(p.promise) order by p.place), '[]') "
        "from jsonb_array_elements(a.promises) with ordinality as p (promise, place))::text as promises, "
        "a.cursor "
        "from durable.promise_search_v0($1::text, $2::text, $3::text::jsonb, $4::integer, $5::text) a"
    ),
)

CALLBACK = Procedure(
    signature="(id, promise id, root id, timeout, recv json) -> (status, word, callback json, promise json)",
    sql=(
        f"{_ANSWER}, a.callback::text as callback "
        "from durable.promise_callback_v0($1::text, $2::text, $3::text, $4::bigint, $5::text::jsonb) a"
    ),
)

SUBSCRIBE = Procedure(
    signature="(id, promise id, timeout, recv json) -> (status, word, callback json, promise json)",
    sql=(
        f"{_ANSWER}, a.callback::text as callback "
        "from durable.promise_subscribe_v0($2::text, $4::text::jsonb, $1::text, $3::bigint) a"
    ),
)

CLAIM = Procedure(
    signature="(id, counter, process id, ttl) -> (status, word, message json)",
    sql=(
        "select a.status, a.word, a.message::text as message "
        "from durable.task_claim_v0($1::text, $2::integer, $3::text, $4::bigint) a"
    ),
)

COMPLETE_TASK = Procedure(
    signature="(id, counter) -> (status, word)",
    sql="select a.status, a.word from durable.task_complete_v0($1::text, $2::integer) a",
)

DROP_TASK = Procedure(
    signature="(id, counter) -> (status, word)",
    sql="select a.status, a.word from durable.task_drop_v0($1::text, $2::integer) a",
)

HEARTBEAT = Procedure(
    signature="(process id, prefix of ids) -> number of its tasks",
    sql="select durable.task_heartbeat_v0($1::text, $2::text)",
)

CREATE_SCHEDULE = Procedure(
    signature=(
        "(id, cron, promise id, promise timeout, data, headers json, tags json) "
        "-> (status, word, schedule json)"
    ),
    sql=(
        "select a.status, a.word, a.schedule::text as schedule from durable.schedule_create_v0($1::text, "
        "$2::text, $3::text, $4::bigint, $5::text, $6::text::jsonb, $7::text::jsonb) a"
    ),
)

READ_SCHEDULE = Procedure(
    signature="(id) -> (status, word, schedule json)",
    sql="select a.status, a.word, a.schedule::text as schedule from durable.schedule_read_v0($1::text) a",
)

DELETE_SCHEDULE = Procedure(
    signature="(id) -> (status, word)",
    sql="select a.status, a.word from durable.schedule_delete_v0($1::text) a",
)

OLDER_OFFERS = Procedure(
    signature="(addresses of members[], rooms[]) -> (address, id, version, ms until it comes again, message)",
    sql=(
        "select o.address, o.id, o.version, durable._setting_int('retry_offer_ms')::integer as retry_ms, "
        "m.message::text as message from durable.task_offer_many($1::text[], $2::integer[]) o "
        "cross join lateral durable._task_messages_v0(array[o.id], array[o.version]) as m (message)"
    ),
)

OLDER_UNBLOCKS = claim_of_unblocks(
    "select u.promise_id, u.address, durable._wire_v0(r.promise)::text as promise, "
    "r.promise ->> 'state' <> 'PENDING' as settled "
    "from durable.unblock_claim_many($1::text[], $2::integer, $3::integer) u "
    "cross join lateral durable._read_v0(u.promise_id, 0) as r (promise)"
)
