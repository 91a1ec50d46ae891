-- Continue-as-new, and the next attempt of a run that failed: the run keeps its id, its promise and its child numbers, and
-- begins a new journal under another head.

create or replace function durable._next_head(
  p_old bigint, p_first integer, p_param text, p_attempt integer, p_version text, p_now bigint)
returns durable._executions language plpgsql volatile
as $$
declare
  v_old durable._executions;
  v_new durable._executions;
  v_at bigint;
  v_code durable._run_code;
begin
  select * into v_old from durable._executions h where h.execution = p_old;
  v_at := greatest(v_old.last_at, p_now);
  update durable._executions h set key = null where h.execution = p_old and h.key is not null;
  v_code := durable._code_to_run(v_old.workflow, coalesce(p_version, v_old.workflow_version));
  insert into durable._executions (execution, previous, last_at, id, tenant, workflow, workflow_version, key, digest, abandoned,
                                   rules, bucket, next_seq, first_child, next_child)
  values (durable._next_execution(), p_old, v_at, v_old.id, v_old.tenant, v_old.workflow, v_code.version, v_old.key,
          case when p_version is null then v_old.digest else v_code.digest end, v_old.abandoned, v_code.rules,
          durable._bucket(p_now), 1, greatest(p_first, v_old.next_child), greatest(p_first, v_old.next_child))
  returning * into v_new;
  perform durable._write_started(array[v_new.execution], v_new.bucket, p_param, v_at, p_attempt);
  return v_new;
end
$$;
comment on function durable._next_head(bigint, integer, text, integer, text, bigint) is
  'Creates head and ExecutionStarted of the next generation; p_attempt, if it is another attempt of the run; p_version, if it has another version of its workflow. It is born with the rules of a new run, because it begins a journal. The key moves to the new head. Child numbers continue, because they are part of ids.';

create or replace function durable._unread_signals(p_old durable._executions, p_unseen integer[], p_all boolean)
returns table (name text, first bigint, done integer, upto bigint, moved bigint) language sql stable
as $$
  select i.name, f.first, d.done, greatest(i.backlog_upto, f.first + i.delivered),
         greatest(d.done, i.backlog_upto - i.backlog_from)
  from durable._inboxes i
  left join (
    select j.name, min(j.attempt) - 1 as done from durable._journal j
    where p_unseen <> '{}' and j.execution = p_old.execution and j.bucket = p_old.bucket and j.type = 'signal_received'
      and j.child = any (p_unseen)
    group by j.name) u on u.name = i.name
  cross join lateral (select case when p_all then 0 else coalesce(u.done, i.received) end as done) d
  cross join lateral (select coalesce(i.backlog_from, -d.done) as first) f
  where i.execution = p_old.execution and (i.backlog_upto is not null or d.done < i.delivered)
$$;
comment on function durable._unread_signals(durable._executions, integer[], boolean) is
  'The names of which a generation leaves something: delivery n of it is number first + n of the backlog, done deliveries need not come again, upto is the last number, and deliveries up to moved need not be moved there, because nobody wants them or they are there.';

create or replace function durable._carry_signals(p_old bigint, p_new bigint, p_unseen integer[], p_all boolean)
returns void language plpgsql volatile
as $$
declare
  v_old durable._executions;
  v_names text[];
  v_from bigint[];
  v_upto bigint[];
  v_first bigint[];
  v_moved bigint[];
  v_over tid[];
begin
  select * into v_old from durable._executions h where h.execution = p_old;
  select array_agg(u.name), array_agg(u.first + u.done), array_agg(u.upto), array_agg(u.first), array_agg(u.moved)
  into v_names, v_from, v_upto, v_first, v_moved
  from durable._unread_signals(v_old, p_unseen, p_all) u;
  if v_names is null then
    return;
  end if;
  insert into durable._backlog (id, name, number, key, data)
  select v_old.id, s.name, u.first + s.delivery, s.key, s.data
  from unnest(v_names, v_first, v_moved) as u (name, first, moved)
  join durable._signals s on s.execution = p_old and s.name = any (array[u.name]) and s.delivery > u.moved;
  v_over := durable._try_lock_backlog(v_old.id, v_names, v_from);
  delete from durable._backlog b where b.ctid = any (v_over);
  -- while a row is left the numbers go on; a name of which nothing is left is forgotten
  insert into durable._inboxes (execution, name, backlog_from, backlog_upto)
  select p_new, u.name, u.first, u.upto
  from unnest(v_names, v_from, v_upto) as u (name, first, upto)
  where (select count(*) from (
    select from durable._backlog b where b.id = v_old.id and b.name = u.name limit 1) x) > 0;
end
$$;
comment on function durable._carry_signals(bigint, bigint, integer[], boolean) is
  'Gives the next generation the signals that were not received, and those that the receives p_unseen got after the code had given them up; or all (p_all), for code that begins again. They become the backlog of the run. Rows that are in it already stay; those before the next generation are removed.';

create or replace function durable._let_children_go(p_id text, p_execution bigint)
returns void language plpgsql volatile
as $$
begin
  delete from durable._callbacks c where c.awaiter_id = p_id and c.child >= 0;
  delete from durable._callbacks c
  where c.awaiter_id = p_id and c.awaited_id = any (array(
    select p.id from durable._promises p
    where p.id > p_id || '.' and p.id < p_id || '/' and p.execution = p_execution and p.state = 'pending'));
  delete from durable._resumes r where r.task_id = p_id;
  update durable._inboxes i set receiver = null where i.execution = p_execution and i.receiver is not null;
  update durable._row_waits w set test_at = 0 where w.execution = p_execution;
