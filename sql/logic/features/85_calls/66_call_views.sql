-- Views for people: calls in scopes, attempts, pins, stale pins, claims. Ids are texts, as JSON has them.

create or replace function durable._attempt_state(p_attempt durable._call_attempts, p_promise text, p_task text)
returns text language sql immutable
as $$
  select case when p_attempt.exec_id is not null then 'completed_' || substr(p_attempt.phase, 11)
              when p_attempt.ended_at is not null or p_promise is distinct from 'pending' then 'failed_terminal'
              when p_attempt.failures > 0 and p_task = 'pending' then 'retry_wait'
              else p_attempt.phase end
$$;
comment on function durable._attempt_state(durable._call_attempts, text, text) is
  'The state of an attempt in the words of its life: poll_adapter, integrate_ok and integrate_error (an outcome is stored), retry_wait after a failure, completed_ok, completed_error, or failed_terminal: given up.';

create or replace view durable.call_attempts as
select durable._hex(a.execution_key) as execution_key, a.generation, durable._hex(a.node_id) as node, c.function, a.adapter,
       durable._attempt_state(a, p.state, t.state) as state, a.phase, t.state as task, t.pid as worker,
       durable._at(t.retry_at) as next_poll_at, a.polls, a.failures, a.budget, a.token, durable._hex(a.exec_id) as exec,
       durable._hex(a.outcome_dag) as dag, a.error::jsonb as error, durable._hex(a.value_key) as value_key, a.share,
       a.step_id as forced_by, a.uuid, durable._call_promise(a.execution_key) as promise,
       durable._at(a.created_at) as created_at, durable._at(a.ended_at) as ended_at,
       durable._at(nullif(p.timeout_at, durable._never())) as deadline,
       durable._json(p.param_data) #>> '{request,name}' as name
from durable._call_attempts a
join durable._calls c on c.value_key = a.value_key
left join durable._promises p on p.id = durable._call_promise(a.execution_key)
left join durable._tasks t on t.id = p.id;
comment on view durable.call_attempts is
  'Every run of a call, stored as a ledger. state: poll_adapter, integrate_ok and integrate_error (an outcome is stored), retry_wait after a failure, completed_ok, completed_error, or failed_terminal: given up. name: the label of the call that started it, while its promise is kept.';

create or replace view durable.pins as
select p.scope, durable._hex(p.node_id) as node, durable._hex(p.exec_id) as exec, e.sub as status,
       durable._hex(e.refs[2]) as result, p.version, durable._at(p.pinned_at) as pinned_at
from durable._pins p left join durable._objects e on e.id = p.exec_id;
comment on view durable.pins is
  'The exec map of each scope: which execution stands for a node there. result: its DAG, or the datum of a builtin.';

create or replace view durable.stale_pins as
select p.scope, durable._hex(p.node_id) as node, durable._hex(p.exec_id) as exec, i.place::integer as input,
       durable._hex(n.refs[i.place + 1]) as input_node, durable._hex(i.id) as computed_from,
       durable._hex(c.exec_id) as pinned_now
from durable._pins p
join durable._objects n on n.id = p.node_id
cross join lateral unnest(p.inputs) with ordinality as i (id, place)
join durable._pins c on c.scope = p.scope and c.node_id = n.refs[i.place + 1]
where i.id <> durable._no_object() and c.exec_id <> i.id;
comment on view durable.stale_pins is
  'Results that were computed from another execution of an input than the one that is pinned now. They are still served: durable.call_retry runs them again.';

create or replace view durable.calls as
select w.scope, durable._hex(w.node_id) as node, c.function, a.generation, durable._attempt_state(a, p.state, t.state) as state,
       w.forced, durable._hex(a.execution_key) as execution_key, durable._hex(i.exec_id) as exec, a.error::jsonb as error,
       durable._at(a.created_at) as started_at, durable._at(a.ended_at) as ended_at,
       durable._json(p.param_data) #>> '{request,name}' as name
from durable._call_waiters w
join durable._call_attempts a on a.execution_key = w.execution_key
join durable._calls c on c.value_key = a.value_key
left join durable._promises p on p.id = durable._call_promise(a.execution_key)
left join durable._tasks t on t.id = p.id
left join durable._pins i on i.scope = w.scope and i.node_id = w.node_id;
comment on view durable.calls is
  'Calls by scope, with each attempt that ran for them. A hit has no attempt here: look at durable.pins. exec: the one that is pinned now. name: the label of the call that started the attempt.';

create or replace view durable.claims as
select durable._hex(c.execution_key) as execution_key,
       case when c.outcome is not null or t.id is null then 'settled'
            when t.state = 'acquired' then 'owned' else 'free' end as state,
       t.pid as owner, t.version, durable._at(t.expires_at) as lease_until, c.backend, c.job_id as job, c.submit_token,
       c.takeovers, c.empty_polls, c.outcome, durable._hex(c.dag_id) as dag, durable._at(c.created_at) as created_at
from durable._claims c left join durable._tasks t on t.id = durable._claim_promise(c.execution_key);
comment on view durable.claims is 'Claims of orchestrators: the owner of the job of an execution key, and until when.';
