-- Worker processes: registration, presence, and the hand-off. A worker with nothing to do registers as idle, and the next
-- single start gives its run to that worker within the transaction of the start, without a claim.

create or replace function durable._code(p_workflow text, p_version text)
returns text language sql immutable parallel safe
as $$ select octet_length(p_workflow)::text || ':' || p_workflow || p_version $$;
comment on function durable._code(text, text) is
  'A workflow and its version as one text, so that the workflows of a worker are one array.';

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
  'The digest of a workflow''s code, from p_digests, which stand at the same places as p_codes; null if p_codes has no such workflow.';

create or replace function durable._claimed_run(
  p_task durable._tasks, p_head durable._executions, p_seq integer, p_input text, p_started_at bigint, p_rows json)
returns json language sql stable
as $$
  select json_build_array(p_head.execution, p_task.id, p_task.version, p_task.workflow, p_task.workflow_version, p_input, p_seq,
                          p_head.next_seq, p_rows, p_task.crashes, p_started_at, p_task.queue, p_head.first_child, null,
                          p_head.rules)
$$;
comment on function durable._claimed_run(durable._tasks, durable._executions, integer, text, bigint, json) is
  'A claimed run as it is sent to its worker: [execution, id, version, workflow, workflow_version, param, from, next, rows, crashes, started_at, queue, first_child, null, rules]. An array costs both sides half as much as an object.';

create or replace function durable._insert_workflows(
  p_workflows text[], p_versions text[], p_digests text[], p_signals jsonb[], p_own_queues text[], p_rules integer,
  p_now bigint)
returns boolean language plpgsql volatile
as $$
begin
  insert into durable._workflows (name, version, seen_at, digest, signals, queue, rules)
  select distinct on (f.name, f.version) f.name, f.version, p_now, decode(f.digest, 'hex'), f.signals, f.queue, p_rules
  from unnest(p_workflows, p_versions, p_digests, p_signals, p_own_queues) as f (name, version, digest, signals, queue)
  order by 1, 2
  on conflict do nothing;
  return true;
exception when lock_not_available then
  return false;
end
$$ set lock_timeout = '50ms';
comment on function durable._insert_workflows(text[], text[], text[], jsonb[], text[], integer, bigint) is
  'Inserts workflows that nobody announced before. False, and none is inserted, if another session has inserted one of them and not committed for 50 ms.';

