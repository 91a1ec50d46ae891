-- durable.why: why a run, promise or schedule waits, in sentences, down to the last cause. It reads what waits, by key, so its
-- cost does not depend on how many runs there are. It takes no lock.

create or replace function durable._lock_causes(p_id text)
returns setof durable._cause language sql stable
as $$
  select b.*
  from durable._holders(array[p_id]) h
  join pg_catalog.pg_stat_activity a on a.pid = h.pid
  cross join lateral (select (extract(epoch from a.xact_start) * 1000)::bigint as since) x
  cross join lateral durable._because(
    'locked', h.pid::text,
    format('is held by pid %s (%s)', h.pid, concat_ws(
      ', ', case when a.backend_type is null then 'not to be seen by this role' else a.state end, nullif(a.application_name, ''),
      durable._span(durable._now_ms() - x.since))),
    x.since, p_details => jsonb_build_object('pid', h.pid, 'user', a.usename, 'state', a.state,
                                             'application', a.application_name, 'query', left(a.query, 200))) b
  union all
  select b.*
  from durable._prepared_holders(array[p_id]) h
  cross join lateral (select (extract(epoch from h.since) * 1000)::bigint as since) x
  cross join lateral durable._because(
    'locked', h.gid,
    format('is held by the prepared transaction %s (%s); rollback prepared %L ends it', h.gid,
           concat_ws(', ', h.owner, durable._span(durable._now_ms() - x.since)), h.gid),
    x.since, p_details => jsonb_build_object('prepared', h.gid, 'user', h.owner)) b
$$;
comment on function durable._lock_causes(text) is
  'Sessions whose open transactions, and prepared transactions that hold rows of this run or promise: the engine leaves it out until they end.';

create or replace function durable._cancel_causes(p_task durable._tasks, p_head durable._executions, p_now bigint)
returns setof durable._cause language sql stable
as $$
  select b.*
  from durable._journal j
  cross join lateral (select nullif(durable._json(durable._data(j)) -> 'reason', 'null') as reason offset 0) r
  cross join lateral durable._because(
    'cancelling', p_head.workflow,
    concat('was asked to cancel', durable._since(j.ts, p_now),
           ' (' || case when r.reason is not null then durable._error_line(r.reason) end || ')',
           case when p_task.state = 'halted' then '; it is set aside, so nothing cleans up and only its grace passes'
                else '; its code may clean up' end,
           durable._until(p_head.cancel_until, p_now),
           case when p_task.state = 'halted' then format('; durable.cancel(%L, force => true) ends it now', p_head.id) end),
    j.ts, p_head.cancel_until, jsonb_build_object('reason', r.reason)) b
  where j.execution = p_head.execution and j.bucket = p_head.bucket and j.seq = p_head.cancel_seq
    and p_head.status = 'cancelling'
$$;
comment on function durable._cancel_causes(durable._tasks, durable._executions, bigint) is
  'The request of cancellation of a run whose code has not ended yet; what its clean-up waits for comes after it.';

create or replace function durable._task_causes(p_task durable._tasks, p_head durable._executions, p_now bigint)
returns setof durable._cause language plpgsql stable
as $$
begin
  if p_task.state = 'halted' then
    return query select * from durable._halt_causes(p_task, p_head);
  elsif p_task.state = 'suspended' then
    return query select * from durable._wait_causes(p_head, p_now)
                 union all select * from durable._callback_causes(p_task, p_now) where p_task.execution is null;
    if not found then
      return next durable._because('suspended', p_task.queue, format(
        'is suspended, and no promise that is open resumes it; look at durable.check(%L)', p_task.id));
    end if;
  elsif durable._call_key(p_task.id) is not null then
    return query select * from durable._call_causes(p_task, p_now);
  else
    return query select * from durable._crash_causes(p_task);
    if p_task.state = 'acquired' then
      return query select * from durable._lease_causes(p_task, p_now);
    elsif starts_with(p_task.queue, 'sql://') and p_task.retry_at <= p_now then
      return next durable._service_cause(p_task, p_now);
    elsif p_task.workflow is null and not starts_with(p_task.queue, 'sql://') then
      return query select * from durable._client_causes(p_task, p_now);
    elsif p_task.retry_at > p_now then
      return query select * from durable._delay_causes(p_task, p_now);
    elsif p_task.preference is not null and p_task.prefer_until > p_now then
      return next durable._reserved_cause(p_task, p_now);
    else
      return next durable._queue_cause(p_task, p_now);
    end if;
  end if;
end
$$;
comment on function durable._task_causes(durable._tasks, durable._executions, bigint) is 'The causes of the state of a task.';

create or replace function durable._causes(p_id text, p_is_asked boolean, p_now bigint)
returns setof durable._cause language plpgsql stable
as $$
declare
  v_promise durable._promises;
  v_task durable._tasks;
  v_head durable._executions;
