-- The verbs for many: one call for any number of runs or promises, in a fixed number of statements. All locks are taken at
-- once, in the one order, so two such calls never deadlock, whatever ids they name and in whatever order. A single verb raises;
-- here each id gets an outcome, so that a run that has ended does not fail the others.

create or replace function durable._distinct_ids(p_ids text[])
returns text[] language plpgsql stable
as $$
begin
  if p_ids is null or exists (select from unnest(p_ids) i where i is null or i = '') then
    perform durable._fail_invalid('ids is an array of ids; it and they are neither null nor empty.',
                                  'select * from durable.cancel_many(array[''order-1'', ''order-2'']), or durable.matching_runs(...).');
  end if;
  return array(select u.id from unnest(p_ids) with ordinality as u (id, n) group by u.id order by min(u.n));
end
$$;
comment on function durable._distinct_ids(text[]) is 'Each id once, in the order in which the ids are first given. WF004.';

create or replace function durable._each_value(p_ids text[], p_all jsonb, p_each jsonb[])
returns text[] language plpgsql stable
as $$
begin
  if p_each is null then
    return array_fill(p_all::text, array[cardinality(p_ids)]);
  elsif cardinality(p_each) <> cardinality(p_ids) or cardinality(durable._distinct_ids(p_ids)) <> cardinality(p_ids) then
    perform durable._fail_invalid(
      format('There are %s ids, %s different ones, and %s values: one for each id, and each id once.', cardinality(p_ids),
             cardinality(durable._distinct_ids(p_ids)), cardinality(p_each)));
  end if;
  return array(select u.value::text from unnest(p_each) with ordinality as u (value, n) order by u.n);
end
$$;
comment on function durable._each_value(text[], jsonb, jsonb[]) is
  'The value for each of the ids, as text: the one of p_each, or p_all if p_each is null. WF004.';

create or replace function durable.matching_runs(
  workflow text default null, state text default null, tags jsonb default null, started_after timestamptz default null,
  started_before timestamptz default null, after text default '', at_most integer default 1000)
returns text[] language plpgsql volatile
as $$
begin
  if $2 not in ('scheduled', 'queued', 'running', 'waiting', 'paused', 'halted', 'dead', 'cancelling') then
    perform durable._fail_invalid(
      format('%L is no state of a run that has not ended.', $2),
      'The states are scheduled, queued, running, waiting, paused, halted, dead and cancelling; null means any.');
  elsif $7 is null or $7 not between 1 and 10000 then
    perform durable._fail_invalid('at_most is between 1 and 10000.', 'Take the rest with after => the last id of the answer.');
  elsif $3 is not null and not durable._are_tags($3) then
    perform durable._fail_invalid('Tags are a JSON object of strings.');
  end if;
  return array(
    select t.id
    from durable._tasks t
    cross join lateral (select e.* from durable._executions e where e.execution = t.execution offset 0) h
    cross join lateral (select r.* from durable._promises r where r.id = t.id offset 0) p
    where t.id > coalesce($6, '') and t.execution is not null
      and ($1 is null or h.workflow = $1)
      and ($3 is null or p.tags @> $3)
      and ($4 is null or durable._at(p.created_at) >= $4)
      and ($5 is null or durable._at(p.created_at) < $5)
      and ($2 is null or durable._run_state(p.state, t.state, t.retry_at, h.status, h.problem) = $2)
    order by t.id limit $7);
end
$$;
comment on function durable.matching_runs(text, text, jsonb, timestamptz, timestamptz, text, integer) is
  'Ids of runs that have not ended, child runs included, for the verbs for many: select * from durable.cancel_many(durable.matching_runs(workflow => ''mail.send'', state => ''waiting'')). By workflow, by state as in durable.runs, by tags, and by instant of start (from, to before). In the order of ids, at_most so many (1000); for the next portion: after => the last id. Called alone it is the dry run. It reads only runs that have not ended. WF004.';

create or replace function durable._lock_live_runs(p_ids text[], p_revoke boolean)
returns bigint language plpgsql volatile
as $$
declare
  v_due text[];
  v_tasks text[];
  v_count integer;
  v_now bigint := durable._now_ms();
begin
  v_due := array(select p.id from durable._promises p
                 where p.id = any (p_ids) and p.state = 'pending' and p.timeout_at <= v_now);
  v_count := cardinality(v_due);
  perform durable._lock_promises(v_due);
  v_tasks := p_ids || durable._awaiters_of(v_due);
  if p_revoke or v_count > 0 then
    perform durable._lock_tasks_to_revoke(v_tasks);
  else
    perform durable._lock_tasks(v_tasks);
  end if;
  perform durable._lock_heads(durable._heads_of(v_due, v_tasks));
  v_now := durable._now_ms();
  if v_count > 0 then
    perform durable._settle(v_due, array_fill(null::text, array[v_count]), array_fill(null::jsonb, array[v_count]),
                            array_fill(null::text, array[v_count]), v_now);
  end if;
  return v_now;
