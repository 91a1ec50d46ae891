-- The facade `resonate`: the functions of the Postgres server of the Resonate SDKs, over this engine, so that the SDKs work on
-- a database without a gateway. The TypeScript transport and PyPI's resonate-pg call them. Only `pyengine db install-facade`
-- installs this schema; two triggers on tables of the engine belong to it and go with it.
--
-- Names, argument lists and result types are those that the SDKs call. They never change, because sessions that are connected
-- have prepared their statements.
--
-- Rights: the functions run with those of their owner, the owner of the engine, and only the role resonate_worker may call
-- them. They search no temporary schema first; entry points of the engine do, so a session that has types there is refused.

create unlogged table if not exists resonate._ticks (
  next_at bigint not null,
  only_row boolean not null default true,
  constraint ticks_pk primary key (only_row),
  constraint ticks_is_one_row check (only_row)
);
comment on table resonate._ticks is 'When the next tick is due: one row for all workers. Losing it is harmless.';
comment on column resonate._ticks.next_at is 'Instant from which process_timeouts does a round of housekeeping; ms since the epoch.';
comment on column resonate._ticks.only_row is 'True: a second row cannot be.';

create or replace function resonate._check_session()
returns void language plpgsql stable
as $$
begin
  if pg_my_temp_schema() <> 0 and session_user <> current_user
     and exists (select from pg_catalog.pg_type t where t.typnamespace = pg_my_temp_schema()) then
    raise exception 'This session has tables or types in its temporary schema.'
      using errcode = 'insufficient_privilege', hint = 'Call the facade in a session of its own.';
  end if;
end
$$;
comment on function resonate._check_session() is
  'Refuses a session that has types in its temporary schema: code of such a type could run with the rights of the engine''s owner. 42501.';

create or replace function resonate.get_schema_version()
returns text language sql stable security definer
as $$ select s.value || '-pyengine' from durable.settings s where s.name = 'engine_version' $$ set search_path = pg_catalog, pg_temp;
comment on function resonate.get_schema_version() is 'The version of the engine behind the facade.';

create or replace function resonate.outbox_channel(p_address text)
returns text language sql immutable strict parallel safe
as $$ select 'resonate_q_' || md5(p_address) $$;
comment on function resonate.outbox_channel(text) is
  'The channel on which a worker at this address hears that something waits for it. SDKs compute it too.';

create or replace function resonate.resonate_rpc(p_request jsonb)
returns jsonb language plpgsql volatile security definer
as $$
declare
  v_status integer := 503;
  v_problem text := 'Other sessions had locked what this request needs; send it again.';
