-- A clock that a transaction may set, in test installations only: an ordinary install puts the database's clock back.

create or replace function durable._now_ms()
returns bigint language sql volatile parallel unsafe
as $$
  select coalesce(nullif(current_setting('durable.now_ms', true), '')::bigint,
                  floor(extract(epoch from clock_timestamp()) * 1000)::bigint)
$$;
comment on function durable._now_ms() is
  'The instant that the transaction has set in durable.now_ms, as requests with resonate:debug_time do; else the database''s clock. In ms since the epoch.';