create or replace function durable._announce(
  p_workflows text[], p_versions text[], p_digests text[], p_signals jsonb[], p_own_queues text[], p_rules integer,
  p_now bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_new record;
begin
  select array_agg(f.name) as names, array_agg(f.version) as versions, array_agg(f.digest) as digests,
         array_agg(f.signals) as signals, array_agg(f.queue) as queues into v_new
  from unnest(p_workflows, p_versions, p_digests, p_signals, p_own_queues) as f (name, version, digest, signals, queue)
  where not exists (select from durable._workflows x where x.name = any (array[f.name]) and x.version = any (array[f.version]));
  if not durable._insert_workflows(v_new.names, v_new.versions, v_new.digests, v_new.signals, v_new.queues, p_rules, p_now) then
    perform durable._insert_workflows(array[f.name], array[f.version], array[f.digest], array[f.signals], array[f.queue],
                                      p_rules, p_now)
    from unnest(v_new.names, v_new.versions, v_new.digests, v_new.signals, v_new.queues)
      as f (name, version, digest, signals, queue);
  end if;
  update durable._workflows k
  set seen_at = p_now, digest = coalesce(decode(f.digest, 'hex'), k.digest), signals = f.signals, rules = p_rules,
      -- an older worker says nothing of queues
      queue = case when p_own_queues is null then k.queue else f.queue end
  from (
    select x.ctid as place, u.digest, u.signals, u.queue
    from unnest(p_workflows, p_versions, p_digests, p_signals, p_own_queues) as u (name, version, digest, signals, queue)
    join durable._workflows x on x.name = any (array[u.name]) and x.version = any (array[u.version])
    order by x.name, x.version for update of x skip locked) f
  where k.ctid = f.place and (k.seen_at <> p_now or k.digest is distinct from decode(f.digest, 'hex')
                              or k.rules <> p_rules or k.signals is distinct from f.signals
                              or (p_own_queues is not null and k.queue is distinct from f.queue));
  return array(
    select distinct f.name
    from unnest(p_workflows, p_versions, p_digests, p_signals, p_own_queues) as f (name, version, digest, signals, queue)
    left join durable._workflows x on x.name = any (array[f.name]) and x.version = any (array[f.version])
    where x.name is null or x.digest is distinct from coalesce(decode(f.digest, 'hex'), x.digest)
          or x.signals is distinct from f.signals or x.rules <> p_rules
          or (p_own_queues is not null and x.queue is distinct from f.queue));
end
$$;
comment on function durable._announce(text[], text[], text[], jsonb[], text[], integer, bigint) is
  'Records the workflows that a worker can run, with the signals that they receive, the queues that they declare, and the rules of their next runs. Answers those that it could not record, because another session has inserted or locked them.';

create or replace function durable._session(p_pid integer)
returns jsonb language sql stable
as $$
  select jsonb_build_object(
    'pid', a.pid, 'user', coalesce(a.usename, ''), 'state', coalesce(a.state, ''),
    -- a number, because workers of 0.1.0 read one; of sessions of other roles the type is hidden, and the user is not
    'age_ms', case when a.backend_type is null then -1
                   else coalesce(durable._now_ms() - (extract(epoch from a.xact_start) * 1000)::bigint, 0) end,
    'query', case when a.backend_type is null then '' else left(coalesce(a.query, ''), 200) end)
  from pg_catalog.pg_stat_activity a where a.pid = p_pid
$$;
comment on function durable._session(integer) is
  'A session, for the log of a worker: pid, user, state, age_ms of its transaction, and the beginning of its query. Empty, and -1 for the age, is whatever this role may not see.';

create or replace function durable._writers_of_workflows()
returns jsonb language plpgsql stable
as $$
begin
  return (
    select coalesce(jsonb_agg(s.session), '[]')
    from (
      select distinct l.pid from pg_catalog.pg_locks l
      where l.pid <> pg_backend_pid() and l.locktype = 'relation' and l.granted and l.mode in ('RowShareLock', 'RowExclusiveLock')
        and l.relation = 'durable._workflows'::regclass
        and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database())) x
    cross join lateral (select durable._session(x.pid) as session) s
    where s.session is not null);
end
$$;
comment on function durable._writers_of_workflows() is
  'Sessions whose open transactions have written or locked rows of _workflows, as worker_blocked_v1 answers them.';

create or replace function durable._places()
returns table (worker text, name text, version text, module text, parameters text) language sql stable
as $$
  select w.id, x.name, x.version, x.place ->> 0, x.place ->> 1
  from durable._workers w
  -- the places are read once: they stand outside of the row where a worker has many workflows
  cross join lateral rows from (
    unnest(w.workflows), unnest(w.versions),
    jsonb_array_elements(case when jsonb_typeof(w.about -> 'places') = 'array' then w.about -> 'places' end)
  ) as x (name, version, place)
  where w.missing_at is null and x.name is not null and x.place is not null
$$;
comment on function durable._places() is
  'From which module, and with which parameters, each worker that is there has registered each of its workflows.';

create or replace function durable._namesakes(p_worker text)
returns jsonb language plpgsql stable
as $$
begin
  return (
    select coalesce(jsonb_agg(n.one order by n.one), '[]')
    from (select distinct on (o.name, o.version, o.module, o.parameters)
                 jsonb_build_object('name', o.name, 'version', o.version, 'module', o.module, 'parameters', o.parameters,
                                    'worker', o.worker) as one
          from durable._places() p
          join durable._places() o on o.name = p.name and o.version = p.version
          where p.worker = p_worker and o.worker <> p_worker
            and (o.module, o.parameters) is distinct from (p.module, p.parameters)
          order by o.name, o.version, o.module, o.parameters) n);
end
$$;
comment on function durable._namesakes(text) is
  'Workflows of other workers that are there which have the name and version of one of this worker, from another module or with other parameters: runs of that name get the one or the other, by chance.';

create or replace function durable.worker_hello_v1(
  p_worker text, p_queues text[], p_workflows text[], p_versions text[], p_about jsonb, p_digests text[] default null,
  p_signals jsonb default null, p_own_queues text[] default null, p_rules integer default 1)
