-- Retention of calls. An attempt is a promise with more about it, so its row goes after the promise that durable.purge has
-- removed, unless its result is still shared, a scope has it pinned, or a step was given it. A scope that was made for a run goes
-- after the run. As all retention it waits for no lock: a locked row is left for the next time.
-- Each stage goes through its table in the order of a key, in portions: it answers how many rows it removed, and the key after
-- which to continue, null at the end. Other tables are asked by counts: an exists becomes a join, which may read all of them.

create or replace function durable._drop_free_scope(p_scope text, p_limit integer)
returns integer language plpgsql volatile
as $$
declare
  v_pins integer;
  v_entries integer;
begin
  perform from durable._refs r where r.name = p_scope for update skip locked;
  if not found or durable._has_running_calls(p_scope) or exists (select from durable._promises p where p.id = p_scope) then
    return 0;
  end if;
  delete from durable._pins p where p.ctid = any (array(
    select x.ctid from durable._pins x where x.scope = p_scope limit p_limit for update skip locked));
  get diagnostics v_pins = row_count;
  if exists (select from durable._pins p where p.scope = p_scope) then
    return v_pins;
  end if;
  delete from durable._pin_log l where l.id = any (array(
    select x.id from durable._pin_log x where x.scope = p_scope limit p_limit for update skip locked));
  get diagnostics v_entries = row_count;
  if not exists (select from durable._pin_log l where l.scope = p_scope) then
    delete from durable._refs r where r.name = p_scope;
  end if;
  return v_pins + v_entries;
end
$$;
comment on function durable._drop_free_scope(text, integer) is
  'Drops the scope of a removed run with its pins and their history, at most so many of each; the rest the next time. It stays while its calls run, or if anything of it is locked.';

create or replace function durable._purge_scopes(p_after text, p_limit integer, out removed integer, out last text)
language plpgsql volatile
as $$
declare
  v_names text[] := array(
    select r.name from durable._refs r where r.of_run and r.name > p_after order by r.name limit p_limit);
begin
  last := v_names[p_limit];
  removed := (
    select coalesce(sum(durable._drop_free_scope(n, p_limit)), 0) from unnest(v_names) n
    where (select count(*) from durable._promises p where p.id = n) = 0);
end
$$;
comment on function durable._purge_scopes(text, integer) is 'Stage 1: scopes of runs that were removed.';

create or replace function durable._purge_steps(
  p_after text, p_limit integer, p_before bigint, out removed integer, out last text)
language plpgsql volatile
as $$
declare
  v_ids text[] := array(
    select s.step_id from durable._call_steps s where s.step_id > p_after order by s.step_id limit p_limit);
begin
  last := v_ids[p_limit];
  delete from durable._call_steps s where s.step_id = any (array(
    select x.step_id from durable._call_steps x
    where x.step_id = any (v_ids)
      and case when x.run_id is null then x.created_at < p_before
               else (select count(*) from durable._promises p where p.id = x.run_id) = 0 end
      and (select count(*) from durable._call_attempts a
           where a.execution_key = x.execution_key and durable._is_open(a)) = 0
    for update skip locked));
  get diagnostics removed = row_count;
end
$$;
comment on function durable._purge_steps(text, integer, bigint) is
  'Stage 2: answers to steps of runs that were removed, and those without a run from before an instant (null: none). A step whose attempt goes on stays.';

create or replace function durable._purge_pin_log(
  p_after text, p_limit integer, p_before bigint, out removed integer, out last text)
language plpgsql volatile
as $$
declare
  v_ids bigint[] := array(
    select l.id from durable._pin_log l where l.id > coalesce(nullif(p_after, ''), '0')::bigint order by l.id limit p_limit);
  v_old bigint[] := array(
    select l.id from durable._pin_log l
    where l.id = any (v_ids) and l.pinned_at < p_before
      and (select count(*) from durable._pins p
           where p.scope = l.scope and p.node_id = l.node_id and p.version = l.version and p.pinned_at = l.pinned_at) = 0
    for update of l skip locked);
