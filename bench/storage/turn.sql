-- The turn in PL/pgSQL: unpack, lock (promises, tasks, heads), read the clock, one verdict a bundle, write, claim, answer.
create function {s}.turn(
  p_worker text, p_queue text, p_want int, p_ttl_ms int,
--if arrays
  v_key {key}[], v_version int[], v_seen int[], v_end text[], v_count int[],
  p_f_bundle int[], p_f_child int[], p_f_name text[], p_f_hash bytea[], p_f_attempt smallint[], p_f_value text[]
--end
--if !arrays
  p_bundles {json_in}
--end
) returns {returns} language plpgsql {plan} as $$
declare
  v_now bigint; v_any_end boolean; v_answer {json_out}; v_tasks {json_out};
--if !arrays
  v_key {key}[]; v_version int[]; v_seen int[]; v_end text[]; v_count int[]; v_facts {json_in}[];
--end
  t_key {key}[]; t_id text[]; t_execution bigint[]; t_version int[]; t_expires bigint[]; t_ours boolean[];
  h_id text[]; h_execution bigint[]; h_bucket int[]; h_next int[];
  a_key {key}[]; a_id text[]; a_execution bigint[]; a_bucket int[]; a_next int[]; a_version int[]; a_late boolean;
begin
--if !arrays
  select array_agg(b.{field}), array_agg(b.version), array_agg(b.seen), array_agg(b."end" ->> 'value'),
         array_agg({json_in}_array_length(b.facts)), array_agg(b.facts)
    into v_key, v_version, v_seen, v_end, v_count, v_facts
    from {json_in}_to_recordset(p_bundles) as b({field} {key}, version int, seen int, facts {json_in}, "end" {json_in});
--end
  v_any_end := exists (select from unnest(v_end) e where e is not null);
  if v_any_end then
    perform from {s}.promises p
--if key_bigint
      where p.id = any (array(select t.id from {s}.tasks t
                              where t.execution = any (array(select k from unnest(v_key, v_end) u(k, e) where e is not null))))
--end
--if !key_bigint
      where p.id = any (array(select k from unnest(v_key, v_end) u(k, e) where e is not null))
--end
      order by p.id for no key update;
  end if;
  select array_agg(t.k), array_agg(t.id), array_agg(t.execution), array_agg(t.version), array_agg(t.expires_at), array_agg(t.ours)
    into t_key, t_id, t_execution, t_version, t_expires, t_ours
    -- By key alone: with "state = ... and pid = ..." in the where clause the planner takes a partial index and reads it whole
    -- as soon as a vacuum has found the table empty (reltuples 0).
    from (select t.{task_key} as k, t.id, t.execution, t.version, t.expires_at, t.state = {acquired} and t.pid = p_worker as ours from {s}.tasks t
          where t.{task_key} = any (v_key)
          order by t.{task_key} for no key update) t;
  select array_agg(h.id), array_agg(h.execution), array_agg(h.bucket), array_agg(h.next_seq)
    into h_id, h_execution, h_bucket, h_next
    from (select h.id, h.execution, h.bucket, h.next_seq from {s}.executions h
--if key_text
          where h.id = any (v_key)
--end
--if !key_text
          where h.execution = any (t_execution)
--end
          order by h.execution for no key update) h;
  v_now := {s}.clock();
  -- Verdicts, aligned with the bundles: execution is null where the lease is lost or the journal has moved on.
  select array_agg(t.k order by b.o), array_agg(t.id order by b.o), array_agg(h.execution order by b.o), array_agg(h.bucket order by b.o),
         array_agg(h.next_seq order by b.o), bool_or({renew_when})
    into a_key, a_id, a_execution, a_bucket, a_next, a_late
    from unnest(v_key, v_version, v_seen) with ordinality b(k, version, seen, o)
    left join unnest(t_key, t_id, t_execution, t_version, t_expires, t_ours) t(k, id, execution, version, expires_at, ours)
      on t.k = b.k and t.version = b.version and t.ours and t.expires_at > v_now
    left join unnest(h_id, h_execution, h_bucket, h_next) h(id, execution, bucket, next_seq)
--if key_text
      on h.id = t.id and h.next_seq = b.seen;
--end
--if !key_text
      on h.execution = t.execution and h.next_seq = b.seen;
--end
--if promise_row
  insert into {s}.promises (id, state, execution, child, value, timeout_at, created_at, settled_at)
  select a.id || '.' || f.child, {resolved}, a.execution, f.child, f.value, v_now, v_now, v_now
--end
--if promise_row !arrays
    from unnest(a_execution, a_id, v_facts) a(execution, id, facts),
         {json_in}_to_recordset(a.facts) as f(child int, name text, hash text, attempt smallint, value text)
   where a.execution is not null;
--end
  insert into {s}.journal (bucket, execution, seq, child, type, attempt, ts, name, input_hash, data)
--if arrays
  select a.bucket, a.execution, a.next_seq + 3 * (row_number() over (partition by f.b order by f.child) - 1)::int, f.child, 'L', f.attempt, v_now, f.name, f.hash, f.value
    from unnest(p_f_bundle, p_f_child, p_f_name, p_f_hash, p_f_attempt, p_f_value) f(b, child, name, hash, attempt, value)
    join unnest(a_execution, a_bucket, a_next) with ordinality a(execution, bucket, next_seq, o) on a.o = f.b
   where a.execution is not null;
