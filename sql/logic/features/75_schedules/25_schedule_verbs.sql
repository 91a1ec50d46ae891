-- Schedules for people and for the code of workers: of promises and of workflows.

create or replace function durable._fail_schedule_conflict(p_id text)
returns void language plpgsql volatile
as $$
begin
  perform durable._fail_conflict(format('Schedule %L exists and says something else.', p_id),
                                 format('select durable.unschedule(%L), and schedule it again.', p_id));
end
$$;
comment on function durable._fail_schedule_conflict(text) is 'Raises WF003 for another schedule of the same id.';

create or replace function durable._check_target(p_id text, p_target text)
returns void language plpgsql stable
as $$
begin
  if p_target ~* '^sql://' then
    perform durable._check_workflow(durable._service_named(p_target));
  elsif strpos(p_target, ':') = 0 and exists (select from durable._workflows w where w.name = p_target)
        and not exists (select from durable._workers w where p_target = any (w.queues)) then
    perform durable._fail_invalid(
      format('Schedule %L: target %L is the name of a workflow, and no worker serves a queue of that name.', p_id, p_target),
      format('Write workflow => %L.', p_target));
  end if;
end
$$;
comment on function durable._check_target(text, text) is
  'Refuses a target that nothing serves, as far as that can be known: a service that is not served (WF001), and the name of a workflow (WF004). Clients of the protocol are not registered.';

create or replace function durable._schedule_promises(
  p_id text, p_cron text, p_target text, p_args jsonb, p_timezone text, p_timeout_ms bigint, p_promise_id text, p_tags jsonb)
returns timestamptz language plpgsql volatile
as $$
declare
  v_tags jsonb := p_tags;
  v_schedule durable.schedule_record;
begin
  perform durable._check_target(p_id, p_target);
  if jsonb_typeof(p_tags) = 'object' then
    v_tags := case when p_target is null then '{"resonate:external": "true"}'
                   else jsonb_build_object('resonate:target', p_target) end::jsonb || p_tags;
  end if;
  v_schedule := durable.schedule_create(p_id, p_cron, p_promise_id, p_timeout_ms, p_args::text, '{"codec": "json"}', v_tags,
                                        p_timezone);
  if (v_schedule.cron, v_schedule.timezone, v_schedule.promise_id, v_schedule.promise_timeout, v_schedule.promise_tags)
       is distinct from (p_cron, p_timezone, p_promise_id, p_timeout_ms, v_tags)
     or v_schedule.promise_param_data is distinct from p_args::text then
    perform durable._fail_schedule_conflict(p_id);
  end if;
  return durable._at(v_schedule.next_run_at);
end
$$;
comment on function durable._schedule_promises(text, text, text, jsonb, text, bigint, text, jsonb) is
  'Creates a schedule of promises, or finds the same one; another one of that id is WF003.';

create or replace function durable._check_policy(p_id text, p_policy durable._schedule_policy)
returns void language plpgsql stable
as $$
begin
  if p_policy.overlap not in ('allow', 'skip', 'buffer_one', 'buffer_all', 'cancel') then
    perform durable._fail_invalid(format('Schedule %L: %L is no overlap.', p_id, p_policy.overlap),
                                  'Write allow, skip, buffer_one, buffer_all or cancel.');
  elsif p_policy.catch_up < 10000 then
    perform durable._fail_invalid(format('Schedule %L: the window of catch_up is at least 10 seconds.', p_id),
                                  'A tick comes late by some ms, so a shorter one would leave out every instant.');
  elsif p_policy.jitter not between 0 and 86400000 then
    perform durable._fail_invalid(format('Schedule %L: a jitter has 0 to 24 hours.', p_id),
                                  'For more, write several expressions.');
  elsif p_policy.ends_at < p_policy.starts_at then
    perform durable._fail_invalid(format('Schedule %L ends before it starts.', p_id), 'starts is before ends.');
  elsif p_policy.max_runs < 1 then
    perform durable._fail_invalid(format('Schedule %L: max_runs is at least 1.', p_id),
                                  'null: no limit. durable.pause_schedule(id) stops it for a while.');
  elsif p_policy.pause_after not between 1 and 1000 then
    perform durable._fail_invalid(format('Schedule %L: pause_after is 1 to 1000 failures.', p_id),
                                  'null: it goes on, however many runs fail.');
  end if;
