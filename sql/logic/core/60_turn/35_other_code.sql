-- A run that does not fit the code of the worker that claimed it: it is left to a present worker with the code that wrote its
-- journal; without one it is halted, and a tick offers it to the first worker that has that code.

create or replace function durable._has_written(p_head durable._executions)
returns boolean language plpgsql stable
as $$
begin
  return exists (
    select from durable._journal j
    where j.execution = p_head.execution and j.bucket = p_head.bucket and j.seq >= p_head.code_seq
      and ((durable._allocates(j.type) and j.type <> 'signal_received')
           or j.type in ('execution_awaiting', 'join_set_submitted', 'join_set_awaited')));
end
$$;
comment on function durable._has_written(durable._executions) is
  'True if the code that has the run now has made calls of its own in its journal. Rows that others append, such as signals and timers, are none.';

create or replace function durable._writer(p_head durable._executions)
returns bytea language plpgsql stable
as $$
begin
  return case when p_head.former_digest is null or durable._has_written(p_head) then p_head.digest else p_head.former_digest end;
end
$$;
comment on function durable._writer(durable._executions) is
  'Digest of the code that made the last call in the journal. A worker that has only claimed the run does not count.';

create or replace function durable._python_of(p_digest bytea)
returns text language sql immutable parallel safe
as $$
  select format('%s.%s', get_byte(p_digest, 30), get_byte(p_digest, 31))
  where octet_length(p_digest) = 32 and substr(p_digest, 29, 2) = 'py'
$$;
comment on function durable._python_of(bytea) is
  'The minor version of the Python that a digest of code names, such as 3.11; null for a digest of a worker of 0.1.0, which named none.';

create or replace function durable._with_python(p_head durable._executions, p_problem text)
returns text language sql stable
as $$
  select coalesce((
    select (v.problem || jsonb_build_object(
        'message', concat(case when v.is_same then format('Python %s does not do what Python %s did with the same source of the workflow', v.now, v.before)
                               else format('this run was driven by Python %s, and this worker is Python %s', v.before, v.now) end,
                          ': ', v.problem ->> 'message'))
      || case when v.is_same then jsonb_build_object('data', coalesce(v.problem -> 'data', '{}') || jsonb_build_object(
           'hint', format('a worker with Python %s can end this run', v.before))) else '{}' end)::text
    from (select p_problem::jsonb as problem, durable._python_of(p_head.former_digest) as before,
                 durable._python_of(p_head.digest) as now,
                 substr(p_head.former_digest, 1, 28) = substr(p_head.digest, 1, 28) as is_same) v
    where v.before <> v.now), p_problem)
$$;
comment on function durable._with_python(durable._executions, text) is
  'A problem of replay with the Python that wrote the journal and that of the worker, if they differ: it is named before the code.';

create or replace function durable._workers_with_code(
  p_queue text, p_workflow text, p_version text, p_digest bytea, p_now bigint)
returns text[] language plpgsql volatile
as $$
begin
  return array(
    select w.id from durable._workers w
    where p_queue = any (w.queues) and durable._is_there(w, p_now)
      and exists (select from unnest(w.workflows, w.versions, w.digests) as x (name, version, digest)
                  where x.name = p_workflow and x.version = p_version and x.digest = encode(p_digest, 'hex')));
end
$$;
comment on function durable._workers_with_code(text, text, text, bytea, bigint) is
  'The workers that are there, serve the queue, and have that code.';

create or replace function durable._their_workers(p_ids text[], p_now bigint)
returns table (id text, worker text) language sql volatile
as $$
  with run as materialized (
    select t.id, t.queue, h.workflow, h.workflow_version as version, h.digest
    from durable._tasks t join durable._executions h on h.execution = any (array[t.execution]) where t.id = any (p_ids)
  ), code as materialized (
    -- workers are many, and so are their workflows: they are looked through once for each code
    select c.*, durable._workers_with_code(c.queue, c.workflow, c.version, c.digest, p_now) as workers
    from (select distinct r.queue, r.workflow, r.version, r.digest from run r) c
  )
  select r.id, c.workers[1 + floor(random() * cardinality(c.workers))::integer]
  from run r join code c on c.queue = r.queue and c.workflow = r.workflow and c.version = r.version and c.digest = r.digest
