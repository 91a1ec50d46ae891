-- The older API of durable promises: idempotency keys, strict, callbacks with a receiver. Promises and settlement chain are
-- those of 30_promises/40_promises.sql; only the answers differ. Every cell of its table is an answer and no error: status (201
-- done now, 200 done before or nothing to do, 403, 404, 409), a word, and the promise in its older form. A malformed argument
-- raises WF004, as everywhere. _v0: the version of the protocol before the first.

create or replace function durable._target_v0(p_invoke text)
returns text language sql immutable parallel safe
as $$
  select case when p_invoke like '{%' then coalesce(durable._canonical_recv(durable._json(p_invoke), false), p_invoke)
              else p_invoke end
$$;
comment on function durable._target_v0(text) is
  'The target that the tag resonate:invoke of the older API names: an address, or a receiver as JSON text.';

create or replace function durable._tags_v0(p_id text, p_tags jsonb)
returns jsonb language sql immutable parallel safe
as $$
  select case when jsonb_typeof(p_tags) <> 'object' then p_tags else
    jsonb_strip_nulls(jsonb_build_object(
      'resonate:target', durable._target_v0(p_tags ->> 'resonate:invoke'),
      'resonate:timer', case when p_tags ->> 'resonate:timeout' = 'true' then 'true' end,
      'resonate:origin', case when durable._within(p_id, p_tags ->> 'resonate:root') then p_tags -> 'resonate:root' end,
      'resonate:v0:parent', case when x.is_astray then p_tags -> 'resonate:parent' end))
    || case when x.is_astray then p_tags - 'resonate:parent' else p_tags end end
  from (select not durable._within(p_id, p_tags ->> 'resonate:parent') and not p_tags ? 'resonate:origin' as is_astray) x
$$;
comment on function durable._tags_v0(text, jsonb) is
  'Adds the present names of tags to the older ones: invoke is target, an address or a receiver as JSON text, timeout = true is timer = true, root is origin if the id begins with it, as an origin must. A present name that is given as well takes precedence. parent was a remark in the older API: one that the id does not begin with has a name of its own.';

create or replace function durable._untagged_v0(p_tags jsonb)
returns jsonb language sql immutable parallel safe
as $$
  select case when p_tags ?| array['resonate:invoke', 'resonate:timeout', 'resonate:root', 'resonate:v0:parent'] then
    p_tags - 'resonate:v0:parent'
      - case when p_tags ->> 'resonate:target' = durable._target_v0(p_tags ->> 'resonate:invoke') then 'resonate:target'
             else '' end
      - case when p_tags ->> 'resonate:timeout' = 'true' then 'resonate:timer' else '' end
      - case when p_tags -> 'resonate:origin' = p_tags -> 'resonate:root' then 'resonate:origin' else '' end
      || case when p_tags ? 'resonate:v0:parent' then jsonb_build_object('resonate:parent', p_tags -> 'resonate:v0:parent')
              else '{}' end
    else p_tags end
$$;
comment on function durable._untagged_v0(jsonb) is 'The tags of a promise without those that _tags_v0 has added: as a client of the older API gave them.';

create or replace function durable._record_v0(p_record durable.promise_record, p_key_create text, p_key_complete text)
returns jsonb language sql immutable
as $$
  select jsonb_strip_nulls(jsonb_build_object(
    'id', p_record.id, 'state', upper(p_record.state collate "C"), 'timeout', p_record.timeout_at,
    'tags', durable._untagged_v0(p_record.tags),
    'param', jsonb_build_object('headers', p_record.param_headers, 'data', p_record.param_data),
    'value', jsonb_build_object('headers', p_record.value_headers, 'data', p_record.value_data),
    'idempotencyKeyForCreate', p_key_create, 'idempotencyKeyForComplete', p_key_complete,
    'createdOn', p_record.created_at, 'completedOn', p_record.settled_at))
$$;
comment on function durable._record_v0(durable.promise_record, text, text) is
  'A promise in the older shape: state in capitals, createdOn and completedOn, idempotency keys. Absent fields are left out. Payloads are as stored; _wire_v0 converts them.';

create or replace function durable._error_v0(p_message text)
returns text language sql immutable parallel safe
as $$
  select jsonb_build_object('__error__', p_message, '__type', 'resonate.errors.ResonateError',
                            'attributes', jsonb_build_object('msg', p_message, 'code', 'UNKNOWN'))::text
