-- Results: as they are now, for the clients of the package, and with a wait for one.

create or replace function durable.result(id text)
returns table (state text, value jsonb, error jsonb) language plpgsql volatile
as $$
declare
  v_record durable.promise_record := durable.promise_get($1);
  v_is_plain boolean := durable._is_plain(coalesce(v_record.value_headers, v_record.param_headers));
begin
  return query select v_record.state,
    case when v_record.state = 'resolved' then durable._decoded(v_record.value_data) end,
    case when v_record.state like 'rejected%' then durable._json(durable._error_of(v_record.state, case
      when v_is_plain then v_record.value_data
      else durable._error_from_sdk(nullif(durable._from_envelope(v_record.value_data), 'null')) end)) end;
end
$$;
comment on function durable.result(text) is 'State, value and error of a run or promise as it is now; never waits. WF001.';

create or replace function durable.results_v1(p_ids text[])
returns table (id text, state text, value text, error text) language plpgsql volatile
as $$
declare
  v_due text[];
begin
  v_due := array(select p.id from durable._promises p
                 where p.id = any (p_ids) and p.state = 'pending' and p.timeout_at <= durable._now_ms());
  if v_due <> '{}' then
    perform durable._expire(v_due);
  end if;
  return query
  select i.id, p.state, case when p.state = 'resolved' then durable._plain_value(p) end,
         case when p.state <> 'resolved' then durable._plain_error(p) end
  from unnest(p_ids) as i (id)
  left join durable._promises p on p.id = i.id
  where p.state is distinct from 'pending';
end
$$;
comment on function durable.results_v1(text[]) is
  'For clients of the package: those of these promises that are settled, payloads as text; state is null for a promise that does not exist. A promise past its deadline is settled before the answer, because a settlement that is under way may still win.';

create or replace function durable._uncommitted()
returns text language plpgsql volatile
as $$
declare
  v_message text;
begin
  commit;
  return null;
exception when invalid_transaction_termination then
  get stacked diagnostics v_message = message_text;
  return v_message;
end
$$;
comment on function durable._uncommitted() is
  'The message of PostgreSQL, in the language of this session, for a COMMIT in a place where none is allowed, such as a function.';

create or replace function durable._wait_until(p_timeout interval, p_message text)
returns bigint language plpgsql volatile
as $$
begin
  if p_message = durable._uncommitted() then
    perform durable._fail_conflict('A wait commits between its polls, and this transaction is not its own to commit.',
                                   'Call it outside of a transaction, or look once: select * from durable.result(id).');
  elsif p_timeout is null or p_timeout < interval '0' then
    perform durable._fail_invalid('A wait ends: its timeout is not null and not negative.');
  end if;
  return durable._later(durable._now_ms(), durable._ms(p_timeout));
end
$$;
comment on function durable._wait_until(interval, text) is
  'The instant at which a wait that begins now ends. p_message: the error of the caller for a COMMIT in a subtransaction. That COMMIT always fails, but with another message where no COMMIT is allowed at all. WF003, WF004.';

create or replace function durable._poll_result(p_id text, p_polls integer, p_until bigint)
returns table (polls integer, state text, value jsonb, error jsonb, pause_ms bigint) language plpgsql volatile
as $$
begin
  return query
  select p_polls + 1, r.state, r.value, r.error, case when r.state = 'pending' then nullif(greatest(
           least((array[5, 20, 80, 320])[p_polls], 1000, p_until - durable._now_ms()), 0), 0) end
  from durable.result(p_id) r;
end
$$;
comment on function durable._poll_result(text, integer, bigint) is
  'One poll of a wait: the answer of durable.result, and the pause before the next poll; null if this was the last one.';

create or replace function durable._sleep(p_ms bigint)
returns void language plpgsql volatile
as $$ begin perform pg_sleep(p_ms / 1000.0); end $$;
comment on function durable._sleep(bigint) is 'Sleeps.';

create or replace procedure durable.wait(
  id text, timeout interval default '1 minute', inout state text default null, inout value jsonb default null,
  inout error jsonb default null)
language plpgsql
as $$
declare
  v_message text;
  v_until bigint;
  v_polls integer := 1;
  v_pause_ms bigint;
begin
  -- a procedure that commits cannot pin the search path, so every name here has its schema
  begin
    commit;
  exception when invalid_transaction_termination then
    get stacked diagnostics v_message := message_text;
  end;
  v_until := durable._wait_until($2, v_message);
  loop
    select l.polls, l.state, l.value, l.error, l.pause_ms into v_polls, state, value, error, v_pause_ms
    from durable._poll_result($1, v_polls, v_until) l;
    commit;
    exit when v_pause_ms is null;
    perform durable._sleep(v_pause_ms);
    commit;
  end loop;
end
$$;
comment on procedure durable.wait(text, interval, text, jsonb, jsonb) is
  'Waits for a run or promise: call durable.wait(''order-42'', timeout => ''5 s'') answers state, value and error as durable.result does; pending if the time is over. It polls after 5, 20, 80, 320 ms and then every second, commits after each poll and holds neither lock nor snapshot between polls. Only as a statement of its own, or in a procedure that is one: WF003 in a transaction block and in a function. WF001, WF004.';