end
$$;
comment on function durable._check_policy(text, durable._schedule_policy) is 'Refuses policies that say nothing. WF004.';

create or replace function durable._schedule_of_runs(
  p_id text, p_cron text, p_timezone text, p_request durable._start_request, p_policy durable._schedule_policy,
  p_declared boolean, p_now bigint)
returns durable._schedules language plpgsql stable
as $$
declare
  v_new durable._schedules;
begin
  if p_id is null or octet_length(p_id) not between 1 and 480 then
    perform durable._fail_invalid(
      format('The id of a schedule of runs has 1 to 480 bytes, this one has %s.', coalesce(octet_length(p_id), 0)));
  elsif durable._is_of_calls(p_id) then
    perform durable._fail_invalid(format('Id %L is reserved to the calls of the engine.', p_id));
  end if;
  perform durable._check_start(p_request.workflow, coalesce(p_request.args, 'null'), null, p_request.queue, p_request.version);
  perform durable._check_options(null, p_request.queue, nullif(p_policy.jitter, 0), p_request.timeout_ms,
                                 p_request.priority, p_request.tags, '');
  perform durable._check_payload(format('Arguments of schedule %L', p_id), p_request.input);
  perform durable._check_timezone(p_id, p_timezone);
  perform durable._check_policy(p_id, p_policy);
  if not p_request.any_workflow then
    perform durable._check_workflow(p_request.workflow);
  end if;
  v_new.id := p_id;
  v_new.cron := p_cron;
  v_new.timezone := p_timezone;
  v_new.created_at := p_now;
  v_new.priority := p_request.priority;
  v_new.declared := p_declared;
  v_new.promise_id := '{{.id}}-{{.instant}}';
  v_new.promise_timeout := coalesce(p_request.timeout_ms, durable._never());
  v_new.promise_param_headers := '{"codec": "json"}';
  v_new.promise_param_data := p_request.input;
  v_new.promise_tags := p_request.tags;
  v_new.workflow := p_request.workflow;
  v_new.workflow_version := p_request.version;
  v_new.queue := p_request.queue;
  v_new.overlap := coalesce(p_policy.overlap, 'allow');
  v_new.catch_up := p_policy.catch_up;
  v_new.jitter := coalesce(p_policy.jitter, 0);
  v_new.starts_at := p_policy.starts_at;
  v_new.ends_at := p_policy.ends_at;
  v_new.max_runs := p_policy.max_runs;
  v_new.runs_left := p_policy.max_runs;
  v_new.pause_after := p_policy.pause_after;
  v_new.next_run_at := durable._first_instant(v_new);
  return v_new;
end
$$;
comment on function durable._schedule_of_runs(
  text, text, text, durable._start_request, durable._schedule_policy, boolean, bigint) is
  'The checked row of a schedule that starts runs as the request says. WF001, WF004, WF008.';

create or replace function durable._says_the_same(p_one durable._schedules, p_other durable._schedules)
returns boolean language sql immutable
as $$
  select (p_one.cron, p_one.timezone, p_one.workflow, p_one.workflow_version, p_one.queue, p_one.priority,
          p_one.promise_timeout, p_one.promise_tags, p_one.overlap, p_one.catch_up, p_one.jitter, p_one.starts_at,
          p_one.ends_at, p_one.max_runs, p_one.pause_after)
         is not distinct from (p_other.cron, p_other.timezone, p_other.workflow, p_other.workflow_version, p_other.queue,
                               p_other.priority, p_other.promise_timeout, p_other.promise_tags, p_other.overlap,
                               p_other.catch_up, p_other.jitter, p_other.starts_at, p_other.ends_at, p_other.max_runs,
                               p_other.pause_after)
         and p_one.promise_param_data::jsonb = p_other.promise_param_data::jsonb
$$;
comment on function durable._says_the_same(durable._schedules, durable._schedules) is
  'True if two schedules of runs start the same runs at the same instants.';

create or replace function durable._leave_instants(p_schedule durable._schedules, p_due boolean, p_now bigint)
returns void language plpgsql volatile
as $$
declare
  v_since constant bigint := greatest(p_schedule.created_at, p_schedule.begins_at, p_schedule.last_run_at) + 1;
  v_paused_upto constant bigint := least(p_now, coalesce(p_schedule.paused_until, p_now));
