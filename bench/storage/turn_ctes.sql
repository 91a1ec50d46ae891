-- The same turn as one LANGUAGE sql statement of CTEs. Speed only: all its parts read one snapshot, so a task that
-- the statement itself wakes could not be claimed by it, and a row re-read after a lock wait is seen by the locking part alone.
create function {s}.turn(p_worker text, p_queue text, p_want int, p_ttl_ms int, p_bundles jsonb) returns jsonb language sql {plan} as $$
  with b as materialized (
    select row_number() over () as o, b.{field} as k, b.version, b.seen, b.facts, jsonb_array_length(b.facts) as n, b."end" ->> 'value' as e
      from jsonb_to_recordset(p_bundles) as b({field} {key}, version int, seen int, facts jsonb, "end" jsonb)
  ), lp as materialized (
    select p.id from {s}.promises p where p.id = any (array(select t.id from {s}.tasks t where t.{task_key} = any (array(select k from b where e is not null))))
     order by p.id for no key update
  ), lt as materialized (
    select t.{task_key} as k, t.id, t.execution, t.version, t.expires_at, t.state = {acquired} and t.pid = p_worker as ours from {s}.tasks t
     where t.{task_key} = any (array(select k from b)) and (select count(*) from lp) >= 0
     order by t.{task_key} for no key update
  ), lh as materialized (
    select h.execution, h.bucket, h.next_seq from {s}.executions h where h.execution = any (array(select execution from lt))
     order by h.execution for no key update
  ), i as materialized (
    select {s}.clock() as now, (select count(*) from lh) as locked
  ), a as materialized (
    select b.o, b.k, b.n, b.e, b.facts, b.version, t.id, h.execution, h.bucket, h.next_seq, t.expires_at, i.now
      from i cross join b left join lt t on t.k = b.k and t.version = b.version and t.ours and t.expires_at > i.now
      left join lh h on h.execution = t.execution and h.next_seq = b.seen
  ), w as (
    insert into {s}.journal (bucket, execution, seq, child, type, attempt, ts, name, input_hash, data)
    select a.bucket, a.execution, a.next_seq + 3 * (f.o - 1)::int, f.child, 'L', f.attempt, a.now, f.name, decode(f.hash, 'hex'), f.value
      from a, rows from (jsonb_to_recordset(a.facts) as (child int, name text, hash text, attempt smallint, value text))
                with ordinality as f(child, name, hash, attempt, value, o)
     where a.execution is not null
    union all
    select a.bucket, a.execution, a.next_seq + 3 * a.n, null, 'C', null, a.now, null, null, null
      from a where a.execution is not null and a.e is not null
  ), uh as (
    update {s}.executions h set next_seq = h.next_seq + 3 * a.n + (a.e is not null)::int, next_child = h.next_child + a.n,
           status = case when a.e is null then h.status else {completed} end
      from a where h.execution = a.execution
  ), ut as (
    update {s}.tasks t set expires_at = a.now + p_ttl_ms from a
     where t.{task_key} = a.k and a.execution is not null and a.e is null and a.expires_at < a.now + p_ttl_ms / 2
  ), up as (
    update {s}.promises p set state = {resolved}, value = a.e, settled_at = a.now {keep_version_a}
      from a where p.id = a.id and p.state = {pending} and a.e is not null and a.execution is not null
  ), dt as (
    delete from {s}.tasks t where t.{task_key} = any (array(select k from a where a.e is not null and a.execution is not null))
  ), c as (
    select t.ctid as place from {s}.tasks t
     where t.queue = p_queue and t.state = {pending} and t.retry_at <= (select now from i)
     order by t.priority, t.retry_at, t.id limit p_want for update skip locked
  ), u as (
    update {s}.tasks t set state = {acquired}, version = t.version + 1, pid = p_worker, ttl = p_ttl_ms, expires_at = i.now + p_ttl_ms
      from i where {claimed} returning t.*
  ), g as (
    select jsonb_agg(jsonb_build_object('execution', h.execution, 'id', u.id, 'version', u.version, 'workflow', u.workflow,
             'workflow_version', u.workflow_version, 'param', p.param, 'from', 0, 'next', h.next_seq, 'rows', j.rows,
             'crashes', u.crashes, 'started_at', p.created_at, 'queue', u.queue)) as tasks
      from u join {s}.promises p on p.id = u.id join {s}.executions h on h.execution = u.execution
      cross join lateral (
        select jsonb_agg(jsonb_build_array(j.seq, j.type, j.child, j.attempt, j.name, encode(j.input_hash, 'hex'), j.data) order by j.seq) as rows
          from {s}.journal j where j.bucket = h.bucket and j.execution = h.execution) j
  )
  select jsonb_build_object('now', i.now, 'bundles',
           (select jsonb_agg(jsonb_build_object('execution', a.execution, 'verdict', case when a.execution is null then 'lost' else 'ok' end,
               'state', case when a.e is null then 'acquired' else 'done' end, 'seq', a.next_seq, 'next', a.next_seq + 3 * a.n, 'tail', '[]'::jsonb) order by a.o) from a),
           'tasks', g.tasks, 'hints', '[]'::jsonb, 'settled', false, 'due_in', null)
    from i, g
$$;
