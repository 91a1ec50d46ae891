-- Calls of workflows to functions of other languages: children whose promise has a target and a task without a workflow, which
-- clients of the protocol serve. The param is a call in the envelope of the SDKs, and the tags are those that an SDK would give.

create or replace function durable._call_tags(p_id text, p_parent durable._promises, p_target text)
returns jsonb language sql immutable
as $$
  select jsonb_build_object(
    'resonate:scope', 'global', 'resonate:target', p_target, 'resonate:branch', p_id, 'resonate:parent', p_parent.id,
    'resonate:origin', coalesce(p_parent.tags ->> 'resonate:origin', p_parent.id))
$$;
comment on function durable._call_tags(text, durable._promises, text) is
  'The tags of a call: its own branch, below its run, in the tree of whoever began the run.';

create or replace function durable._make_calls(p_reports durable._run_report[], p_now bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_ids text[];
  v_queues text[];
begin
  if not exists (select from unnest(p_reports) b cross join lateral unnest(b.commands) a where a."do" = 'rpc') then
    return '{}';
  end if;
  with command as materialized (
    select b.id || '.' || a.child as id, b.id as parent, b.execution, a.child, r.tenant, a.param, x.target,
           durable._later(p_now, a.timeout) as timeout_at,
           durable._call_tags(b.id || '.' || a.child, r, x.target) as tags
    from unnest(p_reports) b
    join durable._promises r on r.id = any (array[b.id])
    cross join lateral unnest(b.commands) a
    cross join lateral (select durable._canonical_address(a.queue) as target offset 0) x
    where b.verdict = 'ok' and a."do" = 'rpc'
  ), promise as (
    insert into durable._promises (id, tenant, timeout_at, created_at, execution, child, external, target, param_data, tags)
    select a.id, a.tenant, a.timeout_at, p_now, a.execution, a.child, true, a.target, durable._in_envelope(a.param), a.tags
    from command a
  ), task as (
    insert into durable._tasks (id, owner, deadline, retry_at, queue, preference)
    select a.id, a.execution, a.timeout_at, p_now, durable._queue_of(a.target), durable._preference_of(a.target)
    from command a
  ), callback as (
    insert into durable._callbacks (awaited_id, awaiter_id) select a.id, a.parent from command a
  )
  select array_agg(a.id), array_agg(distinct durable._queue_of(a.target)) into v_ids, v_queues from command a;
  perform durable._make_runs(v_ids, p_now);
  return coalesce(v_queues, '{}');
end
$$;
comment on function durable._make_calls(durable._run_report[], bigint) is
  'Creates the promises and tasks of the calls of a turn, and the callbacks of their runs. A call of a published workflow becomes a run. Returns their queues.';
