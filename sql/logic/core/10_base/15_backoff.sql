-- The one place where a pause grows. A power of a counter that grows for as long as nothing happens overflows one day; so no
-- other body has a power or a shift with a variable exponent.

create or replace function durable._backoff_ms(p_first bigint, p_longest bigint, p_times bigint, p_factor integer default 2)
returns bigint language sql immutable parallel safe
as $$
  select least(p_first * p_factor::double precision ^ least(greatest(p_times, 0), 40), p_longest, durable._never())::bigint
$$;
comment on function durable._backoff_ms(bigint, bigint, bigint, integer) is
  'A pause in ms that has grown p_times times, each time by the factor: at least p_first, at most p_longest.';