begin
  select * into v_promise from durable._promises p where p.id = p_id;
  if not found then
    return next durable._unknown_cause(p_id, p_now);
    return query select * from durable._schedule_causes(p_id, p_now);
    return;
  elsif v_promise.state <> 'pending' then
    return next durable._end_cause(v_promise, p_now);
    return query select * from durable._unread_causes(v_promise.head);
    return;
  end if;
  return query select * from durable._lock_causes(p_id);
  if v_promise.timeout_at <= p_now then
    return next durable._overdue_cause(v_promise.timeout_at, p_id, case when v_promise.timer then 'was due' else 'expired' end,
                                     case when v_promise.timer then 'fires it' else 'ends it' end, p_now);
  elsif v_promise.target is null then
    return query select * from durable._promise_causes(v_promise, p_is_asked, p_now);
  else
    select * into v_task from durable._tasks t where t.id = p_id;
    select * into v_head from durable._executions h where h.execution = v_task.execution;
    return query select * from durable._cancel_causes(v_task, v_head, p_now);
    return query select * from durable._task_causes(v_task, v_head, p_now);
  end if;
end
$$;
comment on function durable._causes(text, boolean, bigint) is
  'Why one run, promise or schedule waits. p_is_asked: it is the one that was asked about.';

create or replace function durable._causes_below(p_id text, p_above text[], p_left integer, p_now bigint)
returns table (depth integer, id text, reason durable._cause) language plpgsql stable
as $$
declare
  v_cause durable._cause;
  v_below record;
  v_left integer := p_left;
begin
  for v_cause in select c.* from durable._causes(p_id, p_above = '{}', p_now) c loop
    exit when v_left <= 0;
    return query select cardinality(p_above), p_id, v_cause;
    v_left := v_left - 1;
    if v_cause.leads_to <> all (p_above || p_id) and cardinality(p_above) < 50 then
      for v_below in select * from durable._causes_below(v_cause.leads_to, p_above || p_id, v_left, p_now) loop
        return query select v_below.depth, v_below.id, v_below.reason;
        v_left := v_left - 1;
      end loop;
    end if;
  end loop;
end
$$;
comment on function durable._causes_below(text, text[], integer, bigint) is
  'The causes of one run or promise, each followed by those that it leads to. p_above: the runs through which the walk came. p_left: how many rows there may be.';

create or replace function durable._copy_causes(p_id text)
returns setof durable._cause language sql stable
as $$
  select b.* from durable.site s
  cross join lateral durable._because('not_adopted', s.here, durable._copy_problem()) b
  where s.state = 'copy' and not exists (select from durable._promises p where p.id = p_id and p.state <> 'pending')
$$;
comment on function durable._copy_causes(text) is 'The cause of all that waits in a copy of a database that was not adopted.';

create or replace function durable.why(run text, at_most integer default 100)
returns table (depth integer, id text, cause text, sentence text, since timestamptz, until timestamptz, details jsonb)
language plpgsql volatile
as $$
begin
  if $1 is null or $1 = '' then
    perform durable._fail_invalid('The id of a run, promise or schedule is not empty.');
  elsif $2 is null or $2 not between 1 and 10000 then
    perform durable._fail_invalid('at_most is between 1 and 10000.');
  end if;
  return query
  select r.depth, r.id, r.cause, r.sentence, durable._at(r.since),
         durable._at(r.until),
         jsonb_build_object('name', r.name) || r.details
  from (select 0 as depth, $1 as id, c.* from durable._copy_causes($1) c
        union all
        select b.depth, b.id, (b.reason).* from durable._causes_below($1, '{}', $2, durable._now_ms()) b) r;
end
$$;
comment on function durable.why(text, integer) is
  'Why a run waits, one sentence for each cause, each followed by the causes of what it waits for: select * from durable.why(''order-42''). Also for the id of a promise, step or schedule. depth counts from 0; id is the run or promise that the row is about; cause is a code for programs; sentence is for people, in the time zone of the session; details is what the sentence says, as JSON, and its name is what the cause is about, such as the name of a signal. An id that nothing has gets the cause unknown. At most at_most rows. WF004.';

create or replace function durable.why_all(at_most integer default 1000)
returns table (cause text, name text, runs bigint, oldest timestamptz, example text, sentence text)
language plpgsql volatile
as $$
declare
  v_now bigint := durable._now_ms();
begin
  if $1 is null or $1 not between 1 and 100000 then
    perform durable._fail_invalid('at_most is between 1 and 100000.');
  end if;
  return query
  select c.cause, c.name, count(*), durable._at(min(c.since)), (array_agg(x.id order by c.since, x.id))[1]::text,
         (array_agg(c.sentence order by c.since, x.id))[1]
  from (select t.id from durable._tasks t where t.execution is not null order by t.id limit $1) x
  join durable._tasks t on t.id = any (array[x.id])
  join durable._executions h on h.execution = any (array[t.execution])
  cross join lateral (select w.* from durable._task_causes(t, h, v_now) w limit 1) c
  group by c.cause, c.name
  order by count(*) desc, c.cause, c.name;
end
$$;
comment on function durable.why_all(integer) is
  'The runs that have not ended, grouped by their first cause: select * from durable.why_all(). name is what the cause is about: a signal, a step, a queue, a worker. example is the run that has waited longest. Reads at_most runs, in the order of their ids. Runs that a session has locked are in durable.blocked. WF004.';