begin
  delete from durable._pin_log l
  where l.id = any (v_old) and (
    select count(*) from durable._pin_log o
    where o.scope = l.scope and o.node_id = l.node_id and o.id < l.id and o.id <> all (v_old)) = 0;
  get diagnostics removed = row_count;
  last := case when (select l.pinned_at from durable._pin_log l where l.id = v_ids[p_limit]) < p_before
                    or v_ids[p_limit] = any (v_old) then v_ids[p_limit]::text end;
end
$$;
comment on function durable._purge_pin_log(text, integer, bigint) is
  'Stage 3: the beginnings of the histories of pins, from before an instant (null: none). The entry of a pin that stands stays, and so does the order of the rest.';

create or replace function durable._is_attempt_needed(
  p_attempt durable._call_attempts, p_results_from integer, p_now bigint)
returns boolean language plpgsql stable
as $$
declare
  v_days bigint := durable._setting_int('call_results_days');
begin
  return
    exists (select from durable._call_steps s where s.execution_key = p_attempt.execution_key)
    or exists (select from durable._pin_log l
               where l.execution_key = p_attempt.execution_key
                 and (select count(*) from durable._pins p
                      where p.scope = l.scope and p.node_id = l.node_id and p.version = l.version
                        and p.pinned_at = l.pinned_at) > 0)
    -- a day for the adapter to cancel the job
    or (p_attempt.cancel_due and p_attempt.ended_at > p_now - 86400000)
    or (p_attempt.exec_id is not null and p_attempt.share and p_attempt.generation >= p_results_from
        and (v_days = 0 or p_attempt.ended_at >= p_now - v_days * 86400000)
        and not exists (select from durable._call_attempts n
                        where n.value_key = p_attempt.value_key and n.generation > p_attempt.generation
                          and n.exec_id is not null and n.share and n.phase in ('integrate_ok', p_attempt.phase)));
end
$$;
comment on function durable._is_attempt_needed(durable._call_attempts, integer, bigint) is
  'Whether something needs the row of an attempt whose promise is gone: a step, a pin that it has led to, the cancellation of its job, or callers to come, who share its result (setting call_results_days) as long as there is no newer one.';

create or replace function durable._try_lock_attempts_whole(p_keys bytea[])
returns bytea[] language plpgsql volatile
as $$
declare
  v_keys bytea[] := array(
    select a.execution_key from durable._call_attempts a
    where a.execution_key = any (p_keys) order by a.execution_key for update skip locked);
  v_waiters tid[] := array(
    select w.ctid from durable._call_waiters w where w.execution_key = any (v_keys) for update skip locked);
  v_polls tid[] := array(
    select l.ctid from durable._call_polls l where l.execution_key = any (v_keys) for update skip locked);
begin
  return array(
    select k from unnest(v_keys) k
    where (select count(*) from durable._call_waiters w where w.execution_key = k and w.ctid <> all (v_waiters)) = 0
      and (select count(*) from durable._call_polls l where l.execution_key = k and l.ctid <> all (v_polls)) = 0);
end
$$;
comment on function durable._try_lock_attempts_whole(bytea[]) is
  'Locks attempts with their waiters and polls. Answers those of which no row was missed.';

create or replace function durable._purge_attempts(
  p_after text, p_limit integer, p_now bigint, out removed integer, out last text)
language plpgsql volatile
as $$
declare
  v_keys bytea[] := array(
    select a.execution_key from durable._call_attempts a
    where a.execution_key > decode(p_after, 'hex') order by a.execution_key limit p_limit);
  v_calls bytea[];
begin
  last := durable._hex(v_keys[p_limit]);
  v_keys := array(
    select a.execution_key from durable._call_attempts a
    where a.execution_key = any (v_keys) and not durable._is_open(a)
      and (select count(*) from durable._promises p where p.id = durable._call_promise(a.execution_key)) = 0);
  v_calls := array(
    select c.value_key from durable._calls c
    where c.value_key = any (array(select a.value_key from durable._call_attempts a where a.execution_key = any (v_keys)))
    order by c.value_key for no key update skip locked);
  v_keys := durable._try_lock_attempts_whole(array(
    select a.execution_key from durable._call_attempts a where a.execution_key = any (v_keys) and a.value_key = any (v_calls)));
  delete from durable._call_waiters w
  where w.execution_key = any (v_keys) and (select count(*) from durable._refs r where r.name = w.scope) = 0;
  v_keys := array(
    select a.execution_key from durable._call_attempts a
    join durable._calls c on c.value_key = any (array[a.value_key])
    where a.execution_key = any (v_keys) and not durable._is_attempt_needed(a, c.results_from, p_now));
  delete from durable._call_waiters w where w.execution_key = any (v_keys);
  delete from durable._call_polls l where l.execution_key = any (v_keys);
  with gone as (
    delete from durable._call_attempts a where a.execution_key = any (v_keys) returning a.value_key
  )
  update durable._calls c set removed = c.removed + g.count
  from (select x.value_key, count(*) as count from gone x group by x.value_key) g where c.value_key = any (array[g.value_key]);
  removed := cardinality(v_keys);
