-- Claims: the journal that a worker gets with a run, the locks of a claim, and the hand-out of claimed runs.
-- A claim locks ready tasks, then heads and resumes, and never waits: a run that misses a lock is left to a later claim.

create or replace function durable._rows(
  p_execution bigint, p_bucket integer, p_id text, p_from integer, p_upto integer)
returns table ("rows" json, started_at bigint, input text) language sql stable
as $$
  select coalesce(json_agg(json_build_array(j.seq, j.type, j.child, j.attempt, j.name, encode(j.input_hash, 'hex'),
           case when s.delivery is not null then s.data when p.id is null then durable._data(j)
                when p.state = 'resolved' then durable._plain_value(p) else durable._plain_error(p) end,
           case when s.delivery is not null then true else p.state = 'resolved' end) order by j.seq), '[]'),
         min(j.ts) filter (where j.seq = 0), min(durable._data(j)) filter (where j.seq = 0)
  from durable._journal j
  left join durable._promises p
    on p.id = any (array[case when durable._settles_child(j.type) then coalesce(j.name, p_id || '.' || j.child) end])
  left join durable._signals s on s.execution = any (array[case when j.type = 'signal_received' then j.execution end])
       and s.name = any (array[j.name]) and s.delivery = any (array[j.attempt])
  where j.execution = any (array[p_execution]) and j.bucket = p_bucket and j.seq >= p_from and j.seq < p_upto
$$;
comment on function durable._rows(bigint, integer, text, integer, integer) is
  'Journal rows [seq, type, child, attempt, name, hash, data, ok] with the values of children and signals, for replay; and, if the first row is among them, its instant and the input in it. Inlined, so that the plan of the caller reads many runs without a call for each.';

create or replace function durable._journal_from(p_execution bigint, p_seen integer)
returns json language plpgsql stable
as $$
begin
  return (
    select json_build_object('next', h.next_seq, 'rows', r."rows")
    from durable._executions h
    cross join lateral (select case when h.next_seq - p_seen < 12 then p_seen
                                    else durable._checked_from(h.bucket, h.execution, p_seen, h.next_seq) end offset 0) as g (seq)
    cross join lateral durable._rows(h.execution, h.bucket, h.id, g.seq, h.next_seq) r
    where h.execution = p_execution);
end
$$;
comment on function durable._journal_from(bigint, integer) is 'The journal of one run from p_seen on, and the number after it. WF008 as of _checked_from.';

create or replace function durable.worker_journal_v1(p_worker text, p_execution bigint, p_id text, p_version integer)
returns json language sql volatile
as $$
  select durable._journal_from(h.execution, 0)
  from durable._executions h
  join durable._tasks t on t.id = any (array[h.id])
  where h.execution = p_execution and h.id = p_id and t.pid = p_worker and durable._is_leased(t, p_version, durable._now_ms())
$$ set lock_timeout = '1s';
comment on function durable.worker_journal_v1(text, bigint, text, integer) is
  'The whole journal of a leased run, for a replay from the start; null if the lease is lost. WF008 if it is too large to be sent.';

create or replace function durable._first_row(p_execution bigint, p_bucket integer, out started_at bigint, out input text)
language plpgsql stable
as $$
begin
  select j.ts, durable._data(j) into started_at, input from durable._journal j
  where j.execution = p_execution and j.bucket = p_bucket and j.seq = 0;
end
$$;
comment on function durable._first_row(bigint, integer) is
  'The instant at which a journal began, and the input in its first row, if the promise does not have it.';

create or replace function durable._try_lock_ready_tasks(
  p_worker text, p_queues text[], p_codes text[], p_rules integer, p_want integer, p_suspects boolean, p_tried text[],
  p_missed bigint[], out ids text[], out executions bigint[], out owners bigint[], out warm text[], out suspects text[])
language plpgsql volatile
as $$
declare
  v_now bigint := durable._now_ms();
