-- Changes of the site: the adoption of a copy, and the record of a new timeline.

create or replace function durable._check_may_adopt()
returns void language plpgsql stable
as $$
begin
  if not (select pg_has_role(n.nspowner, 'USAGE') from pg_catalog.pg_namespace n where n.oid = 'durable'::regnamespace) then
    perform durable._fail_forbidden('Only the owner of the schema durable may adopt a copy.',
                                    'Let a role that owns it, or is a member of its owner, type: pyengine db adopt');
  elsif current_setting('durable.site', true) = 'copy' then
    perform durable._fail_conflict('The configuration says durable.site = copy, so the database would stay a copy.',
                                   'Take the setting out of the server, the database or the role, and connect again.');
  end if;
end
$$;
comment on function durable._check_may_adopt() is 'WF011 unless the session has the rights of the schema''s owner; WF003 if the configuration says that this is a copy.';

create or replace function durable._try_lock_leases()
returns text[] language plpgsql volatile
as $$
declare
  v_ids text[] := array(select t.id from durable._tasks t where t.state = 'acquired' and t.pid >= '');
  v_heads bigint[] := array(select t.execution from durable._tasks t where t.id = any (v_ids) and t.execution is not null);
begin
  return durable._locked_ids(durable._try_lock_tasks(v_ids, true), durable._try_lock_heads(v_heads));
end
$$;
comment on function durable._try_lock_leases() is 'Locks all leased tasks with their heads. Answers the ids of those that it missed.';

create or replace function durable._lock_leases()
returns void language plpgsql volatile
as $$
declare
  v_missed text[];
begin
  for v_round in 1..50 loop
    begin
      v_missed := durable._try_lock_leases();
      if v_missed = '{}' then
        return;
      end if;
      perform durable._start_over();
    exception when sqlstate 'WF099' then
      -- its locks are given back, so that no session is blocked while this one waits for the rest
      perform pg_sleep(0.1);
    end;
  end loop;
  perform durable._fail_busy(format('Task %L', v_missed[1]));
end
$$;
comment on function durable._lock_leases() is
  'Locks all leased tasks with their heads, or raises 55P03 after five seconds; meanwhile it holds nothing and stands in no queue.';

create or replace function durable._void_leases(p_now bigint)
returns integer language plpgsql volatile
as $$
declare
  v_ids text[] := array(select t.id from durable._tasks t where t.state = 'acquired' and t.pid >= '');
begin
  perform durable._interrupt(
    array(select t.execution from durable._tasks t where t.id = any (v_ids) and t.execution is not null), 'adopted', p_now);
  perform durable._release_tasks(v_ids, array_fill(0::bigint, array[cardinality(v_ids)]), p_now);
  delete from durable._idle_workers i where i.worker = any (array(
    select x.worker from durable._idle_workers x where durable._is_disconnected(x.number) for update skip locked));
  delete from durable._workers w where w.id = any (array(
    select x.id from durable._workers x where durable._is_disconnected(x.number) for update skip locked));
  return cardinality(v_ids);
end
$$;
comment on function durable._void_leases(bigint) is
  'Gives back all leases that came with a copy, and forgets the workers of the original, which have no connection here. No run has crashed by that. The caller has locked the tasks and their heads. Answers how many leases.';

create or replace function durable._forget_transactions(p_now bigint)
returns void language plpgsql volatile
as $$
begin
  update durable._row_waits w set since = null, test_at = coalesce(w.test_at, p_now)
  where w.promise_id = any (array(select x.promise_id from durable._row_waits x for update skip locked));
  update durable._row_events e set xid = pg_current_xact_id()
  where e.id = any (array(select x.id from durable._row_events x for update skip locked));
end
$$;
comment on function durable._forget_transactions(bigint) is
  'Forgets numbers of transactions of another server, which a dump has brought: here they may be ahead, or those of other transactions. Every wait for a row is tested again.';

create or replace function durable.adopt()
returns table (adopted boolean, leases integer) language plpgsql volatile
as $$
declare
  v_identity text;
begin
  perform durable._check_may_lock();
  perform durable._check_may_adopt();
  v_identity := durable._identity();
  perform set_config('durable.site', v_identity, false);
  perform durable._lock_site();
  if exists (select from durable._site s where s.identity = v_identity) then
    return query select false, 0;
    return;
  end if;
  perform durable._lock_leases();
  leases := durable._void_leases(durable._now_ms());
  perform durable._forget_transactions(durable._now_ms());
  perform durable._record_site(v_identity);
  perform durable._hint('durable_ready', durable._now_ms());
  return query select true, leases;
end
$$ set lock_timeout = '5s';
comment on function durable.adopt() is
  'Lets a copy run, such as a restored backup or a cluster after pg_upgrade: select * from durable.adopt(). The view durable.would_run shows everything that would begin. Leases that came with the copy are given back, workers of the original are forgotten, and from the commit on everything goes on here: make sure that the original does not run, or that both may do the same work. Does nothing in a database that is no copy. Waits 5 s at most for transactions that have locked a leased run. WF003, WF011, 55P03.';

create or replace function durable._record_timeline(p_now bigint)
returns text language plpgsql volatile
as $$
declare
  v_timeline integer := durable._timeline();
  v_site durable._site;
begin
  select * into v_site from durable._site s;
  if v_site.timeline = v_timeline or not durable._try_lock_site() then
    return null;
  end if;
  update durable._site s set timeline = v_timeline, previous_timeline = s.timeline, timeline_at = p_now
  where s.timeline <> v_timeline;
  return case when found then format(
    'the server writes timeline %s now, after timeline %s: a standby was promoted, or a backup restored. If the server before '
    'it still runs, stop one of the two', v_timeline, v_site.timeline) end;
end
$$;
comment on function durable._record_timeline(bigint) is
  'Records a new timeline, and answers the warning about it, once. The system identifier stays, so a standby that was promoted goes on at once.';