$$;
comment on function durable._their_workers(text[], bigint) is
  'For each run one of the workers that are there, serve its queue, and have the code of its digest; null if there is none.';

create or replace function durable._reserve(p_ids text[], p_workers text[], p_now bigint)
returns void language plpgsql volatile
as $$
begin
  update durable._tasks t
  set preference = p_workers[array_position(p_ids, t.id)], prefer_until = p_now + durable._setting_int('lease_ttl_ms')
  where t.id = any (p_ids) and t.state is not distinct from 'pending';
end
$$;
comment on function durable._reserve(text[], text[], bigint) is
  'Reserves pending tasks, each for the worker at the same place. After the length of a lease any other may claim them, in case that worker is full or gone; so a run goes to a worker of other code once in that time at most.';

create or replace function durable._wait_for_code(p_ids text[])
returns void language plpgsql volatile
as $$
begin
  insert into durable._code_waits (id, workflow, workflow_version, digest)
  select h.id, h.workflow, h.workflow_version, h.digest
  from durable._tasks t join durable._executions h on h.execution = any (array[t.execution])
  where t.id = any (p_ids)
  on conflict on constraint code_waits_pk do nothing;
end
$$;
comment on function durable._wait_for_code(text[]) is
  'Notes the halted runs that wait for their code, which is that of their digest.';

