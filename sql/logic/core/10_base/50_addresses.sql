-- The canonical form of addresses, the same for every entry point: a pure function of the text, whatever transports are
-- switched on. One place has one text, because tasks, listeners and workers meet by equal texts. Groups and members are names:
-- nothing in them is decoded, folded to lower case or cut, and a percent sign is a character like any other. No part has spaces
-- or control characters.

create or replace function durable._canonical_url(p_url text)
returns text language sql immutable parallel safe
as $$
  select lower(u.part[1] collate "C") || '://' || coalesce(u.part[2], '') || lower(u.part[3] collate "C")
         || case when u.part[4] <> case length(u.part[1]) when 4 then '80' else '443' end then ':' || u.part[4] else '' end
         || regexp_replace(coalesce(u.part[5], ''), E'^/(?=\\?|$)', '')
  from regexp_match(p_url,
    E'^([Hh][Tt][Tt][Pp][Ss]?)://([^][/?#@<>"\\\\]+@)?(\\[[0-9A-Fa-f:.]+\\]|[^][/?#@:<>"\\\\]+)'
    || E'(?::0*([1-9][0-9]{0,4}))?([/?][^#<>"\\\\]*)?$')
    as u (part)
  where u.part is not null and coalesce(u.part[4]::integer, 1) <= 65535 and u.part[5] !~ '%(?![0-9A-Fa-f]{2})' is not false
$$;
comment on function durable._canonical_url(text) is
  'An http or https address in canonical form: scheme and host in lower case, no default port, no path that is a slash alone; user, path and query as written. Null for any other text, and for an address with a fragment, a port over 65535 or a percent sign that escapes nothing.';

create or replace function durable._canonical_function(p_name text)
returns text language sql immutable parallel safe
as $$
  select case when p_name ~ ('^' || i.name || E'\\.' || i.name || '$')
              then (select string_agg(quote_ident(n.part), '.' order by n.ord)
                    from unnest(parse_ident(p_name)) with ordinality as n (part, ord)) end
  from (select E'("([^"]|"")+"|([A-Za-z_]|[^\\u0001-\\u007f])([A-Za-z0-9_$]|[^\\u0001-\\u007f])*)' as name) i
$$;
comment on function durable._canonical_function(text) is
  'A name schema.function as SQL reads and writes it: lower case unless quoted, quotes only where they are needed. Null for any other text.';

create or replace function durable._has_blank(p_text text)
returns boolean language sql immutable parallel safe
as $$
  select p_text ~ E'[\\u0001-\\u0020\\u007f\\u0085\\u00a0\\u1680\\u2000-\\u200b\\u2028\\u2029\\u202f\\u205f\\u2060\\u3000\\ufeff]'
$$;
comment on function durable._has_blank(text) is
  'True if the text has a blank or a control character, including invisible ones. They are listed by number, because the content of a character class differs between locales.';

create or replace function durable._canonical_address(p_address text)
returns text language sql immutable parallel safe
as $$
  select case when octet_length(a.canonical) <= 1024 and not durable._has_blank(p_address) then a.canonical end
  from (
    select case
      when p_address ~* '^https?://' then durable._canonical_url(p_address)
      when p_address ~* '^sql://' then 'sql://' || durable._canonical_function(substr(p_address, 7))
      when p_address ~* '^poll://' then case
        when p.place ~ '^uni@[^/@]+/[^/]+$' or p.place ~ '^any@[^/@]+(/[^/]+)?$' then 'poll://' || p.place
        when p.place ~ '^[^/@:]+(/[^/]+)?$' then 'poll://any@' || p.place
        when p.place ~ '^[^/@:]+:[^/@:]+$' then 'poll://any@' || replace(p.place, ':', '/') end
      when p_address ~ '^[^/@:]+$' then 'poll://any@' || p_address
    end as canonical
    from (select substr(p_address, 8) as place) p
  ) a
$$;
comment on function durable._canonical_address(text) is
  'poll://uni@g/id, poll://any@g[/id], http(s)://..., sql://schema.function; a bare group, poll://g[/id] and the older poll://g:id become poll://any@. Null: cannot be routed, or longer than 1024 bytes.';

create or replace function durable._is_plain_name(p_name text)
returns boolean language sql immutable parallel safe
as $$ select octet_length(p_name) <= 256 and p_name ~ '^[A-Za-z0-9_][A-Za-z0-9_.-]*$' $$;
comment on function durable._is_plain_name(text) is
  'True for the plain names that most queues have. The length is checked apart: as part of the pattern it would cost ten times as much.';

create or replace function durable._is_queue(p_name text)
returns boolean language sql immutable parallel safe
as $$
  select case when durable._is_plain_name(p_name) then true
              else coalesce(octet_length(p_name) between 1 and 256 and p_name not like '%/%'
                            and durable._canonical_address('poll://any@' || p_name) is not null, false) end
$$;
comment on function durable._is_queue(text) is
  'Whether runs can be queued under this name: its address can be routed, and it is a name alone. Plain names are checked first, because the complete check costs as much as a start.';