end
$$;
comment on function durable._lock_live_runs(text[], boolean) is
  'Locks tasks and heads of runs, all at once. Runs past their deadline are settled, with the locks that a settlement needs. p_revoke: leases are revoked. Answers the instant after the last lock.';

create or replace function durable._obstacles(p_ids text[], p_now bigint)
returns table (n bigint, id text, fault text, execution bigint, task text, status text) language plpgsql stable
as $$
begin
  return query
  select u.n, u.id, case when p.head is null then 'not_found' when coalesce(t.deadline <= p_now, true) then 'ended' end,
         coalesce(t.execution, p.head), t.state, h.status
  from unnest(p_ids) with ordinality as u (id, n)
  left join durable._promises p on p.id = any (array[u.id])
  left join durable._tasks t on t.id = any (array[u.id])
  left join durable._executions h on h.execution = any (array[t.execution]);
end
$$;
comment on function durable._obstacles(text[], bigint) is
  'Why a verb cannot be applied to each of these runs, whose locks the caller has; fault is null if it can.';

create or replace function durable._outcomes(p_ids text[], p_outcomes text[])
returns table (id text, outcome text, state text) language plpgsql volatile
as $$
begin
  return query
  select u.id, u.outcome, durable._run_state(p.state, t.state, t.retry_at, h.status, h.problem)
  from unnest(p_ids, p_outcomes) with ordinality as u (id, outcome, n)
  left join durable._promises p on p.id = any (array[u.id]) and p.head is not null
  left join durable._tasks t on t.id = any (array[p.id])
  left join durable._executions h on h.execution = any (array[p.head])
  order by u.n;
end
$$;
comment on function durable._outcomes(text[], text[]) is 'The answer of a verb for many: each run with its outcome and its state now.';

create or replace function durable._chosen(p_ids text[], p_outcomes text[])
returns text[] language sql stable
as $$ select array(select u.id from unnest(p_ids, p_outcomes) as u (id, outcome) where u.outcome = 'done') $$;
comment on function durable._chosen(text[], text[]) is 'The ids to which the verb is applied.';

create or replace function durable.signal_many(
  ids text[], name text, payload jsonb default null, dedup text default null, payloads jsonb[] default null)
returns table (id text, outcome text, delivery integer) language plpgsql volatile
as $$
declare
  v_ids text[] := durable._distinct_ids($1);
  v_texts text[] := durable._each_value($1, $3, $5);
  v_now bigint;
  v_outcomes text[];
  v_known integer[];
  v_runs bigint[];
  v_deliveries integer[];
  v_woken boolean;
begin
  perform durable._check_signal(v_ids[1], $2, u.payload, $4) from (select distinct t as payload from unnest(v_texts) t) u;
  v_now := durable._lock_live_runs(v_ids, false);
  select array_agg(o.outcome order by r.n), array_agg(k.known order by r.n),
         array_agg(r.execution order by r.n) filter (where o.outcome = 'done')
  into v_outcomes, v_known, v_runs
  from durable._obstacles(v_ids, v_now) r
  cross join lateral (
    select case when $4 is not null then durable._known_delivery(r.execution, $2, $4) end as known) k
  cross join lateral (
    select case when k.known is not null then 'already' when r.fault is not null then r.fault
      when durable._signal_refusal(r.execution, $2, v_texts[r.n]) is not null then 'refused' else 'done' end as outcome) o;
  if v_runs is not null then
    select d.deliveries, d.woken into v_deliveries, v_woken
    from durable._deliver(v_runs, $2, array(
           select u.payload from unnest(v_texts, v_outcomes) with ordinality as u (payload, outcome, n)
           where u.outcome = 'done' order by u.n), $4, v_now) d;
    perform durable._hint(case when v_woken then 'durable_ready' else 'durable_settled' end, v_now);
  end if;
  return query
  select u.id, u.outcome, case u.outcome
    when 'done' then v_deliveries[(count(*) filter (where u.outcome = 'done') over (order by u.n))::integer]
    else u.known end
  from unnest(v_ids, v_outcomes, v_known) with ordinality as u (id, outcome, known, n) order by u.n;
