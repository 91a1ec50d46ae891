-- Notifications: hints (poll again), direct messages (data for one process), unblocks (a promise settled).
-- Hints and direct messages may be lost; rows are the truth. A commit that notifies takes a database-wide lock, so workers send
-- most hints in a transaction of their own, and plain SQL callers at most one per channel in 50 ms. No other file notifies.
-- A queue of notifications that is full would fail the commit that notifies, so nothing is sent while it is nearly full.

create or replace function durable._has_room_for_hints()
returns boolean language sql volatile
as $$ select pg_notification_queue_usage() < 0.9 $$;
comment on function durable._has_room_for_hints() is
  'False while the server''s queue of notifications is nearly full, because a session that listens has stayed in a transaction: a commit that notifies would fail soon. Polls find it all, later. Inlined; half a microsecond.';

create or replace function durable.hint_v1(p_ready boolean, p_settled boolean)
returns void language plpgsql volatile
as $$
declare
  v_has_room boolean := durable._has_room_for_hints();
begin
  if p_ready and v_has_room then
    perform pg_notify('durable_ready', '');
  end if;
  if p_settled and v_has_room then
    perform pg_notify('durable_settled', '');
  end if;
end
$$;
comment on function durable.hint_v1(boolean, boolean) is
  'Sends hints for workers and clients, after their commit and alone in a transaction: tasks became ready, promises settled.';

create or replace function durable._notify(p_channel text)
returns void language sql volatile
as $$ select case when durable._has_room_for_hints() then pg_notify(p_channel, '') end $$;
comment on function durable._notify(text) is
  'A hint that leaves with the commit of the statement which sends it. Inlined: hint_v1 has settings of its own, which cost more than the hint.';

create or replace function durable._send_message(p_address text, p_message text)
returns void language plpgsql volatile
as $$
begin
  if starts_with(p_address, 'durable_to_') and length(p_address) = 76 and octet_length(p_address) = 76
     and strpos(p_address, ':') = 44 and octet_length(p_message) < 7900 and durable._has_room_for_hints() then
    perform pg_notify(split_part(p_address, ':', 1), split_part(p_address, ':', 2) || p_message);
  end if;
end
$$;
comment on function durable._send_message(text, text) is
  'Sends data to one process, with this commit. Like a hint it may be lost. The address is random: a channel and a secret. Roles that can read the statements of others can see the channel, but not the secret, which stands only in tables and parameters; the receiver drops a message that does not begin with the secret. An invalid address or a message that is too long for Postgres sends nothing, because neither may fail a turn.';

create or replace function durable._is_hinted(p_channel text, p_now bigint)
returns boolean language sql stable
as $$
  select (p_now - substring(left(current_setting('durable.' || p_channel, true), 16) from '^[0-9]+$')::bigint) / 50
         is not distinct from 0
$$;
comment on function durable._is_hinted(text, bigint) is
  'Whether this session knows of a hint less than 50 ms away (ahead, if the clock was set back), so that _hint need not look. Inlined, without a look at a table: p_now stands in it once, because PostgreSQL inlines no volatile argument that stands twice.';

create or replace function durable._hint(p_channel text, p_now bigint)
returns void language plpgsql volatile
as $$
declare
  -- with the schema in their names, because a trigger calls this with the rights of the engine: a temporary domain must not be
  -- found
  v_mode pg_catalog.text;
  v_sent_at pg_catalog.int8;
begin
  select h.sent_at into v_sent_at from durable._hints h where h.channel = p_channel;
  -- most of the time a hint was sent just now; this check costs no lock and no write, and comes first because it ends most calls
  if v_sent_at between p_now - 49 and p_now then
    -- read by _is_hinted
    perform set_config('durable.' || p_channel, v_sent_at::pg_catalog.text, false);
    return;
  end if;
  select s.value into v_mode from durable.settings s where s.name = 'hints';
  if v_mode = 'off' or not durable._has_room_for_hints() then
    return;
  elsif v_mode = 'coalesce' then
    -- one lock for each 50 ms: a transaction that stays open keeps back the hints of its own 50 ms alone
    if not pg_try_advisory_xact_lock(1685417571, hashtext(p_channel) # (p_now / 50 & 2147483647)::pg_catalog.int4) then
      return;
    end if;
    if durable._try_lock_hint(p_channel) then
      update durable._hints h set sent_at = p_now where h.channel = p_channel;
    elsif v_sent_at is null and pg_try_advisory_xact_lock(1685417571, hashtext(p_channel)) then
      insert into durable._hints (channel, sent_at) values (p_channel, p_now) on conflict do nothing;
    end if;
  end if;
  perform pg_notify(p_channel, '');
end
$$;
comment on function durable._hint(text, bigint) is
  'A hint of a plain SQL caller, inside the caller''s transaction. Sends none if another session has sent one in the last 50 ms, or is about to. Waits for no lock: if another transaction has the row of the channel, the hint is sent and not recorded.';

create or replace function durable._unblock(p_settled text[], p_now bigint)
returns void language plpgsql volatile
as $$
begin
  with gone as (
    delete from durable._listeners l where l.awaited_id = any (p_settled) returning l.awaited_id, l.address
  )
  insert into durable._unblocks (promise_id, address, created_at)
  select g.awaited_id, g.address, p_now from gone g;
end
$$;
comment on function durable._unblock(text[], bigint) is 'Turns the listeners of settled promises into one unblock row each.';