returns jsonb language plpgsql volatile
as $$
declare
  v_number bigint;
  v_registered boolean;
  v_is_new boolean;
  v_unannounced text[];
  v_signals jsonb[] := array(select nullif(s.each, 'null') from jsonb_array_elements(p_signals) with ordinality as s (each, n)
                             order by s.n);
  v_now bigint := durable._now_ms();
begin
  perform durable._check_site();
  -- a row that an open transaction has deleted is still there: to insert it again would wait for that transaction
  v_is_new := not exists (select from durable._workers w where w.id = p_worker);
  if v_is_new then
    insert into durable._workers (id, seen_at, started_at, queues, workflows, versions, digests, signals, rules, about, keeps)
    values (p_worker, v_now, v_now, p_queues, p_workflows, p_versions, p_digests, p_signals, p_rules, coalesce(p_about, '{}'),
            coalesce((p_about ->> 'keeps')::boolean, false))
    on conflict (id) do nothing;
  else
    update durable._workers w
    set seen_at = v_now, missing_at = null, queues = p_queues, workflows = p_workflows, versions = p_versions,
        digests = p_digests, signals = p_signals, rules = p_rules
    where w.id = any (array(select x.id from durable._workers x where x.id = p_worker for no key update skip locked));
  end if;
  v_registered := found;
  v_number := (select w.number from durable._workers w where w.id = p_worker);
  v_unannounced := durable._announce(p_workflows, p_versions, p_digests, v_signals, p_own_queues,
                                     least(p_rules, durable._rules()), v_now);
  return jsonb_build_object('number', v_number, 'now', v_now, 'codes', durable._codes(p_workflows, p_versions),
    'settings', (select jsonb_object_agg(s.name, s.value) from durable.settings s), 'registered', v_registered,
    'is_new', v_is_new, 'namesakes', durable._namesakes(p_worker), 'unannounced', to_jsonb(v_unannounced), 'holders', case when v_unannounced <> '{}' then durable._writers_of_workflows() else '[]' end);
end
$$ set lock_timeout = '1s';
comment on function durable.worker_hello_v1(text, text[], text[], text[], jsonb, text[], jsonb, text[], integer) is
  'Registers a worker process under its fresh id, with the workflows that it can run. p_signals: for each workflow, at the same place, the signals that it receives, {"types": {name: JSON schema of its payload}, "any": whether it receives other names too}; null for all. p_own_queues: for each workflow, the queue that it declares, or null; null for all keeps what was registered. p_rules: the newest rules of replay that it knows. Answers the key of its presence lock, the settings, the codes that its turns name, is_new if it was not registered before, and namesakes: what durable._namesakes answers; p_about has the [module, parameters] of each workflow, at the same place, in places, and keeps if others may not have its runs. Waits for no other session longer than a moment; the hello is to be sent again if one has locked or deleted the row of the worker (registered: false), or has inserted or locked workflows (unannounced; holders: the sessions that may be it, as worker_blocked_v1 answers them). WF016 in a copy that was not adopted.';

create or replace function durable.worker_present_v1(p_worker text, p_present boolean)
returns boolean language plpgsql volatile
as $$
declare
  v_present boolean;
begin
  update durable._workers w
  set present = p_present and not durable._is_disconnected(w.number), seen_at = durable._now_ms(), missing_at = null
  where w.id = any (array(select x.id from durable._workers x where x.id = p_worker for no key update skip locked))
  returning w.present into v_present;
  return coalesce(v_present, false);
end
$$ set lock_timeout = '1s';
comment on function durable.worker_present_v1(text, boolean) is
  'Declares or withdraws presence. Call it from another session than the one that has the presence lock: presence is recorded only if that lock is seen as taken.';

create or replace function durable.worker_release_unknown_v1(p_worker text, p_executions bigint[], p_ids text[])
returns text[] language plpgsql volatile
as $$
declare
  v_ids text[];
  v_missed bigint[];
  v_executions bigint[];
  v_now bigint;
  v_until bigint;