end
$$;
comment on function durable.signal_many(text[], text, jsonb, text, jsonb[]) is
  'Sends a signal to many runs at once: select * from durable.signal_many(array[''order-1'', ''order-2''], ''approve'', ''{"ok": true}''). payloads: one for each id instead. Answers for each id, once, done with the number of the signal; already, for a dedup that the run had before; ended; refused, its workflow does not receive this signal or not this payload; not_found. Two such calls never deadlock with each other. WF004, WF008.';

create or replace function durable.cancel_many(
  ids text[], reason jsonb default null, grace interval default null, force boolean default false)
returns table (id text, outcome text, state text) language plpgsql volatile
as $$
declare
  v_ids text[] := durable._distinct_ids($1);
  v_grace_ms bigint := durable._grace_ms($3);
  v_force boolean := coalesce($4, false);
  v_family text[];
  v_due text[];
  v_now bigint;
  v_outcomes text[];
  v_queues text[];
begin
  perform durable._check_json('Reason of a cancellation', $2::text);
  v_family := durable._lock_whole_family(v_ids, v_force);
  v_now := durable._now_ms();
  v_due := array(select p.id from durable._promises p
                 where p.id = any (v_ids) and p.state = 'pending' and p.timeout_at <= v_now and p.head is not null);
  if v_due <> '{}' then
    perform durable._settle(v_due, array_fill(null::text, array[cardinality(v_due)]),
                            array_fill(null::jsonb, array[cardinality(v_due)]),
                            array_fill(null::text, array[cardinality(v_due)]), v_now);
    v_family := durable._family(v_ids, v_force);
  end if;
  v_outcomes := array(
    select case when r.status = 'cancelling' and not v_force then 'already'
                when r.fault = 'ended' and p.state = 'rejected_canceled' then 'already'
                else coalesce(r.fault, 'done') end
    from durable._obstacles(v_ids, v_now) r
    left join durable._promises p on p.id = any (array[r.id])
    order by r.n);
  v_queues := durable._cancel_locked(
    array(select t.id from durable._tasks t where t.id = any (v_family) and t.deadline > v_now), $2::text, v_grace_ms, v_force,
    v_now);
  perform durable._hint('durable_ready', v_now) where v_queues <> '{}';
  perform durable._hint('durable_settled', v_now);
  return query select o.id, o.outcome, o.state from durable._outcomes(v_ids, v_outcomes) o;
end
$$;
comment on function durable.cancel_many(text[], jsonb, interval, boolean) is
  'Cancels many runs and what is below them at once, as durable.cancel does one: select * from durable.cancel_many(durable.matching_runs(workflow => ''mail.send''), ''"stopped"''). Answers for each id, once, its state now and done; already, if it was asked before or has ended so; ended, if otherwise; not_found. Two such calls never deadlock with each other. WF004.';

create or replace function durable.pause_many(ids text[])
returns table (id text, outcome text, state text) language plpgsql volatile
as $$
declare
  v_ids text[] := durable._distinct_ids($1);
  v_now bigint := durable._lock_live_runs(v_ids, true);
  v_outcomes text[];
  v_paused text[];
begin
  v_outcomes := array(select coalesce(r.fault, case r.task when 'halted' then 'already' else 'done' end)
                      from durable._obstacles(v_ids, v_now) r order by r.n);
  v_paused := durable._chosen(v_ids, v_outcomes);
  perform durable._halt_runs(v_paused, array_fill(durable._paused_by_hand(), array[cardinality(v_paused)]), v_now);
  return query select o.id, o.outcome, o.state from durable._outcomes(v_ids, v_outcomes) o;
end
$$;
comment on function durable.pause_many(text[]) is
  'Sets many runs aside at once, as durable.pause does one: select * from durable.pause_many(durable.matching_runs(workflow => ''mail.send'')). Answers for each id, once, its state now and done; already, if it was set aside before; ended; not_found. Two such calls never deadlock with each other. WF004.';

create or replace function durable._continue_many(p_ids text[], p_dead boolean)
returns table (id text, outcome text, state text) language plpgsql volatile
as $$
declare
  v_now bigint := durable._lock_live_runs(p_ids, true);
  v_outcomes text[];
  v_chosen text[];
begin
  v_outcomes := array(
    select coalesce(r.fault, case when r.task is distinct from 'halted' then 'already'
                                  when not p_dead or durable._is_dead(h.problem) then 'done' else 'refused' end)
    from durable._obstacles(p_ids, v_now) r
    left join durable._executions h on h.execution = any (array[r.execution]) order by r.n);
  v_chosen := durable._chosen(p_ids, v_outcomes);
  perform durable._continue_tasks(v_chosen, v_now);
  perform durable._hint('durable_ready', v_now) where v_chosen <> '{}';
  return query select o.id, o.outcome, o.state from durable._outcomes(p_ids, v_outcomes) o;