create or replace function durable._leave_to_their_code(p_ids text[], p_problems text[], p_now bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_problems text[];
  v_free text[];
  v_workers text[];
  v_halted text[];
  v_queues text[];
begin
  v_problems := array(
    select durable._with_python(h, u.problem)
    from unnest(p_ids, p_problems) with ordinality as u (id, problem, n)
    join durable._tasks t on t.id = any (array[u.id])
    join durable._executions h on h.execution = any (array[t.execution])
    order by u.n);
  update durable._executions h set digest = h.former_digest, former_digest = null, code_seq = null
  where h.execution = any (array(select t.execution from durable._tasks t where t.id = any (p_ids)));
  select coalesce(array_agg(w.id) filter (where w.worker is not null), '{}'),
         coalesce(array_agg(w.worker) filter (where w.worker is not null), '{}'),
         coalesce(array_agg(w.id) filter (where w.worker is null), '{}')
  into v_free, v_workers, v_halted
  from durable._their_workers(p_ids, p_now) w;
  perform durable._halt_runs(v_halted, array(select v_problems[array_position(p_ids, i)] from unnest(v_halted) i), p_now);
  perform durable._wait_for_code(v_halted);
  if v_free = '{}' then
    return '{}';
  end if;
  perform durable._interrupt(array(select t.execution from durable._tasks t where t.id = any (v_free)), 'released', p_now);
  v_queues := durable._release_tasks(v_free, array_fill(0::bigint, array[cardinality(v_free)]), p_now);
  perform durable._reserve(v_free, v_workers, p_now);
  return v_queues;
end
$$;
comment on function durable._leave_to_their_code(text[], text[], bigint) is
  'Gives runs that another code wrote back for workers that have that code; halts those for which there is none, and notes that they wait for it. Answers the queues that got ready tasks.';

create or replace function durable._set_aside_runs(p_ids text[], p_problems text[], p_now bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_others text[];
  v_own text[];
begin
  if p_ids = '{}' then
    return '{}';
  end if;
  v_others := array(
    select t.id from durable._tasks t
    join durable._executions h on h.execution = any (array[t.execution])
    where t.id = any (p_ids) and h.former_digest is not null and durable._writer(h) <> h.digest
      and durable._json(p_problems[array_position(p_ids, t.id)]) ->> 'type'
          in ('NondeterminismError', 'Nondeterminism', 'Unreadable'));
  v_own := array(select i from unnest(p_ids) i where i <> all (v_others));
  perform durable._halt_runs(v_own, array(select p_problems[array_position(p_ids, i)] from unnest(v_own) i), p_now);
  if v_others = '{}' then
    return '{}';
  end if;
  return durable._leave_to_their_code(
    v_others, array(select p_problems[array_position(p_ids, i)] from unnest(v_others) i), p_now);
end
$$;
comment on function durable._set_aside_runs(text[], text[], bigint) is
  'Halts runs, each for its problem; those whose journal another code wrote are left to that code if the problem is that the code does not fit. Answers the queues that got ready tasks.';

create or replace function durable._decide_refusals(p_reports durable._run_report[])
returns durable._run_report[] language plpgsql stable
as $$
begin
  return array(
    select case when (b.ending)."do" = 'refuse' then durable._with_ending(b, case
             when h.former_digest is not null and b.commands = '{}' and b.outcomes = '{}' and durable._writer(h) <> h.digest
               then row('halt', null, null, null, null, null, (b.ending).problem, null)::durable._ending
             else row('fail', null, null, null, (b.ending).error, null, null, null)::durable._ending end) else b end
    from unnest(p_reports) b left join durable._executions h on h.execution = any (array[b.execution])
    order by b.id);
end
$$;
comment on function durable._decide_refusals(durable._run_report[]) is
  'The reports with what a refusal means: code that cannot read what it wrote itself, or was started with, has failed; code that cannot read what another code has written is not the one for this run.';

create or replace function durable._offer_to_their_code(p_now bigint, p_limit integer, out queues text[], out locked text[])
language plpgsql volatile
as $$
declare
  v_waiting text[];
  v_ids text[];
  v_missed bigint[];
  v_workers text[];
begin
  queues := '{}'; locked := '{}';
  if not exists (select from durable._code_waits) then
    return;
  end if;
  v_waiting := array(
    select c.id
    from (select distinct x.name, x.version, decode(x.digest, 'hex') as digest, w.queues
          from durable._workers w cross join lateral unnest(w.workflows, w.versions, w.digests) as x (name, version, digest)
          where w.missing_at is null) f
    join durable._code_waits c
      on c.workflow = any (array[f.name]) and c.workflow_version = any (array[f.version]) and c.digest = any (array[f.digest])
    left join lateral (
      select t.queue from durable._tasks t join durable._executions h on h.execution = any (array[t.execution])
      where t.id = any (array[c.id]) and t.state is not distinct from 'halted' and h.digest = c.digest offset 0) h on true
    where h.queue is null or h.queue = any (f.queues)
    limit p_limit);
  v_ids := durable._try_lock_code_waits(v_waiting);
  v_ids := array(select unnest(v_ids) except select unnest(durable._try_lock_tasks(v_ids, false)));
  v_missed := durable._try_lock_heads(array(select t.execution from durable._tasks t where t.id = any (v_ids)));
  locked := durable._locked_ids(array(select unnest(v_waiting) except select unnest(v_ids)), v_missed);
  -- a run that has ended or gone on waits for nothing any more, and such rows would be the first ones each time
  delete from durable._code_waits c
  where c.id = any (v_ids) and not exists (
    select from durable._tasks t join durable._executions h on h.execution = any (array[t.execution])
    where t.id = any (array[c.id]) and t.state is not distinct from 'halted' and h.digest = c.digest);
  select coalesce(array_agg(w.id), '{}'), coalesce(array_agg(w.worker), '{}') into v_ids, v_workers
  from durable._their_workers(array(
    select c.id from durable._code_waits c join durable._tasks t on t.id = any (array[c.id])
    where c.id = any (v_ids) and t.execution <> all (v_missed)), p_now) w where w.worker is not null;
  perform durable._continue_tasks(v_ids, p_now);
  perform durable._reserve(v_ids, v_workers, p_now);
  queues := array(select distinct t.queue from durable._tasks t where t.id = any (v_ids));
end
$$;
comment on function durable._offer_to_their_code(bigint, integer) is
  'Lets halted runs go on whose code a worker of their queue has now. queues: those that got ready tasks; locked: runs that other sessions have locked. Most ticks find no such run, and read nothing else.';
