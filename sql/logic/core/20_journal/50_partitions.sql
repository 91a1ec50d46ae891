-- The partitions of the journal: one for each week, found by its bounds, and made some weeks ahead, because a run writes to the
-- partition of the week in which it starts.

create or replace function durable._partition_of(p_table regclass, p_bucket integer, p_alone boolean)
returns oid language plpgsql stable
as $$
begin
  return (
    select c.oid from pg_catalog.pg_inherits i
    join pg_catalog.pg_class c on c.oid = i.inhrelid
    cross join lateral (select pg_get_expr(c.relpartbound, c.oid) as "values") b
    where i.inhparent = p_table
      and b."values" ~ format(case when p_alone then '^FOR VALUES IN [(]%s[)]$' else '[( ]%s[,)]' end, p_bucket));
end
$$;
comment on function durable._partition_of(regclass, integer, boolean) is
  'The partition of a table for a week, found by its bounds and not by its name, because it may have been created from outside. p_alone: it has no other week. Null if there is none.';

create or replace function durable._may_alter_journal()
returns boolean language sql stable
as $$
  select has_table_privilege(r.name, 'durable._journal', 'DELETE') or not has_schema_privilege(r.name, 'durable', 'USAGE')
  from (select coalesce(nullif(current_setting('role'), 'none'), session_user) as name) r
$$;
comment on function durable._may_alter_journal() is
  'Whether the session may have partitions made and dropped, asked where current_user is the owner of the schema: its role deletes journals, as workers do. A role that may not use the schema has come through a function of the owner, as SDKs do through their facade.';

create or replace function durable._create_partition(p_table regclass, p_week integer, p_comment text)
returns boolean language plpgsql volatile
as $$
begin
  if durable._partition_of(p_table, p_week, false) is not null then
    return false;
  end if;
  execute format('create table %s_%s (like %1$s including all) with ('
                 'autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_freeze_min_age = 0)', p_table, p_week);
  execute format('alter table %s attach partition %1$s_%s for values in (%2$s)', p_table, p_week);
  execute format('comment on table %s_%s is %L', p_table, p_week, p_comment);
  return true;
end
$$;
comment on function durable._create_partition(regclass, integer, text) is
  'Creates the partition of a table for a week; false if there is one already, made from outside under whatever name.';

create or replace function durable._create_partitions()
returns integer language plpgsql volatile security definer
as $$
declare
  v_week integer;
  v_made boolean;
  v_count integer := 0;
begin
  if not durable._may_alter_journal() then
    perform durable._fail_forbidden('This role does not delete journals, so it makes no partitions of them.',
                                    'grant delete on durable._journal to ...');
  end if;
  for v_week in
    select w from generate_series(durable._week(durable._now_ms()), durable._week(durable._now_ms()) + 4) w
    where not exists (select from durable._buckets b where b.bucket = w)
  loop
    if not pg_try_advisory_xact_lock(1685417573, 0) then
      return v_count;
    end if;
    if not exists (select from durable._buckets b where b.bucket = v_week) then
      v_made := durable._create_partition('durable._journal', v_week,
                                          'Journal of runs that started in this week since the epoch.');
      perform durable._create_partition('durable._journal_values', v_week,
                                        'Large values of journals of this week since the epoch.');
      insert into durable._buckets (bucket) values (v_week);
      v_count := v_count + v_made::integer;
    end if;
  end loop;
  return v_count;
end
$$ set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' set jit = off set quote_all_identifiers = off;
comment on function durable._create_partitions() is
  'Creates the journal partitions of this week and the four after it. With the rights of the owner, because workers may not create tables; so it takes nothing from its caller, and names and values are numbers. WF011 for a role that may not delete journals. They are attached, because "partition of" would wait for every open transaction that touched the journal, and the engine behind it; a session that alters the journal at this moment is waited for 100 ms. A partition that was created from outside, under whatever name, is used as it is.';

create or replace function durable._ensure_partitions(p_now bigint)
returns text language plpgsql volatile
as $$
declare
  v_missing integer := 5 - (select count(*) from durable._buckets b
                            where b.bucket between durable._week(p_now) and durable._week(p_now) + 4);
  v_problem text;
begin
  if v_missing > 0 then
    begin
      perform durable._create_partitions();
    exception when others then
      get stacked diagnostics v_problem = message_text;
      return format('no journal partition could be made: %s', v_problem);
    end;
  end if;
  return null;
end
$$;
comment on function durable._ensure_partitions(bigint) is
  'Makes the partitions of the next weeks. An error is answered and undone, and fails nothing else.';

select durable._create_partitions();
