-- Messages: hints (look again), notes (to one process) and unblocks (a promise settled). Nothing else says NOTIFY.
-- Hints and notes may be lost; rows are the truth. A committing notification takes a database-wide lock, so workers send most
-- of theirs in a transaction of their own, and plain SQL callers at most one a channel in 50 ms.

create or replace function durable.hint_v1(p_ready boolean, p_settled boolean)
returns void language plpgsql volatile
as $$
begin
  if p_ready then
    perform pg_notify('durable_ready', '');
  end if;
  if p_settled then
    perform pg_notify('durable_settled', '');
  end if;
end
$$ set search_path = '' set jit = off set quote_all_identifiers = off;
comment on function durable.hint_v1(boolean, boolean) is
  'For processes of ours, after their commit and alone in a transaction: tasks became ready, promises settled.';

create or replace function durable._tell(p_channel text)
returns void language sql volatile
as $$ select pg_notify(p_channel, '') $$;
comment on function durable._tell(text) is
  'A hint of a statement of ours, which goes along with its commit. Inlined: hint_v1 has a setting of its own, which costs more than the hint.';

create or replace function durable._note(p_address text, p_words text)
returns void language sql volatile
as $$
  select pg_notify(split_part(p_address, ':', 1), split_part(p_address, ':', 2) || p_words)
  where starts_with(p_address, 'durable_to_') and length(p_address) = 76 and octet_length(p_address) = 76
    and strpos(p_address, ':') = 44 and octet_length(p_words) < 7900
$$;
comment on function durable._note(text, text) is
  'A note to one process: what is so from this commit on. It may be lost, as a hint. The channel was drawn by lot, so that nobody else listens to it; who may read the statements of others can see its name, so each note begins with the second half of the address, which no statement shows. What is no address, and what is too long for Postgres, is not sent: it must spoil no turn.';

create or replace function durable._hint(p_channel text, p_now bigint)
returns void language plpgsql volatile
as $$
declare
  -- written with its schema, because this runs below a trigger with the engine's rights: a temporary domain has no say
  v_mode pg_catalog.text;
  v_sent_at pg_catalog.int8;
begin
  select (select s.value from durable.settings s where s.name = 'hints'),
         (select h.sent_at from durable._hints h where h.channel = p_channel) into v_mode, v_sent_at;
  if v_mode = 'off' then
    return;
  elsif v_mode = 'coalesce' then
    -- mostly it has been sent just now, which costs no lock and no write to see
    if v_sent_at between p_now - 49 and p_now then
      return;
    end if;
    if not pg_try_advisory_xact_lock(1685417571, hashtext(p_channel)) then
      return;
    end if;
    insert into durable._hints as h (channel, sent_at) values (p_channel, p_now)
      on conflict (channel) do update set sent_at = excluded.sent_at where h.sent_at not between p_now - 49 and p_now;
    if not found then
      return;
    end if;
  end if;
  perform pg_notify(p_channel, '');
end
$$;
comment on function durable._hint(text, bigint) is
  'For plain SQL callers, inside their transaction. Whoever does not get the advisory lock leaves it to the one who has it and to polling.';

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
