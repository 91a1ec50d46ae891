-- Watches: the owner of a table puts a condition on its rows, and triggers report when a row for which a run waits fulfils it.
-- A trigger only inserts row events and never locks; 20_row_waits.sql and durable.tick() handle them. Conditions are dynamic
-- SQL, and may raise; the errors never reach the transaction of the user.

create or replace function durable._key_columns(p_relation regclass, p_columns text[])
returns text[] language plpgsql stable
as $$
declare
  v_types text[];
  v_problem text;
begin
  if coalesce(cardinality(p_columns), 0) = 0 or cardinality(p_columns) <> (select count(distinct c) from unnest(p_columns) c) then
    perform durable._fail_invalid('A watch has a key: one column or several, like key => ''{id}''.');
  end if;
  select array_agg(case when b.typtype = 'e' then 'text' else format_type(b.oid, null) end order by k.ord),
         min(case when a.attnum is null
                  then format('Table %s has no column %I; it has %s.', p_relation, k.name, (
                    select string_agg(quote_ident(x.attname), ', ' order by x.attnum) from pg_catalog.pg_attribute x
                    where x.attrelid = p_relation and x.attnum > 0 and not x.attisdropped))
                  when b.typtype <> 'e' and b.oid <> all ('{int2,int4,int8,numeric,text,varchar,uuid,bool,date}'::regtype[])
                       or not coalesce(c.collisdeterministic, true)
                  then format('Column %I of %s has type %s, which has not one way alone to be written as JSON.',
                              k.name, p_relation, format_type(a.atttypid, a.atttypmod)) end)
  into v_types, v_problem
  from unnest(p_columns) with ordinality as k (name, ord)
  left join pg_catalog.pg_attribute a on a.attrelid = p_relation and a.attname = k.name and a.attnum > 0 and not a.attisdropped
  left join pg_catalog.pg_type t on t.oid = a.atttypid
  left join pg_catalog.pg_type b on b.oid = case when t.typtype = 'd' then t.typbasetype else t.oid end
  left join pg_catalog.pg_collation c on c.oid = a.attcollation;
  if v_problem is not null then
    perform durable._fail_invalid(
      v_problem, 'A key column is a smallint, integer, bigint, numeric, text, varchar, uuid, boolean, date or enum.');
  end if;
  if not exists (
    select from pg_catalog.pg_index i
    where i.indrelid = p_relation and i.indisvalid and i.indpred is null and i.indnkeyatts >= cardinality(p_columns)
      and p_columns @> array(select a.attname::text from unnest(i.indkey::int2[]) with ordinality as n (attnum, ord)
                             join pg_catalog.pg_attribute a on a.attrelid = p_relation and a.attnum = n.attnum
                             where n.ord <= cardinality(p_columns))
      and 0 <> all ((i.indkey::int2[])[0:cardinality(p_columns) - 1])) then
    perform durable._fail_invalid(
      format('Table %s has no index that begins with the key (%s).', p_relation, array_to_string(p_columns, ', ')),
      'Every wait is tested by its key: create an index first, not a partial one.');
  end if;
  return v_types;
end
$$;
comment on function durable._key_columns(regclass, text[]) is
  'Types of the columns by which runs wait for rows. WF004 if there is none, for an unknown column, for one whose JSON depends on settings or collation, and for a key without an index.';

create or replace function durable._condition(p_table oid)
returns text language plpgsql stable
as $$
begin
  return (select pg_catalog.pg_get_expr(c.conbin, c.conrelid) from pg_catalog.pg_constraint c
          where c.conrelid = p_table and c.contype = 'c' and c.conname = 'durable_condition');
end
$$ set search_path = '' set jit = off set quote_all_identifiers = off;
comment on function durable._condition(oid) is
  'The condition of a table, as the server writes it with an empty search path: every name has its schema.';

create or replace function durable._check_expression(p_table text, p_condition text)
returns void language plpgsql volatile
as $$
declare
  v_read refcursor;
begin
  begin
    open v_read for execute format(E'select (%s\n) from pg_temp.%I', p_condition, p_table);
    close v_read;
  exception when invalid_cursor_definition then
    perform durable._fail_invalid('A condition is one SQL expression, and this is several statements.');
  end;
  begin
    open v_read for execute format(E'select array[%s\n] from pg_temp.%I', p_condition, p_table);
    close v_read;
  exception when invalid_cursor_definition or syntax_error then
    perform durable._fail_invalid('A condition is one SQL expression, and this closes a bracket that it did not open.');
  end;