$$;
comment on function durable._error_v0(text) is
  'An error as older SDKs read it. Versions 0.5 and 0.6 look for __error__ first; 0.4 makes the class that is named, of its own package.';

create or replace function durable._wire_payload_v0(p_headers jsonb, p_data text, p_state text)
returns jsonb language sql immutable
as $$
  select case
    when not durable._is_plain(p_headers) then jsonb_build_object('headers', nullif(p_headers, '{}'), 'data', p_data)
    when p_state like 'REJECTED%' and p_data is not null
      then jsonb_build_object('data', durable._in_envelope(durable._error_v0(
             coalesce(durable._json(p_data) ->> 'message', p_data))))
    else jsonb_build_object('data', durable._in_envelope(p_data)) end
$$;
comment on function durable._wire_payload_v0(jsonb, text, text) is
  'A param or value as older SDKs read it: what the engine encoded becomes base64 of JSON, an error its message; anything else stays as it came.';

create or replace function durable._wire_v0(p_promise jsonb)
returns jsonb language sql immutable
as $$
  select p_promise || jsonb_strip_nulls(jsonb_build_object(
    'param', durable._wire_payload_v0(p_promise #> '{param,headers}', p_promise #>> '{param,data}', 'PENDING'),
    'value', durable._wire_payload_v0(
      coalesce(p_promise #> '{value,headers}',
               case when durable._is_plain(p_promise #> '{param,headers}') then durable._plain_headers() end),
      p_promise #>> '{value,data}', p_promise ->> 'state')))
$$;
comment on function durable._wire_v0(jsonb) is
  'A promise in the older shape as it leaves for an older SDK: payloads in the form that it reads, without headers that are empty.';

create or replace function durable._read_v0(p_id text, p_now bigint)
returns jsonb language plpgsql volatile
as $$
declare
  v_promise durable._promises;
begin
  select * into v_promise from durable._promises p where p.id = p_id;
  if not found then
    return (select durable._record_v0(s, null, null) from durable._step_record(p_id) s where s.id is not null);
  end if;
  if v_promise.state = 'pending' and v_promise.timeout_at <= p_now then
    perform durable._expire(array[p_id]);
    select * into v_promise from durable._promises p where p.id = p_id;
  end if;
  return durable._record_v0(durable._promise_record(v_promise), v_promise.ikey_create, v_promise.ikey_complete);
end
$$;
comment on function durable._read_v0(text, bigint) is
  'The promise at an instant, settled first if it is past its deadline; null if there is none. A local step of a run is a promise without keys.';

create or replace function durable._exists_v0(p_id text)
returns boolean language sql stable
as $$
  select exists (select from durable._promises p where p.id = p_id) or (durable._step_record(p_id)).id is not null
$$;
comment on function durable._exists_v0(text) is 'True if there is such a promise, or such a local step of a run.';

create or replace function durable._deduplicated_v0(p_wanted text, p_state text, p_known text, p_key text, p_strict boolean)
returns boolean language sql immutable parallel safe
as $$
  select coalesce(p_key = p_known, false) and (p_state = p_wanted or not p_strict)
    or p_state = 'REJECTED_TIMEDOUT' and p_wanted <> 'PENDING' and not p_strict
$$;
comment on function durable._deduplicated_v0(text, text, text, text, boolean) is
  'Whether a request for the state p_wanted (PENDING: a creation) counts as a repetition of the request with the key p_known. Two absent keys are not the same. Strict: only while the promise is in that very state. A completion after the deadline, and not strict, succeeds with any key.';

create or replace function durable._word_v0(p_state text)
returns text language sql immutable parallel safe
as $$
  select 'already ' || case p_state when 'REJECTED_CANCELED' then 'canceled' when 'REJECTED_TIMEDOUT' then 'timedout'
                                    else lower(p_state collate "C") end
$$;
comment on function durable._word_v0(text) is 'The word for a promise that is in a state already.';

create or replace function durable._answer_v0(p_wanted text, p_done boolean, p_promise jsonb, p_key text, p_strict boolean)
returns table (status integer, word text, promise jsonb) language sql immutable
as $$
  select case when x.verdict = 'OK' then 201 when x.verdict = 'deduplicated' then 200 when x.verdict = 'not found' then 404
              when p_wanted = 'PENDING' then 409 else 403 end,
         x.verdict, p_promise
  from (
    select case
      when p_done then 'OK'
      when p_promise is null then 'not found'
      when durable._deduplicated_v0(p_wanted, p_promise ->> 'state',
             p_promise ->> case when p_wanted = 'PENDING' then 'idempotencyKeyForCreate' else 'idempotencyKeyForComplete' end,
             p_key, p_strict) then 'deduplicated'
      -- a step of a run: it is pending, and only its worker completes it
      when p_wanted <> 'PENDING' and p_promise ->> 'state' = 'PENDING' then 'completed by its run alone'
      else durable._word_v0(p_promise ->> 'state')
    end as verdict
  ) x
$$;
comment on function durable._answer_v0(text, boolean, jsonb, text, boolean) is
  'The verdict on a request for the state p_wanted: done by this request, or decided by the stored promise. A function of the record alone.';

create or replace function durable._check_v0(p_id text, p_key text, p_headers jsonb, p_strict boolean)
returns void language plpgsql stable
as $$
begin
  if octet_length(p_key) not between 1 and 512 then
    perform durable._fail_invalid(format('An idempotency key has 1 to 512 bytes, this one has %s.', octet_length(p_key)));
  elsif p_strict is null then
    perform durable._fail_invalid(format('Promise %L: strict is true or false.', p_id));
  elsif p_headers is null then
    return;
  elsif jsonb_typeof(p_headers) <> 'object' then
    perform durable._fail_invalid(format('Promise %L: headers must be a JSON object of strings.', p_id));
  elsif exists (select from jsonb_each(p_headers) e where jsonb_typeof(e.value) <> 'string') then
    perform durable._fail_invalid(format('Promise %L: every header must be a string.', p_id));
  end if;
end
$$;
comment on function durable._check_v0(text, text, jsonb, boolean) is
  'Checks the arguments that the newer operations do not have. WF004.';

create or replace function durable.promise_create_v0(
  p_id text, p_idempotency_key text, p_param_data text, p_param_headers jsonb, p_timeout_at bigint,
  p_strict boolean default false, p_tags jsonb default '{}')
returns table (status integer, word text, promise jsonb) language plpgsql volatile
as $$
declare
  v_done boolean;
  v_promise jsonb;
begin
  perform durable._check_v0(p_id, p_idempotency_key, p_param_headers, p_strict);
  v_done := durable._create_promise(
    (p_id, p_timeout_at, p_param_data, p_param_headers, durable._tags_v0(p_id, p_tags), p_idempotency_key)::durable._new_promise);
  -- a promise that was created at this instant is answered as of its creation
  v_promise := durable._read_v0(p_id, case when v_done then 0 else durable._now_ms() end);
  return query select a.* from durable._answer_v0('PENDING', v_done, v_promise, p_idempotency_key, p_strict) a;
end
$$;
comment on function durable.promise_create_v0(text, text, text, jsonb, bigint, boolean, jsonb) is
  'Older API: creates a promise. 201 created; 200 deduplicated: the same key made it, and it is still pending or p_strict is false; 409 already there. WF004, WF008.';

create or replace function durable._complete_v0(
  p_id text, p_state text, p_key text, p_data text, p_headers jsonb, p_strict boolean)
returns table (status integer, word text, promise jsonb) language plpgsql volatile
as $$
declare
  v_now bigint;
  v_done boolean;
begin
  perform durable._check_v0(p_id, p_key, p_headers, p_strict);
  perform durable._check_verdict(p_id, p_state, p_data);
  if durable._is_live_run(p_id) then
    v_done := p_state = 'rejected_canceled';
    perform durable._cancel_by_settling(p_id, p_data) where v_done;
    return query
      select a.* from durable._answer_v0(upper(p_state collate "C"), v_done, durable._read_v0(p_id, durable._now_ms()),
                                         p_key, p_strict) a;
    return;
  end if;
  perform durable._check_answer(p_id, p_state, p_data, p_headers);
  perform durable._lock_settlement(array[p_id]);
  v_now := durable._now_ms();
  select p.timeout_at > v_now into v_done from durable._promises p where p.id = p_id and p.state = 'pending';
  if found then
    if durable._settle(array[p_id], array[p_state], array[p_headers], array[p_data], v_now, array[p_key]) <> '{}' then
      perform durable._hint('durable_ready', v_now);
    end if;
    perform durable._hint('durable_settled', v_now);
  end if;
  return query
    select a.* from durable._answer_v0(upper(p_state collate "C"), coalesce(v_done, false), durable._read_v0(p_id, v_now),
                                       p_key, p_strict) a;
end
$$;
comment on function durable._complete_v0(text, text, text, text, jsonb, boolean) is
  'Completes a promise, or answers why not, under the locks of the settlement. A promise past its deadline gets the verdict of the deadline first, and is then treated as any other. A run is not completed from outside: to cancel it is a request, which is answered with the run as it is.';

create or replace function durable.promise_resolve_v0(
  p_id text, p_idempotency_key text default null, p_value_data text default null, p_value_headers jsonb default null,
  p_strict boolean default false)
returns table (status integer, word text, promise jsonb) language plpgsql volatile
as $$
begin
  return query
    select a.* from durable._complete_v0(p_id, 'resolved', p_idempotency_key, p_value_data, p_value_headers, p_strict) a;
end
$$;
comment on function durable.promise_resolve_v0(text, text, text, jsonb, boolean) is
  'Older API: completes a promise with success. 201 done; 200 deduplicated: the same key completed it (if p_strict: resolved it), or it timed out and p_strict is false; 403 already completed; 404 there is none. WF004, WF008.';

create or replace function durable.promise_reject_v0(
  p_id text, p_idempotency_key text default null, p_value_data text default null, p_value_headers jsonb default null,
  p_strict boolean default false)
returns table (status integer, word text, promise jsonb) language plpgsql volatile
as $$
begin
  return query
    select a.* from durable._complete_v0(p_id, 'rejected', p_idempotency_key, p_value_data, p_value_headers, p_strict) a;
end
$$;
comment on function durable.promise_reject_v0(text, text, text, jsonb, boolean) is
  'Older API: completes a promise with failure. Answers as promise_resolve_v0. WF004, WF008.';

create or replace function durable.promise_cancel_v0(
  p_id text, p_idempotency_key text default null, p_value_data text default null, p_value_headers jsonb default null,
  p_strict boolean default false)
returns table (status integer, word text, promise jsonb) language plpgsql volatile
as $$
begin
  return query
    select a.* from durable._complete_v0(p_id, 'rejected_canceled', p_idempotency_key, p_value_data, p_value_headers, p_strict) a;
end
$$;
comment on function durable.promise_cancel_v0(text, text, text, jsonb, boolean) is
  'Older API: cancels a promise. Answers as promise_resolve_v0. WF004, WF008.';

create or replace function durable.promise_read_v0(p_id text)
returns table (status integer, word text, promise jsonb) language plpgsql volatile
as $$
declare
  v_promise jsonb := durable._read_v0(p_id, durable._now_ms());
begin
  return query select case when v_promise is null then 404 else 200 end,
                      case when v_promise is null then 'not found' else 'OK' end, v_promise;
end
$$;
comment on function durable.promise_read_v0(text) is 'Older API: the promise as it is now: 200, or 404.';

create or replace function durable._states_v0(p_state text)
returns text[] language sql immutable parallel safe
as $$
  select case when p_state = 'REJECTED' then array['rejected', 'rejected_canceled', 'rejected_timedout']
              when p_state is not null then array[lower(p_state collate "C")] end
$$;
comment on function durable._states_v0(text) is
  'The states for a word of a search: REJECTED is every kind of failure, null is any.';

create or replace function durable._like_v0(p_pattern text)
returns text language sql immutable parallel safe
as $$ select replace(regexp_replace(p_pattern, E'([\\\\%_])', E'\\\\\\1', 'g'), '*', '%') $$;
comment on function durable._like_v0(text) is 'A pattern in which only * is special, for LIKE.';

create or replace function durable._page_by_id_v0(
  p_pattern text, p_states text[], p_limit integer, p_cursor text, p_now bigint)
returns setof text language plpgsql stable
as $$
declare
  v_prefix text := split_part(p_pattern, '*', 1);
begin
  return query
    select p.id from durable._promises p
    where p.id > p_cursor and p.id >= v_prefix and p.id <= v_prefix || chr(1114111) and p.id like durable._like_v0(p_pattern)
      and (p_states is null or durable._projected_state(p, p_now) = any (p_states))
    order by p.id limit p_limit;
end
$$ set enable_sort = off set enable_bitmapscan = off set jit = off;
comment on function durable._page_by_id_v0(text, text[], integer, text, bigint) is
  'One page of ids in their order, read along the primary key from the beginning of the pattern, so that the ids that follow need no sort.';

create or replace function durable._page_by_tags_v0(
  p_pattern text, p_states text[], p_tags jsonb, p_limit integer, p_cursor text, p_now bigint)
returns setof text language plpgsql stable
as $$
begin
  return query
    with tagged as materialized (
      select p.id, durable._projected_state(p, p_now) as state from durable._promises p where p.tags @> p_tags and p.tags <> '{}'
    )
    select t.id from tagged t
    where t.id > p_cursor and t.id like durable._like_v0(p_pattern) and (p_states is null or t.state = any (p_states))
    order by t.id limit p_limit;
end
$$;
comment on function durable._page_by_tags_v0(text, text[], jsonb, integer, text, bigint) is
  'One page of ids in their order among the promises that have all these tags, which an index finds.';

create or replace function durable._page_v0(
  p_pattern text, p_states text[], p_tags jsonb, p_limit integer, p_cursor text, p_now bigint)
returns text[] language plpgsql stable
as $$
begin
  if p_tags = '{}' then
    return array(select i.id from durable._page_by_id_v0(p_pattern, p_states, p_limit, p_cursor, p_now) as i (id));
  end if;
  return array(select i.id from durable._page_by_tags_v0(p_pattern, p_states, p_tags, p_limit, p_cursor, p_now) as i (id));
end
$$;
comment on function durable._page_v0(text, text[], jsonb, integer, text, bigint) is 'Ids of one page, by the index that fits.';

create or replace function durable._ids_within(p_ids text[], p_bytes bigint)
returns text[] language sql stable
as $$
  select array(
    select x.id from (
      select p.id, row_number() over (order by p.id) as n,
             sum(durable._payload_bytes(p)) over (order by p.id rows between unbounded preceding and 1 preceding) as bytes
      from durable._promises p where p.id = any (p_ids)) x
    where x.n = 1 or x.bytes < p_bytes
    order by x.id)
$$;
comment on function durable._ids_within(text[], bigint) is
  'The first of these promises, up to the one that reaches so many bytes of payloads.';

create or replace function durable._read_page_v0(p_pattern text, p_states text[], p_tags jsonb, p_limit integer, p_cursor text)
returns table (page durable._promises[], due text[]) language plpgsql volatile
as $$
declare
  v_before bigint;
  v_now bigint;
begin
  loop
    v_before := durable._now_ms();
    select n.now, array(select p from durable._promises p
                        where p.id = any (durable._ids_within(
                                durable._page_v0(p_pattern, p_states, p_tags, p_limit, p_cursor, n.now),
                                durable._page_bytes_max()))
                        order by p.id)
    into v_now, page from (select durable._now_ms() as now) n;
    exit when v_now = v_before;
  end loop;
  due := array(select p.id from unnest(page) p where p.state = 'pending' and p.timeout_at <= v_now);
  return next;
end
$$;
comment on function durable._read_page_v0(text, text[], jsonb, integer, text) is
  'One page as of the instant of its snapshot, and the promises on it that are past their deadline without being settled.';

create or replace function durable._search_v0(
  p_pattern text, p_states text[], p_tags jsonb, p_limit integer, p_cursor text)
returns table (promises jsonb, cursor text) language plpgsql volatile
as $$
declare
  v_page durable._promises[];
  v_more text[];
  v_due text[] := '{}';
begin
  select l.page, l.due into v_page, v_more from durable._read_page_v0(p_pattern, p_states, p_tags, p_limit, p_cursor) l;
  while v_more <> '{}' loop
    v_due := v_due || v_more;
    begin
      perform durable._expire(v_due);
      select l.page, l.due into v_page, v_more from durable._read_page_v0(p_pattern, p_states, p_tags, p_limit, p_cursor) l;
      if v_more <> '{}' then
        perform durable._start_over();
      end if;
    exception when sqlstate 'WF099' then
      null;
    end;
  end loop;
  return query
    select coalesce(jsonb_agg(durable._record_v0(durable._promise_record(p), p.ikey_create, p.ikey_complete) order by p.id),
                    '[]'),
           case when count(*) = p_limit or sum(durable._payload_bytes(p)) >= durable._page_bytes_max() then max(p.id) end
    from unnest(v_page) p;
end
$$;
comment on function durable._search_v0(text, text[], jsonb, integer, text) is
  'A page of promises as of one instant, made as _search_promises makes it. The cursor is the last id, if the page is full: it has as many promises as it may have, or as many bytes.';

create or replace function durable.promise_search_v0(
  p_id text default '*', p_state text default null, p_tags jsonb default '{}', p_limit integer default 100,
  p_cursor text default null)
returns table (promises jsonb, cursor text) language plpgsql volatile
as $$
begin
  perform durable._check_search(p_state, array['PENDING', 'RESOLVED', 'REJECTED', 'REJECTED_CANCELED', 'REJECTED_TIMEDOUT'],
                                p_limit);
  if p_id is null or p_id = '' or p_tags is null or jsonb_typeof(p_tags) <> 'object' then
    perform durable._fail_invalid('A search has a pattern of ids that is not empty, and tags as a JSON object.');
  end if;
  return query
    select s.* from durable._search_v0(p_id, durable._states_v0(p_state), p_tags, p_limit, coalesce(p_cursor, '')) s;
end
$$;
comment on function durable.promise_search_v0(text, text, jsonb, integer, text) is
  'Older API: promises in the order of ids: with an id that matches p_id, where * stands for any characters; in that state now (REJECTED: failed in any way); with all of p_tags. cursor: pass it on for the next page; null at the end. WF004.';

create or replace function durable._check_callback_v0(
  p_id text, p_promise_id text, p_root_promise_id text, p_timeout_at bigint, p_recv jsonb)
returns void language plpgsql stable
as $$
begin
  if p_id is null or octet_length(p_id) not between 1 and 512 then
    perform durable._fail_invalid(format('A callback id has 1 to 512 bytes, this one has %s.', coalesce(octet_length(p_id), 0)));
  elsif p_promise_id is null or p_root_promise_id is null or p_promise_id = p_root_promise_id then
    perform durable._fail_invalid(format('Promise %L cannot await %L.', p_root_promise_id, p_promise_id));
  elsif p_timeout_at is null or p_timeout_at not between 0 and durable._never() then
    perform durable._fail_invalid(format('Callback %L: timeout must be between 0 and 2^53 - 1 ms.', p_id));
  elsif durable._canonical_recv(p_recv, false) is null then
    perform durable._fail_invalid(
      format('Callback %L: its receiver, %s, cannot be routed.', p_id, durable._kind_of_recv(p_recv)),
      'Use {"type": "poll", "data": {"group", "id"}}, {"type": "http", "data": {"url", "headers"}} or "poll://group:id".');
  end if;
end
$$;
comment on function durable._check_callback_v0(text, text, text, bigint, jsonb) is
  'Checks the arguments of a callback before any state is read. WF004.';

create or replace function durable._callback_v0(p_id text, p_promise_id text, p_timeout_at bigint, p_recv text, p_now bigint)
returns jsonb language sql immutable parallel safe
as $$
  select jsonb_build_object('id', p_id, 'promiseId', p_promise_id, 'timeout', p_timeout_at, 'recv', p_recv, 'createdOn', p_now)
$$;
comment on function durable._callback_v0(text, text, bigint, text, bigint) is
  'A callback or subscription in its older form. createdOn is when it was asked for.';

create or replace function durable._sweep_callbacks_at(p_at bigint, p_now bigint)
returns void language plpgsql volatile
as $$
begin
  if exists (select from durable._retention r where r.subject = 'callbacks') then
    update durable._retention r set due_at = p_at
    where r.subject = durable._try_lock_later_sweep('callbacks', p_at);
  elsif pg_try_advisory_xact_lock(1685417579, 1) then
    insert into durable._retention (due_at, subject) values (least(p_at, p_now + 60000), 'callbacks')
    on conflict on constraint retention_pk do nothing;
  end if;
end
$$;
comment on function durable._sweep_callbacks_at(bigint, bigint) is
  'Has the tick look for callbacks that ran out, at that instant or before. A session that has the row waits for nobody and is waited for by none: the sweep comes by itself soon enough.';

create or replace function durable.promise_callback_v0(
  p_id text, p_promise_id text, p_root_promise_id text, p_timeout_at bigint, p_recv jsonb)
returns table (status integer, word text, callback jsonb, promise jsonb) language plpgsql volatile
as $$
declare
  v_awaited durable._promises;
  v_awaiter durable._promises;
  v_promise jsonb;
  v_new boolean := false;
  v_now bigint;
begin
  perform durable._check_callback_v0(p_id, p_promise_id, p_root_promise_id, p_timeout_at, p_recv);
  if not durable._exists_v0(p_promise_id) then
    return query select 404, 'not found', null::jsonb, null::jsonb;
    return;
  end if;
  v_awaited := durable._find_awaited(p_promise_id);
  select * into v_awaiter from durable._promises p where p.id = p_root_promise_id;
  if not found or v_awaiter.target is null then
    perform durable._fail_not_targeted(p_root_promise_id);
  end if;
  perform durable._check_external(array[p_promise_id]);
  v_now := durable._now_ms();
  if durable._projected_state(v_awaited, v_now) = 'pending' and durable._projected_state(v_awaiter, v_now) = 'pending' then
    insert into durable._callbacks (awaited_id, awaiter_id, id, timeout_at, recv, recv_headers)
    values (p_promise_id, p_root_promise_id, p_id, p_timeout_at, durable._canonical_recv(p_recv, false),
            durable._recv_headers(p_recv))
    on conflict do nothing;
    v_new := found;
    if v_new then
      perform durable._arm(array[p_promise_id]);
      perform durable._sweep_callbacks_at(p_timeout_at, v_now);
    end if;
  end if;
  v_promise := durable._read_v0(p_promise_id, v_now);
  return query select case when v_new then 201 else 200 end,
    case when v_new then 'OK'
         when v_promise ->> 'state' <> 'PENDING' then durable._word_v0(v_promise ->> 'state')
         when durable._projected_state(v_awaiter, v_now) <> 'pending' then 'awaiter completed'
         else 'deduplicated' end,
    case when exists (select from durable._callbacks c
                      where c.awaited_id = p_promise_id and c.awaiter_id = p_root_promise_id and c.id = p_id)
         then jsonb_build_object('rootPromiseId', p_root_promise_id)
              || durable._callback_v0(p_id, p_promise_id, p_timeout_at, durable._canonical_recv(p_recv, false), v_now) end,
    v_promise;
end
$$;
comment on function durable.promise_callback_v0(text, text, text, bigint, jsonb) is
  'Older API: resumes the task of p_root_promise_id at p_recv when p_promise_id completes before p_timeout_at; when the last callback of a suspended task runs out it is offered again as one without callbacks. 201 registered; 200 with a callback: registered before; 200 without one: that id belongs to another callback, or one of the two is completed, so read the promise and continue; 404 no such promise. WF004, WF005, WF010.';

create or replace function durable.promise_subscribe_v0(
  p_promise_id text, p_recv jsonb, p_id text default null, p_timeout_at bigint default null)
returns table (status integer, word text, callback jsonb, promise jsonb) language plpgsql volatile
as $$
declare
  v_address text := durable._canonical_recv(p_recv, true);
  v_awaited durable._promises;
  v_promise jsonb;
  v_new boolean := false;
  v_now bigint;
begin
  if v_address is null or durable._recv_headers(p_recv) is not null then
    perform durable._fail_invalid(
      format('The receiver, %s, cannot be told: no address, or one with headers.', durable._kind_of_recv(p_recv)));
  elsif not durable._exists_v0(p_promise_id) then
    return query select 404, 'not found', null::jsonb, null::jsonb;
    return;
  end if;
  v_awaited := durable._find_awaited(p_promise_id);
  perform durable._check_external(array[p_promise_id]);
  v_now := durable._now_ms();
  if durable._projected_state(v_awaited, v_now) = 'pending' then
    insert into durable._listeners (awaited_id, address) values (p_promise_id, v_address) on conflict do nothing;
    v_new := found;
    if v_new then
      perform durable._arm(array[p_promise_id]);
    end if;
  end if;
  v_promise := durable._read_v0(p_promise_id, v_now);
  return query select case when v_new then 201 else 200 end,
    case when v_new then 'OK' when v_promise ->> 'state' = 'PENDING' then 'deduplicated'
         else durable._word_v0(v_promise ->> 'state') end,
    case when v_promise ->> 'state' = 'PENDING' then durable._callback_v0(p_id, p_promise_id, p_timeout_at, v_address, v_now) end,
    v_promise;
end
$$;
comment on function durable.promise_subscribe_v0(text, jsonb, text, bigint) is
  'Older API: notifies p_recv when the promise completes. 201 registered; 200 registered before, or completed: then there is no callback, and the answer is the notification; 404 no such promise. A promise and an address are one subscription, whatever id and timeout a client gives it; both are only answered. WF004, WF005.';