begin
  perform resonate._check_session();
  for v_attempt in 1..5 loop
    begin
      return durable.rpc(p_request);
    exception
      when deadlock_detected then
        -- no lock is held here; without a pause this session would take the lock again before the other one wakes up
        perform pg_sleep(0.02 * v_attempt * random() + 0.01);
      when others then
        get stacked diagnostics v_problem = message_text;
        v_status := 500;
        exit;
    end;
  end loop;
  return durable._wire_response(coalesce(p_request ->> 'kind', 'unknown'), coalesce(p_request #>> '{head,corrId}', '0'), v_status,
                                to_jsonb(v_problem));
end
$$ set search_path = pg_catalog, pg_temp;
comment on function resonate.resonate_rpc(jsonb) is
  'durable.rpc for SDKs: every answer is an envelope, because an error of SQL ends a pass of a workflow there. After a deadlock the request is tried again.';

create or replace function resonate.dequeue_execute(p_target text, p_limit integer default 100)
returns table (task_id text, version integer) language plpgsql volatile security definer
as $$
declare
  v_address text := durable._canonical_address(p_target);
begin
  perform resonate._check_session();
  if v_address like 'poll://%' then
    return query
      select o.id, o.version
      from durable.task_offer(durable._queue_of(v_address), least(greatest(p_limit, 1), 1000), durable._preference_of(v_address)) o;
  end if;
end
$$ set search_path = pg_catalog, pg_temp;
comment on function resonate.dequeue_execute(text, integer) is
  'Tasks that are due for poll://any@group or poll://uni@group/process. Each comes again after retry_offer_ms, unless acquired. Nothing for any other address.';

create or replace function resonate.dequeue_unblock(p_address text, p_limit integer default 100)
returns table (promise jsonb) language plpgsql volatile security definer
as $$
declare
  v_address text := durable._canonical_listener(p_address);
  v_message record;
begin
  perform resonate._check_session();
  if v_address is null or v_address not like 'poll://%' then
    return;
  end if;
  for v_message in
    select u.promise_id, u.promise from durable.unblock_claim(v_address, least(greatest(p_limit, 1), 1000)) u
  loop
    perform durable.unblock_acknowledge(v_message.promise_id, v_address);
    promise := durable._wire_promise(v_message.promise);
    return next;
  end loop;
end
$$ set search_path = pg_catalog, pg_temp;
comment on function resonate.dequeue_unblock(text, integer) is
  'Promises that settled and for which a listener is registered at this address, each once. A worker that ends before it has read them asks again when it is back, as SDKs do each minute.';

create or replace function resonate._try_lock_tick(p_now bigint)
returns boolean language plpgsql volatile
as $$
begin
  perform from resonate._ticks k where k.next_at <= p_now or k.next_at > p_now + 60000 for update skip locked;
  if found then
    return true;
  elsif not exists (select from resonate._ticks) then
    insert into resonate._ticks (next_at) values (p_now) on conflict do nothing;
    return found;
  end if;
  return false;
end
$$;
comment on function resonate._try_lock_tick(bigint) is
  'Locks the row of ticks if a tick is due and no other session is at one. A row from the future, which a clock that was set back leaves, is due.';

create or replace function resonate.process_timeouts()
returns integer language plpgsql volatile security definer
as $$
declare
  v_now bigint := durable._now_ms();
  v_answer jsonb;
begin
  perform resonate._check_session();
  if not resonate._try_lock_tick(v_now) then
    return 0;
  end if;
  begin
    v_answer := durable._sweep_for_people();
  exception when others then
    raise log 'resonate.process_timeouts: % (%)', sqlerrm, sqlstate;
    update resonate._ticks k set next_at = v_now + 5000 where k.only_row;
    return 0;
  end;
  update resonate._ticks k set next_at = v_now + case when (v_answer ->> 'more')::boolean then 0 else 200 end where k.only_row;
  return (v_answer ->> 'promises')::integer + (v_answer ->> 'leases')::integer + (v_answer ->> 'schedules')::integer;
end
$$ set search_path = pg_catalog, pg_temp;
comment on function resonate.process_timeouts() is
  'A round of housekeeping (deadlines, lost leases, schedules), at most every 200 ms in all, however many workers call. Answers how much it did. It raises nothing: a worker would never call it again. It calls no services, which would get the rights of this function.';

create or replace function resonate.invoke(
  id text, func text, args jsonb, target text, version integer default 1, timeout bigint default null)
returns jsonb language plpgsql volatile security definer
as $$
declare
  v_call text := jsonb_build_object('func', $2, 'args', coalesce($3, '[]'), 'version', $5)::text;
begin
  perform resonate._check_session();
  if jsonb_typeof($3) <> 'array' then
    perform durable._fail_invalid('args is a JSON array.');
  end if;
  return durable._wire_promise(durable.promise_create(
    $1, coalesce($6, durable._now_ms() + 86400000), translate(encode(convert_to(v_call, 'UTF8'), 'base64'), E'\n', ''), '{}',
    jsonb_build_object('resonate:target', $4, 'resonate:scope', 'global', 'resonate:origin', $1, 'resonate:branch', $1,
                       'resonate:parent', $1)));
end
$$ set search_path = pg_catalog, pg_temp;
comment on function resonate.invoke(text, text, jsonb, text, integer, bigint) is
  'Calls a function of an SDK: select resonate.invoke(''order-7'', ''charge'', ''[42]'', ''poll://any@billing''). timeout: the deadline in ms since the epoch, a day from now if it is null. Answers the promise; the same id again is the same call. WF004, WF008.';

create or replace function resonate._announce_task()
returns trigger language plpgsql volatile security definer
as $$
begin
  if new.retry_at <= durable._now_ms() and durable._has_room_for_hints() then
    perform pg_notify(resonate.outbox_channel(case when new.queue like '%://%' then new.queue else 'poll://any@' || new.queue end),
                      'execute');
  end if;
  return null;
end
$$ set search_path = pg_catalog, pg_temp;
comment on function resonate._announce_task() is
  'Wakes the workers of a queue for a task that became due, once for each queue and transaction. A task that time makes due is found by their polls.';

create or replace function resonate._announce_unblock()
returns trigger language plpgsql volatile security definer
as $$
begin
  if durable._has_room_for_hints() then
    perform pg_notify(resonate.outbox_channel(new.address), 'unblock');
  end if;
  return null;
end
$$ set search_path = pg_catalog, pg_temp;
comment on function resonate._announce_unblock() is 'Wakes the worker at an address for a promise that settled.';

create or replace trigger resonate_task_created after insert on durable._tasks
  for each row when (new.state = 'pending' and new.workflow is null) execute function resonate._announce_task();
comment on trigger resonate_task_created on durable._tasks is 'Of the facade: wakes workers of SDKs for new tasks.';
create or replace trigger resonate_task_ready after update of state, retry_at on durable._tasks
  for each row when (new.state = 'pending' and new.workflow is null
                     and (old.state <> 'pending' or new.retry_at < old.retry_at)) execute function resonate._announce_task();
comment on trigger resonate_task_ready on durable._tasks is 'Of the facade: wakes workers of SDKs for tasks that became ready.';
create or replace trigger resonate_unblocked after insert on durable._unblocks
  for each row when (new.address like 'poll://%') execute function resonate._announce_unblock();
comment on trigger resonate_unblocked on durable._unblocks is 'Of the facade: wakes listeners of SDKs.';

do $$
begin
  if to_regrole('resonate_worker') is null then
    create role resonate_worker;
  end if;
exception when insufficient_privilege or duplicate_object or unique_violation then
  null;  -- an owner who may not create roles, or another installation that is creating it
end
$$;

revoke all on all functions in schema resonate from public;

do $$
begin
  if to_regrole('resonate_worker') is not null then
    grant usage on schema resonate to resonate_worker;
    grant execute on function
      resonate.resonate_rpc(jsonb), resonate.dequeue_execute(text, integer), resonate.dequeue_unblock(text, integer),
      resonate.process_timeouts(), resonate.outbox_channel(text), resonate.get_schema_version(),
      resonate.invoke(text, text, jsonb, text, integer, bigint)
    to resonate_worker;
  end if;
end
$$;