end
$$;
comment on function durable._check_expression(text, text) is
  'Parses a condition without running it: a cursor has exactly one statement, and a text that is valid between brackets of either kind closes the brackets that it opens. WF004, with the message of the server if the text is no SQL.';

create or replace function durable._check_stable(p_table oid)
returns void language plpgsql stable
as $$
declare
  v_name text;
begin
  select min(p.oid::regprocedure::text) into v_name
  from pg_catalog.pg_constraint c
  cross join lateral regexp_matches(c.conbin::text, E'\\{FUNCEXPR :funcid (\\d+)|EXPR :opno (\\d+)', 'g') as m (found)
  left join pg_catalog.pg_operator o on o.oid = m.found[2]::oid
  join pg_catalog.pg_proc p on p.oid = coalesce(m.found[1]::oid, o.oprcode) and p.provolatile = 'v'
  where c.conrelid = p_table and c.contype = 'c' and c.conname = 'durable_condition';
  if v_name is not null then
    perform durable._fail_invalid(
      format('The condition calls %s, which is volatile.', v_name),
      'It is asked in statements of whoever changes the table, and again later: it reads the row, and calls what is stable or immutable.');
  end if;
end
$$ set search_path = '' set jit = off set quote_all_identifiers = off;
comment on function durable._check_stable(oid) is
  'Refuses a condition that calls a volatile function. The expression is checked as the server has parsed it: functions and operators appear there by number, and no text of the user can look like that, because blanks and braces in names are escaped. WF004.';

create or replace function durable._compile(p_relation regclass, p_condition text)
returns text language plpgsql volatile
as $$
declare
  v_name text := (select c.relname from pg_catalog.pg_class c where c.oid = p_relation);
  v_condition text;
