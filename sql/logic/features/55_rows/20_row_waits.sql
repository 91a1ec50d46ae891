-- Waits of runs for rows: registered by the worker's turn, reported by triggers, tested by the sweep, settled by
-- durable.tick(). A turn does not read tables of users, so it can never wait for their transactions. It only records the wait.
-- The sweep tests the wait, and arms it once every transaction has ended that may have changed the row without seeing the wait.

create or replace function durable._canonical_key(p_columns text[], p_types text[], p_key jsonb)
returns jsonb language sql immutable parallel safe
as $$
  select jsonb_object_agg(c.name, case when c.type = 'uuid' then to_jsonb((p_key ->> c.name)::uuid) else p_key -> c.name end)
  from unnest(p_columns, p_types) as c (name, type)
$$;
comment on function durable._canonical_key(text[], text[], jsonb) is 'A valid key, in the form in which the triggers write it.';

create or replace function durable._key_problem(p_watch durable._watches, p_key jsonb)
returns text language plpgsql stable
as $$
declare
  v_problem text;
begin
  if jsonb_typeof(p_key) <> 'object' or not p_key ?& p_watch.columns
     or (select count(*) from jsonb_object_keys(p_key)) <> cardinality(p_watch.columns) then
    return format('The key of watch %s.%s is (%s), not %s.', p_watch.table_name, p_watch.name,
                  array_to_string(p_watch.columns, ', '), left(p_key::text, 200));
  elsif octet_length(p_key::text) > 1024 then
    return format('The key for watch %s.%s has %s bytes, 1024 are allowed.', p_watch.table_name, p_watch.name,
                  octet_length(p_key::text));
  end if;
  select format('Column %I of watch %s.%s is of type %s, which %s is not.', c.name, p_watch.table_name, p_watch.name, c.type,
                left((p_key -> c.name)::text, 200)) into v_problem
  from unnest(p_watch.columns, p_watch.types) as c (name, type)
  where not case
    when c.type in ('smallint', 'integer', 'bigint')
      then jsonb_typeof(p_key -> c.name) = 'number' and p_key ->> c.name ~ E'^-?\\d{1,19}$'
    when c.type = 'numeric' then jsonb_typeof(p_key -> c.name) = 'number'
    when c.type = 'boolean' then jsonb_typeof(p_key -> c.name) = 'boolean'
    when c.type = 'uuid'
      then jsonb_typeof(p_key -> c.name) = 'string'
           and p_key ->> c.name ~* '^[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}$'
    when c.type = 'date' then jsonb_typeof(p_key -> c.name) = 'string' and p_key ->> c.name ~ E'^\\d{4}-\\d\\d-\\d\\d$'
    else jsonb_typeof(p_key -> c.name) = 'string' end limit 1;
  return v_problem;
end
$$;
comment on function durable._key_problem(durable._watches, jsonb) is
  'The reason why a key does not fit this watch, as text; null if it does.';

create or replace function durable._watch_error(p_watch durable._watches)
returns text language sql stable
as $$
  select case p.problem
    when 'table dropped' then format(
      'The table of watch %s.%s was dropped. Make it and watch it again: select durable.watch(...).', p_watch.table_name, p_watch.name)
    when 'owner not trusted' then format(
      'Table %s of watch %s.%s, or a part of it, belongs to %I, who has not the rights of the engine''s owner. Watch it again with trust_owner => true, or give it to another owner.',
      p_watch.relation, p_watch.table_name, p_watch.name, durable._untrusted_owner(p_watch.relation))
    else format(
      'Table %s has not the key (%s) of type (%s) any more, by which watch %s.%s was made: %s. Watch it again: select durable.watch(...).',
      p_watch.relation, array_to_string(p_watch.columns, ', '), array_to_string(p_watch.types, ', '), p_watch.table_name,
      p_watch.name, p.problem) end
  from durable._watch_problem(p_watch) as p (problem) where p.problem is not null
$$;
comment on function durable._watch_error(durable._watches) is
  'The reason why no run can wait for rows of a watch any more, as text; null if runs can.';