create or replace function durable._canonical_listener(p_address text)
returns text language sql immutable parallel safe
as $$
  select case
    when p_address ~ '^cell://[0-9A-Za-z_-]{1,63}/.' then
      case when octet_length(p_address) <= 1024 and not durable._has_blank(p_address) then p_address end
    when p_address !~* '^sql://' then
    durable._canonical_address(regexp_replace(p_address, '^poll://([^/@:]+):([^/@:]+)$', E'poll://uni@\\1/\\2', 'i')) end
$$;
comment on function durable._canonical_listener(text) is
  'The same for a listener: the older poll://g:id means that member alone, since no other process listens there; for a resume it is a preference. A service listens to nothing. cell://name/id: a task in another database of the same installation, to which a courier delivers the unblock message.';

create or replace function durable._sound_headers(p_headers jsonb)
returns boolean language sql immutable parallel safe
as $$
  select case jsonb_typeof(p_headers)
    when 'object' then not exists (
      select from jsonb_each(p_headers) e
      where jsonb_typeof(e.value) <> 'string' or e.key !~ '^[-!#$%&''*+.^_`|~0-9A-Za-z]+$'
         or (e.value #>> '{}') ~ E'[\\u0001-\\u0008\\u000a-\\u001f\\u007f]')
    else coalesce(jsonb_typeof(p_headers), 'null') = 'null' end
$$;
comment on function durable._sound_headers(jsonb) is
  'Headers that are allowed in a request: names are tokens, values have no line ends. Null if there are none.';

create or replace function durable._canonical_recv(p_recv jsonb, p_notify boolean)
returns text language sql immutable parallel safe
as $$
  select case
    when jsonb_typeof(p_recv) = 'string' then
      case when p_notify then durable._canonical_listener(r.text)
           when r.text !~* '^sql://' then durable._canonical_address(r.text) end
    when p_recv ->> 'type' = 'http' then
      case when r.url ~* '^https?://' and durable._sound_headers(p_recv #> '{data,headers}')
        then durable._canonical_address(r.url) end
    when p_recv ->> 'type' = 'poll' and r.types in (array['string', 'null'], array['string', 'string']) then
      case when r.member_group !~ '[/@]' and r.member !~ '/' then
        durable._canonical_address('poll://' || case when p_notify and r.member <> '' then 'uni@' else 'any@' end
                                   || r.member_group || coalesce('/' || nullif(r.member, ''), '')) end
  end
  from (
    select p_recv #>> '{}' as text, p_recv #>> '{data,url}' as url, p_recv #>> '{data,group}' as member_group,
           coalesce(p_recv #>> '{data,id}', '') as member,
           array[jsonb_typeof(p_recv #> '{data,group}'), coalesce(jsonb_typeof(p_recv #> '{data,id}'), 'null')] as types
  ) r
$$;
comment on function durable._canonical_recv(jsonb, boolean) is
  'Address of a receiver of the older API: {"type": "poll", "data": {"group", "id"}}, {"type": "http", "data": {"url", "headers"}}, or an address as a JSON string. p_notify: a listener''s address instead of a task''s. Null: cannot be routed.';

create or replace function durable._recv_headers(p_recv jsonb)
returns jsonb language sql immutable parallel safe
as $$ select case when p_recv ->> 'type' = 'http' then nullif(nullif(p_recv #> '{data,headers}', '{}'), 'null') end $$;
comment on function durable._recv_headers(jsonb) is 'Headers that an http receiver of the older API asks for, or null.';

create or replace function durable._queue_of(p_target text)
returns text language sql immutable parallel safe
as $$
  select case when p_target like 'poll://any@%' then split_part(substr(p_target, 12), '/', 1) else p_target end
$$;
comment on function durable._queue_of(text) is 'The queue a canonical target is claimed from: the group of an anycast, else the address itself.';

create or replace function durable._target_of(p_queue text)
returns text language sql immutable parallel safe
as $$ select case when p_queue like 'sql://%' then p_queue else 'poll://any@' || p_queue end $$;
comment on function durable._target_of(text) is
  'The target of a run in that queue: the service of the queue, or any worker that serves it.';

create or replace function durable._preference_of(p_target text)
returns text language sql immutable parallel safe
as $$
  select case when p_target like 'poll://any@%/%' then substr(p_target, strpos(substr(p_target, 12), '/') + 12) end
$$;
comment on function durable._preference_of(text) is 'The worker that an anycast target prefers, or null.';

create or replace function durable._kind_of_recv(p_recv jsonb)
returns text language sql immutable parallel safe
as $$
  select case jsonb_typeof(p_recv)
    when 'string' then 'an address'
    when 'object' then 'of type ' || coalesce(p_recv ->> 'type', 'null')
    else coalesce(jsonb_typeof(p_recv), 'null') end
$$;
comment on function durable._kind_of_recv(jsonb) is 'The part of a receiver that an error may show: headers and URL may hold secrets.';
