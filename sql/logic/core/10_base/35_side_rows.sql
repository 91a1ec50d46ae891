-- Side rows: callbacks, listeners, resumes, inboxes, backlogs, join sets, waits for rows, progress. Each is written under the
-- lock of the promise, task or head that it belongs to. Only two kinds of sessions lock one without that: people, by hand, and
-- for a moment the sweep that tests waits for rows. The engine waits for neither: work that needs a locked row is left out.
-- A row that was never locked or changed has no xmax, so one query shows that all are free. Only if one may be locked are they
-- locked, with SKIP LOCKED. If a row is locked between that query and the write, the write waits for it once, for lock_timeout
-- at most: the next query sees the lock.

create or replace function durable._try_lock_promise_side_rows(p_ids text[], p_heads bigint[])
returns text[] language plpgsql volatile
as $$
begin
  if not (exists (select from durable._callbacks c where c.awaited_id = any (p_ids) and c.xmax <> 0)
          or exists (select from durable._resumes r where r.task_id = any (p_ids) and r.xmax <> 0)
          or exists (select from durable._listeners l where l.awaited_id = any (p_ids) and l.xmax <> 0)
          or exists (select from durable._row_waits w where w.promise_id = any (p_ids) and w.xmax <> 0)
          or exists (select from durable._row_waits w where w.execution = any (p_heads) and w.xmax <> 0)) then
    return '{}';
  end if;
  return array(
    select c.awaited_id from durable._callbacks c
    where c.awaited_id = any (p_ids) and c.ctid <> all (array(
      select x.ctid from durable._callbacks x where x.awaited_id = any (p_ids) for update skip locked))
    union
    select l.awaited_id from durable._listeners l
    where l.awaited_id = any (p_ids) and l.ctid <> all (array(
      select x.ctid from durable._listeners x where x.awaited_id = any (p_ids) for update skip locked))
    union
    select r.task_id from durable._resumes r
    where r.task_id = any (p_ids) and r.ctid <> all (array(
      select x.ctid from durable._resumes x where x.task_id = any (p_ids) for update skip locked))
    union
    select w.promise_id from durable._row_waits w
    where w.promise_id = any (p_ids) and w.ctid <> all (array(
      select x.ctid from durable._row_waits x where x.promise_id = any (p_ids) for update skip locked))
    union
    select p.id from durable._promises p
    join durable._row_waits w on w.execution = any (array[p.head])
    where p.id = any (p_ids) and w.ctid <> all (array(
      select x.ctid from durable._row_waits x
      where x.execution = any (array(select n.head from durable._promises n where n.id = any (p_ids))) for update skip locked)));
end
$$;
comment on function durable._try_lock_promise_side_rows(text[], bigint[]) is
  'Class 4, for promises that are to be settled and that are locked already, with their tasks and heads. Answers those that cannot be settled, because another session has locked one of their callbacks, listeners or waits for rows, a wait of their run or a resume of their task. p_heads: their runs, possibly among others.';

create or replace function durable._try_lock_resumes(p_ids text[])
returns text[] language plpgsql volatile
as $$
begin
  if not exists (select from durable._resumes r where r.task_id = any (p_ids) and r.xmax <> 0) then
    return '{}';
  end if;
  return array(
    select distinct r.task_id from durable._resumes r
    where r.task_id = any (p_ids) and r.ctid <> all (array(
      select x.ctid from durable._resumes x where x.task_id = any (p_ids) for update skip locked)));
end
$$;
comment on function durable._try_lock_resumes(text[]) is
  'Class 4, for locked tasks that are to be acquired. Answers those with a resume that another session has locked.';

create or replace function durable._try_lock_progress(p_ids text[])
returns text[] language plpgsql volatile
as $$
begin
  if not exists (select from durable._progress g where g.id = any (p_ids) and g.xmax <> 0) then
    return '{}';
  end if;
  return array(
    select g.id from durable._progress g
    where g.id = any (p_ids) and g.ctid <> all (array(
      select x.ctid from durable._progress x where x.id = any (p_ids) for update skip locked)));
end
$$;
comment on function durable._try_lock_progress(text[]) is
  'Class 4, for locked tasks whose runs have set values. Answers those whose row another session has locked.';

create or replace function durable._may_be_locked(p_reports durable._run_report[])
returns text[] language plpgsql stable
as $$
begin
  return array(
    select b.id from unnest(p_reports) b
    cross join lateral (select coalesce((b.ending)."do", '')) as e ("do")
    where (select count(*) from unnest(b.commands) a
           where case a."do"
             when 'receive' then (select count(*) from durable._inboxes i
                                  where i.execution = b.execution and i.name = a.name and i.xmax <> 0)
             when 'take' then (select count(*) from durable._join_sets s
                               where s.execution = b.execution and s.child = a."set" and s.xmax <> 0)
                              + (select count(*) from durable._members m
                                 where m.execution = b.execution and m.child = a.child and m.xmax <> 0)
             else 0 end > 0) > 0
       or (e."do" = 'continue' and (
             (select count(*) from durable._inboxes i where i.execution = b.execution and i.xmax <> 0) > 0
             or (select count(*) from durable._row_waits w where w.execution = b.execution and w.xmax <> 0) > 0
             or (select count(*) from durable._callbacks c where c.awaiter_id = b.id and c.child >= 0 and c.xmax <> 0) > 0
             or (select count(*) from durable._callbacks c
                 where c.awaited_id > b.id || '.' and c.awaited_id < b.id || '/' and c.awaiter_id = b.id and c.xmax <> 0) > 0)));
