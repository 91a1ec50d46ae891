-- Journals for replay-check, as they were recorded and with what their code began with.

create or replace function durable.journal_list_v1(p_workflows text[], p_all boolean)
returns table (workflow text, version text, executions bigint[], events integer[]) language sql stable
as $$
  select h.workflow, h.workflow_version, array_agg(h.execution order by h.execution), array_agg(h.next_seq order by h.execution)
  from (select t.execution from durable._tasks t where not p_all and t.execution is not null
        union all
        select e.execution from durable._executions e where p_all) as x
  join durable._executions h on h.execution = x.execution
  where not h.written_by_client and (p_workflows is null or h.workflow = any (p_workflows))
  group by h.workflow, h.workflow_version
  order by h.workflow, h.workflow_version
$$;
comment on function durable.journal_list_v1(text[], boolean) is
  'For replay-check: journals of live runs, or of all that are kept (p_all), generations that continued as new among them, with their lengths. Only reads: a standby will do.';

create or replace function durable._passed_on(p_head durable._executions)
returns text language sql stable
as $$
  select case c.type when 'execution_failed' then (e.data -> 'error')::text else durable._data(s) end
  from durable._journal c
  cross join lateral (select case when durable._ends_run(c.type) then durable._json(durable._data(c)) end as data) e
  join durable._executions n on n.execution = any (array[(e.data ->> 'continued_as')::bigint])
  join durable._journal s on s.execution = any (array[n.execution]) and s.bucket = n.bucket and s.seq = 0
  where c.execution = p_head.execution and c.bucket = p_head.bucket and c.seq = p_head.next_seq - 1
$$;
comment on function durable._passed_on(durable._executions) is
  'Arguments that a generation which continued as new passed to the next one, or the error of one that was tried again; null for any other.';

create or replace function durable.journals_v1(p_executions bigint[])
returns table (execution bigint, id text, workflow text, version text, param text, started_at bigint, queue text,
               first_child integer, state text, outcome text, waiting_on integer[], "rows" json, rules smallint, digest text)
language sql stable
as $$
  select h.execution, h.id, h.workflow, h.workflow_version,
         case when h.previous is null then durable._input(p.param_headers, p.param_data) else r.input end,
         r.started_at,
         coalesce(t.queue, durable._queue_of(p.target)), h.first_child,
         case when p.head is distinct from h.execution then case h.status when 'failed' then 'failed' else 'continued' end
              else durable._run_state(p.state, t.state, t.retry_at, h.status, h.problem) end,
         case when p.head is distinct from h.execution then durable._passed_on(h)
              when p.state = 'resolved' then p.value_data
              when p.state <> 'pending' then durable._error_of(p.state, p.value_data) end,
         h.waiting_on, r."rows", h.rules, encode(durable._writer(h), 'hex')
  from unnest(p_executions) x (execution)
  join durable._executions h on h.execution = any (array[x.execution])
  join durable._promises p on p.id = any (array[h.id])
  left join durable._tasks t on t.id = any (array[h.id]) and t.execution = h.execution
  cross join lateral durable._rows(h.execution, h.bucket, h.id, 0, h.next_seq) r
  order by h.execution
$$;
comment on function durable.journals_v1(bigint[]) is
  'For replay-check: whole journals with what their code began with, where each stands, and how it ended (outcome: value, error, or what was passed on). Only reads: a standby will do.';