begin
  if p_schedule.paused_at is not null and v_since <= v_paused_upto then
    perform durable._record_instant(p_schedule.id, v_since, v_paused_upto, 'paused', coalesce(p_schedule.pause_reason, ''),
                                    p_now);
  end if;
  if p_due then
    perform durable._record_instant(p_schedule.id, durable._nominal_next(p_schedule), p_now, 'missed',
                                    'the schedule was changed before a tick came', p_now);
  end if;
end
$$;
comment on function durable._leave_instants(durable._schedules, boolean, bigint) is
  'Records the instants of a schedule up to a change after which its instants begin: those of its pause, and those that are due.';

create or replace function durable._replaced(p_old durable._schedules, p_new durable._schedules)
returns durable._schedules language plpgsql volatile
as $$
declare
  v_row durable._schedules := p_new;
  -- the time of the change; the schedule keeps its own
  v_now constant bigint := p_new.created_at;
  v_is_due constant boolean := durable._is_evaluable(p_old) and durable._nominal_next(p_old) <= v_now;
  v_says_when constant boolean := (p_old.cron, p_old.timezone) <> (p_new.cron, p_new.timezone);
begin
  v_row.last_run_at := p_old.last_run_at;
  v_row.paused_at := p_old.paused_at;
  v_row.tenant := p_old.tenant;
  v_row.paused_until := p_old.paused_until;
  v_row.paused_by := p_old.paused_by;
  v_row.pause_reason := p_old.pause_reason;
  v_row.latest := p_old.latest;
  v_row.poll_at := p_old.poll_at;
  v_row.begins_at := p_old.begins_at;
  if p_new.max_runs is not null then
    v_row.runs_left := greatest(p_new.max_runs - coalesce(p_old.max_runs - p_old.runs_left, 0), 0);
  end if;
  -- what a limit or an end left out is over: a new one does not bring it back
  if v_says_when or (not v_is_due and (p_old.starts_at, p_old.ends_at, p_old.max_runs)
                     is distinct from (p_new.starts_at, p_new.ends_at, p_new.max_runs)) then
    perform durable._leave_instants(p_old, v_says_when and v_is_due, v_now);
    v_row.begins_at := greatest(p_old.begins_at, v_now);
  end if;
  v_row.created_at := p_old.created_at;
  v_row.next_run_at := least(durable._nominal_next(v_row), v_row.poll_at);
  return v_row;
end
$$;
comment on function durable._replaced(durable._schedules, durable._schedules) is
  'A schedule of runs in the place of an older one, which is locked: it keeps what happened, and stays paused. With another expression or time zone its instants begin now, and those that passed are recorded.';

create or replace function durable._insert_schedule(p_new durable._schedules)
returns boolean language plpgsql volatile
as $$
begin
  insert into durable._schedules (
    id, cron, timezone, created_at, next_run_at, priority, declared, promise_id, promise_timeout, promise_param_headers,
    promise_param_data, promise_tags, workflow, workflow_version, queue, overlap, catch_up, jitter, starts_at, ends_at,
    max_runs, runs_left, pause_after)
  values (
    p_new.id, p_new.cron, p_new.timezone, p_new.created_at, p_new.next_run_at, p_new.priority, p_new.declared, p_new.promise_id,
    p_new.promise_timeout, p_new.promise_param_headers, p_new.promise_param_data, p_new.promise_tags, p_new.workflow,
    p_new.workflow_version, p_new.queue, p_new.overlap, p_new.catch_up, p_new.jitter, p_new.starts_at, p_new.ends_at,
    p_new.max_runs, p_new.runs_left, p_new.pause_after)
  on conflict do nothing;
  return found;
end
$$;
comment on function durable._insert_schedule(durable._schedules) is 'Inserts a schedule of runs; false if its id exists.';

create or replace function durable._schedule_runs(
  p_id text, p_cron text, p_timezone text, p_request durable._start_request, p_policy durable._schedule_policy,
  p_replace boolean)
returns timestamptz language plpgsql volatile
as $$
declare
  v_request durable._start_request := p_request;
  v_new durable._schedules;
  v_old durable._schedules;
