-- Failed attempts of a step that lie far back. A step that is retried without end, as a poll, keeps its first attempt and the
-- last ones; the others are removed as new ones are written, so that no replay reads them. An attempt that failed has two events,
-- so the rows that are left tell exactly how many sequence numbers are free, and check() counts them. The number of failures is
-- that of the last attempt, less those that were interrupted, which stay.

create or replace function durable._recent_attempts()
returns integer language sql immutable parallel safe
as $$ select 10 $$;
comment on function durable._recent_attempts() is
  'So many failed attempts of a step are kept at least, besides the first. Of the others so many are removed at once.';

create or replace function durable._oldest_recent(p_last integer)
returns integer language sql immutable parallel safe
as $$ select p_last - p_last % durable._recent_attempts() - durable._recent_attempts() + 1 $$;
comment on function durable._oldest_recent(integer) is
  'The attempt from which on all are kept, when p_last is the last one that failed.';

create or replace function durable._leaves_old_attempts(p_type durable.row_type, p_attempt integer)
returns boolean language sql immutable parallel safe
as $$
  select p_attempt >= 2 * durable._recent_attempts() and p_attempt % durable._recent_attempts() = 0
         and durable._fails_attempt(p_type)
$$;
comment on function durable._leaves_old_attempts(durable.row_type, integer) is
  'Whether attempts of a step lie far back once this row is written, and were not removed before.';

create or replace function durable._remove_old_attempts(p_events durable._event[])
returns void language plpgsql volatile
as $$
declare
  v_step record;
  v_seqs integer[];
  v_hashes bytea[];
begin
  for v_step in
    select h.execution, h.bucket, e.child, max(e.attempt) as last
    from unnest(p_events) e
    join durable._executions h on h.execution = any (array[e.execution])
    where durable._leaves_old_attempts(e.type, e.attempt) and h.rules >= 3 and not h.written_by_client
    group by h.execution, e.child
  loop
    select coalesce(array_agg(distinct a.seq), '{}'), coalesce(array_agg(r.hash) filter (where r.hash is not null), '{}')
    into v_seqs, v_hashes
    from (
      select j.seq, durable._references_of(j) as hashes,
             bool_or(durable._fails_attempt(j.type) and durable._json(durable._data(j)) -> 'interrupted' is distinct from 'true')
               over (partition by j.attempt) as failed
      from durable._journal j
      where j.execution = v_step.execution and j.bucket = v_step.bucket and j.child = v_step.child
        and j.attempt > 1 and j.attempt < durable._oldest_recent(v_step.last)
        and (j.type = 'attempt_started' or durable._fails_attempt(j.type))) a
    left join lateral unnest(a.hashes) as r (hash) on true
    where a.failed;
    -- a turn waits for nobody: what somebody has locked is removed with the next ones
    continue when not durable._try_lock_rows(v_step.bucket, v_step.execution, v_seqs)
                  or (v_hashes <> '{}' and not durable._try_lock_values(v_step.bucket, v_step.execution));
    delete from durable._journal j
    where j.execution = v_step.execution and j.bucket = v_step.bucket and j.seq = any (v_seqs);
    perform durable._remove_values(v_step.bucket, v_step.execution, v_hashes);
  end loop;
end
$$;
comment on function durable._remove_old_attempts(durable._event[]) is
  'Removes the rows of failed attempts that lie far back, of steps for which _leaves_old_attempts tells so. The first attempt stays, which has the number, the input hash and the policy of the step, and so do interrupted ones. Large errors go with their rows. Where somebody has locked one of them, all stay until the next are removed. The caller holds the heads.';
