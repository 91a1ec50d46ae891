-- Settings: their defaults, how they are read and how they are changed.

insert into durable.settings (name, value, description) values
  ('call_results_days', '0', 'results of calls that ended this long ago may be collected, unless a scope has them; 0: never'),
  ('call_adapter_grace_ms', '600000', 'a call whose adapter no worker has served for so long is given up'),
  ('call_backoff_max_ms', '300000', 'longest pause of a call after a failure; the first is a second, each next twice as long'),
  ('call_poll_ms', '5000', 'pause between two polls of a call, unless its adapter names another'),
  ('call_retries', '5', 'failures of a call in a row that are tried again, unless its request names another number'),
  ('cancel_grace_ms', '30000', 'how long a run may clean up after a request of cancellation, unless the request says otherwise'),
  ('conformance', 'compatible', 'compatible: what current SDKs need; strict: what the protocol specification says'),
  ('hints', 'coalesce', 'hints of plain SQL callers: off, coalesce (at most one notification a channel in 50 ms) or commit'),
  ('large_value_bytes', '8192', 'values of a journal of this size or more are stored once for their run; at least 1024'),
  ('lease_ttl_ms', '15000', 'length of a worker''s lease in ms; renewed every half of it'),
  ('max_crashes', '5', 'leases lost in a row after which a task is halted'),
  ('max_in_flight', '1000', 'runs that one worker process holds at a time'),
  ('max_warm', '2000', 'suspended coroutines that one worker process keeps warm'),
  ('max_warm_bytes', '67108864', 'inputs and journals of those together, in characters; one is kept in any case'),
  ('payload_max_bytes', '67108864', 'payloads above this are refused; what has up to 1000 bytes never is'),
  ('payload_warn_bytes', '1048576', 'payloads above this are reported in the log'),
  ('prefer_ms', '200', 'how long a woken task waits for the worker that has its coroutine warm'),
  ('presence_grace_ms', '1000', 'a presence lock must be found free twice, this far apart, before its tasks are taken'),
  ('removed_ids_days', '90', 'how long the ids and keys of removed runs are remembered, so that they do not run twice'),
  ('retention_days', '0', 'runs, generations, promises and calls that ended so long ago are removed by durable.tick(); 0: never'),
  ('retry_offer_ms', '5000', 'a task that was offered by message is offered again after this, unless acquired'),
  ('schedule_catch_up', '100', 'missed instants of one schedule that one call of durable.tick() makes up for, at most'),
  ('stall_limit_ms', '30000', 'a worker whose event loop does not tick for this long stops renewing its leases'),
  ('sweep_limit', '500', 'deadlines settled in one transaction, at most'),
  ('unused_objects_days', '1', 'objects that nothing refers to are collected this long after they were last put; 0: never'),
  ('unknown_workflow', 'refuse', 'a start under a name that no worker ever registered, while others are known: refuse or queue')
on conflict (name) do update set description = excluded.description;

create or replace function durable._setting(p_name text)
returns text language plpgsql stable
as $$
begin
  return (select s.value from durable.settings s where s.name = p_name);
end
$$;
comment on function durable._setting(text) is 'Value of a setting as text.';

create or replace function durable._setting_int(p_name text)
returns bigint language plpgsql stable
as $$
begin
  return (select s.value::bigint from durable.settings s where s.name = p_name);
end
$$;
comment on function durable._setting_int(text) is 'Value of a numeric setting.';

create or replace function durable._strict()
returns boolean language plpgsql stable
as $$
begin
  return (select s.value = 'strict' from durable.settings s where s.name = 'conformance');
end
$$;
comment on function durable._strict() is
  'True in the strict profile, which is the specifications; the other profile also allows what current SDKs need.';

create or replace function durable._readable_setting(p_name text)
returns bigint language sql stable
as $$ select case when s.value ~ '^[0-9]{1,10}$' then s.value::bigint end from durable.settings s where s.name = p_name $$;
comment on function durable._readable_setting(text) is
  'A setting for laws, which do not fail for it: null if it cannot be read.';

create or replace function durable._is_odd_setting(p_name text, p_value text)
returns boolean language sql immutable parallel safe
as $$
  select case p_name
    when 'hints' then p_value <> all (array['off', 'coalesce', 'commit'])
    when 'conformance' then p_value <> all (array['compatible', 'strict'])
    when 'unknown_workflow' then p_value <> all (array['refuse', 'queue'])
    when 'logic_sha256' then false
    when 'engine_version' then false
    when 'debug_paused' then false
    else p_value !~ '^[0-9]{1,10}$' end
$$;
comment on function durable._is_odd_setting(text, text) is
  'Whether a setting has a value that set_setting would not have written: whoever reads it fails.';

create or replace function durable.set_setting(name text, value text)
returns text language plpgsql volatile
as $$
declare
  v_old text;
begin
  v_old := durable._setting($1);
  if v_old is null then
    perform durable._fail_not_found('setting', $1);
  elsif $1 in ('logic_sha256', 'engine_version') then
    perform durable._fail_invalid(format('Setting %I is written by the installer only.', $1));
  elsif v_old ~ E'^\\d+$' and ($2 is null or $2 !~ E'^\\d{1,15}$') then
    perform durable._fail_invalid(format('Setting %I takes a whole number, not %L.', $1, $2));
  elsif $1 = 'hints' and coalesce($2, '') <> all (array['off', 'coalesce', 'commit']) then
    perform durable._fail_invalid('Setting hints is off, coalesce or commit.');
  elsif $1 = 'conformance' and coalesce($2, '') <> all (array['compatible', 'strict']) then
    perform durable._fail_invalid('Setting conformance is compatible or strict.');
  elsif $1 = 'unknown_workflow' and coalesce($2, '') <> all (array['refuse', 'queue']) then
    perform durable._fail_invalid('Setting unknown_workflow is refuse or queue.');
  elsif v_old ~ E'^\\d+$' and $2::bigint > 2147483647 then
    perform durable._fail_invalid(format('Setting %I is at most 2147483647.', $1));
  elsif $1 in ('lease_ttl_ms', 'max_in_flight', 'payload_max_bytes', 'retry_offer_ms', 'schedule_catch_up',
                       'stall_limit_ms', 'sweep_limit')
        and $2::bigint = 0 then
    perform durable._fail_invalid(format('Setting %I must be more than 0.', $1));
  elsif $1 = 'large_value_bytes' and $2::bigint < 1024 then
    perform durable._fail_invalid('Setting large_value_bytes is 1024 or more.');
  end if;
  update durable.settings s set value = $2 where s.name = $1;
  return v_old;
end
$$;
comment on function durable.set_setting(text, text) is
  'Changes a setting and returns its old value. WF001 for an unknown name, WF004 for a value of the wrong type.';

create or replace function durable.version()
returns table (schema_version integer, lowest_worker_protocol integer, highest_worker_protocol integer)
language sql stable
as $$ select coalesce(max(m.id), 0), 1, 1 from durable.migrations m $$;
comment on function durable.version() is
  'Last migration applied, and the worker protocols (the _vN of worker functions) served. Programs check it on connect.';