begin
  if p_request.queue is null then
    -- the same call again finds the same schedule, whatever its workflow has declared meanwhile
    v_request.queue := coalesce(
      (select s.queue from durable._schedules s where s.id = p_id and s.workflow = p_request.workflow and p_replace is not true),
      durable._own_queue(p_request.workflow, p_request.version));
  end if;
  v_new := durable._schedule_of_runs(p_id, p_cron, p_timezone, v_request, p_policy, false, durable._now_ms());
  perform durable._check_may_lock();
  perform durable._adopt_idle_copy();
  loop
    if durable._insert_schedule(v_new) then
      return durable._at(v_new.next_run_at);
    end if;
    v_old := durable._lock_schedule(p_id);
    -- null: another session has deleted it meanwhile
    exit when v_old.id is not null;
  end loop;
  if durable._says_the_same(v_old, v_new) then
    return durable._at(durable._shown_next(v_old));
  elsif p_replace is not true or v_old.workflow is null then
    perform durable._fail_schedule_conflict(p_id);
  end if;
  v_new.created_at := durable._now_ms();
  v_new := durable._replaced(v_old, v_new);
  perform durable._update_schedule(v_new);
  return durable._at(durable._shown_next(v_new));
end
$$;
comment on function durable._schedule_runs(
  text, text, text, durable._start_request, durable._schedule_policy, boolean) is
  'Creates a schedule of runs, or finds the same one. Another one of that id is WF003, unless it is of runs and p_replace: then it is replaced. Answers the next instant.';

create or replace function durable.schedule(
  id text, cron text, target text default null, args jsonb default '[]', timezone text default 'UTC',
  timeout interval default '1 day', promise_id text default '{{.id}}-{{.timestamp}}', tags jsonb default '{}',
  workflow text default null, queue text default null, version text default '1', deadline interval default null,
  priority integer default 0, any_workflow boolean default false, replace boolean default false,
  overlap text default 'allow', catch_up interval default null, jitter interval default null,
  starts timestamptz default null, ends timestamptz default null, max_runs integer default null,
  pause_after integer default null)
returns timestamptz language plpgsql volatile
as $$
declare
  v_name text := case when $9 ~* '^sql://' then durable._service_named($9) else $9 end;
  v_policy durable._schedule_policy := row($16, durable._ms($17), durable._ms($18), durable._instant_ms($19),
                                           durable._instant_ms($20), $21, $22);
begin
  if $9 is null and v_policy is distinct from row('allow', null, null, null, null, null, null)::durable._schedule_policy then
    perform durable._fail_invalid(format('Schedule %L has a policy and no workflow.', $1),
                                  'overlap, catch_up, jitter, starts, ends, max_runs and pause_after are for runs of a workflow.');
  elsif $9 is null then
    return durable._schedule_promises($1, $2, $3, $4, $5, coalesce(durable._ms($6), durable._never()), $7, $8);
  elsif $3 is not null then
    perform durable._fail_invalid(format('Schedule %L has a target and a workflow.', $1),
                                  'A target is for promises that clients of the protocol serve; write one of them.');
  end if;
  return durable._schedule_runs(
    $1, $2, $5, row(v_name, $4, $4::text, null, null, case when v_name like 'sql://%' then v_name else $10 end, $11, null,
                    durable._ms($12), $13, $8, '', $14)::durable._start_request, v_policy, $15);
end
$$;
comment on function durable.schedule(
  text, text, text, jsonb, text, interval, text, jsonb, text, text, text, interval, integer, boolean, boolean,
  text, interval, interval, timestamptz, timestamptz, integer, integer) is
  'Starts a run of a workflow at every instant of a cron expression: select durable.schedule(''nightly'', ''0 3 * * *'', workflow => ''report'', timezone => ''Europe/Paris''). The run of an instant has the id nightly-2026-03-01T02:00:00Z, in UTC, so it begins once. In args, "{{.instant}}" becomes the instant in the time zone, "{{.timestamp}}" its ms since the epoch, "{{.fired_at}}" when the run begins, and "{{.last_result}}" the result of the latest run before it that has completed, or null. queue, version, deadline, priority, tags, any_workflow: as for durable.start. cron may also be every 90 minutes, at 2026-03-01 09:00, or several with a semicolon between. overlap says what becomes of an instant while the latest run goes on: allow, skip, buffer_one, buffer_all, or cancel that run. An instant older than catch_up is left out and recorded; a run begins up to jitter late; no instant is before starts or after ends; it ends after max_runs runs; pause_after failures in a row pause it. Without a workflow every instant creates a promise with the id promise_id, whose deadline is timeout after the instant: target is a queue that protocol workers serve or sql://schema.function; without a target any client may resolve it. Answers the next instant. The same call again is the same schedule; with other arguments WF003, unless replace: then a schedule of runs is replaced. WF001 nothing serves it, WF004, WF008.';

