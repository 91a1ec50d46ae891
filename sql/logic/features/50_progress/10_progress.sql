-- Progress and named values of runs: written by turns and by people, each under the lock of the task, so that two sessions never
-- write the same row. A value replaces the one before it; the journal does not know it.

create or replace function durable._newer_values(p_old jsonb, p_new jsonb)
returns jsonb language sql immutable parallel safe
as $$
  select p_old || coalesce(jsonb_object_agg(n.key, n.value), '{}')
  from jsonb_each(p_new) n
  cross join lateral (select p_old -> n.key as value) o
  where ((o.value ->> 0)::bigint, (o.value ->> 1)::bigint) > ((n.value ->> 0)::bigint, (n.value ->> 1)::bigint) is not true
$$;
comment on function durable._newer_values(jsonb, jsonb) is
  'The named values of a run after those of a report; a value that was set later in the journal stays.';

create or replace function durable._write_progress(p_progress durable._progress_report[], p_now bigint)
returns void language sql volatile
as $$
  insert into durable._progress as g (id, execution, seq, done, total, note, named, changed_at)
  select n.id, case when n.done is not null then n.execution end, n.seq, n.done, n.total, n.note, coalesce(n.named, '{}'), p_now
  from unnest(p_progress) n
  on conflict (id) do update
  set changed_at = excluded.changed_at, named = durable._newer_values(g.named, excluded.named),
      (execution, seq, done, total, note) = (
        select case when o.stays then g.execution else excluded.execution end, case when o.stays then g.seq else excluded.seq end,
               case when o.stays then g.done else excluded.done end, case when o.stays then g.total else excluded.total end,
               case when o.stays then g.note else excluded.note end
        from (select excluded.done is null
                     or coalesce((g.execution, g.seq) > (excluded.execution, excluded.seq), false)) as o (stays))
$$;
comment on function durable._write_progress(durable._progress_report[], bigint) is
  'Writes what runs have set, at most one report for each. The others of its named values stay. The caller holds the tasks.';

create or replace function durable._report_progress(
  p_progress durable._progress_report[], p_reports durable._run_report[], p_now bigint)
returns void language plpgsql volatile
as $$
begin
  perform durable._write_progress(array(
    select row(n.*)::durable._progress_report from unnest(p_progress) n
    where (select count(*) from unnest(p_reports) b where b.execution = n.execution and b.verdict = 'ok') > 0), p_now);
  perform durable._hint('durable_progress', p_now);
end
$$;
comment on function durable._report_progress(durable._progress_report[], durable._run_report[], bigint) is
  'Writes what the runs of accepted reports have set, and hints to those who watch.';

create or replace function durable._set_from_outside(
  p_id text, p_done double precision, p_total double precision, p_note text, p_name text, p_value text)
returns void language plpgsql volatile
as $$
declare
  v_head durable._executions;
  v_execution bigint;
  v_seq integer;
  v_now bigint;
begin
  perform durable.promise_get(p_id);
  v_head := durable._lock_run(p_id);
  v_now := durable._now_ms();
  if not exists (select from durable._tasks t where t.id = p_id and t.deadline > v_now) then
    perform durable._fail_conflict(format('Nothing runs %L: it has ended, or has no task.', p_id),
                                   format('select * from durable.result(%L)', p_id));
  end if;
  v_execution := coalesce(v_head.execution, 0);
  v_seq := coalesce(v_head.next_seq, 0);
  perform durable._write_progress(array[row(
    v_execution, p_id, case when p_name is null then v_seq end, p_done, p_total, p_note,
    case when p_name is not null then jsonb_build_object(p_name, jsonb_build_array(v_execution, v_seq, p_value)) end
  )::durable._progress_report], v_now);
  perform durable._hint('durable_progress', v_now);
end
$$;
comment on function durable._set_from_outside(text, double precision, double precision, text, text, text) is
  'Writes what a session outside the run has set, its progress or, if p_name is given, a named value: as of the end of the journal, so that no replay replaces it. WF001, WF003.';

create or replace function durable.set_progress(
  id text, done double precision, total double precision default null, note text default null)
returns void language plpgsql volatile
as $$
begin
  if ($2 >= 0 and $2 < 'infinity' and coalesce($3 >= 0 and $3 < 'infinity', true)) is not true then
    perform durable._fail_invalid('Progress is counted in finite numbers that are not negative.');
  elsif octet_length($4) > 2000 then
    perform durable._fail_invalid(format('A note has 2000 bytes at most, this one has %s.', octet_length($4)));
  end if;
  perform durable._set_from_outside($1, $2, $3, $4, null, null);
end
$$;
comment on function durable.set_progress(text, double precision, double precision, text) is
  'Sets the progress of a run or task that has not ended: select durable.set_progress(''order-42'', 3, 10, ''resizing''). total null: unknown. A workflow sets its own by ctx.progress; the last call counts. Until the commit the run reports nothing. WF001 no such run, WF003 it has ended, WF004.';

create or replace function durable.set_value(id text, name text, value jsonb)
returns void language plpgsql volatile
as $$
begin
  if $2 is null or octet_length($2) not between 1 and 256 then
    perform durable._fail_invalid(format('The name of a value has 1 to 256 bytes, this one has %s.',
                                         coalesce(octet_length($2), 0)));
  end if;
  perform durable._check_json(format('Value %L of run %L', $2, $1), $3::text);
  perform durable._set_from_outside($1, null, null, null, $2, coalesce($3::text, 'null'));
end
$$;
comment on function durable.set_value(text, text, jsonb) is
  'Sets a named value of a run or task that has not ended: select durable.set_value(''order-42'', ''stage'', ''"packing"''). A workflow sets its own by ctx.set. durable.get_value reads it. Until the commit the run reports nothing. WF001 no such run, WF003 it has ended, WF004, WF008.';

create or replace function durable.get_value(id text, name text)
returns jsonb language plpgsql stable
as $$
declare
  v_value jsonb;
begin
  select durable._json(g.named -> $2 ->> 2) into v_value from durable._progress g where g.id = $1;
  if not found and not exists (select from durable._promises p where p.id = $1) then
    perform durable._fail_not_found('run', $1);
  end if;
  return v_value;
end
$$;
comment on function durable.get_value(text, text) is
  'The last value that a run has set under a name, by ctx.set or durable.set_value: select durable.get_value(''order-42'', ''stage''). Null if it has set none. WF001 no such run.';