create or replace function durable._until_refusal(p_name text, p_key jsonb)
returns jsonb language plpgsql stable
as $$
declare
  v_count integer := (select count(*) from durable._watches_named(p_name));
  v_problem text;
begin
  if v_count = 0 then
    return durable._refusal('NotFound', format(
      'There is no watch %s. %s The owner of a table makes one: select durable.watch(''orders'', ''paid'', key => ''{id}'', condition => ...).',
      p_name, durable._likely_watches(p_name)), '{}');
  elsif v_count > 1 then
    v_problem := format('Watch %s is in several schemas. %s Say which.', p_name, durable._likely_watches(p_name));
  else
    v_problem := (select durable._watch_error(w) from durable._watches_named(p_name) w);
    if v_problem is not null then
      return durable._refusal('Conflict', v_problem, '{}');
    end if;
    v_problem := (select durable._key_problem(w, p_key) from durable._watches_named(p_name) w);
  end if;
  return case when v_problem is not null then durable._refusal('InvalidRequest', v_problem, '{}')::jsonb end;
end
$$;
comment on function durable._until_refusal(text, jsonb) is
  'The error with which a wait for a row ends at once, because there is no such watch or key, or its table has changed; null if the wait can begin.';

create or replace function durable._wait_for_rows(
  p_ids text[], p_names text[], p_keys text[], p_executions bigint[], p_now bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_refused text[];
  v_errors text[];
begin
  select coalesce(array_agg(u.id order by u.id) filter (where r.error is not null), '{}'),
         array_agg(r.error::text order by u.id) filter (where r.error is not null) into v_refused, v_errors
  from unnest(p_ids, p_names, p_keys) as u (id, name, key)
  cross join lateral (select durable._until_refusal(u.name, u.key::jsonb) as error) r;
  insert into durable._row_waits (execution, test_at, watch, promise_id, key)
  select u.execution, p_now, w.id, u.id, durable._canonical_key(w.columns, w.types, u.key::jsonb)
  from unnest(p_ids, p_names, p_keys, p_executions) as u (id, name, key, execution)
  cross join lateral durable._watches_named(u.name) w
  where u.id <> all (v_refused);
  if v_refused <> '{}' then
    perform durable._settle(v_refused, array_fill('rejected'::text, array[cardinality(v_refused)]),
                            array_fill(null::jsonb, array[cardinality(v_refused)]), v_errors, p_now);
  end if;
  return v_refused;
end
$$;
comment on function durable._wait_for_rows(text[], text[], text[], bigint[], bigint) is
  'Begins the waits of new promises. Those that cannot begin are settled with the error at once, and answered. The caller created the promises and holds their owners.';

create or replace function durable._begin_waits(p_reports durable._run_report[], p_now bigint)
returns bigint[] language plpgsql volatile
as $$
declare
  v_ids text[];
  v_refused text[];
begin
  v_ids := array(select b.id || '.' || a.child from unnest(p_reports) b cross join lateral unnest(b.commands) a
                 where b.verdict = 'ok' and a."do" = 'until' order by b.id, a.child);
  if v_ids = '{}' then
    return '{}';
  end if;
  select durable._wait_for_rows(array_agg(b.id || '.' || a.child), array_agg(a.name), array_agg(a.param),
                                array_agg(b.execution), p_now) into v_refused
  from unnest(p_reports) b cross join lateral unnest(b.commands) a where b.verdict = 'ok' and a."do" = 'until';
  return array(select p.execution from durable._promises p where p.id = any (v_refused));
end
$$;
comment on function durable._begin_waits(durable._run_report[], bigint) is
  'Begins the waits for rows of a turn, whose promises _make_children has created. Answers the executions of those that failed at once.';

create or replace function durable._wait_again(p_execution bigint, p_now bigint)
returns void language plpgsql volatile
as $$
begin
  perform durable._wait_for_rows(array_agg(p.id), array_agg(p.param_headers ->> 'durable:until'), array_agg(p.param_data),
                                 array_agg(p.execution), p_now)
  from durable._executions h
  join durable._promises p on p.id > h.id || '.' and p.id < h.id || '/' and p.execution = h.execution
  where h.execution = p_execution and p.state = 'pending' and p.param_headers ? 'durable:until'
  having count(*) > 0;
end
$$;
comment on function durable._wait_again(bigint, bigint) is 'Begins the waits for rows of a fork, which its promises describe.';

create or replace function durable._test_sql(p_watch durable._watches)
returns text language sql stable
as $$
  select format($sql$
    select array_agg(row(u.promise_id, %s, 'resolved', r.data)::durable._row_outcome)
    from unnest($1, $2) as u (promise_id, key)
    cross join lateral (select to_jsonb(n) as data from %s as n where %s and %s limit 1) r$sql$,
    p_watch.id, p_watch.relation,
    (select string_agg(format('n.%I = (u.key ->> %L)::%s', c.name, c.name,
                              (select format_type(a.atttypid, null) from pg_catalog.pg_attribute a
                               where a.attrelid = p_watch.relation and a.attname = c.name and not a.attisdropped)), ' and ')
     from unnest(p_watch.columns) as c (name)),
    durable._fulfils(p_watch, 'n'))
$$;
comment on function durable._test_sql(durable._watches) is
  'The statement of the sweep: which of these waits have a row now. One index look-up each.';

create or replace function durable._failed_waits(p_ids text[], p_watch bigint, p_type text, p_message text)
returns durable._row_outcome[] language sql immutable
as $$
  select coalesce(array_agg(row(i, p_watch, 'rejected', durable._refusal(p_type, p_message, '{}'))::durable._row_outcome), '{}')
  from unnest(p_ids) i
$$;
comment on function durable._failed_waits(text[], bigint, text, text) is 'Outcomes of waits that can never have their row.';

create or replace function durable._test_waits(p_watch durable._watches, p_ids text[], p_keys jsonb[])
returns durable._row_outcome[] language plpgsql volatile
as $$
declare
  v_outcomes durable._row_outcome[];
  v_part durable._row_outcome[];
  v_state text;
  v_message text;
begin
  begin
    execute durable._test_sql(p_watch) into v_outcomes using p_ids, p_keys;
    return coalesce(v_outcomes, '{}');
  exception when others then
    get stacked diagnostics v_state = returned_sqlstate, v_message = message_text;
  end;
  if v_state ~ '^(40|53|55|57|58)' then
    -- a session alters the table, or the server is short of a resource: that passes
    return null;
  elsif cardinality(p_ids) = 1 then
    return durable._failed_waits(p_ids, p_watch.id, 'Conflict',
                                 format('Watch %s.%s cannot be tested: %s.', p_watch.table_name, p_watch.name, v_message));
  end if;
  v_outcomes := '{}';
  for v_place in 1 .. cardinality(p_ids) loop
    v_part := durable._test_waits(p_watch, array[p_ids[v_place]], array[p_keys[v_place]]);
    if v_part is null then
      return null;
    end if;
    v_outcomes := v_outcomes || v_part;
  end loop;
  return v_outcomes;
end
$$ set search_path = '' set timezone = 'UTC' set intervalstyle = 'iso_8601' set bytea_output = 'hex' set extra_float_digits = 1
set lock_timeout = '100ms' set enable_seqscan = off set jit = off set quote_all_identifiers = off;
comment on function durable._test_waits(durable._watches, text[], jsonb[]) is
  'Outcomes of waits that have their row or cannot be tested any more; null if the table cannot be read just now. If the condition raises, the rows are tested one by one, so that one bad row does not fail the waits for the others.';

create or replace function durable._test_watch(p_id bigint, p_ids text[], p_keys jsonb[])
returns durable._row_outcome[] language plpgsql volatile
as $$
declare
  v_watch durable._watches;
  v_error text;
begin
  select * into v_watch from durable._watches w where w.id = p_id;
  if v_watch.id is null then
    return durable._failed_waits(p_ids, p_id, 'NotFound', 'The watch was taken away (durable.unwatch) while the run waited.');
  end if;
  v_error := durable._watch_error(v_watch);
  if v_error is not null then
    return durable._failed_waits(p_ids, p_id, case when starts_with(v_error, 'The table') then 'NotFound' else 'Conflict' end,
                                 v_error);
  end if;
  return durable._test_waits(v_watch, p_ids, p_keys);
end
$$;
comment on function durable._test_watch(bigint, text[], jsonb[]) is
  'Outcomes of waits of one watch; null if it cannot be tested just now.';

create or replace function durable._ended_waits(p_ids text[])
returns durable._row_outcome[] language sql stable
as $$
  select coalesce(array_agg(row(w.promise_id, w.watch, 'rejected_canceled', null)::durable._row_outcome), '{}')
  from durable._row_waits w
  join durable._executions h on h.execution = any (array[w.execution]) and h.status in ('completed', 'failed', 'cancelled')
  where w.promise_id = any (p_ids)
$$;
comment on function durable._ended_waits(text[]) is 'Outcomes of waits whose run has ended.';

create or replace function durable._free_waits(p_now bigint, p_limit integer)
returns text[] language plpgsql volatile
as $$
declare
  v_due text[];
begin
  begin
    v_due := array(select w.promise_id from durable._row_waits w where w.test_at <= p_now
                   order by w.test_at limit p_limit for update skip locked);
    perform durable._start_over();
  exception when sqlstate 'WF099' then
    null;
  end;
  return v_due;
end
$$;
comment on function durable._free_waits(bigint, integer) is
  'Waits that are due for a test and that no other session has locked at this moment: those would otherwise take the place of the rest. The locks are not kept.';

create or replace function durable._test_due(
  p_now bigint, p_limit integer, out due text[], out tested text[], out outcomes durable._row_outcome[], out since xid8,
  out oldest xid8)
language plpgsql volatile
as $$
declare
  v_group record;
  v_outcomes durable._row_outcome[];
  v_is_first boolean := pg_current_xact_id_if_assigned() is null;
begin
  if not pg_try_advisory_xact_lock(1685417577, 0) then
    return;
  end if;
  due := durable._free_waits(p_now, p_limit);
  -- in this order: a writer that did not see these waits has a lower number, and tests see its rows once it has ended
  if v_is_first then
    since := pg_current_xact_id();
  end if;
  select pg_snapshot_xmin(pg_current_snapshot()) into oldest;
  outcomes := durable._ended_waits(due);
  tested := array(select n.promise_id from unnest(outcomes) n);
  for v_group in
    select w.watch, array_agg(w.promise_id) as ids, array_agg(w.key) as keys
    from durable._row_waits w where w.promise_id = any (due) and w.promise_id <> all (tested)
    group by w.watch order by w.watch
  loop
    v_outcomes := durable._test_watch(v_group.watch, v_group.ids, v_group.keys);
    if v_outcomes is not null then
      outcomes := outcomes || v_outcomes;
      tested := tested || v_group.ids;
    end if;
  end loop;
  perform durable._start_over();
exception when sqlstate 'WF099' then
  -- the results are kept; the locks are not, those on tables of users included: this transaction may stay open
  null;
end
$$;
comment on function durable._test_due(bigint, integer) is
  'Tests waits that are due, one statement a watch, and holds nothing afterwards. due: null if another session tests at this moment. tested: the waits whose outcome, if any, is known now. since: a transaction number drawn after the waits were read, null if this transaction had one before; a snapshot cannot serve, because it does not count transactions that began to write after the last commit. oldest: all transactions before it had ended before the test.';

create or replace function durable._record_tests(
  p_due text[], p_tested text[], p_outcomes durable._row_outcome[], p_since xid8, p_oldest xid8, p_now bigint)
returns integer language plpgsql volatile
as $$
declare
  v_locked text[];
begin
  insert into durable._row_events (xid, watch, state, promise_id, data)
  select pg_current_xact_id(), n.watch, n.state, n.promise_id, n.data from unnest(p_outcomes) n;
  v_locked := array(
    select x.promise_id from durable._row_waits x
    -- not those that another sweep has noted since the test
    where x.promise_id = any (p_due) and x.test_at <= p_now
      -- the end of a run sets 0: a test before that does not overrule it
      and (x.test_at > 0 or exists (select from unnest(p_outcomes) n where n.promise_id = x.promise_id))
    for update skip locked);
  if cardinality(v_locked) < cardinality(p_due) then
    -- a locked wait is tested again, and would be reported again each time
    delete from durable._row_events e where e.xid = pg_current_xact_id() and e.promise_id <> all (v_locked);
  end if;
  update durable._row_waits w
  set tests = least(w.tests, 1000000) + 1, since = coalesce(w.since, p_since),
      test_at = case when exists (select from unnest(p_outcomes) n where n.promise_id = w.promise_id) then p_now + 5000
                     when w.promise_id <> all (p_tested) or coalesce(w.since, p_since) <= p_oldest is not true
                     then p_now + durable._backoff_ms(5, 5000, w.tests, 4) end
  where w.promise_id = any (v_locked);
  return cardinality(v_locked);
end
$$;
comment on function durable._record_tests(text[], text[], durable._row_outcome[], xid8, xid8, bigint) is
  'Records the outcomes for the settlement. A tested wait is armed if every transaction that began to write before p_since, or before the number that its first test recorded, has ended. The others are tested again after 5, 20, 80, 320 ms, 1.3 s and then every 5 s; so are those with an outcome, in case that no session can settle them. Waits of runs that have ended meanwhile stay due, and so do locked ones. Answers how many were recorded.';

create or replace function durable._lost_watches()
returns bigint[] language plpgsql stable
as $$
begin
  return array(select x.id from durable._watches x
               where exists (select from durable._row_waits w where w.watch = any (array[x.id]))
                 and durable._watch_problem(x) is not null);
end
$$;
comment on function durable._lost_watches() is
  'Watches with waits whose triggers can never report a row again: the table or a key column was dropped or replaced.';

create or replace function durable._make_due_again(p_now bigint)
returns integer language plpgsql volatile
as $$
declare
  v_events bigint[];
  v_ids text[];
  v_locked text[];
begin
  v_events := array(select e.id from durable._row_events e where e.state is null order by e.id limit 100 for update skip locked);
  v_ids := array(
    select w.promise_id from durable._row_events e
    cross join lateral (
      select x.promise_id from durable._row_waits x where x.watch = e.watch and x.key = any (array[e.key]) offset 0) w
    where e.id = any (v_events) and e.key is not null
    union
    select w.promise_id from durable._row_waits w
    where w.watch = any (array(select e.watch from durable._row_events e where e.id = any (v_events) and e.key is null))
    union
    select w.promise_id from durable._row_waits w where w.watch = any (durable._lost_watches()) and w.test_at is null);
  v_locked := array(select w.promise_id from durable._row_waits w where w.promise_id = any (v_ids) for update skip locked);
  update durable._row_waits w set test_at = p_now where w.promise_id = any (v_locked);
  delete from durable._row_events e where e.id = any (v_events);
  if not v_ids <@ v_locked then
    -- another session has locked one of them; the others are not asked for again
    insert into durable._row_events (xid, watch, key)
    select distinct pg_current_xact_id(), w.watch, w.key from durable._row_waits w
    where w.promise_id = any (array(select unnest(v_ids) except select unnest(v_locked)));
  end if;
  return cardinality(v_locked);
end
$$;
comment on function durable._make_due_again(bigint) is
  'Makes waits due for a test: those that a trigger could not decide, and those of watches that were changed, removed, or lost with their table or key. Locked ones are left for later. Answers how many.';

create or replace function durable._rows_due(p_now bigint)
returns boolean language plpgsql stable
as $$
declare
  v_lost bigint[];
begin
  if exists (select from durable._row_waits w where w.test_at <= p_now)
     or exists (select from durable._row_events e where e.state is null) then
    return true;
  end if;
  v_lost := durable._lost_watches();
  return v_lost <> '{}' and exists (select from durable._row_waits w where w.watch = any (v_lost) and w.test_at is null);
end
$$ set enable_seqscan = off set jit = off;
comment on function durable._rows_due(bigint) is 'True if a wait for a row is due for a test.';

create or replace function durable._sweep_rows(p_limit integer, p_now bigint)
returns integer language plpgsql volatile
as $$
declare
  v_test record;
  v_recorded integer := 0;
begin
  if not durable._rows_due(p_now) or current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
    return 0;
  end if;
  select * into v_test from durable._test_due(p_now, p_limit) t;
  if v_test.due is null then
    return 0;
  end if;
  if v_test.due <> '{}' then
    v_recorded := durable._record_tests(v_test.due, v_test.tested, v_test.outcomes, v_test.since, v_test.oldest, p_now);
  end if;
  return v_recorded + durable._make_due_again(p_now);
end
$$;
comment on function durable._sweep_rows(integer, bigint) is
  'Tests waits that are due against the tables of users, and records the outcomes. Its transaction holds no lock of the engine during the test; one session tests at a time. Afterwards it holds the waits that it has recorded, and no other session waits for them. Answers how many were recorded or are to be tested again.';

create or replace function durable._sweep_tests(p_limit integer, p_now bigint)
returns jsonb language plpgsql volatile
as $$
declare
  v_waits integer := durable._sweep_rows(p_limit, p_now);
begin
  if v_waits = 0 then
    return null;
  end if;
  return jsonb_build_object('promises', 0, 'leases', 0, 'schedules', 0, 'waits', v_waits, 'next_due_ms', durable._due_in(p_now),
                            'more', true, 'hints', '[]'::jsonb);
end
$$;
comment on function durable._sweep_tests(integer, bigint) is
  'The answer of a tick that tested waits for rows; null if none was due. In a transaction of its own, because it reads tables of users, and must hold nothing then.';

create or replace function durable._try_lock_reported_waits(p_limit integer, p_tried text[], p_missed bigint[])
returns text[] language plpgsql volatile
as $$
begin
  if not exists (select from durable._row_events e) then
    return '{}';
  end if;
  return array(
    select distinct x.id from (
      select p.id from durable._row_events e
      join durable._promises p on p.id = any (array[e.promise_id])
      where e.state is not null and p.state = 'pending' and p.id <> all (p_tried) and p.execution <> all (p_missed)
      order by e.id limit p_limit for no key update of p skip locked) x);
end
$$;
comment on function durable._try_lock_reported_waits(integer, text[], bigint[]) is
  'Locks the promises of waits that a trigger or test has reported as ended, except p_tried and those whose owner is in p_missed.';

create or replace function durable._reported_outcomes(p_ids text[])
returns durable._row_outcome[] language plpgsql stable
as $$
declare
  v_limit bigint;
begin
  if p_ids = '{}' then
    return '{}';
  end if;
  v_limit := durable._setting_int('payload_max_bytes');
  return array(
    select case when octet_length(x.data::text) <= v_limit or x.data is null
                then row(x.promise_id, x.watch, x.state, x.data)::durable._row_outcome
                else (durable._failed_waits(array[x.promise_id], x.watch, 'PayloadTooLarge',
                        format('The row has %s bytes, the limit is %s.', octet_length(x.data::text), v_limit)))[1] end
    from (
      select distinct on (e.promise_id) e.* from durable._row_events e
      where e.promise_id = any (p_ids) and e.state is not null
      order by e.promise_id, e.id
    ) x);
end
$$;
comment on function durable._reported_outcomes(text[]) is
  'The results with which these waits, whose promises are locked, are to be settled: the first report of each.';

create or replace function durable._forget_reported(p_limit integer)
returns void language plpgsql volatile
as $$
begin
  if exists (select from durable._row_events e) then
    delete from durable._row_events e where e.id = any (array(
      select x.id from durable._row_events x
      join durable._promises p on p.id = any (array[x.promise_id]) and p.state is distinct from 'pending'
      order by x.id limit 4 * p_limit for update of x skip locked));
  end if;
end
$$;
comment on function durable._forget_reported(integer) is
  'Deletes row events of promises that are settled, for whatever reason.';