create or replace function durable.unschedule(id text)
returns void language plpgsql volatile
as $$
begin
  perform durable.schedule_delete($1);
end
$$;
comment on function durable.unschedule(text) is
  'Ends a schedule: select durable.unschedule(''nightly''). The promises and runs that it created stay. WF001.';

create or replace function durable._lock_known_schedule(p_id text)
returns durable._schedules language plpgsql volatile
as $$
declare
  v_schedule durable._schedules := durable._lock_schedule(p_id);
begin
  if v_schedule.id is null then
    perform durable._fail_not_found('schedule', p_id);
  end if;
  return v_schedule;
end
$$;
comment on function durable._lock_known_schedule(text) is 'Locks and answers a schedule. WF001 if there is none.';

create or replace function durable._paused(
  p_schedule durable._schedules, p_reason text, p_until bigint, p_by text, p_now bigint)
returns durable._schedules language plpgsql stable
as $$
declare
  v_schedule durable._schedules := p_schedule;
begin
  if p_until <= p_now then
    perform durable._fail_invalid(format('Schedule %L: the end of a pause lies ahead, and %s is over.', p_schedule.id,
                                         durable._at(p_until)), 'null: until durable.resume_schedule(id).');
  end if;
  v_schedule.paused_at := coalesce(v_schedule.paused_at, p_now);
  v_schedule.paused_until := p_until;
  v_schedule.paused_by := left(p_by, 200);
  v_schedule.pause_reason := left(p_reason, 2000);
  return v_schedule;
end
$$;
comment on function durable._paused(durable._schedules, text, bigint, text, bigint) is
  'A schedule that is paused; of a paused one reason and end change. WF004.';

create or replace function durable.pause_schedule(
  id text, reason text default null, until timestamptz default null, paused_by text default session_user)
returns void language plpgsql volatile
as $$
declare
  v_schedule constant durable._schedules := durable._lock_known_schedule($1);
  v_now constant bigint := durable._now_ms();
begin
  perform durable._update_schedule(durable._with_next(
    durable._paused(v_schedule, $2, durable._instant_ms($3), $4, v_now), v_now));
end
$$;
comment on function durable.pause_schedule(text, text, timestamptz, text) is
  'Pauses a schedule until an instant, or until durable.resume_schedule(id): instants that pass meanwhile are left out, and runs that it has started go on. select durable.pause_schedule(''nightly'', ''moving house'', until => ''2026-03-01''). Of a paused one it changes reason and end. WF001, WF004.';

create or replace function durable.resume_schedule(id text)
returns timestamptz language plpgsql volatile
as $$
declare
  v_schedule durable._schedules := durable._lock_known_schedule($1);
begin
  if v_schedule.paused_at is not null then
    v_schedule := durable._ended_pause(v_schedule, durable._now_ms());
    perform durable._update_schedule(durable._with_next(v_schedule, durable._now_ms()));
  end if;
  return durable._at(nullif(durable._nominal_next(v_schedule), durable._never()));
end
$$;
comment on function durable.resume_schedule(text) is
  'Lets a paused schedule go on with its first instant after now, which it answers. WF001, WF004.';

create or replace function durable.next_instants(id text, count integer default 5)
returns setof timestamptz language plpgsql volatile
as $$
declare
  v_schedule durable._schedules;
  v_after bigint;
