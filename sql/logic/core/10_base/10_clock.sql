-- The only file that reads a clock. Tests replace _now_ms(); an ordinary installation has no way to set the time.

create or replace function durable._now_ms()
returns bigint language sql volatile parallel unsafe
as $$ select floor(extract(epoch from clock_timestamp()) * 1000)::bigint $$;
comment on function durable._now_ms() is
  'The instant, in ms since the epoch. Every operation calls it once, after its last lock, and passes the answer down.';

create or replace function durable._never()
returns bigint language sql immutable parallel safe
as $$ select 9007199254740991 $$;
comment on function durable._never() is
  'The deadline of a promise without one: 2^53 - 1, the largest integer that every JSON reader keeps exact.';

create or replace function durable._latest(p_now bigint)
returns bigint language sql immutable parallel safe
as $$ select p_now + 86400000 $$;
comment on function durable._latest(bigint) is
  'The latest instant that a row of the past may have, for laws. A clock may have been set back since it was written: by a step of NTP, with a machine that was resumed, by a promotion; durable.health tells that. By a day or more is a damage.';

create or replace function durable._later(p_now bigint, p_span bigint)
returns bigint language sql immutable parallel safe
as $$
  select case when p_span is null then durable._never()
              else p_now + least(greatest(p_span, 1), durable._never() - p_now) end
$$;
comment on function durable._later(bigint, bigint) is
  'The instant p_span ms after p_now: at least 1 ms later, because no promise may be created at its own deadline; at most never; null means never.';

create or replace function durable._at(p_ms bigint)
returns timestamptz language sql immutable parallel safe
as $$ select case when p_ms < 253402300800000 then to_timestamp(p_ms / 1000.0) end $$;
comment on function durable._at(bigint) is 'Milliseconds as timestamptz, for views; null from the year 10000 on, because many drivers can read neither such years nor infinity.';

create or replace function durable._ms(p_span interval)
returns bigint language sql immutable parallel safe
as $$ select floor(extract(epoch from p_span) * 1000)::bigint $$;
comment on function durable._ms(interval) is 'A span in milliseconds; a month counts 30 days.';

create or replace function durable._week(p_ms bigint)
returns integer language sql immutable parallel safe
as $$ select (p_ms / 604800000)::integer $$;
comment on function durable._week(bigint) is 'The week since the epoch: the journal partition of runs that start then.';

create or replace function durable._is_autocommit()
returns boolean language sql volatile
as $$ select statement_timestamp() = transaction_timestamp() and pg_current_xact_id_if_assigned() is null $$;
comment on function durable._is_autocommit() is
  'This statement is the first of its transaction and has written nothing: most likely there is no transaction block around it.';