end
$$;
comment on function durable._continue_many(text[], boolean) is
  'Lets those of these runs go on that are set aside, or with p_dead only those that are dead, and answers for all.';

create or replace function durable.resume_many(ids text[])
returns table (id text, outcome text, state text) language plpgsql volatile
as $$
begin
  return query select m.* from durable._continue_many(durable._distinct_ids($1), false) m;
end
$$;
comment on function durable.resume_many(text[]) is
  'Lets many paused, halted or dead runs go on at once: select * from durable.resume_many(durable.matching_runs(state => ''paused'')). Answers for each id, once, its state now and done; already, if nothing keeps it from going on; ended; not_found. Two such calls never deadlock with each other. WF004.';

create or replace function durable.redrive_many(ids text[])
returns table (id text, outcome text, state text) language plpgsql volatile
as $$
begin
  return query select m.* from durable._continue_many(durable._distinct_ids($1), true) m;
end
$$;
comment on function durable.redrive_many(text[]) is
  'Revives many dead runs at once, those whose workers were lost too often, in place: select * from durable.redrive_many(durable.matching_runs(state => ''dead'')). Answers for each id, once, its state now and done; already, if nothing keeps it from going on; refused, if it is paused or halted and not dead; ended, which durable.fork_many repeats; not_found. Two such calls never deadlock with each other. WF004.';

create or replace function durable._settled_before(p_ids text[], p_state text, p_values text[], p_now bigint)
returns text[] language plpgsql volatile
as $$
begin
  return array(
    select case
      when x.state is null then 'not_found'
      when x.state = 'pending' and (p.id is null or p.head is not null and p.timeout_at > p_now) then 'refused'
      when x.state = 'pending' and p.timeout_at > p_now
        then case when durable._answer_fault(u.id, p_state, u.value, durable._plain_headers()) is null then 'done'
                  else 'refused' end
      when x.state = p_state and durable._decoded(x.value) is not distinct from u.value::jsonb then 'already'
      else 'ended' end
    from unnest(p_ids, p_values) with ordinality as u (id, value, n)
    left join durable._promises p on p.id = any (array[u.id])
    left join lateral durable._step_record(u.id) s on p.id is null
    cross join lateral (select coalesce(p.state, s.state) as state,
                               case when p.id is null then s.value_data else p.value_data end as value) x
    order by u.n);
end
$$;
comment on function durable._settled_before(text[], text, text[], bigint) is
  'The outcome of settling each of these promises, whose locks the caller holds. An open step can only be completed by its worker, and a run by its code.';

create or replace function durable.settle_many(
  ids text[], verdict text default 'resolved', value jsonb default null, each_value jsonb[] default null)
returns table (id text, outcome text, state text) language plpgsql volatile
as $$
declare
  v_ids text[] := durable._distinct_ids($1);
  v_values text[] := durable._each_value($1, coalesce(
    $3, case $2 when 'rejected' then '{"type": "Rejected", "message": "rejected"}' else 'null' end::jsonb), $4);
  v_count integer := cardinality(v_ids);
  v_now bigint;
  v_outcomes text[];
begin
  perform durable._check_verdict(u.id, $2, u.value) from unnest(v_ids, v_values) as u (id, value);
  perform durable._lock_settlement(v_ids);
  v_now := durable._now_ms();
  v_outcomes := durable._settled_before(v_ids, $2, v_values, v_now);
  perform durable._hint('durable_ready', v_now)
  where durable._settle(v_ids, array(select case when u.outcome <> 'refused' then $2 end
                                     from unnest(v_outcomes) with ordinality as u (outcome, n) order by u.n),
                        array_fill(durable._plain_headers(), array[v_count]), v_values, v_now) <> '{}';
  perform durable._hint('durable_settled', v_now);
  return query
  select u.id, u.outcome, coalesce(p.state, s.state)
  from unnest(v_ids, v_outcomes) with ordinality as u (id, outcome, n)
  left join durable._promises p on p.id = any (array[u.id])
  left join lateral durable._step_record(u.id) s on p.id is null
  order by u.n;
end
$$;
comment on function durable.settle_many(text[], text, jsonb, jsonb[]) is
  'Settles many promises at once, as durable.resolve and durable.reject do one: select * from durable.settle_many(array[''invoice-7'', ''invoice-8''], value => ''{"paid": true}''). verdict: resolved, rejected or rejected_canceled. each_value: one for each id instead. Answers for each id, once, its state now and done; already, if it had this outcome; ended, if another one, its deadline included; refused, for a run, which its code ends, for a step that a worker completes, and for a value of another type than the run that waits declares; not_found. Two such calls never deadlock with each other. WF004, WF008.';
