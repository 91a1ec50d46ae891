-- Hooks: what the core asks at its own moments and cannot answer itself. Each is a function with an empty body, which the file of
-- one feature replaces when it is installed, under the same header. So the core calls no feature, no call looks up at run time
-- what to do, and a database without the feature works as if nothing of its kind had happened.

-- in a turn

create or replace function durable._begin_waits(p_reports durable._run_report[], p_now bigint)
returns bigint[] language plpgsql volatile
as $$ begin return '{}'; end $$;
comment on function durable._begin_waits(durable._run_report[], bigint) is
  'Asked by a turn when its promises are made: begins the waits that the commands "until" name. Answers the executions of those that failed at once.';

create or replace function durable._write_progress(p_progress durable._progress_report[], p_now bigint)
returns void language sql volatile
as $$ $$;
comment on function durable._write_progress(durable._progress_report[], bigint) is
  'Asked when a run ends alone and its report has progress: writes it. The caller holds the task.';

create or replace function durable._report_progress(
  p_progress durable._progress_report[], p_reports durable._run_report[], p_now bigint)
returns void language plpgsql volatile
as $$ begin end $$;
comment on function durable._report_progress(durable._progress_report[], durable._run_report[], bigint) is
  'Asked at the end of a turn with progress: writes that of accepted reports. The caller holds the tasks.';

-- in a tick, in this order: at most one of the first three finds something to do, and is then the whole tick

create or replace function durable._sweep_schedules(p_limit integer, p_now bigint)
returns jsonb language plpgsql volatile
as $$ begin return null; end $$;
comment on function durable._sweep_schedules(integer, bigint) is
  'Asked first by a tick, which holds no lock: starts what is due by the clock. The answer of the tick; null if nothing was due.';

create or replace function durable._sweep_tests(p_limit integer, p_now bigint)
returns jsonb language plpgsql volatile
as $$ begin return null; end $$;
comment on function durable._sweep_tests(integer, bigint) is
  'Asked by a tick that started nothing, and holds no lock: tests what runs wait for. The answer of the tick; null if nothing was due.';

create or replace function durable._sweep_retention(p_now bigint)
returns jsonb language plpgsql volatile
as $$ begin return null; end $$;
comment on function durable._sweep_retention(bigint) is
  'Asked by a tick that started and tested nothing, and holds no lock: removes what is old. The answer of the tick; null if nothing was due.';

create or replace function durable._try_lock_reported_waits(p_limit integer, p_tried text[], p_missed bigint[])
returns text[] language plpgsql volatile
as $$ begin return '{}'; end $$;
comment on function durable._try_lock_reported_waits(integer, text[], bigint[]) is
  'Asked when a tick locks promises that are to be settled: locks those whose wait was reported as ended, except p_tried and those whose owner is in p_missed.';

create or replace function durable._reported_outcomes(p_ids text[])
returns durable._row_outcome[] language plpgsql stable
as $$ begin return '{}'; end $$;
comment on function durable._reported_outcomes(text[]) is
  'Asked before a tick settles: the outcomes of waits that were reported, whose promises are locked.';

create or replace function durable._forget_reported(p_limit integer)
returns void language plpgsql volatile
as $$ begin end $$;
comment on function durable._forget_reported(integer) is
  'Asked after a tick has settled: forgets reports of promises that are settled.';

create or replace function durable._record_timeline(p_now bigint)
returns text language plpgsql volatile
as $$ begin return null; end $$;
comment on function durable._record_timeline(bigint) is
  'Asked at the end of a tick: records the timeline that the server writes now, and answers a warning if it has changed.';

-- by a worker, in statements of its own

create or replace function durable.services_due_v1()
returns bigint language plpgsql volatile
as $$ begin return null; end $$;
comment on function durable.services_due_v1() is
  'Asked by a worker with each tick: the ms until a task of a service is ready; -1 if none is queued; null if nothing is served here.';

create or replace function durable.worker_blocked_v1(p_worker text, p_ids text[])
returns json language plpgsql volatile
as $$ begin return null; end $$;
comment on function durable.worker_blocked_v1(text, text[]) is
  'Asked by a worker that has left out ids for more than a second: who has locked them. Null if nobody can tell.';