begin
  if $2 is null or $2 not between 1 and 1000 then
    perform durable._fail_invalid(format('1 to 1000 instants are asked for, not %s.', coalesce($2::text, 'null')),
                                  'select * from durable.next_instants(id, 5)');
  end if;
  select * into v_schedule from durable._schedules s where s.id = $1;
  if not found then
    perform durable._fail_not_found('schedule', $1);
  end if;
  if v_schedule.paused_at is not null and v_schedule.paused_until is null then
    v_schedule.paused_at := null;
    v_schedule.begins_at := durable._now_ms();
  end if;
  v_after := durable._nominal_next(v_schedule) - 1;
  if v_after < durable._never() - 1 then
    return query
    select durable._at(i.at)
    from unnest(durable._instants(v_schedule.cron, v_schedule.timezone, v_after, durable._never(),
                                  least($2, v_schedule.runs_left) - 1)) as i (at)
    where i.at <= coalesce(v_schedule.ends_at, durable._never());
  end if;
exception when invalid_parameter_value then
  perform durable._fail_invalid(format('Schedule %L: time zone %L is not known to this server.', $1, v_schedule.timezone));
end
$$;
comment on function durable.next_instants(text, integer) is
  'The next instants of a schedule: select * from durable.next_instants(''nightly'', 3). Of a paused one those that would come if it were resumed now. WF001, WF004.';

create or replace function durable._declare_schedule(p_new durable._schedules)
returns text language plpgsql volatile
as $$
declare
  v_old durable._schedules;
  v_same boolean;
begin
  select * into v_old from durable._schedules s where s.id = p_new.id;
  if v_old.declared and durable._says_the_same(v_old, p_new) then
    return 'same';
  elsif durable._insert_schedule(p_new) then
    return 'created';
  end if;
  v_old := durable._try_lock_schedule(p_new.id);
  if v_old.id is null then
    return 'locked';
  elsif v_old.workflow is null then
    perform durable._fail_schedule_conflict(p_new.id);
  end if;
  v_same := durable._says_the_same(v_old, p_new);
  perform durable._update_schedule(durable._replaced(v_old, p_new));
  return case when v_same then 'same' else 'replaced' end;
exception when lock_not_available then
  return 'locked';
end
$$ set lock_timeout = '50ms';
comment on function durable._declare_schedule(durable._schedules) is
  'Creates the schedule that a worker''s code declares, or puts it in the place of the one that has its id. Waits for nobody: locked, if another session holds it. A schedule of promises is not replaced (WF003).';

create or replace function durable.worker_schedules_v1(p_workflows text[], p_schedules jsonb)
returns jsonb language plpgsql volatile
as $$
declare
  v_one record;
  v_request durable._start_request;
  v_outcomes jsonb := '{}';
begin
  perform durable._check_site();
  perform durable._check_may_lock();
  for v_one in
    select s.* from jsonb_to_recordset(p_schedules) as s (
      id text, cron text, timezone text, workflow text, version text, queue text, input text, deadline bigint, priority integer,
      tags jsonb, overlap text, catch_up bigint, jitter bigint, starts_at bigint, ends_at bigint, max_runs integer,
      pause_after integer)
    order by s.id collate "C"
  loop
    v_request := row(v_one.workflow, durable._json(v_one.input), v_one.input, null, null, v_one.queue, v_one.version, null,
                     v_one.deadline, v_one.priority, v_one.tags, '', true);
    v_outcomes := v_outcomes || jsonb_build_object(v_one.id, durable._declare_schedule(
      durable._schedule_of_runs(
        v_one.id, v_one.cron, v_one.timezone, v_request,
        row(v_one.overlap, v_one.catch_up, v_one.jitter, v_one.starts_at, v_one.ends_at, v_one.max_runs, v_one.pause_after),
        true, durable._now_ms())));
  end loop;
  return jsonb_build_object('outcomes', v_outcomes, 'left', (
    select coalesce(jsonb_agg(jsonb_build_object('id', s.id, 'workflow', s.workflow, 'cron', s.cron) order by s.id), '[]')
    from durable._schedules s where s.declared and s.workflow = any (p_workflows) and not v_outcomes ? s.id));
end
$$ set lock_timeout = '1s';
comment on function durable.worker_schedules_v1(text[], jsonb) is
  'Records the schedules that the code of a worker declares: id, cron, timezone, workflow, version, queue, input (JSON text), deadline in ms, priority, tags and policies of each. Answers the outcome of each id: created, same, replaced, or locked, to be sent again; and left: those of its workflows (p_workflows) that code declared before and does not any more, which go on. WF003, WF004, WF008.';