begin
  v_ids := array(select t.id from durable._tasks t
                 where t.pid = p_worker and t.state = 'acquired' and t.execution is not null
                   and (t.execution, t.id) not in (
                     select k.execution, k.id from unnest(p_executions, p_ids) as k (execution, id)));
  if v_ids = '{}' then
    return '{}';
  end if;
  perform durable._mark_engine_xact();
  v_ids := array(select unnest(v_ids) except select unnest(durable._try_lock_tasks(v_ids, true)));
  v_ids := array(select t.id from durable._tasks t where t.id = any (v_ids) and t.pid = p_worker and t.state = 'acquired');
  v_missed := durable._try_lock_heads(array(select t.execution from durable._tasks t where t.id = any (v_ids)));
  v_now := durable._now_ms();
  select coalesce(array_agg(t.id), '{}'), coalesce(array_agg(t.execution), '{}') into v_ids, v_executions
  from durable._tasks t
  where t.id = any (v_ids) and t.execution <> all (v_missed) and durable._is_leased(t, t.version, v_now);
  perform durable._interrupt(v_executions, 'released', v_now);
  perform durable._release_tasks(v_ids, array_fill(0::bigint, array[cardinality(v_ids)]), v_now);
  v_until := durable._reserved_until(p_worker, v_now, v_now);
  if v_until is not null then
    update durable._tasks t set preference = p_worker, prefer_until = v_until where t.id = any (v_ids);
  end if;
  return v_ids;
end
$$ set lock_timeout = '1s';
comment on function durable.worker_release_unknown_v1(text, bigint[], text[]) is
  'Releases the tasks that this worker has without knowing it, because a turn''s answer or a hand-off was lost. p_executions, p_ids: the runs that it knows. Do not call it while a turn is in flight. Answers the released ids; a hand-off of one of them that arrives later is void. A locked task is left to the next call, or to the end of its lease.';

create or replace function durable.worker_keep_v1(p_worker text, p_id text)
returns boolean language plpgsql volatile
as $$
declare
  v_until bigint := durable._reserved_until(p_worker, durable._now_ms(), durable._now_ms());
begin
  if v_until is null or durable._try_lock_tasks(array[p_id], false) <> '{}' then
    return false;
  end if;
  update durable._tasks t set retry_at = durable._now_ms(), preference = p_worker, prefer_until = v_until
  where t.id = p_id and t.state = 'pending' and t.version = 0;
  return found;
end
$$ set lock_timeout = '1s';
comment on function durable.worker_keep_v1(text, text) is
  'Gives a run that was started with a delay and has not begun to a worker that keeps its runs: it is ready at once, and for that worker only. False if nothing was changed.';

create or replace function durable._renew_idle(p_worker text, p_idle_until bigint)
returns boolean language plpgsql volatile
as $$
begin
  update durable._idle_workers i
  set idle_until = p_idle_until, number = w.number, synchronous_commit = current_setting('synchronous_commit')
  from durable._workers w
  where w.id = p_worker and w.present
    and i.worker = any (array(select x.worker from durable._idle_workers x where x.worker = p_worker for update skip locked));
  return found;
end
$$;
comment on function durable._renew_idle(text, bigint) is
  'Extends the idle registration of a present worker until p_idle_until. Never waits; false if the worker is not registered as idle, or if a start has locked its row.';

create or replace function durable.worker_idle_v1(
  p_worker text, p_address text, p_queues text[], p_codes text[], p_digests text[], p_ttl_ms bigint, p_for_ms bigint)
returns boolean language plpgsql volatile
as $$
declare
  v_idle_until bigint := durable._now_ms() + p_for_ms;
begin
  perform durable._check_site();
  if durable._renew_idle(p_worker, v_idle_until) then
    return true;
  end if;
  insert into durable._idle_workers (worker, number, rules, address, queues, digests, ttl, idle_until, synchronous_commit)
  select w.id, w.number, w.rules, p_address, p_queues,
         (select coalesce(jsonb_object_agg(c.code, c.digest), '{}') from unnest(p_codes, p_digests) as c (code, digest)),
         p_ttl_ms, v_idle_until, current_setting('synchronous_commit')
  from durable._workers w
  where w.id = p_worker and w.present and not exists (select from durable._idle_workers i where i.worker = p_worker)
  on conflict do nothing;
  return found;
end
$$ set lock_timeout = '1s';
comment on function durable.worker_idle_v1(text, text, text[], text[], text[], bigint, bigint) is
  'Registers a present worker as idle: for p_for_ms one run may be handed off to it, by a direct message to p_address. One registration serves one run. 0 ms withdraws it: the worker is full, stops, or its listener is down. p_codes, p_digests: as in its turns. synchronous_commit must be the same in all its sessions. False if the worker is not present, or if a start has locked its row.';