begin
  select coalesce(array_agg(x.id), '{}'), coalesce(array_agg(x.execution), '{}'), coalesce(array_agg(x.owner), '{}'),
         coalesce(array_agg(x.id) filter (where x.preference = p_worker), '{}'),
         coalesce(array_agg(x.id) filter (where x.suspect), '{}')
  into ids, executions, owners, warm, suspects
  from (
    select r.*
    from unnest(p_queues) as q (queue)
    cross join lateral (
      select t.id, t.execution, t.owner, t.preference, t.suspect from durable._tasks t
      where t.queue = q.queue and t.state = 'pending' and t.retry_at <= v_now and t.deadline > v_now
        and (t.prefer_until is null or t.prefer_until <= v_now or t.preference = p_worker
             or durable._is_stale(t.prefer_until, v_now))
        and t.rules <= p_rules and durable._code(t.workflow, t.workflow_version) = any (p_codes) and (p_suspects or not t.suspect)
        and t.id <> all (p_tried) and t.execution <> all (p_missed) and (t.owner is null or t.owner <> all (p_missed))
      order by t.priority, t.retry_at
      limit p_want for update skip locked) r
    limit p_want) x;
end
$$;
comment on function durable._try_lock_ready_tasks(text, text[], text[], integer, integer, boolean, text[], bigint[]) is
  'Locks up to p_want ready tasks that this worker can run, skipping locked ones, suspects unless p_suspects, p_tried, and runs whose head or owner is in p_missed. owners: at the same places, null for none; warm: those whose coroutine it has; suspects: those that are claimed alone.';

create or replace function durable._without_suspects(
  p_worker text, p_ids text[], p_suspects text[], out places integer[], out alone boolean)
language plpgsql stable
as $$
declare
  v_now bigint := durable._now_ms();
begin
  -- one at a time, or nobody could tell which of them ends its worker; a worker that lives a second longer takes the next
  alone := not exists (
    select from durable._tasks t
    where t.pid = p_worker and t.state = 'acquired' and t.suspect and t.acquired_at between v_now - 1000 and v_now);
  places := case when alone then array[array_position(p_ids, p_suspects[1])] else array(
    select i from generate_subscripts(p_ids, 1) i where p_ids[i] <> all (p_suspects)) end;
end
$$;
comment on function durable._without_suspects(text, text[], text[]) is
  'Which of the tasks a claim may have: the first suspect, alone, if the worker has no other about which it still may say its first word; else those that are no suspects. So neither keep the others waiting for longer than a claim.';

create or replace function durable._try_lock_claim(
  p_worker text, p_queues text[], p_codes text[], p_rules integer, p_want integer,
  out ids text[], out heads bigint[], out warm text[], out owned boolean, out missed bigint[])
language plpgsql volatile
as $$
declare
  v_some record;
  v_places record;
  v_missed bigint[];
  v_resumed text[];
  v_tried text[] := '{}';
  -- a claim that finds nothing draws no transaction number
  v_autocommit boolean := durable._is_autocommit();
begin
  ids := '{}'; heads := '{}'; warm := '{}'; missed := '{}'; owned := false;
  for v_round in 1..4 loop
    select * into v_some
    from durable._try_lock_ready_tasks(
      p_worker, p_queues, p_codes, p_rules, p_want - cardinality(ids), v_round = 1, v_tried, missed) c;
    exit when v_some.ids = '{}';
    if v_autocommit and v_round = 1 then
      perform durable._mark_engine_xact(true);
    end if;
    if v_some.suspects <> '{}' then
      select * into v_places from durable._without_suspects(p_worker, v_some.ids, v_some.suspects) w;
      select coalesce(array_agg(v_some.ids[i]), '{}'), coalesce(array_agg(v_some.executions[i]), '{}'),
             coalesce(array_agg(v_some.owners[i]), '{}')
      into v_some.ids, v_some.executions, v_some.owners from unnest(v_places.places) i;
      p_want := case when v_places.alone then 1 else p_want end;
      continue when v_some.ids = '{}';
    end if;
    v_missed := durable._try_lock_heads(
      v_some.executions || array(select distinct o from unnest(v_some.owners) o where o is not null));
    v_resumed := durable._try_lock_resumes(v_some.ids);
    if v_resumed <> '{}' then
      v_missed := v_missed || array(select c.execution from unnest(v_some.ids, v_some.executions) as c (id, execution)
                                    where c.id = any (v_resumed));
    end if;
    if v_missed = '{}' and v_round = 1 then
      ids := v_some.ids; heads := v_some.executions; warm := v_some.warm;
      owned := array_remove(v_some.owners, null) <> '{}';
      return;
    end if;
    v_tried := v_tried || v_some.ids;
    missed := missed || v_missed;
    select ids || coalesce(array_agg(c.id), '{}'), heads || coalesce(array_agg(c.execution), '{}'),
           warm || coalesce(array_agg(c.id) filter (where c.id = any (v_some.warm)), '{}'),
           owned or coalesce(bool_or(c.owner is not null), false)
    into ids, heads, warm, owned
    from unnest(v_some.ids, v_some.executions, v_some.owners) as c (id, execution, owner)
    where c.execution <> all (v_missed) and (c.owner is null or c.owner <> all (v_missed));
    exit when v_missed = '{}' or cardinality(ids) = p_want;
    if v_round = 4 then
      -- a session that has locked so many must not hide the other runs for as long
      update durable._tasks t set retry_at = durable._now_ms() + 500 where t.id = any (v_tried) and t.id <> all (ids);
    end if;
  end loop;
