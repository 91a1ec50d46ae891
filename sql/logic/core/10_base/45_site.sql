-- The site: whether this database is where it was adopted, or a copy. A copy beside its original must not do the same work once
-- more, so it gives no lease, uses none of those that came with it, and time starts nothing in it, until durable.adopt().
-- Behind a pooler a session may be of another server than the one before, so each turn, start and tick compares. A session
-- belongs to one server and one database for its life. Once it has found that they are those of the row in _site, it keeps
-- their identity in the setting durable.site, and the rest is a comparison of that with the row.
-- A copy that holds nothing which could run adopts itself at its first use: databases of test suites are copies of a template.

create or replace function durable._identity()
returns text language sql stable
as $$
  select c.system_identifier::text || '.' || d.oid::text
  from pg_catalog.pg_control_system() c cross join pg_catalog.pg_database d where d.datname = current_database()
$$;
comment on function durable._identity() is
  'The server and the database of this session, in the form of _site.identity. Reads a file of the server, so the answer is kept.';

create or replace function durable._timeline()
returns integer language plpgsql stable
as $$
begin
  if pg_is_in_recovery() then
    return (select c.timeline_id from pg_catalog.pg_control_checkpoint() c);
  end if;
  return ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer;
end
$$;
comment on function durable._timeline() is
  'The timeline in which the server writes. The control file names it only after the first checkpoint of a promoted standby.';

create or replace function durable._could_run()
returns boolean language sql stable
as $$
  select exists (select from durable._tasks) or exists (select from durable._schedules) or exists (select from durable._unblocks)
         or exists (select from durable._promises p where p.due_at is not null)
         or exists (select from durable._call_attempts a where a.cancel_due)
$$;
comment on function durable._could_run() is
  'Whether anything is here that could run by itself: an unfinished task, a schedule, a deadline, a message, or a job to be cancelled.';

create or replace function durable._copy_hash(p_identity text)
returns bigint language sql volatile
as $$
  select greatest(1, hashtextextended(p_identity || ' ' || s.identity, 0) & 9223372036854775807) from durable._site s
$$;
comment on function durable._copy_hash(text) is
  'The form in the sequence _idle_copy of a copy: where it is, and where its original was. A later restore over it may be of another one.';

create or replace function durable._was_idle(p_identity text)
returns boolean language sql volatile
as $$ select coalesce(pg_sequence_last_value('durable._idle_copy') = durable._copy_hash(p_identity), false) $$;
comment on function durable._was_idle(text) is
  'Whether somebody has seen since the copy was made that nothing could run in it: then nothing of what could run now came with it.';

create or replace function durable._record_idle(p_identity text)
returns void language plpgsql volatile
as $$
begin
  if not durable._was_idle(p_identity) and has_sequence_privilege('durable._idle_copy', 'update') then
    perform setval('durable._idle_copy', durable._copy_hash(p_identity));
  end if;
end
$$;
comment on function durable._record_idle(text) is
  'Records, whatever becomes of the transaction, that nothing could run here. A role that may only use sequences does without: it relies on _is_being_adopted.';

create or replace function durable._is_being_adopted()
returns boolean language sql volatile
as $$ select durable._is_owned(1685417585) $$;
comment on function durable._is_being_adopted() is
  'True if an open transaction has found that nothing could run in this copy, and adopts it with its commit. All that could run was written since then.';

create or replace function durable._record_site(p_identity text)
returns void language plpgsql volatile
as $$
begin
  update durable._site s
  set system_identifier = split_part(p_identity, '.', 1)::bigint, database = split_part(p_identity, '.', 2)::oid,
      timeline = durable._timeline(), previous_timeline = null, timeline_at = durable._now_ms(), adopted_at = durable._now_ms(),
      adopted_by = current_user;
end
$$;
comment on function durable._record_site(text) is 'Records an adoption. The caller has locked the row.';

create or replace function durable._is_strange()
returns boolean language plpgsql volatile
as $$
declare
  v_identity text := durable._identity();
begin
  if current_setting('durable.site', true) = 'copy' then
    return true;
  elsif exists (select from durable._site s where s.identity = v_identity) then
    perform set_config('durable.site', v_identity, false);
    return false;
  elsif durable._could_run() and not durable._was_idle(v_identity) then
    perform set_config('durable.site', '', false);
    if durable._is_being_adopted() then
      return false;
    end if;
    -- the adoption may have been committed since the first look
    return not exists (select from durable._site s where s.identity = v_identity);
  elsif current_setting('transaction_read_only') = 'off' then
    -- the adoption may be rolled back, or be that of another session, which is: what this one writes is no part of the copy
    perform durable._record_idle(v_identity);
    if current_setting('transaction_isolation') = 'read committed' and durable._try_lock_idle_copy() then
      perform durable._record_site(v_identity);
    end if;
  end if;
  return false;
end
$$;
comment on function durable._is_strange() is
  'The same as _is_copy, for a session that has not compared yet, or in a copy. A copy in which nothing could run is adopted here. durable.site = copy in the configuration of a server, a database or a role makes all their sessions those of a copy.';

create or replace function durable._is_copy()
returns boolean language plpgsql volatile
as $$
begin
  return not exists (select from durable._site s where s.identity = current_setting('durable.site', true))
         and durable._is_strange();
end
$$;
comment on function durable._is_copy() is 'Whether this database is a copy that was not adopted, so that nothing may run here.';

create or replace function durable._check_site()
returns void language plpgsql volatile
as $$
begin
  if durable._is_copy() then
    perform durable._fail_not_adopted();
  end if;
end
$$;
comment on function durable._check_site() is 'Raises WF016 in a copy that was not adopted.';

create or replace function durable._knows_site()
returns boolean language sql stable
as $$ select coalesce(current_setting('durable.site', true), '') <> all (array['', 'copy']) $$;
comment on function durable._knows_site() is
  'Whether this session has found before that it is in no copy. Inlined, and without a look at the table, for the single-row paths: a start, the result of a step, and the end of a run that was claimed. A restore over a database with open sessions is seen by the claim and by what renews a lease.';

create or replace function durable._adopt_idle_copy()
returns void language plpgsql volatile
as $$
begin
  perform durable._is_copy();
end
$$;
comment on function durable._adopt_idle_copy() is
  'Before the first run, promise or schedule is made in a copy: adopts it, if nothing could run in it. Later it could not be seen that nothing came with the copy.';

create or replace function durable._copy_problem()
returns text language sql immutable parallel safe
as $$ select 'the database is a copy, and nothing runs in it before it is adopted; type: pyengine db adopt' $$;
comment on function durable._copy_problem() is 'The problem that a tick answers in a copy.';
