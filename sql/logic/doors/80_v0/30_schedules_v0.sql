-- Schedules of the older API: those of 75_schedules in their older form. Description, tags of the schedule itself and its
-- idempotency key are not kept: the same schedule again is the same request, another one of that id is refused.

create or replace function durable._schedule_v0(p_schedule durable.schedule_record)
returns jsonb language sql immutable
as $$
  select jsonb_strip_nulls(jsonb_build_object(
    'id', p_schedule.id, 'cron', p_schedule.cron, 'promiseId', p_schedule.promise_id,
    'promiseTimeout', p_schedule.promise_timeout, 'promiseTags', p_schedule.promise_tags,
    'promiseParam', jsonb_build_object('headers', p_schedule.promise_param_headers, 'data', p_schedule.promise_param_data),
    'lastRunTime', p_schedule.last_run_at, 'nextRunTime', p_schedule.next_run_at, 'createdOn', p_schedule.created_at))
$$;
comment on function durable._schedule_v0(durable.schedule_record) is 'A schedule in the older shape.';

create or replace function durable.schedule_create_v0(
  p_id text, p_cron text, p_promise_id text, p_promise_timeout bigint, p_promise_param_data text default null,
  p_promise_param_headers jsonb default null, p_promise_tags jsonb default '{}')
returns table (status integer, word text, schedule jsonb) language plpgsql volatile
as $$
declare
  v_known boolean := exists (select from durable._schedules s where s.id = p_id);
  v_tags jsonb := durable._tags_v0(p_promise_id, p_promise_tags);
  v_schedule durable.schedule_record;
begin
  v_schedule := durable.schedule_create(p_id, p_cron, p_promise_id, p_promise_timeout, p_promise_param_data,
                                        p_promise_param_headers, v_tags);
  word := case
    when not v_known then 'OK'
    when (v_schedule.cron, v_schedule.promise_id, v_schedule.promise_timeout, v_schedule.promise_tags,
          v_schedule.promise_param_data) is distinct from (p_cron, p_promise_id, p_promise_timeout, v_tags, p_promise_param_data)
      then 'already exists'
    else 'deduplicated' end;
  status := case word when 'OK' then 201 when 'deduplicated' then 200 else 409 end;
  schedule := durable._schedule_v0(v_schedule);
  return next;
end
$$;
comment on function durable.schedule_create_v0(text, text, text, bigint, text, jsonb, jsonb) is
  'Older API: creates a schedule. 201; 200 the same one exists; 409 another one of that id exists. WF004, WF008.';

create or replace function durable.schedule_read_v0(p_id text)
returns table (status integer, word text, schedule jsonb) language plpgsql volatile
as $$
begin
  if not exists (select from durable._schedules s where s.id = p_id) then
    return query select 404, 'not found', null::jsonb;
    return;
  end if;
  return query select 200, 'OK', durable._schedule_v0(durable.schedule_get(p_id));
end
$$;
comment on function durable.schedule_read_v0(text) is 'Older API: the schedule: 200, or 404.';

create or replace function durable.schedule_delete_v0(p_id text)
returns table (status integer, word text) language plpgsql volatile
as $$
declare
  v_found boolean;
begin
  perform durable._check_may_lock();
  delete from durable._schedules s where s.id = p_id;
  v_found := found;
  delete from durable._schedule_instants i where i.schedule = p_id;
  return query select case when v_found then 204 else 404 end, case when v_found then 'OK' else 'not found' end;
end
$$;
comment on function durable.schedule_delete_v0(text) is 'Older API: deletes a schedule: 204, or 404. Promises that it created stay.';