create or replace function durable._is_as_durable(p_commits text, p_as text, p_standbys text)
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
comment on function durable._is_as_durable(text, text, text) is
  'True if a commit under p_commits is at least as durable as one under p_as, both values of synchronous_commit. p_standbys is the value of synchronous_standby_names: without standbys every value but off waits for the same.';

create or replace function durable._has_idle_worker()
returns boolean language plpgsql stable
as $$
begin
  return exists (select from durable._idle_workers i where i.worker >= '' and i.idle_until > durable._now_ms());
end
$$;
comment on function durable._has_idle_worker() is 'Whether a worker may be idle, so that a start looks for one.';

create or replace function durable._try_lock_idle(p_request durable._start_request, p_run text, p_reply text, p_now bigint)
returns durable._idle_workers language plpgsql volatile
as $$
declare
  v_code text := durable._code(p_request.workflow, p_request.version);
  v_worker durable._idle_workers;
begin
  -- JSON text is at most six times as long as the text, and a notification has less than 8000 bytes
  if octet_length(p_run) + octet_length(p_request.workflow) + octet_length(p_request.version)
       + octet_length(p_request.input) + octet_length(p_request.queue) + coalesce(octet_length(p_reply), 0) > 1250
     or current_setting('transaction_isolation') <> 'read committed' then
    return null;
  end if;
  select i.* into v_worker from durable._idle_workers i
  where i.worker >= '' and i.idle_until > p_now and p_request.queue = any (i.queues)
    and i.digests ->> v_code = (select encode(w.digest, 'hex') from durable._workflows w
                                where w.name = p_request.workflow and w.version = p_request.version and w.rules <= i.rules)
    and durable._is_as_durable(current_setting('synchronous_commit'), i.synchronous_commit,
                               current_setting('synchronous_standby_names'))
    and not durable._is_disconnected(i.number)
  limit 1 for update of i skip locked;
  return v_worker;
end
$$;
comment on function durable._try_lock_idle(durable._start_request, text, text, bigint) is
  'Locks an idle worker to which the run can be handed off; null if there is none. Never waits: one start at a time has the row of a worker. A worker whose presence lock is free has died. The direct message leaves with the commit and does not wait for the disk, so the caller''s commit must be at least as durable as the worker''s own commits, which build on it; otherwise there is no hand-off, and the claim, a commit of the worker, makes the start durable. This relies on the caller being alone in its transaction: a change of synchronous_commit between this call and the commit can lose a run that a worker has begun. Even then no other run is harmed, because every report names its run.';

create or replace function durable._hand_off(
  p_worker durable._idle_workers, p_execution bigint, p_request durable._start_request, p_reply text, p_now bigint)
returns void language plpgsql volatile
as $$
begin
  update durable._idle_workers i set idle_until = null where i.worker = p_worker.worker;
  perform durable._send_message(p_worker.address, json_build_array(
    durable._claimed_run(t, h, 0, p_request.input, p_now, '[]'), p_request.timeout_ms, p_reply)::text)
  from durable._executions h join durable._tasks t on t.id = h.id where h.execution = p_execution;
end
$$;
comment on function durable._hand_off(durable._idle_workers, bigint, durable._start_request, text, bigint) is
  'Tells a worker that _try_lock_idle has locked of the run that was inserted as claimed by it, by a direct message [the run as _claimed_run, timeout in ms, p_reply].';

create or replace function durable.worker_bye_v1(p_worker text)
returns integer language plpgsql volatile
as $$
begin
  delete from durable._idle_workers i
  where i.worker = any (array(select x.worker from durable._idle_workers x where x.worker = p_worker for update skip locked));
  if not exists (select from durable._idle_workers i where i.worker = p_worker) then
    delete from durable._workers w
    where w.id = any (array(select x.id from durable._workers x where x.id = p_worker for update skip locked));
  end if;
  return cardinality(durable.worker_release_unknown_v1(p_worker, '{}', '{}'));
end
$$ set lock_timeout = '1s';
comment on function durable.worker_bye_v1(text) is
  'The orderly end of a worker: releases all its tasks and removes its registration; answers how many tasks. Never waits: a locked task is left to durable.tick(). While a start is handing a run to the worker, its row stays, and its free presence lock shows that it is gone.';