begin
  if p_condition is null or p_condition ~ E'^\\s*$' then
    perform durable._fail_invalid('A watch has a condition: an SQL expression over the columns, like ''status = ''''paid''''''.');
  end if;
  execute format('create temporary table %I (like %s)', v_name, p_relation);
  perform durable._check_expression(v_name, p_condition);
  execute format(E'alter table pg_temp.%I add constraint durable_condition check (%s\n)', v_name, p_condition);
  perform durable._check_stable(format('pg_temp.%I', v_name)::regclass);
  v_condition := durable._condition(format('pg_temp.%I', v_name)::regclass);
  execute format('drop table pg_temp.%I', v_name);
  return v_condition;
end
$$;
comment on function durable._compile(regclass, text) is
  'A condition as the server reads it, as a CHECK of a temporary copy of the table: the CHECK knows the columns, takes a boolean expression, and refuses subqueries and aggregates. Runs with the rights and the search path of the caller.';

create or replace function durable._family_of(p_relation regclass)
returns setof regclass language sql stable
as $$
  with recursive kin (id) as (
    select p_relation::oid union select i.inhrelid from kin k join pg_catalog.pg_inherits i on i.inhparent = k.id
  )
  select k.id::regclass from kin k join pg_catalog.pg_class c on c.oid = k.id where c.relkind in ('r', 'p')
$$;
comment on function durable._family_of(regclass) is
  'A table, its partitions and the tables that inherit from it: a statement fires only the triggers of the table that it names.';

create or replace function durable._engine_owner()
returns oid language plpgsql stable
as $$
begin
  return (select p.proowner from pg_catalog.pg_proc p
          where p.proname = '_row_changed' and p.pronamespace = 'durable'::regnamespace);
end
$$;
comment on function durable._engine_owner() is 'The role with whose rights the triggers of watches run.';

create or replace function durable._untrusted_owner(p_relation regclass)
returns name language plpgsql stable
as $$
declare
  v_owner oid := durable._engine_owner();
begin
  if not exists (select from pg_catalog.pg_inherits i where i.inhparent = p_relation) then
    return (select pg_get_userbyid(c.relowner) from pg_catalog.pg_class c
            where c.oid = p_relation and not pg_has_role(c.relowner, v_owner, 'USAGE'));
  end if;
  return (select pg_get_userbyid(c.relowner) from durable._family_of(p_relation) f
          join pg_catalog.pg_class c on c.oid = any (array[f::oid])
          where not pg_has_role(c.relowner, v_owner, 'USAGE') limit 1);
end
$$ set plan_cache_mode = force_generic_plan;
comment on function durable._untrusted_owner(regclass) is
  'An owner of the table, or of a part of it, without the rights of the engine''s owner; null if there is none. The code of such an owner (casts and functions of the columns, index expressions) would get those rights.';

create or replace function durable._check_trust(p_relation regclass, p_trust boolean)
returns void language plpgsql stable
as $$
begin
  if not pg_has_role(durable._engine_owner(), 'USAGE') then
    perform durable._fail_invalid(
      format('%I has not the rights of the engine''s owner, %I, with which watches are evaluated.', current_user,
             pg_get_userbyid(durable._engine_owner())),
      format('Let %I watch the table, or a member of it.', pg_get_userbyid(durable._engine_owner())));
  elsif p_trust is not true and durable._untrusted_owner(p_relation) is not null then
    perform durable._fail_invalid(
      format('%s, or a part of it, belongs to %I, who has not the rights of the engine''s owner, %I.', p_relation,
             durable._untrusted_owner(p_relation), pg_get_userbyid(durable._engine_owner())),
      'A watch runs code of the table''s owner with those rights. Give the table to another owner; or say trust_owner => true if he may have them.');
  end if;
end
$$;
comment on function durable._check_trust(regclass, boolean) is
  'Refuses a watch that would give its owner rights of another role, unless a role with those rights allows it. WF004.';

create or replace function durable._check_watched(p_relation regclass, p_name text)
returns void language plpgsql stable
as $$
declare
  v_class record;
begin
  select c.*, n.nspname into v_class
  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace where c.oid = p_relation;
  if v_class.oid is null then
    perform durable._fail_not_found('table', p_relation::text, 'Was it dropped meanwhile?');
  elsif v_class.relkind not in ('r', 'p') or v_class.relpersistence = 't'
        or v_class.nspname in ('pg_catalog', 'information_schema', 'durable') then
    perform durable._fail_invalid(
      format('%s is a %s.', p_relation,
             case when v_class.relkind = 'v' then 'view' when v_class.relkind = 'm' then 'materialized view'
                  when v_class.relkind = 'f' then 'foreign table' when v_class.relpersistence = 't' then 'temporary table'
                  when v_class.relkind in ('r', 'p') then 'table of the system' else 'relation that has no rows of its own' end),
      'Ordinary and partitioned tables can be watched; of a view watch the tables below it.');
  elsif not pg_has_role(v_class.relowner, 'USAGE') then
    perform durable._fail_invalid(format('Table %s belongs to %I.', p_relation, pg_get_userbyid(v_class.relowner)),
                                  'Its owner says what of it can be waited for.');
  elsif coalesce(p_name, '') !~ '^[a-z][a-z0-9_]{0,39}$' then
    perform durable._fail_invalid(format('%L is no name for a watch.', p_name),
                                  'A small letter, then small letters, digits and underscores, 40 in all.');
  end if;
end
$$;
comment on function durable._check_watched(regclass, text) is 'The watches and their owners, by name. WF001, WF004.';

create or replace function durable._fulfils(p_watch durable._watches, p_row text)
returns text language sql stable
as $$
  select format('(select (%s) from (select %s.*) as %I)', p_watch.condition, p_row, c.relname)
  from pg_catalog.pg_class c where c.oid = p_watch.relation
$$;
comment on function durable._fulfils(durable._watches, text) is
  'The condition as an expression over a row that the surrounding statement calls p_row; no other name is visible inside it.';

create or replace function durable._match_sql(p_watch durable._watches)
returns text language sql stable
as $$
  select format($sql$
    select array_agg(w.promise_id), array_agg(w.key), array_agg(to_jsonb(n))
    from new_rows n
    cross join lateral (select jsonb_object_agg(c, to_jsonb(n) -> c) as key from unnest($2) c) k
    cross join lateral (select w.promise_id, w.key from durable._row_waits w where w.watch = $1 and w.key = k.key offset 0) w
    where %s$sql$, durable._fulfils(p_watch, 'n'))
$$;
comment on function durable._match_sql(durable._watches) is
  'The statement of a trigger that reads the waits whose rows fulfil the condition now. Each changed row looks up its key among the waits; only rows with a wait are tested.';

create or replace function durable._true_keys_sql(p_watch durable._watches)
returns text language sql stable
as $$
  select format($sql$
    select case when count(*) > 100 then '{null}' else array_agg(k.key) end from (
      select (select jsonb_object_agg(c, to_jsonb(n) -> c) from unnest($1) c) as key from new_rows n where %s limit 101) k$sql$,
    durable._fulfils(p_watch, 'n'))
$$;
comment on function durable._true_keys_sql(durable._watches) is
  'The statement of a trigger that may not see all waits: it reads the keys of rows that fulfil the condition now; more than a hundred are reported as all.';

create or replace function durable._record_row_changes(p_xid xid8, p_watch bigint, p_ids text[], p_keys jsonb[], p_rows jsonb[])
returns boolean language sql volatile
as $$
  with written as (
    insert into durable._row_events (xid, watch, state, promise_id, key, data)
    select distinct p_xid, p_watch, case when n.id is not null then 'resolved' end, n.id, n.key, n.data
    from unnest(p_ids, p_keys, p_rows) as n (id, key, data) returning 1
  )
  select count(*) > 0 from written
$$;
comment on function durable._record_row_changes(xid8, bigint, text[], jsonb[], jsonb[]) is
  'Inserts the row events of a trigger: waits that have their row; or, without ids, keys to test, where null is all. True if there was one.';

create or replace function durable._row_changed()
returns trigger language plpgsql volatile security definer
as $$
declare
  v_id bigint := tg_argv[0]::bigint;
  v_xid xid8 := pg_current_xact_id_if_assigned();
  v_sees_all_waits boolean := current_setting('transaction_isolation') not in ('repeatable read', 'serializable');
  v_reported boolean := tg_op <> 'INSERT' and exists (
    select from durable._row_events e where e.xid = v_xid and e.watch = v_id and e.state is not null);
  v_is_awaited boolean := tg_op in ('INSERT', 'UPDATE') and v_xid is not null and (
    not v_sees_all_waits or exists (select from durable._row_waits w where w.watch = v_id));
  v_is_trusted boolean;
  v_has_events boolean := false;
  v_watch durable._watches;
  v_ids text[];
  v_keys jsonb[];
  v_rows jsonb[];
begin
  select * into v_watch from durable._watches w where w.id = v_id and (v_reported or v_is_awaited);
  v_is_trusted := found and (v_watch.trusted or exists (
      select from pg_catalog.pg_class c where c.oid = tg_relid and pg_has_role(c.relowner, current_user, 'USAGE')))
    and (v_watch.relation = tg_relid or exists (select from durable._family_of(v_watch.relation) f where f = tg_relid));
  if v_reported then
    begin
      if tg_op <> 'TRUNCATE' and v_is_trusted then
        delete from durable._row_events e
        where e.xid = v_xid and e.watch = v_id and e.data in (select to_jsonb(o) from old_rows o);
        v_reported := false;
      end if;
    exception when others then null; end;
    update durable._row_events e set state = null, promise_id = null, data = null
    where v_reported and e.xid = v_xid and e.watch = v_id;
  end if;
  if not v_is_awaited or not v_is_trusted then
    return null;
  end if;
  begin
    select array_agg(k.key) into v_keys from new_rows n
    cross join lateral (select jsonb_object_agg(c, to_jsonb(n) -> c) as key from unnest(v_watch.columns) c) k
    cross join lateral (select from durable._row_waits w where w.watch = v_id and w.key = k.key offset 0) w;
    if v_keys is not null then
      execute durable._match_sql(v_watch) into v_ids, v_keys, v_rows using v_id, v_watch.columns;
    end if;
  exception when others then
    v_keys := coalesce(v_keys, '{null}');
  end;
  v_has_events := durable._record_row_changes(v_xid, v_id, v_ids, v_keys, v_rows);
  if not v_sees_all_waits then
    begin
      execute durable._true_keys_sql(v_watch) into v_keys using v_watch.columns;
    exception when others then
      v_keys := '{null}';
    end;
    v_has_events := durable._record_row_changes(v_xid, v_id, null, v_keys, null) or v_has_events;
  end if;
  perform durable._hint('durable_ready', durable._now_ms()) where v_has_events;
  return null;
end
$$ set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set timezone = 'UTC'
set intervalstyle = 'iso_8601' set bytea_output = 'hex' set extra_float_digits = 1 set jit = off set quote_all_identifiers = off;
revoke execute on function durable._row_changed() from public;
comment on function durable._row_changed() is
  'Trigger of a watch. It takes back the row events of its transaction about rows that change again, and reports the waits that have their row. Where it cannot know, because its snapshot is older than some waits, or because the condition or a cast of a column raised, it asks for a test. It only inserts, so it never waits and no session waits for it. It runs with the rights of the engine''s owner, because the session that changes the row needs no rights in the engine. So it reads only rows of owners who have those rights or are trusted with them, searches no temporary schema first, and only the engine may attach it to a table. On a table that is no part of the watched one, such as a detached partition, it reports nothing.';

create or replace function durable._hang_triggers(p_relation regclass, p_name text, p_id bigint)
returns void language plpgsql volatile
as $$
declare
  v_table regclass;
  v_event text[];
begin
  for v_table in select f from durable._family_of(p_relation) f loop
    foreach v_event slice 1 in array array[
      ['insert', 'referencing new table as new_rows'], ['delete', 'referencing old table as old_rows'],
      ['update', 'referencing old table as old_rows new table as new_rows'], ['truncate', '']] loop
      execute format('create or replace trigger %I after %s on %s %s for each statement
                      execute function durable._row_changed(%L)',
                     'durable_' || p_name || '_' || v_event[1], v_event[1], v_table, v_event[2], p_id);
    end loop;
  end loop;
end
$$;
comment on function durable._hang_triggers(regclass, text, bigint) is
  'Creates the triggers of a watch, one for each kind of statement, because only such triggers get the changed rows.';

create or replace function durable._watch(p_relation regclass, p_name text, p_key text[], p_condition text, p_trust boolean)
returns text language plpgsql volatile
as $$
declare
  v_types text[];
  v_condition text;
  v_old durable._watches;
  v_id bigint;
begin
  perform durable._check_watched(p_relation, p_name);
  perform durable._check_trust(p_relation, p_trust);
  v_types := durable._key_columns(p_relation, p_key);
  v_condition := durable._compile(p_relation, p_condition);
  select w.* into v_old from durable._watches w
  join pg_catalog.pg_class c on c.oid = p_relation
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  where w.name = p_name and (w.relation = p_relation or (w.namespace = n.nspname and w.table_name = c.relname))
  order by w.relation <> p_relation limit 1;
  if v_old.relation <> p_relation and exists (select from pg_catalog.pg_class c where c.oid = v_old.relation) then
    perform durable._fail_conflict(
      format('Watch %s.%s is table %s now, which was called so.', v_old.table_name, p_name, v_old.relation),
      'Choose another name, or end that watch: select durable.unwatch(...).');
  elsif v_old.columns <> p_key and exists (select from durable._row_waits r where r.watch = v_old.id) then
    perform durable._fail_conflict(
      format('Runs wait for rows of watch %s.%s by (%s).', v_old.table_name, p_name, array_to_string(v_old.columns, ', ')),
      'Give the other key another name, or end this watch first: select durable.unwatch(...).');
  elsif v_old.id is not null then
    update durable._watches w
    set relation = p_relation, condition = v_condition, columns = p_key, types = v_types, trusted = coalesce(p_trust, false)
    where w.id = v_old.id returning w.id into v_id;
  else
    insert into durable._watches (relation, namespace, table_name, name, condition, columns, types, trusted)
    select p_relation, n.nspname, c.relname, p_name, v_condition, p_key, v_types, coalesce(p_trust, false)
    from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace where c.oid = p_relation
    returning id into v_id;
  end if;
  perform durable._hang_triggers(p_relation, p_name, v_id);
  insert into durable._row_events (xid, watch) values (pg_current_xact_id(), v_id);
  return (select w.table_name || '.' || w.name from durable._watches w where w.id = v_id);
end
$$;
comment on function durable._watch(regclass, text, text[], text, boolean) is
  'Checks everything, then writes. Without a search path of its own, because the condition is read under that of the caller.';

create or replace function durable.watch(
  relation regclass, name text, key text[], condition text, trust_owner boolean default false)
returns text language sql volatile
as $$ select durable._watch($1, $2, $3, $4, $5) $$;
comment on function durable.watch(regclass, text, text[], text, boolean) is
  'For the owner of a table: lets runs wait for its rows: select durable.watch(''orders'', ''paid'', key => ''{id}'', condition => ''status = ''''paid''''''). Called again, it changes the condition, adds triggers to new partitions, and has every wait tested again. A watch evaluates the rows with the rights of the engine''s owner and of the workers, so the table must belong to a role with these rights; trust_owner => true, which only such a role may pass, lets any owner''s code (functions of the condition, casts of column types, index expressions) run with them. Takes SHARE ROW EXCLUSIVE on the table until the commit. WF001, WF003, WF004.';

create or replace function durable._watch_problem(p_watch durable._watches)
returns text language plpgsql stable
as $$
begin
  return (select case
    when c.oid is null then 'table dropped'
    when not p_watch.trusted and durable._untrusted_owner(p_watch.relation) is not null then 'owner not trusted'
    when k.missing then 'key column missing'
    when k.other then 'key column has another type' end
  from (select) one
  left join pg_catalog.pg_class c on c.oid = p_watch.relation
  cross join lateral (
    select coalesce(bool_or(a.attnum is null), false) as missing,
           coalesce(bool_or(case when b.typtype = 'e' then 'text' else format_type(b.oid, null) end
                            <> all (array[u.type, 'pg_catalog.' || u.type])), false) as other
    from unnest(p_watch.columns, p_watch.types) as u (name, type)
    left join pg_catalog.pg_attribute a
      on a.attrelid = c.oid and a.attname = u.name and a.attnum > 0 and not a.attisdropped
    left join pg_catalog.pg_type t on t.oid = a.atttypid
    left join pg_catalog.pg_type b on b.oid = case when t.typtype = 'd' then t.typbasetype else t.oid end
  ) k);
end
$$ set plan_cache_mode = force_generic_plan set join_collapse_limit = 1;
comment on function durable._watch_problem(durable._watches) is
  'The reason why no row can fulfil this watch as it was made; null if there is none. Reads only the catalogue, so it waits for no lock on the table.';

create or replace function durable._watches_named(p_name text)
returns setof durable._watches language sql stable
as $$
  select w.* from durable._watches w
  where p_name in (w.table_name || '.' || w.name, w.namespace || '.' || w.table_name || '.' || w.name)
$$;
comment on function durable._watches_named(text) is 'Watches with the name table.name or schema.table.name.';

create or replace function durable._likely_watches(p_name text)
returns text language sql stable
as $$
  select coalesce('Watches are ' || string_agg(n.name, ', ' order by n.alike desc, n.name) || '.',
                  'There is no watch at all yet.')
  from (
    select x.name, (select count(*) from generate_series(1, length(p_name) - 1) i
                    where strpos(x.name, substr(p_name, i, 2)) > 0) as alike
    from (select w.namespace || '.' || w.table_name || '.' || w.name as name from durable._watches w) x
    order by alike desc, x.name limit 5) n
$$;
comment on function durable._likely_watches(text) is 'The most similar names, as text.';

create or replace function durable.unwatch(relation text, name text)
returns integer language plpgsql volatile
as $$
declare
  v_watch durable._watches;
  v_trigger record;
begin
  if (select count(*) from durable._watches_named($1 || '.' || $2)) <> 1 then
    perform durable._fail_not_found('single watch', $1 || '.' || $2, durable._likely_watches($1 || '.' || $2));
  end if;
  select * into v_watch from durable._watches_named($1 || '.' || $2) w;
  if exists (select from pg_catalog.pg_class c where c.oid = v_watch.relation and not pg_has_role(c.relowner, 'USAGE')) then
    perform durable._fail_invalid(format('Table %s is not yours.', v_watch.relation),
                                  'Its owner says what of it can be waited for.');
  end if;
  for v_trigger in
    select t.tgname, t.tgrelid::regclass as relation from pg_catalog.pg_trigger t
    where t.tgfoid = 'durable._row_changed()'::regprocedure and encode(t.tgargs, 'escape') = v_watch.id || E'\\000'
  loop
    execute format('drop trigger %I on %s', v_trigger.tgname, v_trigger.relation);
  end loop;
  delete from durable._watches w where w.id = v_watch.id;
  insert into durable._row_events (xid, watch) values (pg_current_xact_id(), v_watch.id);
  return (select count(*) from durable._row_waits w where w.watch = v_watch.id);
end
$$;
comment on function durable.unwatch(text, text) is
  'For the owner of a table: removes a watch and its triggers; runs that wait get an error. Answers how many do: select durable.unwatch(''orders'', ''paid''). WF001, WF004.';