end
$$;
comment on function durable._try_lock_claim(text, text[], text[], integer, integer) is
  'Locks up to p_want ready tasks with their heads, the heads of their owners and their resumes. A run that misses one of these locks is left out, and another one takes its place; a suspect is claimed alone, and only the first round looks at suspects, so that they hide no other run. If many do, they are put back for half a second.';

create or replace function durable._checked_from(p_bucket integer, p_execution bigint, p_from integer, p_upto integer)
returns integer language plpgsql stable
as $$
declare
  -- in an answer, where JSON stands within JSON, this may be more than a value can have
  v_most constant bigint := 800000000;
  v_bytes bigint := (select sum(octet_length(v.data)) from durable._journal_values v
                     where v.bucket = p_bucket and v.execution = p_execution);
begin
  -- rows may share values, which are sent once for each
  if v_bytes * (p_upto - p_from) > v_most then
    v_bytes := (
      select sum(durable._data_size(j)) from durable._journal j
      where j.execution = p_execution and j.bucket = p_bucket and j.seq >= p_from and j.seq < p_upto);
    if v_bytes > v_most then
      perform durable._fail_too_large('The journal of a run', v_bytes, v_most, 'Let it continue as new in time.');
    end if;
  end if;
  return p_from;
end
$$;
comment on function durable._checked_from(integer, bigint, integer, integer) is
  'p_from, if the rows of a journal from there on can be sent. To make a text of a gigabyte, and to fail at its end, takes half a minute. One look-up for a run without large values. WF008.';

create or replace function durable._hand_out(
  p_executions bigint[], p_warm text[], p_most bigint, out tasks json[], out left_out bigint[])
language plpgsql stable
as $$
declare
  -- one row at a time: a loop over a query would have many read ahead, and the bound is there to prevent that
  v_runs no scroll cursor for
    select durable._claimed_run(t, h, f.seq,
             case when h.previous is null then durable._input(p.param_headers, p.param_data)
                  else coalesce(r.input, (durable._first_row(h.execution, h.bucket)).input) end,
             coalesce(r.started_at, (durable._first_row(h.execution, h.bucket)).started_at), r."rows")
    from unnest(p_executions) as x (execution)
    join durable._executions h on h.execution = any (array[x.execution])
    join durable._tasks t on t.id = any (array[h.id])
    join durable._promises p on p.id = any (array[h.id])
    cross join lateral (select case when h.id = any (p_warm) then coalesce(h.suspend_seq, 0) else 0 end) as f (seq)
    -- a few rows are never too much, and most runs that go on have a few to be sent
    cross join lateral (select case when h.next_seq - f.seq < 12 then f.seq
                                    else durable._checked_from(h.bucket, h.execution, f.seq, h.next_seq) end offset 0) as g (seq)
    cross join lateral durable._rows(h.execution, h.bucket, h.id, g.seq, h.next_seq) r;
  v_task json;
  v_bytes bigint := 0;
begin
  tasks := '{}'; left_out := '{}';
  open v_runs;
  loop
    fetch v_runs into v_task;
    exit when not found;
    tasks := tasks || v_task;
    v_bytes := v_bytes + pg_column_size(v_task);
    exit when v_bytes >= p_most;
  end loop;
  close v_runs;
  left_out := p_executions[cardinality(tasks) + 1:];
end
$$;
comment on function durable._hand_out(bigint[], text[], bigint) is
  'Claimed runs with their journals, one at least, until they have p_most bytes; for a run that the worker has warm, only the rows since it suspended. left_out: the runs after them, whose journals were not read.';