--end
--if !arrays
  select a.bucket, a.execution, a.next_seq + 3 * (f.o - 1)::int, f.child, 'L', f.attempt, v_now, f.name, decode(f.hash, 'hex'), {journal_value}
    from unnest(a_execution, a_bucket, a_next, v_facts) a(execution, bucket, next_seq, facts),
         rows from ({json_in}_to_recordset(a.facts) as (child int, name text, hash text, attempt smallint, value text))
           with ordinality as f(child, name, hash, attempt, value, o)
   where a.execution is not null;
--end
  update {s}.executions h
     set next_seq = h.next_seq + 3 * a.n + (a.e is not null)::int, next_child = h.next_child + a.n,
         status = case when a.e is null then h.status else {completed} end
    from unnest(a_execution, v_count, v_end) a(execution, n, e)
   where h.execution = a.execution;
  if a_late then
    update {s}.tasks t set expires_at = v_now + p_ttl_ms
     where t.{task_key} = any (array(select k from unnest(a_key, a_execution, v_end) a(k, execution, e) where a.execution is not null and a.e is null));
  end if;
  if v_any_end then
    with e as (
      select * from unnest(a_key, a_id, a_execution, a_bucket, a_next, v_count, v_version, v_end) e(k, id, execution, bucket, next_seq, n, version, value)
       where e.value is not null and e.execution is not null
    ), p as (
      update {s}.promises p set state = {resolved}, value = e.value, settled_at = v_now {keep_version}
        from e where p.id = e.id and p.state = {pending}
    ), t as (
--if task_kept
      update {s}.tasks t set state = {fulfilled}, pid = null, expires_at = null where t.{task_key} = any (array(select k from e))
--end
--if !task_kept
      delete from {s}.tasks t where t.{task_key} = any (array(select k from e))
--end
    )
    insert into {s}.journal (bucket, execution, seq, type, ts) select e.bucket, e.execution, e.next_seq + 3 * e.n, 'C', v_now from e;
  end if;
  if p_want > 0 then
--if ready_table
    -- The limit stands in a CTE of its own: a locking sub-select inside the join may run more than once and claim too many.
    with d as materialized (
      select r.ctid as place from {s}.ready r
       where r.queue = p_queue and r.retry_at <= v_now order by r.priority, r.retry_at, r.id limit p_want for update skip locked
    ), c as (
      delete from {s}.ready r where r.ctid = any (array(select place from d)) returning r.id
--end
--if !ready_table
    with c as (
      select t.ctid as place from {s}.tasks t
       where t.queue = p_queue and t.state = {pending} and t.retry_at <= v_now
       order by t.priority, t.retry_at, t.id limit p_want for update skip locked
--end
    ), u as (
      update {s}.tasks t set state = {acquired}, version = t.version + 1, pid = p_worker, ttl = p_ttl_ms, expires_at = v_now + p_ttl_ms
       where {claimed} returning t.*
    )
    select {json_out}_agg({json_out}_build_object('execution', h.execution, 'id', u.id, 'version', u.version, 'workflow', u.workflow,
             'workflow_version', u.workflow_version, 'param', p.param, 'from', 0, 'next', h.next_seq, 'rows', j.rows,
             'crashes', u.crashes, 'started_at', p.created_at, 'queue', u.queue))
      into v_tasks
      from u join {s}.promises p on p.id = u.id
      join {s}.executions h on {head_of_task}
      cross join lateral (
        select {json_out}_agg({json_out}_build_array(j.seq, j.type, j.child, j.attempt, j.name, encode(j.input_hash, 'hex'), j.data) order by j.seq) as rows
          from {s}.journal j where j.bucket = h.bucket and j.execution = h.execution) j;
  end if;
--if setof
  return query select a.execution, case when a.execution is null then 'lost' else 'ok' end, a.next_seq, a.next_seq + 3 * a.n, null::jsonb
    from unnest(a_execution, a_next, v_count) a(execution, next_seq, n);
  return query select (x ->> 'execution')::bigint, 'task', 0, 0, x from jsonb_array_elements(v_tasks) x;
--end
--if columns
  return {json_out}_build_object('now', v_now, 'execution', to_json(a_execution), 'seq', to_json(a_next), 'tasks', v_tasks, 'hints', '[]'::{json_out}, 'settled', v_any_end);
--end
--if !setof !columns
  select {json_out}_agg({json_out}_build_object('execution', a.execution, 'verdict', case when a.execution is null then 'lost' else 'ok' end,
           'state', case when a.e is null then 'acquired' else 'done' end, 'seq', a.next_seq, 'next', a.next_seq + 3 * a.n, 'tail', '[]'::{json_out}))
    into v_answer
    from unnest(a_execution, a_next, v_count, v_end) a(execution, next_seq, n, e);
  return {json_out}_build_object('now', v_now, 'bundles', v_answer, 'tasks', v_tasks, 'hints', '[]'::{json_out}, 'settled', v_any_end, 'due_in', null);
--end
end $$;
