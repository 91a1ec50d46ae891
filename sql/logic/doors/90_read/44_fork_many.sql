-- Forks of many runs that have ended: failed ones are tried again under new ids. The id of a fork is made of its origin and the
-- key of the call, so the same call again makes none twice. The request is examined run by run before anything is locked; then
-- all locks are taken at once, in the one order, and each fork is made under them.

create or replace function durable._fork_id(p_id text, p_key text)
returns text language sql immutable parallel safe
as $$
  select left(encode(sha256('fork'::bytea || int4send(octet_length(p_id)) || convert_to(p_id, 'UTF8')
                            || convert_to(p_key, 'UTF8')), 'hex'), 32)
$$;
comment on function durable._fork_id(text, text) is
  'The id of the fork of a run that a call of durable.fork_many with this key makes. No hash of durable._root_id begins so.';

create or replace function durable._retry_seq(p_head durable._executions)
returns integer language sql stable
as $$
  select c.began
  from durable._fork_children(p_head.execution, p_head.next_seq) c
  join durable._journal j on j.execution = p_head.execution and j.bucket = p_head.bucket and j.seq = c.ended
  join durable._promises r on r.id = any (array[p_head.id]) and r.state = 'rejected'
  left join durable._promises p on p.id = any (array[coalesce(j.name, p_head.id || '.' || c.child)])
  where (j.type in ('step_failed', 'open_step_failed', 'last_attempt_failed')
         or (durable._settles_child(j.type) and p.state <> 'resolved'))
  order by c.ended desc limit 1
$$;
comment on function durable._retry_seq(durable._executions) is
  'Where a run that failed is tried again: the number of the event with which the last call that failed began; null for all of its events.';

create or replace function durable._plan_fork(
  p_id text, p_seq integer, p_step text, p_values jsonb, p_queue text, p_version text, out upto integer, out adopted text[],
  out problem text)
language plpgsql volatile
as $$
declare
  v_from durable._executions;
begin
  select h.* into v_from from durable._promises p join durable._executions h on h.execution = p.head where p.id = p_id;
  v_from.workflow_version := coalesce(p_version, v_from.workflow_version);
  perform durable._check_fork(v_from, p_seq, p_step, p_values, null, p_queue);
  upto := durable._fork_position(
    v_from, case when p_step is null then coalesce(p_seq, durable._retry_seq(v_from)) end, p_step);
  adopted := durable._check_adopted(v_from, upto, durable._fork_values(v_from, upto, p_values));
exception when sqlstate 'WF001' or sqlstate 'WF004' then
  get stacked diagnostics problem = message_text;
end
$$;
comment on function durable._plan_fork(text, integer, text, jsonb, text, text) is
  'The position of a fork and the promises of others that it adopts; or the problem, why this run cannot be forked so.';

create or replace function durable._fork_planned(
  p_id text, p_upto integer, p_values jsonb, p_new_id text, p_queue text, p_version text)
returns text language plpgsql volatile
as $$
declare
  v_problem text;
begin
  perform durable._fork(p_id, p_upto, null, p_values, p_new_id, p_queue, p_version);
  return null;
exception when sqlstate 'WF001' or sqlstate 'WF003' or sqlstate 'WF004' then
  get stacked diagnostics v_problem = message_text;
  return v_problem;
end
$$;
comment on function durable._fork_planned(text, integer, jsonb, text, text, text) is
  'Makes a fork whose locks the caller holds. Null, or the problem: what it needs was removed since it was planned.';

create or replace function durable._fork_origins(p_ids text[], p_key text)
returns table (n bigint, id text, fork text, outcome text, problem text) language sql stable
as $$
  select u.n, u.id, x.fork, case
      when p.head is null then 'not_found'
      when x.fork = u.id or exists (select from durable._promises f where f.id = any (array[x.fork]))
           or exists (select from durable._removed r where r.id = any (array[x.fork])) then 'already'
      when p.state = 'pending' then 'refused' end,
    case when p.state = 'pending' and p.head is not null then 'it has not ended' end
  from unnest(p_ids) with ordinality as u (id, n)
  left join durable._promises p on p.id = any (array[u.id])
  left join durable._forks o on o.id = any (array[u.id])
  cross join lateral (
    select case when u.id = durable._fork_id(o.origin_id, p_key) then u.id else durable._fork_id(u.id, p_key) end as fork) x