end
$$;
comment on function durable._purge_attempts(text, integer, bigint) is
  'Stage 4: attempts that ended, whose promise was removed, and that nothing needs, with their waiters and polls. Of those that stay the waiters of dropped scopes go. Locks in the order of calls: value keys, then attempts.';

create or replace function durable._purge_keys(p_after text, p_limit integer, out removed integer, out last text)
language plpgsql volatile
as $$
declare
  v_keys bytea[] := array(
    select c.value_key from durable._calls c
    where c.removed = c.generation + 1 and c.value_key > decode(p_after, 'hex') order by c.value_key limit p_limit);
begin
  last := durable._hex(v_keys[p_limit]);
  v_keys := array(select c.value_key from durable._calls c where c.value_key = any (v_keys)
                  order by c.value_key for update skip locked);
  delete from durable._calls c
  where c.value_key = any (v_keys) and c.removed = c.generation + 1 and (
    select count(*) from generate_series(0, c.generation) g
    cross join lateral (select durable._execution_key(c.value_key, g) as execution_key) k
    where (select count(*) from durable._claims x where x.execution_key = k.execution_key) > 0
       or (select count(*) from durable._removed r
           where r.id in (durable._call_promise(k.execution_key), durable._claim_promise(k.execution_key))) > 0) = 0;
  get diagnostics removed = row_count;
end
$$;
comment on function durable._purge_keys(text, integer) is
  'Stage 5: value keys without an attempt. The next call begins with generation 0 then, so they stay as long as a claim or a removed promise has an execution key of them.';

create or replace function durable._end_claim(p_execution_key bytea, p_now bigint)
returns void language plpgsql volatile
as $$
declare
  v_id text := durable._claim_promise(p_execution_key);
begin
  if durable._try_lock_promises(array[v_id]) <> '{}'
     or (select s.ids from durable._try_lock_settlement(array[v_id]) s) = '{}' then
    return;
  end if;
  perform from durable._claims c where c.execution_key = p_execution_key and c.outcome is null for update skip locked;
  if found and not exists (select from durable._tasks t where t.id = v_id and t.state = 'acquired') then
    delete from durable._claims c where c.execution_key = p_execution_key;
    perform durable._settle(array[v_id], array['rejected_canceled'], array[null::jsonb], array[null::text], p_now);
  end if;
end
$$;
comment on function durable._end_claim(bytea, bigint) is 'Ends a claim that nobody owns: its promise is cancelled, and removed later as others are.';

create or replace function durable._purge_claims(
  p_after text, p_limit integer, p_before bigint, p_now bigint, out removed integer, out last text)
language plpgsql volatile
as $$
declare
  v_keys bytea[] := array(
    select c.execution_key from durable._claims c
    where c.execution_key > decode(p_after, 'hex') order by c.execution_key limit p_limit);
  v_ended bytea[];
begin
  last := durable._hex(v_keys[p_limit]);
  v_ended := array(
    select k from unnest(v_keys) k
    where (select count(*) from durable._call_attempts a where a.execution_key = k and durable._is_open(a)) = 0);
  perform durable._end_claim(c.execution_key, p_now)
  from durable._claims c join durable._tasks t on t.id = any (array[durable._claim_promise(c.execution_key)])
  where c.execution_key = any (v_ended) and c.outcome is null and c.created_at < p_before and t.state <> 'acquired';
  delete from durable._claims c where c.execution_key = any (array(
    select x.execution_key from durable._claims x
    where x.execution_key = any (v_ended)
      and (select count(*) from durable._promises p where p.id = durable._claim_promise(x.execution_key)) = 0
    for update skip locked));
  removed := (select count(*) from unnest(v_keys) k
              where (select count(*) from durable._claims c where c.execution_key = k) = 0);
