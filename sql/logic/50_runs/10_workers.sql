-- Worker processes: what they can run, their coming and going, and rest: a worker with nothing to do says so, and the next lone
-- start is handed to it within its own transaction, without a claim.

create or replace function durable._code(p_workflow text, p_version text)
returns text language sql immutable parallel safe
as $$ select octet_length(p_workflow)::text || ':' || p_workflow || p_version $$;
comment on function durable._code(text, text) is 'A workflow and its version as one text, so that what a worker can run is one array.';

create or replace function durable._codes(p_workflows text[], p_versions text[])
returns text[] language plpgsql immutable parallel safe
as $$
begin
  return array(select durable._code(w.name, w.version)
               from unnest(p_workflows, p_versions) with ordinality as w (name, version, n) order by w.n);
end
$$;
comment on function durable._codes(text[], text[]) is 'The codes of workflows and versions, at the same places.';

create or replace function durable._digest_of(p_workflow text, p_version text, p_codes text[], p_digests text[])
returns text language sql immutable parallel safe
as $$ select p_digests[array_position(p_codes, durable._code(p_workflow, p_version))] $$;
comment on function durable._digest_of(text, text, text[], text[]) is
  'The digest of a workflow''s code among those of p_codes, which stand at the same places; null if it is not there.';

create or replace function durable._handed(
  p_task durable._tasks, p_head durable._executions, p_seq integer, p_input text, p_started_at bigint, p_rows json)
returns json language sql stable
as $$
  select json_build_array(p_head.execution, p_task.id, p_task.version, p_task.workflow, p_task.workflow_version, p_input, p_seq,
                          p_head.next_seq, p_rows, p_task.crashes, p_started_at, p_task.queue, p_head.first_child)
$$;
comment on function durable._handed(durable._tasks, durable._executions, integer, text, bigint, json) is
  'A claimed run as a worker gets it: [execution, id, version, workflow, workflow_version, param, from, next, rows, crashes, started_at, queue, first_child]. An array costs both sides half of an object.';

create or replace function durable.worker_hello_v1(
  p_worker text, p_queues text[], p_workflows text[], p_versions text[], p_about jsonb, p_digests text[] default null)
returns jsonb language plpgsql volatile
as $$
declare
  v_number integer;
  v_now bigint := durable._now_ms();
begin
  insert into durable._workers as w (id, seen_at, started_at, queues, workflows, versions, about)
  values (p_worker, v_now, v_now, p_queues, p_workflows, p_versions, coalesce(p_about, '{}'))
  on conflict (id) do update
    set seen_at = v_now, missing_at = null, queues = p_queues, workflows = p_workflows, versions = p_versions
  returning w.number into v_number;
  insert into durable._workflows as k (name, version, seen_at, digest)
  select distinct on (f.name, f.version) f.name, f.version, v_now, decode(f.digest, 'hex')
  from unnest(p_workflows, p_versions, p_digests) as f (name, version, digest) order by 1, 2
  on conflict (name, version) do update set seen_at = v_now, digest = coalesce(excluded.digest, k.digest);
  return jsonb_build_object('number', v_number, 'now', v_now, 'codes', durable._codes(p_workflows, p_versions),
    'settings', (select jsonb_object_agg(s.name, s.value) from durable.settings s));
end
$$ set search_path = '' set plan_cache_mode = force_generic_plan set join_collapse_limit = 1
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off set quote_all_identifiers = off;
comment on function durable.worker_hello_v1(text, text[], text[], text[], jsonb, text[]) is
  'Registers a worker process under its fresh id, with what it can run; answers the key of its presence lock, the settings, and the codes that its turns name.';

create or replace function durable.worker_present_v1(p_worker text, p_present boolean)
returns boolean language plpgsql volatile
as $$
declare
  v_present boolean;
begin
  update durable._workers w
  set present = p_present and not durable._presence_lock(w.number), seen_at = durable._now_ms(), missing_at = null
  where w.id = any (array(select x.id from durable._workers x where x.id = p_worker for no key update skip locked))
  returning w.present into v_present;
  return coalesce(v_present, false);
end
$$ set search_path = '' set plan_cache_mode = force_generic_plan set join_collapse_limit = 1
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off set quote_all_identifiers = off;
comment on function durable.worker_present_v1(text, boolean) is
  'Declares or withdraws presence. Call it from another session than the one that holds the lock: it is believed only if the lock is seen held.';

