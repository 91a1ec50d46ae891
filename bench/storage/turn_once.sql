-- The turn with fewer row locks (each is a WAL record of its own): one UPDATE of the heads, fed in id order, is their lock, their
-- verdict and their counter at once. prev_seq keeps the number from before, because RETURNING shows only new values before PG 18.
-- With lease_in_head the lease's version and end stand in the head, so a bundle without an end touches no task row.
create function {s}.turn(p_worker text, p_queue text, p_want int, p_ttl_ms int, p_bundles {json_in}) returns {json_out} language plpgsql {plan} as $$
declare
  v_now bigint; v_ending bigint[]; v_answer {json_out}; v_tasks {json_out};
  v_key bigint[]; v_version int[]; v_seen int[]; v_end text[]; v_count int[]; v_facts {json_in}[];
  t_key bigint[]; t_version int[]; t_expires bigint[]; t_ours boolean[];
  a_id text[]; a_execution bigint[]; a_bucket int[]; a_next int[]; a_done boolean[]; a_late boolean;
begin
  select array_agg(b.execution), array_agg(b.version), array_agg(b.seen), array_agg(b."end" ->> 'value'),
         array_agg({json_in}_array_length(b.facts)), array_agg(b.facts), array_agg(b.execution) filter (where b."end" ->> 'value' is not null)
    into v_key, v_version, v_seen, v_end, v_count, v_facts, v_ending
    from {json_in}_to_recordset(p_bundles) as b(execution bigint, version int, seen int, facts {json_in}, "end" {json_in});
  if v_ending is not null then
    perform from {s}.promises p where p.id = any (array(select t.id from {s}.tasks t where t.execution = any (v_ending))) order by p.id for no key update;
--if lease_in_head
    perform from {s}.tasks t where t.execution = any (v_ending) order by t.execution for no key update;
--end
  end if;
--if !lease_in_head
  select array_agg(t.execution), array_agg(t.version), array_agg(t.expires_at), array_agg(t.ours) into t_key, t_version, t_expires, t_ours
    from (select t.execution, t.version, t.expires_at, t.state = {acquired} and t.pid = p_worker as ours from {s}.tasks t
          where t.execution = any (v_key) order by t.execution for no key update) t;
--end
  v_now := {s}.clock();
  with b as materialized (
    select b.o, b.execution, b.version, b.seen, b.n, b.e from unnest(v_key, v_version, v_seen, v_count, v_end) with ordinality b(execution, version, seen, n, e, o)
--if !lease_in_head
      join unnest(t_key, t_version, t_expires, t_ours) t(execution, version, expires_at, ours) on t.ours and t.execution = b.execution and t.version = b.version and t.expires_at > v_now
--end
     order by b.execution
  ), u as (
    update {s}.executions h
       set prev_seq = h.next_seq, next_child = h.next_child + b.n,
           next_seq = h.next_seq + 3 * b.n + (b.e is not null and h.next_seq = b.seen)::int,
           status = case when b.e is not null and h.next_seq = b.seen then {completed} else h.status end
--if lease_in_head
           , expires_at = v_now + p_ttl_ms
--end
      from b
     where h.execution = b.execution
--if lease_in_head
       and h.version = b.version and h.expires_at > v_now
--end
    returning b.o, h.id, h.execution, h.bucket, h.prev_seq, b.e is not null and h.prev_seq = b.seen as done
  )
  select array_agg(u.id order by o), array_agg(u.execution order by o), array_agg(u.bucket order by o), array_agg(u.prev_seq order by o), array_agg(u.done order by o)
    into a_id, a_execution, a_bucket, a_next, a_done
    from generate_series(1, cardinality(v_key)) o left join u using (o);
  insert into {s}.journal (bucket, execution, seq, child, type, attempt, ts, name, input_hash, data)
  select a.bucket, a.execution, a.next_seq + 3 * (f.o - 1)::int, f.child, 'L', f.attempt, v_now, f.name, decode(f.hash, 'hex'), f.value
    from unnest(a_execution, a_bucket, a_next, v_facts) a(execution, bucket, next_seq, facts),
         rows from ({json_in}_to_recordset(a.facts) as (child int, name text, hash text, attempt smallint, value text))
           with ordinality as f(child, name, hash, attempt, value, o)
   where a.execution is not null;
--if !lease_in_head
  if exists (select from unnest(t_expires) x where x < v_now + p_ttl_ms / 2) then
    update {s}.tasks t set expires_at = v_now + p_ttl_ms
     where t.execution = any (array(select execution from unnest(a_execution, a_done) a(execution, done) where not a.done));
  end if;
--end
  if v_ending is not null then
    with e as (
      select * from unnest(a_id, a_execution, a_bucket, a_next, v_count, v_version, v_end, a_done) e(id, execution, bucket, next_seq, n, version, value, done) where e.done
    ), p as (
      update {s}.promises p set state = {resolved}, value = e.value, settled_at = v_now {keep_version} from e where p.id = e.id and p.state = {pending}
    ), t as (
      delete from {s}.tasks t where t.execution = any (array(select execution from e))
    )
    insert into {s}.journal (bucket, execution, seq, type, ts) select e.bucket, e.execution, e.next_seq + 3 * e.n, 'C', v_now from e;
  end if;
  if p_want > 0 then
    with c as (
      select t.ctid as place from {s}.tasks t where t.queue = p_queue and t.state = {pending} and t.retry_at <= v_now
       order by t.priority, t.retry_at, t.id limit p_want for update skip locked
    ), u as (
      update {s}.tasks t set state = {acquired}, version = t.version + 1, pid = p_worker, ttl = p_ttl_ms, expires_at = v_now + p_ttl_ms
       where {claimed} returning t.*
--if lease_in_head
    ), l as (
      update {s}.executions h set version = u.version, expires_at = u.expires_at from u where h.execution = u.execution
--end
    )
    select {json_out}_agg({json_out}_build_object('execution', h.execution, 'id', u.id, 'version', u.version, 'workflow', u.workflow,
             'workflow_version', u.workflow_version, 'param', p.param, 'from', 0, 'next', h.next_seq, 'rows', j.rows,
             'crashes', u.crashes, 'started_at', p.created_at, 'queue', u.queue))
      into v_tasks
      from u join {s}.promises p on p.id = u.id join {s}.executions h on h.execution = u.execution
      cross join lateral (
        select {json_out}_agg({json_out}_build_array(j.seq, j.type, j.child, j.attempt, j.name, encode(j.input_hash, 'hex'), j.data) order by j.seq) as rows
          from {s}.journal j where j.bucket = h.bucket and j.execution = h.execution) j;
  end if;
--if columns
  return {json_out}_build_object('now', v_now, 'execution', to_json(a_execution), 'seq', to_json(a_next), 'tasks', v_tasks, 'hints', '[]'::{json_out}, 'settled', v_ending is not null);
--end
--if !columns
  select {json_out}_agg({json_out}_build_object('execution', a.execution, 'verdict', case when a.execution is null then 'lost' else 'ok' end,
           'state', case when a.done then 'done' else 'acquired' end, 'seq', a.next_seq, 'next', a.next_seq + 3 * a.n, 'tail', '[]'::{json_out}))
    into v_answer
    from unnest(a_execution, a_next, v_count, a_done) a(execution, next_seq, n, done);
  return {json_out}_build_object('now', v_now, 'bundles', v_answer, 'tasks', v_tasks, 'hints', '[]'::{json_out}, 'settled', v_ending is not null, 'due_in', null);
--end
end $$;
