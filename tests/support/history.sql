-- Writes down every change of the protocol's rows: the row before and after, the transaction, the call within it, and the
-- bounds of the instant that the call took for now; of heads, inboxes and journals without what no law asks for.
-- tests/support/steps.py reads it back.

create schema test_history;
create table test_history.changes (
  seq bigint generated always as identity,
  txid bigint not null,
  call timestamptz not null,
  since_ms bigint not null,
  now_ms bigint not null,
  mark text not null,
  relation text not null,
  old jsonb,
  new jsonb,
  constraint changes_pk primary key (seq)
);
comment on table test_history.changes is 'One changed row each; both images null: the whole table was emptied.';

-- The clock, watched: what it showed to a call is remembered for the call, so that its now is known whoever moves the clock
-- meanwhile. Whoever replaces the clock afterwards ends that; then the trigger looks at the clock itself.
do $$
begin
  execute replace(pg_get_functiondef('durable._now_ms()'::regprocedure), 'FUNCTION durable._now_ms()',
                  'FUNCTION test_history.clock()');
end
$$;

create function test_history.call()
returns text language sql stable
as $$ select extract(epoch from statement_timestamp())::text $$;

create or replace function durable._now_ms()
returns bigint language plpgsql volatile parallel unsafe
as $$
declare
  v_now bigint := test_history.clock();
  v_call text := test_history.call();
  v_shown text[] := string_to_array(current_setting('test.shown', true), ' ');
begin
  if v_shown[1] is distinct from v_call then
    v_shown := array[v_call, v_now::text, v_now::text];
  end if;
  perform set_config('test.shown', format('%s %s %s', v_call, least(v_shown[2]::bigint, v_now),
                                          greatest(v_shown[3]::bigint, v_now)), true);
  return v_now;
end
$$;

-- A background step is known by what called it; whoever sweeps in another way says so: set test.step = 'tick'. Whoever
-- empties the tables between two programs truncates them, or sets test.step = 'reset'.
create function test_history.image(p_relation text, p_row jsonb)
returns jsonb language sql immutable
as $$
  select case p_relation
    when '_executions' then p_row - array['bucket', 'next_seq', 'suspend_seq', 'reserved', 'open_steps', 'open_attempts',
                                          'open_running', 'digest', 'problem', 'key', 'tenant', 'workflow', 'workflow_version']
    when '_journal' then p_row - array['bucket', 'ts', 'input_hash', 'data']
    else p_row end
$$;

create function test_history.record()
returns trigger language plpgsql volatile
as $$
declare
  -- the name of the table, also where a partition of it was written
  v_relation text := tg_argv[0];
  v_old jsonb := case when tg_op in ('UPDATE', 'DELETE') then test_history.image(v_relation, to_jsonb(old)) end;
  v_new jsonb := case when tg_op in ('UPDATE', 'INSERT') then test_history.image(v_relation, to_jsonb(new)) end;
  v_shown text[] := string_to_array(current_setting('test.shown', true), ' ');
  v_now bigint;
  v_since bigint;
  v_callers text;
begin
  if v_old = v_new and v_relation in ('_executions', '_inboxes') then
    return null;
  elsif v_shown[1] = test_history.call() then
    v_since := v_shown[2];
    v_now := v_shown[3];
  else
    v_now := durable._now_ms();
    v_since := case when to_regclass('test_clock.instant') is null and coalesce(current_setting('durable.now_ms', true), '') = ''
                 then floor(extract(epoch from statement_timestamp()) * 1000)::bigint else v_now end;
  end if;
  get diagnostics v_callers = pg_context;
  insert into test_history.changes (txid, call, since_ms, now_ms, mark, relation, old, new)
  values (pg_current_xact_id()::text::bigint, statement_timestamp(), v_since, v_now,
          coalesce(nullif(current_setting('test.step', true), ''),
                   case when v_callers like '%function durable.tick_v1(%' then 'tick' else '' end),
          v_relation, v_old, v_new);
  return null;
end
$$;

do $$
declare
  v_table text;
begin
  foreach v_table in array
    array['_promises', '_tasks', '_callbacks', '_listeners', '_resumes', '_unblocks', '_schedules', '_executions', '_inboxes',
          '_signals', '_backlog', '_journal']
  loop
    execute format('create trigger history_of_rows after insert or update or delete on durable.%I '
                   'for each row execute function test_history.record(%L)', v_table, v_table);
    execute format('create trigger history_of_the_table after truncate on durable.%I '
                   'for each statement execute function test_history.record(%L)', v_table, v_table);
    execute format('insert into test_history.changes (txid, call, since_ms, now_ms, mark, relation, new) '
                   'select 0, ''epoch'', 0, 0, ''base'', %L, test_history.image(%L, to_jsonb(x)) from durable.%I x',
                   v_table, v_table, v_table);
  end loop;
end
$$;

grant usage on schema test_history to public;
grant select, insert on test_history.changes to public;