create or replace function durable.worker_adrift_v1(p_worker text, p_executions bigint[], p_ids text[])
returns text[] language plpgsql volatile
as $$
declare
  v_ids text[];
  v_missed bigint[];
  v_executions bigint[];
  v_now bigint;
begin
  v_ids := array(select t.id from durable._tasks t
                 where t.pid = p_worker and t.state = 'acquired' and t.execution is not null
                   and (t.execution, t.id) not in (
                     select k.execution, k.id from unnest(p_executions, p_ids) as k (execution, id)));
  if v_ids = '{}' then
    return '{}';
  end if;
  perform durable._mark_turn();
  v_ids := array(select unnest(v_ids) except select unnest(durable._take_tasks(v_ids, true)));
  v_ids := array(select t.id from durable._tasks t where t.id = any (v_ids) and t.pid = p_worker and t.state = 'acquired');
  v_missed := durable._take_heads(array(select t.execution from durable._tasks t where t.id = any (v_ids)));
  v_now := durable._now_ms();
  select coalesce(array_agg(t.id), '{}'), coalesce(array_agg(t.execution), '{}') into v_ids, v_executions
  from durable._tasks t
  where t.id = any (v_ids) and t.execution <> all (v_missed) and durable._holds(t, t.version, v_now);
  perform durable._interrupt(v_executions, 'released', v_now);
  perform durable._let_go(v_ids, array_fill(0::bigint, array[cardinality(v_ids)]), v_now);
  return v_ids;
end
$$ set search_path = '' set plan_cache_mode = force_generic_plan set join_collapse_limit = 1
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off set quote_all_identifiers = off;
comment on function durable.worker_adrift_v1(text, bigint[], text[]) is
  'After a turn whose answer got lost, or notes that may have been: gives back what this worker holds but does not know. p_executions, p_ids: what it knows. Not while a turn is in flight. Answers the ids of which; a note of one of them that still comes counts for nothing. What somebody has locked at this moment is left to the next call, or to its lease.';

create or replace function durable._rest_again(p_worker text, p_ends_at bigint)
returns boolean language plpgsql volatile
as $$
begin
  update durable._resting r
  set ends_at = p_ends_at, number = w.number, commits = current_setting('synchronous_commit')
  from durable._workers w
  where w.id = p_worker and w.present
    and r.worker = any (array(select x.worker from durable._resting x where x.worker = p_worker for update skip locked));
  return found;
end
$$;
comment on function durable._rest_again(text, bigint) is
  'A worker that is present and has rested before rests until p_ends_at. Never waits; false if a start has its row at this moment.';

create or replace function durable.worker_rest_v1(
  p_worker text, p_address text, p_queues text[], p_codes text[], p_digests text[], p_ttl_ms bigint, p_for_ms bigint)
returns boolean language plpgsql volatile
as $$
declare
  v_ends_at bigint := durable._now_ms() + p_for_ms;
begin
  if durable._rest_again(p_worker, v_ends_at) then
    return true;
  end if;
  insert into durable._resting (worker, number, address, queues, digests, ttl, ends_at, commits)
  select w.id, w.number, p_address, p_queues,
         (select coalesce(jsonb_object_agg(c.code, c.digest), '{}') from unnest(p_codes, p_digests) as c (code, digest)),
         p_ttl_ms, v_ends_at, current_setting('synchronous_commit')
  from durable._workers w
  where w.id = p_worker and w.present and not exists (select from durable._resting r where r.worker = p_worker)
  on conflict do nothing;
  return found;
end
$$ set search_path = '' set plan_cache_mode = force_generic_plan set join_collapse_limit = 1
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off set quote_all_identifiers = off;
comment on function durable.worker_rest_v1(text, text, text[], text[], text[], bigint, bigint) is
  'A worker that is present waits for work: for p_for_ms one run may be handed to it by a note to p_address. It says so anew after each; with 0 ms it says that it does not, because it is full, cannot hear or stops. p_codes, p_digests: as of its turns. Its session commits as all of its sessions do. False if it is not present, or a start has its row at this moment.';