create or replace function durable._put_back(p_executions bigint[], p_warm text[], p_worker text, p_now bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_queues text[];
begin
  with reserved as materialized (
    -- once, and not for each task
    select durable._reserved_until(p_worker, p_now, p_now) as until
  ), freed as (
    update durable._tasks t
    set state = 'pending', pid = null, ttl = null, expires_at = null, retry_at = least(p.created_at::bigint, p_now),
        preference = case when t.id = any (p_warm) or k.until is not null then p_worker end, prefer_until = k.until
    from unnest(p_executions) as x (execution)
    join durable._executions h on h.execution = any (array[x.execution])
    join durable._promises p on p.id = any (array[h.id])
    cross join reserved k
    where t.id = any (array[h.id])
    returning t.queue
  )
  select array_agg(distinct f.queue) into v_queues from freed f;
  return v_queues;
end
$$;
comment on function durable._put_back(bigint[], text[], text, bigint) is
  'Gives back acquired tasks that no answer has room for: ready since the birth of their runs, so before younger ones, and for that worker only if it keeps its runs. Crashes stay, because no worker had them. Answers their queues.';

create or replace function durable._claim(
  p_ids text[], p_owned boolean, p_worker text, p_ttl_ms integer, p_warm text[], p_codes text[], p_digests text[],
  p_now bigint, out tasks json, out queues text[])
language plpgsql volatile
as $$
declare
  -- a worker takes an answer of this size in a moment, and its leases have begun
  v_most constant bigint := 8388608;
  v_tasks json[];
  v_others bigint[];
  v_other bigint[];
  v_handed record;
begin
  queues := '{}';
  select array_agg(durable._claimed_run(t, h, 0, durable._input(p.param_headers, p.param_data), p.created_at, '[]')
                     order by h.execution) filter (where n.is_plain),
         array_agg(h.execution order by h.execution) filter (where not n.is_plain),
         array_agg(h.execution) filter (where durable._code(t.workflow, t.workflow_version) = any (p_codes)
           and encode(h.digest, 'hex') is distinct from durable._digest_of(t.workflow, t.workflow_version, p_codes, p_digests))
  into v_tasks, v_others, v_other
  from durable._acquire(p_ids, p_worker, p_ttl_ms, p_now, p_owned) t
  join durable._executions h on h.execution = any (array[t.execution])
  join durable._promises p on p.id = any (array[t.id])
  cross join lateral (
    -- the only row of a new run repeats its promise; a fork begins with rows of its origin. The size of an input is known
    -- without reading it
    select h.next_seq = 1 and h.previous is null and coalesce(octet_length(p.param_data) <= 16384, true)
           and (not exists (select from durable._forks)
                or (select count(*) from durable._forks k where k.id = any (array[h.id])) = 0) offset 0) as n (is_plain);
  if v_others is not null then
    select * into v_handed from durable._hand_out(v_others, p_warm, v_most) o;
    v_tasks := v_tasks || v_handed.tasks;
    if v_handed.left_out <> '{}' then
      queues := durable._put_back(v_handed.left_out, p_warm, p_worker, p_now);
      v_other := array(select unnest(v_other) except select unnest(v_handed.left_out));
    end if;
  end if;
  if v_other is not null then
    update durable._executions h
    set digest = c.digest, former_digest = nullif(durable._writer(h), c.digest),
        code_seq = case when h.digest is not null then h.next_seq end
    from (select x.execution, decode(durable._digest_of(x.workflow, x.workflow_version, p_codes, p_digests), 'hex') as digest
          from durable._executions x where x.execution = any (v_other)) c
    where h.execution = any (array[c.execution]);
  end if;
  tasks := coalesce(array_to_json(v_tasks), '[]');
end
$$;
comment on function durable._claim(text[], boolean, text, integer, text[], text[], text[], bigint) is
  'Acquires locked tasks and answers them with input and journal: no rows for a run that has done nothing yet; the rows since the suspend for a run that the worker has warm. Inputs above 16 KiB and journals have 8 MiB together, or are those of one run: the others are left as they were. queues: where they are ready.';

create or replace function durable._woken_warm(p_awaiters text[], p_worker text, p_now bigint)
returns text[] language plpgsql stable
as $$
begin
  if p_awaiters = '{}' then
    return '{}';
  end if;
  -- a task whose resumes may be locked is left to the next claim, which checks
  return array(select t.id from durable._tasks t where t.id = any (p_awaiters) and durable._ready(t, p_now)
               and t.preference = p_worker and t.execution is not null
               and (select count(*) from durable._resumes r where r.task_id = t.id and r.xmax <> 0) = 0);
end
$$;
comment on function durable._woken_warm(text[], text, bigint) is
  'Those of the tasks that are ready now and that this worker has warm.';
