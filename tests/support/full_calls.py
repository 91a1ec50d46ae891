"""Tables full of calls, and the calls of functions that are made on them: for `features/sql/test_plans.py`.

Rows are lawful one by one, and not together: nobody asks durable.check() for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.support.verbs import Call, Connection, ask

FILL_CALLS = """
insert into durable._objects (created_at, id, kind, sub, scalar, refs)
select case kind when 'uri' then 3 else 1 end, sha256((kind || n)::bytea), case kind when 'uri' then 'datum'
  when 'i64' then 'datum' when 'literal' then 'node' when 'call' then 'node' when 'dag' then 'dag' else 'exec'
  end, case kind when 'ok' then 'ok' when 'dag' then '' else kind end,
  case kind when 'uri' then 'x:y'::bytea when 'i64' then int8send(n) end,
  case kind when 'literal' then array[sha256(('i64' || n)::bytea)]
    when 'call' then array[sha256('uri1'), sha256(('literal' || n)::bytea)]
    when 'dag' then array[sha256(('literal' || n)::bytea)]
    when 'ok' then array[sha256(('call' || n)::bytea), sha256(('dag' || n)::bytea)] else '{}' end
from generate_series(1, %(count)s) n, unnest(array['uri', 'i64', 'literal', 'call', 'ok']) kind
where kind <> 'uri' or n = 1;
insert into durable._objects (created_at, id, kind, sub, refs, names)
select 1, sha256(('dag' || n)::bytea), 'dag', '', array[sha256(('literal' || n)::bytea)], array['']
from generate_series(1, %(count)s) n;
insert into durable._object_uses (used_at, id) select 1, sha256(('dag' || n)::bytea)
from generate_series(1, %(count)s) n;
insert into durable._closures (excision, is_whole, id) select 1, true, sha256(('dag' || n)::bytea)
from generate_series(1, %(count)s) n;
select durable.scope_open('full');
insert into durable._refs (created_at, of_run, commit_id, name, kind)
select 1, true, r.commit_id, 'ready' || n, 'index' from durable._refs r, generate_series(1, %(count)s) n
where r.name = 'full';
insert into durable._pins (pinned_at, version, scope, node_id, exec_id)
select 1, 1, 'full', sha256(('call' || n)::bytea), sha256(('ok' || n)::bytea)
from generate_series(1, %(count)s) n;
insert into durable._pin_log (pinned_at, version, scope, node_id, exec_id, execution_key)
select 1, 1, 'full', sha256(('call' || n)::bytea), sha256(('ok' || n)::bytea), sha256(('0/' || n)::bytea)
from generate_series(1, %(count)s) n;
insert into durable._calls (value_key, generation, function, function_id, inputs)
select sha256(('v' || n)::bytea), 1, 'dml+exec://bulk/f', sha256('uri1'), array[sha256(('i64' || n)::bytea)]
from generate_series(1, %(count)s) n;
insert into durable._call_attempts (created_at, ended_at, deadline, generation, budget, share, uuid,
  execution_key, value_key, node_id, phase, adapter, served_as, outcome_dag, exec_id)
select 1, case g when 0 then 2 end, durable._now_ms() + 1000000000 + n, g, 5, true, gen_random_uuid(),
  sha256((g || '/' || n)::bytea), sha256(('v' || n)::bytea), sha256(('call' || n)::bytea),
  case g when 0 then 'integrate_ok' else 'poll_adapter' end, 'bulk', 'bulk',
  case g when 0 then sha256(('dag' || n)::bytea) end, case g when 0 then sha256(('ok' || n)::bytea) end
