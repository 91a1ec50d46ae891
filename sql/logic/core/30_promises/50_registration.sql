-- Registration of waits for a promise: callbacks of tasks, listeners at addresses. The promise is locked first, so that no wait
-- is registered while the promise settles.

create or replace function durable._check_external(p_ids text[])
returns void language plpgsql stable
as $$
declare
  v_internal text;
begin
  select p.id into v_internal from durable._promises p where p.id = any (p_ids) and not p.external order by p.id limit 1;
  if v_internal is not null and durable._strict() then
    perform durable._fail_not_awaitable(v_internal);
  end if;
end
$$;
comment on function durable._check_external(text[]) is 'Refuses waits for internal promises in the strict profile: WF005.';

create or replace function durable._arm(p_ids text[])
returns void language sql volatile
as $$ update durable._promises p set external = true where p.id = any (p_ids) and not p.external $$;
comment on function durable._arm(text[]) is
  'Makes the deadlines of these promises enforced from now on, because they are awaited (profile compatible). The caller holds them.';

create or replace function durable._find_awaited(p_awaited text)
returns durable._promises language plpgsql volatile
as $$
declare
  v_awaited durable._promises;
begin
  perform durable._lock_promises(array[p_awaited]);
  select * into v_awaited from durable._promises p where p.id = p_awaited;
  if not found then
    if (durable._step_record(p_awaited)).id is not null then
      perform durable._fail_not_awaitable(p_awaited);
    end if;
    perform durable._fail_not_found('promise', p_awaited);
  end if;
  return v_awaited;
end
$$;
comment on function durable._find_awaited(text) is
  'Locks and reads the promise to be awaited. WF001; WF005 for a local step, which only its own run awaits.';

create or replace function durable._answer_registration(p_awaited durable._promises, p_now bigint)
returns durable.promise_record language plpgsql volatile
as $$
begin
  if p_awaited.state = 'pending' and p_awaited.timeout_at <= p_now then
    perform durable._expire(array[p_awaited.id]);
  end if;
  return durable._stored_promise(p_awaited.id);
end
$$;
comment on function durable._answer_registration(durable._promises, bigint) is
  'The answer of a registration, as of the instant of its decision; it is pending only if the wait was registered.';

create or replace function durable.promise_register_callback(p_awaited text, p_awaiter text)
returns durable.promise_record language plpgsql volatile
as $$
declare
  v_awaiter durable._promises;
  v_awaited durable._promises;
  v_now bigint;
begin
  if p_awaited is null or p_awaiter is null or p_awaited = p_awaiter then
    perform durable._fail_invalid(format('Promise %L cannot await %L.', p_awaiter, p_awaited));
  end if;
  v_awaited := durable._find_awaited(p_awaited);
  select * into v_awaiter from durable._promises p where p.id = p_awaiter;
  if not found or v_awaiter.target is null then
    perform durable._fail_not_targeted(p_awaiter);
  end if;
  perform durable._check_external(array[p_awaited]);
  v_now := durable._now_ms();
  if v_awaited.state = 'pending' and v_awaited.timeout_at > v_now
     and v_awaiter.state = 'pending' and v_awaiter.timeout_at > v_now then
    perform durable._arm(array[p_awaited]);
    perform durable._register(array[p_awaited], p_awaiter);
  end if;
  return durable._answer_registration(v_awaited, v_now);
end
$$;
comment on function durable.promise_register_callback(text, text) is
  'Resumes the task of p_awaiter when p_awaited settles. If the answer is settled, no callback was registered: continue at once. WF001, WF004, WF005, WF010.';

create or replace function durable.promise_register_listener(p_awaited text, p_address text)
returns durable.promise_record language plpgsql volatile
as $$
declare
  v_awaited durable._promises;
  v_now bigint;
begin
  if durable._canonical_listener(p_address) is null
     or p_address !~ '^(https?://|poll://.*@)' and durable._strict() then
    perform durable._fail_invalid(format('Address %L cannot be routed.', p_address));
  end if;
  v_awaited := durable._find_awaited(p_awaited);
  perform durable._check_external(array[p_awaited]);
  v_now := durable._now_ms();
  if v_awaited.state = 'pending' and v_awaited.timeout_at > v_now then
    perform durable._arm(array[p_awaited]);
    insert into durable._listeners (awaited_id, address) values (p_awaited, durable._canonical_listener(p_address))
      on conflict do nothing;
  end if;
  return durable._answer_registration(v_awaited, v_now);
end
$$;
comment on function durable.promise_register_listener(text, text) is
  'Sends unblock to an address when the promise settles. If the answer is settled, that answer is the notification. The strict profile takes only complete addresses: http(s)://..., poll://...@... WF001, WF004, WF005.';
