-- Settings of the entry points, all in one place. An entry point is what sessions call: a function without a leading underscore.
-- A session may have any settings, so an entry point pins those that names, comparisons and plans depend on. Helpers run under
-- the settings of their caller and pin none; a helper in SQL could not be inlined otherwise. Settings of one algorithm
-- stand at its function: a page without a sort, a lock timeout, the path of SECURITY DEFINER.
-- This file comes last, because "create or replace function" drops the settings of the function that it replaces. A function
-- that has its settings is left alone: sessions compile what is altered again.
--
-- Entry points without settings: durable.wait commits, which a function with settings cannot do. durable.error_codes and
-- durable.journal_types are inlined. durable.watch, durable.tick, serve_v1 and worker_sql_v1 run expressions and functions of
-- users, which must see the session's own settings; their parts that read the engine's tables are pinned here by name.

do $$
declare
  v_session constant text := 'set search_path = '''' set jit = off set quote_all_identifiers = off';
  -- one plan for all calls: along indexes, in the order in which the joins are written, good for tables of any size
  v_plans constant text := v_session || ' set plan_cache_mode = force_generic_plan set join_collapse_limit = 1'
                           ' set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off';
  -- they read little or nothing: the settings of plans would cost more than they save
  v_light constant text[] := '{set_setting,hint_v1,redrive,unwatch,generations,version,generation_events,journal_list_v1,'
                             'journals_v1,_wait_until,_poll_result,_sleep,_sweep_for_people}';
  v_in_sql constant text[] := '{version,child_counts,generation_events,journal_list_v1,journals_v1,worker_journal_v1}';
  v_parts constant text[] := '{_wait_until,_poll_result,_sleep,_sweep_for_people,_service_of,_end_service,'
                             '_begin_sql_step,_end_sql_step,_write_schedule}';
  v_function regprocedure;
  v_has text[];
  v_settings text;
begin
  for v_function, v_has, v_settings in
    select p.oid, coalesce(p.proconfig, '{}'), case
        when p.proname = any (v_light) then v_session
        when p.proname = any ('{as_of,fork,fork_many}') then v_session || ' set join_collapse_limit = 1 set enable_seqscan = off'
        when p.proname = 'matching_runs' then v_plans || ' set enable_bitmapscan = off set enable_sort = off'
        else v_plans end
    from pg_catalog.pg_proc p
    join pg_catalog.pg_language l on l.oid = p.prolang
    where p.pronamespace = 'durable'::regnamespace and p.prokind = 'f'
      and (p.proname = any (v_in_sql || v_parts) or (l.lanname = 'plpgsql' and not starts_with(p.proname, '_')))
  loop
    continue when v_has @> array(select replace(replace(s, ' = ', '='), '''''', '""')
                                 from regexp_split_to_table(v_settings, ' ?set ') s where s <> '');
    execute format('alter function %s %s', v_function, v_settings);
  end loop;
end
$$;