end
$$;
comment on function durable._may_be_locked(durable._run_report[]) is
  'Runs whose reports write a row that another session may have locked: an inbox of a run that receives, a join set of a run that takes from it, any side row of a run that continues as new.';

create or replace function durable._try_lock_awaits(p_id text)
returns boolean language plpgsql volatile
as $$
begin
  return not exists (
    select from durable._callbacks c
    where c.awaited_id > p_id || '.' and c.awaited_id < p_id || '/' and c.awaiter_id = p_id and c.ctid <> all (array(
      select x.ctid from durable._callbacks x
      where x.awaited_id > p_id || '.' and x.awaited_id < p_id || '/' and x.awaiter_id = p_id for update skip locked))
  ) and not exists (
    select from durable._callbacks c
    where c.awaiter_id = p_id and c.child >= 0 and c.ctid <> all (array(
      select x.ctid from durable._callbacks x where x.awaiter_id = p_id and x.child >= 0 for update skip locked)));
end
$$;
comment on function durable._try_lock_awaits(text) is
  'Class 4: the callbacks of a run on its children and on the promises that it adopted. False if another session has locked one.';

create or replace function durable._try_lock_backlog(p_id text, p_names text[], p_numbers bigint[])
returns tid[] language plpgsql volatile
as $$
begin
  return array(
    select x.place from unnest(p_names, p_numbers) as u (name, number)
    cross join lateral (
      select b.ctid as place from durable._backlog b
      where b.id = p_id and b.name = u.name and b.number <= u.number for update skip locked) x);
end
$$;
comment on function durable._try_lock_backlog(text, text[], bigint[]) is
  'Class 4: the rows of a backlog up to these numbers, which nobody will receive. One that another session has locked is left to the next generation.';

create or replace function durable._try_lock_run_side_rows(p_reports durable._run_report[])
returns text[] language plpgsql volatile
as $$
declare
  v_ids text[] := durable._may_be_locked(p_reports);
  v_runs bigint[];
begin
  if v_ids = '{}' then
    return '{}';
  end if;
  v_runs := array(select b.execution from unnest(p_reports) b where b.id = any (v_ids));
  return array(
    select b.id from unnest(p_reports) b
    where b.id = any (v_ids) and b.execution = any (array(
      select i.execution from durable._inboxes i
      where i.execution = any (v_runs) and i.ctid <> all (array(
        select x.ctid from durable._inboxes x where x.execution = any (v_runs) for update skip locked))
      union
      select s.execution from durable._join_sets s
      where s.execution = any (v_runs) and s.ctid <> all (array(
        select x.ctid from durable._join_sets x where x.execution = any (v_runs) for update skip locked))
      union
      select m.execution from durable._members m
      where m.execution = any (v_runs) and m.ctid <> all (array(
        select x.ctid from durable._members x where x.execution = any (v_runs) for update skip locked))
      union
      select w.execution from durable._row_waits w
      where w.execution = any (v_runs) and w.ctid <> all (array(
        select x.ctid from durable._row_waits x where x.execution = any (v_runs) for update skip locked))))
    union
    select b.id from unnest(p_reports) b
    where b.id = any (v_ids) and (b.ending)."do" = 'continue' and not durable._try_lock_awaits(b.id));
end
$$;
comment on function durable._try_lock_run_side_rows(durable._run_report[]) is
  'Class 4, for reports whose tasks and heads are locked. Answers the runs with a side row, other than a resume, that another session has locked.';

create or replace function durable._try_lock_side_rows(p_batch durable._turn_batch, p_heads bigint[], p_others text[])
returns text[] language plpgsql volatile
as $$
declare
  v_missed text[] := '{}';
begin
  if p_batch.settles <> '{}' then
    v_missed := durable._try_lock_promise_side_rows(p_batch.settles, p_heads);
  end if;
  if p_batch.endings && '{suspend,continue}' then
    v_missed := v_missed || durable._try_lock_resumes(p_others);
  end if;
  if p_batch.writes_side_rows then
    v_missed := v_missed || durable._try_lock_run_side_rows(p_batch.reports);
  end if;
  if p_batch.progress <> '{}' then
    v_missed := v_missed || durable._try_lock_progress(array(select n.id from unnest(p_batch.progress) n));
  end if;
  return v_missed;
end
$$;
comment on function durable._try_lock_side_rows(durable._turn_batch, bigint[], text[]) is
  'Class 4, for the reports of a turn: resumes where a run suspends or continues, and the other side rows that they write. Answers the runs with one that another session has locked. p_heads: the locked heads; p_others: tasks of the reports that do not settle.';