create or replace function durable._is_as_safe(p_commits text, p_as text, p_standbys text)
returns boolean language plpgsql immutable parallel safe
as $$
declare
  v_levels constant text[] := '{off,local,remote_write,on,remote_apply}';
begin
  if p_standbys = '' then
    return p_commits <> 'off' or p_as = 'off';
  end if;
  return array_position(v_levels, p_commits) >= array_position(v_levels, p_as);
end
$$;
comment on function durable._is_as_safe(text, text, text) is
  'A commit under p_commits waits at least for what one under p_as does; both are values of synchronous_commit. Without p_standbys, the value of synchronous_standby_names, all but off wait for the same.';

create or replace function durable._hand_over(
  p_head durable._executions, p_input text, p_queue text, p_priority integer, p_timeout_ms bigint, p_reply text, p_now bigint)
returns durable.start_record language plpgsql volatile
as $$
declare
  v_code text := durable._code(p_head.workflow, p_head.workflow_version);
  v_rest durable._resting;
  v_task durable._tasks;
begin
  -- six times as much is the most that JSON makes of it, and a note has less than 8000 bytes
  if octet_length(p_head.id) + octet_length(p_head.workflow) + octet_length(p_head.workflow_version) + octet_length(p_input)
       + octet_length(p_queue) + coalesce(octet_length(p_reply), 0) > 1250
     or current_setting('transaction_isolation') <> 'read committed' then
    return null;
  end if;
  select * into v_rest from durable._resting r
  where r.worker >= '' and r.ends_at > p_now and p_queue = any (r.queues)
    and r.digests ->> v_code = encode(p_head.digest, 'hex')
    and durable._is_as_safe(current_setting('synchronous_commit'), r.commits, current_setting('synchronous_standby_names'))
    and not durable._presence_lock(r.number)
  limit 1 for update skip locked;
  if not found then
    return null;
  end if;
  update durable._resting r set ends_at = null where r.worker = v_rest.worker;
  insert into durable._tasks as t (id, execution, deadline, queue, priority, workflow, workflow_version, state, version, pid, ttl,
                                   expires_at, attempt, attempt_open)
  values (p_head.id, p_head.execution, durable._later(p_now, p_timeout_ms), p_queue, p_priority, p_head.workflow,
          p_head.workflow_version, 'acquired', 1, v_rest.worker, v_rest.ttl, p_now + v_rest.ttl, 1, true)
  returning t.* into v_task;
  perform durable._note(v_rest.address, json_build_array(
    durable._handed(v_task, p_head, 0, p_input, p_now, '[]'), p_timeout_ms, p_reply)::text);
  return (p_head.id, true, true);
end
$$;
comment on function durable._hand_over(durable._executions, text, text, integer, bigint, text, bigint) is
  'Makes the task of a run that begins in this transaction the task of a worker at rest, by a note [the run as _handed, timeout in ms, p_reply]; null, and nothing is written, if none rests that can run it. Never waits: one start at a time has the row of a worker. A worker whose presence lock is free has died at rest. The note comes with the commit and tells nothing of the disk, so what it hands over must be as safe by then as what the worker commits behind it: a caller whose commit waits for less hands nothing over, and the claim, a commit of the worker''s own, makes the start safe. That holds because the caller is alone in its transaction: who sets synchronous_commit between this and the commit can lose a run that a worker has begun. Even then nothing is taken for another run, for every report names its run.';

create or replace function durable.worker_bye_v1(p_worker text)
returns integer language plpgsql volatile
as $$
begin
  delete from durable._resting r
  where r.worker = any (array(select x.worker from durable._resting x where x.worker = p_worker for update skip locked));
  if not exists (select from durable._resting r where r.worker = p_worker) then
    delete from durable._workers w
    where w.id = any (array(select x.id from durable._workers x where x.id = p_worker for update skip locked));
  end if;
  return cardinality(durable.worker_adrift_v1(p_worker, '{}', '{}'));
end
$$ set search_path = '' set plan_cache_mode = force_generic_plan set join_collapse_limit = 1
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off set quote_all_identifiers = off;
comment on function durable.worker_bye_v1(text) is
  'Orderly end: gives all held tasks back at once and forgets the worker. Waits for nobody: what is locked at this moment is left to durable.tick(). While a start is handing it a run it is not forgotten, so that its presence lock tells that it is gone. Answers how many.';