from generate_series(1, %(count)s) n, generate_series(0, 1) g;
insert into durable._promises (id, timeout_at, created_at, external, target)
select durable._call_promise(a.execution_key), a.deadline, 1, true, 'poll://any@adapter:bulk'
from durable._call_attempts a where a.served_as = 'bulk' and a.ended_at is null;
insert into durable._tasks (id, deadline, queue, state, version, retry_at)
select p.id, p.timeout_at, 'adapter:bulk', 'pending', 1, durable._now_ms() + 500000000
from durable._promises p where p.target = 'poll://any@adapter:bulk';
insert into durable._adapters (seen_at, worker, adapter)
values (durable._now_ms() + 1000000000, 'BULK', 'bulk');
insert into durable._call_waiters (forced, execution_key, scope, node_id)
select false, a.execution_key, 'full', a.node_id from durable._call_attempts a where a.served_as = 'bulk';
insert into durable._call_steps (created_at, step_id, scope, node_id, exec_id)
select 1, 's' || n, 'full', sha256(('call' || n)::bytea), sha256(('ok' || n)::bytea)
from generate_series(1, %(count)s) n;
insert into durable._call_polls (started_at, ended_at, seq, version, execution_key, class)
select 1, 2, 1, 1, sha256(('0/' || n)::bytea), 'done' from generate_series(1, %(count)s) n;
insert into durable._claims (created_at, execution_key, submit_token, outcome, dag_id)
select 1, sha256(('0/' || n)::bytea), 't', 'ok', sha256(('dag' || n)::bytea)
from generate_series(1, %(count)s) n;
"""
STAGES = ("scopes", "steps", "pins", "attempts", "keys", "claims", "snapshots")
VIEWS = {
    "select count(*) from durable.objects where id = %s": "call77",
    "select count(*) from durable.execs where exec = %s": "ok77",
    "select count(*) from durable.execs where node = %s": "call77",
    "select count(*) from durable.pins where node = %s": "call77",
    "select count(*) from durable.calls where node = %s": "call77",
    "select count(*) from durable.call_attempts where node = %s": "call77",
    "select count(*) from durable.call_attempts where execution_key = %s": "0/77",
}
"""What people ask of views by an id as text, and whose id it is."""


def _of_adapters(conn: Connection, tag: str) -> Iterator[tuple[str, Call]]:
    """The life of an attempt, from its start to its result, and of another that is cancelled."""
    adapter, begin = f"a{tag}", "select durable.call_begin(%s, %s, array[durable.literal(%s)])"
    function = f"dml+exec://{adapter}/f"
    yield "scope_open", ("select version from durable.scope_open(%s)", (tag,))
    ask(conn, ("select version from durable.scope_open(%s)", (f"{tag}2",)))
    yield "call_that_starts", (begin, (tag, function, "1"))
    yield "call_that_joins", (begin, (f"{tag}2", function, "1"))
    lease = "select durable.call_lease_v1('W', %s, 15000, 5)"
    yield "lease", (lease, ([adapter],))
    key, node = ask(
        conn,
        ("select execution_key, node_id from durable._call_attempts where served_as = %s", (adapter,)),
    )
    report = "select durable.call_report_v1(%s, %s, %s)"
    pending = json.dumps({"class": "pending", "token": "t", "poll_after_ms": 100_000})
    yield "report_that_is_pending", (report, (key, 1, pending))
    yield "call_sweep", ("select durable.call_sweep_v1()", ())
    yield "call_wake", ("select durable.call_wake(%s)", (key,))
    ask(conn, (lease, ([adapter],)))
    done = json.dumps({"class": "done", "outcome": "ok", "value": {"i64": 7}})
    yield "report_that_is_done", (report, (key, 2, done))
    yield "call_result", ("select durable.call_result_v1(%s, %s, %s)", (key.hex(), node.hex(), tag))
    yield "pinned_hit", (begin, (tag, function, "1"))
    ask(conn, ("select version from durable.scope_open(%s)", (f"{tag}3",)))
    yield "shared_hit", (begin, (f"{tag}3", function, "1"))
    yield "call_history", ("select count(*) from durable.call_history(%s)", (node,))
    explain = "select durable.explain_miss(%s, %s, array[durable.literal(%s)])"
    yield "explain_miss", (explain, (tag, function, "2"))
    yield "call_retry", ("select durable.call_retry(%s, %s)", (tag, node))
    yield "call_cancel", ("select durable.call_cancel(%s, %s)", (tag, node))
    yield "call_invalidate", ("select durable.call_invalidate(function => %s)", (function,))
    step = "select durable.call_v1(%s, %s, '{}', %s, null)"
    yield "call_of_a_run", (step, (function, '[{"datum": {"i64": 1}}]', f"{tag}r1.77"))
    builtin = "select durable.builtin('list/construct', array[durable.literal('1')], %s)"
    yield "builtin", (builtin, (tag,))
    yield "snapshot", ("select ref from durable.snapshot_create(%s)", (tag,))
    yield "scope_commit", ("select durable.scope_commit(%s)", (tag,))
    yield "scope_drop", ("select durable.scope_drop(%s)", (f"{tag}3",))


def _of_orchestrators(tag: str) -> Iterator[tuple[str, Call]]:
    """The life of a claim."""
    key = f"sha256('{tag}')"
    yield "claim_acquire", (f"select durable.claim_acquire({key}, 'o', 60000)", ())
    yield "claim_submitted", (f"select durable.claim_submitted({key}, 1, 'b', 'j')", ())
    yield "claim_refresh", (f"select durable.claim_refresh({key}, 1)", ())
    yield "claim_release", (f"select durable.claim_release({key}, 1)", ())
    yield "claim_takeover", (f"select durable.claim_acquire({key}, 'p', 60000)", ())
    yield "claim_done", (f"select durable.claim_done({key}, 2, 'ok', sha256('r'))", ())


def call_calls(conn: Connection, tag: str) -> Iterator[tuple[str, Call]]:
    """Every function of calls, with something to do."""
    yield from _of_adapters(conn, tag)
    yield from _of_orchestrators(tag)
    for stage in STAGES:
        place = json.dumps({"stage": stage, "after": ""})
        yield f"purge_of_{stage}", ("select removed from durable._purge_calls(2, %s, 2)", (place,))
    yield "collection", ("select removed from durable.objects_collect('1 day', 2)", ())
    yield "closure_status", ("select durable.closure_status(sha256('dag77'))", ())