end
$$;
comment on function durable._purge_claims(text, integer, bigint, bigint) is
  'Stage 6: claims without a running attempt: those whose promise was removed, and those from before an instant (null: none) that nobody owns.';

create or replace function durable._purge_calls(
  p_before bigint, p_place jsonb, p_limit integer, out removed integer, out more jsonb)
language plpgsql volatile
as $$
declare
  v_stages constant text[] := '{scopes,steps,pins,attempts,keys,claims,snapshots}';
  v_stage text := coalesce(p_place ->> 'stage', 'scopes');
  v_after text := coalesce(p_place ->> 'after', '');
  v_now bigint := durable._now_ms();
  v_part record;
begin
  case v_stage
    when 'scopes' then select * into v_part from durable._purge_scopes(v_after, p_limit) s;
    when 'steps' then select * into v_part from durable._purge_steps(v_after, p_limit, p_before) s;
    when 'pins' then select * into v_part from durable._purge_pin_log(v_after, p_limit, p_before) s;
    when 'attempts' then select * into v_part from durable._purge_attempts(v_after, p_limit, v_now) s;
    when 'keys' then select * into v_part from durable._purge_keys(v_after, p_limit) s;
    when 'claims' then select * into v_part from durable._purge_claims(v_after, p_limit, p_before, v_now) s;
    else
      select s.removed, case when s.removed = p_limit then '' end as last into v_part
      from durable._prune_snapshots(v_now - 86400000, p_limit) s (removed);
  end case;
  removed := v_part.removed;
  if v_part.last is null then
    v_stage := v_stages[array_position(v_stages, v_stage) + 1];
  end if;
  more := case when v_stage is not null then jsonb_build_object('stage', v_stage, 'after', coalesce(v_part.last, '')) end;
end
$$ set plan_cache_mode = force_generic_plan set join_collapse_limit = 1
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off;
comment on function durable._purge_calls(bigint, jsonb, integer) is
  'One portion of a purge of calls, stage after stage, from a place on. Answers the next place; null after the last portion.';

create or replace function durable.calls_purge(older_than interval, max_rows integer default 1000, after jsonb default null)
returns table (removed integer, more jsonb) language plpgsql volatile
as $$
declare
  v_before bigint := durable._begin_purge($1, $2, coalesce(
    $3 ->> 'after' ~ case when $3 ->> 'stage' in ('scopes', 'steps', 'snapshots') then ''
                          when $3 ->> 'stage' in ('attempts', 'keys', 'claims') then '^([0-9a-f]{64})?$'
                          when $3 ->> 'stage' = 'pins' then E'^\\d{0,18}$' end, $3 is null));
  v_part record;
begin
  removed := 0;
  more := $3;
  loop
    select * into v_part from durable._purge_calls(v_before, more, least($2, 200)) p;
    more := v_part.more;
    removed := removed + v_part.removed;
    exit when more is null or removed >= $2;
  end loop;
  return next;
end
$$;
comment on function durable.calls_purge(interval, integer, jsonb) is
  'Removes what was needed for calls and is needed no more: select * from durable.calls_purge(''30 days''), after durable.purge, which removes the promises of attempts. The age is as there. Scopes, steps and attempts of removed runs go; the history of pins, steps without a run, and claims without an owner go if they are this old. A pin stays with all that it refers to, and so does a result that is shared (setting call_results_days). While more is not null, call it again with after => more. To run by itself: set_setting(''retention_days'', ''30''). WF003 above READ COMMITTED, WF004.';

create or replace function durable._sweep_calls(
  p_place jsonb, p_now bigint, out removed integer, out place jsonb, out due_in bigint)
language plpgsql volatile
as $$
declare
  v_days bigint := durable._setting_int('retention_days');
begin
  select p.removed, p.more into removed, place
  from durable._purge_calls(case when v_days > 0 then p_now - v_days * 86400000 end, p_place, 200) p;
  due_in := case when place is null then 3600000 else 100 end;
end
$$;
comment on function durable._sweep_calls(jsonb, bigint) is
  'A portion of the hourly purge of calls: what it removed, its next place (null: it is at the end), and the ms until then.';