$$;
comment on function durable._fork_origins(text[], text) is
  'Each run with the id of its fork by a call with this key. outcome is null if it can be made; a fork that such a call has made is no origin for it.';

create or replace function durable._check_fork_many(p_ids text[], p_key text, p_values jsonb)
returns void language plpgsql stable
as $$
begin
  if p_key is null or octet_length(p_key) not between 1 and 512 then
    perform durable._fail_invalid(
      'fork_many has a key of 1 to 512 bytes, by which the same call again makes no fork twice.',
      'select * from durable.fork_many(array[''order-1'', ''order-2''], ''2026-11-28 card declined'')');
  elsif cardinality(p_ids) > durable._most_names() then
    perform durable._fail_invalid(format('These are %s runs, and %s is the most.', cardinality(p_ids), durable._most_names()),
                                  'Fork them in portions, each in a transaction of its own.');
  elsif p_values is null or jsonb_typeof(p_values) <> 'object' then
    perform durable._fail_invalid('set_values is a JSON object: {"<number or name of a call>": <value>}.');
  end if;
  perform durable._check_may_lock();
end
$$;
comment on function durable._check_fork_many(text[], text, jsonb) is 'Checks what all forks of a call share. WF003, WF004.';

create or replace function durable.fork_many(
  ids text[], key text, seq integer default null, step text default null, set_values jsonb default '{}',
  queue text default null, version text default null)
returns table (id text, outcome text, fork text, problem text) language plpgsql volatile
as $$
declare
  v_ids text[] := durable._distinct_ids($1);
  v_forks text[] := '{}';
  v_outcomes text[] := '{}';
  v_problems text[] := '{}';
  v_uptos integer[] := '{}';
  v_adopted text[] := '{}';
  v_one record;
begin
  perform durable._check_fork_many(v_ids, $2, $5);
  perform durable._lock_families(array(select o.fork from durable._fork_origins(v_ids, $2) o), true);
  for v_one in
    select o.fork, o.outcome, coalesce(o.problem, l.problem) as problem, l.upto, l.adopted
    from durable._fork_origins(v_ids, $2) o
    left join lateral durable._plan_fork(o.id, $3, $4, $5, $6, $7) l on o.outcome is null order by o.n
  loop
    v_forks := v_forks || v_one.fork;
    v_outcomes := v_outcomes || coalesce(v_one.outcome, case when v_one.problem is null then 'done' else 'refused' end);
    v_problems := v_problems || v_one.problem;
    v_uptos := v_uptos || v_one.upto;
    v_adopted := v_adopted || v_one.adopted;
  end loop;
  perform durable._lock_promises(v_adopted);
  perform durable._lock_heads(array(select p.head from durable._promises p
                                    where p.id = any (durable._chosen(v_ids, v_outcomes))));
  for i in 1..cardinality(v_ids) loop
    if v_outcomes[i] = 'done' then
      v_problems[i] := durable._fork_planned(v_ids[i], v_uptos[i], $5, v_forks[i], $6, $7);
      v_outcomes[i] := case when v_problems[i] is null then 'done' else 'refused' end;
    end if;
  end loop;
  return query
  select u.id, u.outcome, case when u.outcome in ('done', 'already') then u.fork end, u.problem
  from unnest(v_ids, v_outcomes, v_forks, v_problems) with ordinality as u (id, outcome, fork, problem, n) order by u.n;
end
$$;
comment on function durable.fork_many(text[], text, integer, text, jsonb, text, text) is
  'Forks many runs that have ended, to try them again under new ids: select * from durable.fork_many(durable.matching_ended_runs(workflow => ''pay'', state => ''failed''), ''2026-11-28 card declined''). Without a position each goes on before the last call that failed; one that failed without one, or did not fail, with all of its events. seq => 1: from the beginning; step: before the first call of that name. set_values, queue and version as for durable.fork. Answers for each id, once, its fork and done; already, if a call with this key has made it, or it is such a fork; refused, with the problem: it has not ended, or cannot be forked so; not_found. Two such calls never deadlock with each other. WF003, WF004, WF008.';
