-- The canonicaliser of addresses: a pure function of the text, whatever transports are switched on.

create or replace function durable._canonical_address(p_address text)
returns text language sql immutable parallel safe
as $$
  select case
    when p_address ~ '^poll://(uni|any)@[^/@[:space:]]+/[^/[:space:]]+$' then p_address
    when p_address ~ '^poll://any@[^/@[:space:]]+$' then p_address
    when p_address ~ '^https?://[^[:space:]]+$' then p_address
    when p_address ~ '^poll://[^/@:[:space:]]+(/[^/[:space:]]+)?$' then 'poll://any@' || substr(p_address, 8)
    when p_address ~ '^poll://[^/@:[:space:]]+:[^/:[:space:]]+$'
      then 'poll://any@' || replace(substr(p_address, 8), ':', '/')
    when p_address ~ '^[^/@:[:space:]]+$' then 'poll://any@' || p_address
  end
$$;
comment on function durable._canonical_address(text) is
  'poll://uni@g/id, poll://any@g[/id], http(s)://...; a bare group and the older forms become poll://any@. Null: cannot be routed.';

create or replace function durable._queue_of(p_target text)
returns text language sql immutable parallel safe
as $$
  select case when p_target like 'poll://any@%' then split_part(substr(p_target, 12), '/', 1) else p_target end
$$;
comment on function durable._queue_of(text) is 'The queue a canonical target is claimed from: the group of an anycast, else the address itself.';

create or replace function durable._preference_of(p_target text)
returns text language sql immutable parallel safe
as $$
  select case when p_target like 'poll://any@%/%' then substr(p_target, strpos(substr(p_target, 12), '/') + 12) end
$$;
comment on function durable._preference_of(text) is 'The worker that an anycast target prefers, or null.';