end
$$;
comment on function durable._let_children_go(text, bigint) is
  'Removes the callbacks of children that are still pending, because the generation that started them has ended. The sweep ends its waits for rows.';

create or replace function durable._attempt_of(p_execution bigint)
returns integer language plpgsql stable
as $$
begin
  return coalesce((select j.attempt from durable._executions h
                   join durable._journal j on j.execution = any (array[h.execution]) and j.bucket = h.bucket and j.seq = 0
                   where h.execution = p_execution), 1);
end
$$;
comment on function durable._attempt_of(bigint) is 'Which attempt of its run a journal is, from 1.';

create or replace function durable._begin_generation(
  p_id text, p_old bigint, p_children integer[], p_ending durable._ending, p_now bigint)
returns text language plpgsql volatile
as $$
declare
  v_again boolean := p_ending.error is not null;
  v_new durable._executions;
  v_end jsonb;
  v_queue text;
begin
  perform durable._interrupt(array[p_old], case when v_again then 'tried again' else 'continued as new' end, p_now);
  perform durable._let_children_go(p_id, p_old);
  v_new := durable._next_head(p_old, coalesce(p_children[1], 0), p_ending.value,
                              case when v_again then durable._attempt_of(p_old) + 1 end, p_ending.version, p_now);
  v_end := jsonb_build_object('continued_as', v_new.execution)
           || case when v_again then jsonb_build_object('error', durable._json(p_ending.error)) else '{}' end;
  perform durable._append(
    array[row(p_old, case when v_again then 'execution_failed'::durable.row_type else 'execution_completed' end, null, null,
              null, null, v_end::text)::durable._event], p_now);
  perform durable._carry_signals(p_old, v_new.execution, coalesce(p_children[2:], '{}'), v_again);
  update durable._promises p set head = v_new.execution where p.id = p_id;
  update durable._tasks t
  set execution = v_new.execution, rules = v_new.rules, workflow_version = v_new.workflow_version, state = 'pending',
      pid = null, ttl = null, expires_at = null, crashes = 0, suspect = false,
      retry_at = p_now + least(greatest(coalesce(p_ending.retry_in, 0), 0), durable._never() - p_now),
      preference = t.pid, prefer_until = durable._prefer_until(t.pid, p_now)
  where t.id = p_id returning case when t.retry_at <= p_now then t.queue end into v_queue;
  return v_queue;
end
$$;
comment on function durable._begin_generation(text, bigint, integer[], durable._ending, bigint) is
  'Ends a journal and begins the next one of the same run: with new arguments and perhaps another version of its workflow, or after a failure (error) with the same ones and every signal, once retry_in is over. The first of p_children is the next child number; the others are receives whose signals the code never saw. The caller holds promise, task and head. Answers the queue of the task, if it is ready.';

create or replace function durable._end_continues(p_reports durable._run_report[], p_now bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_queues text[] := '{}';
  v_report durable._run_report;
begin
  for v_report in
    select b.* from unnest(p_reports) b
    join durable._executions h on h.execution = any (array[b.execution])
    where b.verdict = 'ok' and (b.ending)."do" = 'continue' and h.status = 'running'
      and durable._has_seen(row(b.*)::durable._run_report, h) order by b.id
  loop
    v_queues := v_queues || durable._begin_generation(
      v_report.id, v_report.execution, coalesce((v_report.ending)."on", '{}'), v_report.ending, p_now);
  end loop;
  return array_remove(v_queues, null);
end
$$;
comment on function durable._end_continues(durable._run_report[], bigint) is
  'Begins the next generation of the runs whose reports ask for it and whose code has seen everything. One run after the other, because continue-as-new is rare and long journals are behind it.';

create or replace function durable.generations(id text)
returns table (generation integer, execution bigint, status text, started_at timestamptz, ended_at timestamptz, events integer,
               first_child integer, next_child integer, args jsonb, attempt integer, error jsonb)
language plpgsql volatile
as $$
begin
  perform durable._find_run($1);
  return query
  with recursive chain as (
    select h.*, 1 as depth, durable._input(p.param_headers, p.param_data) as param_data,
           durable._json(durable._error_of(p.state, p.value_data)) as error
    from durable._promises p join durable._executions h on h.execution = any (array[p.head]) where p.id = $1
    union all
    select h.*, c.depth + 1, c.param_data, null from chain c join durable._executions h on h.execution = any (array[c.previous])
  )
  select (row_number() over (order by c.depth desc) + coalesce(max(c.generations_removed) over (), 0))::integer, c.execution,
         c.status, durable._at(s.ts), durable._at(e.ts), c.next_seq, c.first_child, c.next_child,
         durable._json(case when c.previous is null then c.param_data else durable._data(s) end), coalesce(s.attempt, 1),
         case when e.type = 'execution_failed' then coalesce(durable._json(durable._data(e)) -> 'error', c.error) end
  from chain c
  join durable._journal s on s.execution = any (array[c.execution]) and s.bucket = c.bucket and s.seq = 0
  left join durable._journal e on e.execution = any (array[c.execution]) and e.bucket = c.bucket and e.seq = c.next_seq - 1
       and durable._ends_run(e.type)
  order by c.depth desc;
end
$$;
comment on function durable.generations(text) is
  'The journals of a run, oldest first: one for each time that it continued as new, or failed and was tried again, and the present one. The earlier ones are closed; the children that they started go on independently. Retention removes the oldest, so the first number that is left may be higher than 1. attempt: of the run, from 1; error: how that journal failed. WF001.';
