-- Pages of promises, and the promises that a worker gets with a task. A page is as of one instant. Promises on it that are past
-- their deadline are settled first, so that every later page agrees with it. The clock is read before a page and in the
-- statement that reads the page, after its snapshot, until both readings agree: then they are the time of the snapshot. A
-- reading before the page alone could show a promise as pending although another session has already been refused because it
-- timed out; a reading after it alone could show one as timed out too early.

create or replace function durable._projected_state(p_promise durable._promises, p_now bigint)
returns text language sql immutable
as $$
  select case when p_promise.state <> 'pending' or p_promise.timeout_at > p_now then p_promise.state
              when p_promise.timer then 'resolved' else 'rejected_timedout' end
$$;
comment on function durable._projected_state(durable._promises, bigint) is 'State at an instant: a deadline that has passed counts, settled or not.';

create or replace function durable._page_by_id(
  p_state text, p_limit integer, p_cursor text, p_prefix text, p_now bigint)
returns setof durable._promises language plpgsql stable
as $$
begin
  return query
    select p.* from durable._promises p
    where p.id > p_cursor and p.id >= p_prefix and p.id <= p_prefix || chr(1114111) and starts_with(p.id, p_prefix)
      and (p_state is null or durable._projected_state(p, p_now) = p_state)
    order by p.id limit p_limit;
end
$$ set enable_sort = off set enable_bitmapscan = off set jit = off;
comment on function durable._page_by_id(text, integer, text, text, bigint) is
  'One page in the order of ids, read along the primary key, so that the ids that follow need no sort.';

create or replace function durable._page_of_pending(p_limit integer, p_cursor text, p_prefix text, p_now bigint)
returns setof durable._promises language plpgsql stable
as $$
begin
  return query
    select p.* from (
      (select t.id from durable._tasks t
       where t.id > p_cursor and t.id >= p_prefix and t.id <= p_prefix || chr(1114111) and starts_with(t.id, p_prefix)
         and t.deadline > p_now
       order by t.id limit p_limit)
      union all
      (select f.id from durable._promises f
       where f.target is null and f.state = 'pending' and f.id > p_cursor and f.id >= p_prefix
         and f.id <= p_prefix || chr(1114111) and starts_with(f.id, p_prefix) and f.timeout_at > p_now
       order by f.id limit p_limit)) x
    cross join lateral (select f.* from durable._promises f where f.id = x.id offset 0) p
    order by x.id limit p_limit;
end
$$ set enable_bitmapscan = off set jit = off;
comment on function durable._page_of_pending(integer, text, text, bigint) is
  'One page of pending promises in the order of ids: those with a task, and those without. It reads no run that has ended.';

create or replace function durable._page_by_tags(
  p_state text, p_tags jsonb, p_limit integer, p_cursor text, p_prefix text, p_now bigint)
returns setof durable._promises language plpgsql stable
as $$
begin
  return query
    with tagged as materialized (
      select p.* from durable._promises p where p.tags @> p_tags and p.tags <> '{}'
    )
    select p.* from tagged p
    where p.id > p_cursor and starts_with(p.id, p_prefix)
      and (p_state is null or durable._projected_state(p.*::durable._promises, p_now) = p_state)
    order by p.id limit p_limit;
end
$$;
comment on function durable._page_by_tags(text, jsonb, integer, text, text, bigint) is
  'One page of the promises that have these tags, found through their index.';

create or replace function durable._page_of_promises(
  p_state text, p_tags jsonb, p_limit integer, p_cursor text, p_prefix text, p_now bigint)
returns setof durable._promises language plpgsql stable
as $$
begin
  if (p_tags is null or p_tags = '{}') and p_state = 'pending' then
    return query select * from durable._page_of_pending(p_limit, coalesce(p_cursor, ''), coalesce(p_prefix, ''), p_now);
  elsif p_tags is null or p_tags = '{}' then
    return query select * from durable._page_by_id(p_state, p_limit, coalesce(p_cursor, ''), coalesce(p_prefix, ''), p_now);
  else
    return query select * from durable._page_by_tags(p_state, p_tags, p_limit, coalesce(p_cursor, ''), coalesce(p_prefix, ''),
                                                     p_now);
  end if;
end
$$;
comment on function durable._page_of_promises(text, jsonb, integer, text, text, bigint) is
  'One page in the order of ids, by the index that fits.';

create or replace function durable._page_bytes_max()
returns bigint language sql immutable parallel safe
as $$ select 8388608::bigint $$;
comment on function durable._page_bytes_max() is
  'Payloads of this many bytes end a page that a client in another language asks for, whatever its limit.';

create or replace function durable._payload_bytes(p_promise durable._promises)
returns bigint language sql immutable parallel safe
as $$ select coalesce(octet_length(p_promise.param_data), 0)::bigint + coalesce(octet_length(p_promise.value_data), 0) $$;
comment on function durable._payload_bytes(durable._promises) is 'The bytes of the payloads of a promise, which are not read for that.';

create or replace function durable._page_within(
  p_state text, p_tags jsonb, p_limit integer, p_cursor text, p_prefix text, p_now bigint, p_bytes bigint)
returns setof durable._promises language plpgsql stable
as $$
declare
  v_promise durable._promises;
  v_count integer := 0;
  v_bytes bigint := 0;
begin
  if p_bytes is null then
    return query select * from durable._page_of_promises(p_state, p_tags, p_limit, p_cursor, p_prefix, p_now);
    return;
  end if;
  for v_promise in select * from durable._page_of_promises(p_state, p_tags, p_limit, p_cursor, p_prefix, p_now) loop
    return next v_promise;
    v_count := v_count + 1;
    v_bytes := v_bytes + durable._payload_bytes(v_promise);
    exit when v_bytes >= p_bytes and v_count > 1;
  end loop;
end
$$;
comment on function durable._page_within(text, jsonb, integer, text, text, bigint, bigint) is
  'One page, which ends with the promise that reaches so many bytes of payloads, but has two promises; null: with none.';

create or replace function durable._read_promises_page(
  p_state text, p_tags jsonb, p_limit integer, p_cursor text, p_prefix text, p_bytes bigint)
returns table (page durable._promises[], due text[]) language plpgsql volatile
as $$
declare
  v_before bigint;
  v_now bigint;
begin
  loop
    -- right before the snapshot: reading the page may take longer than a tick of the clock
    v_before := durable._now_ms();
    select n.now, array(select p from durable._page_within(p_state, p_tags, p_limit, p_cursor, p_prefix, n.now, p_bytes) p)
    into v_now, page from (select durable._now_ms() as now) n;
    exit when v_now = v_before;
  end loop;
  due := array(select p.id from unnest(page) p where p.state = 'pending' and p.timeout_at <= v_now);
  return next;
end
$$;
comment on function durable._read_promises_page(text, jsonb, integer, text, text, bigint) is
  'One page as of the instant of its snapshot, and the promises on it that are past their deadline without being settled.';

create or replace function durable._projected_record(p_promise durable._promises, p_now bigint)
returns durable.promise_record language sql immutable
as $$
  select case when p_promise.state <> 'pending' or p_promise.timeout_at > p_now then durable._promise_record(p_promise)
              else jsonb_populate_record(durable._promise_record(p_promise), jsonb_build_object(
                'state', durable._projected_state(p_promise, p_now), 'settled_at', p_promise.timeout_at)) end
$$;
comment on function durable._projected_record(durable._promises, bigint) is
  'A promise as of an instant, settled if its deadline has passed. For locked rows only: another session could settle any other row differently.';

create or replace function durable._try_lock_expired_promises(p_ids text[], p_now bigint)
returns text[] language plpgsql volatile
as $$
begin
  return array(select p.id from durable._promises p
               where p.id = any (p_ids) and p.state = 'pending' and p.timeout_at <= p_now for no key update skip locked);
end
$$;
comment on function durable._try_lock_expired_promises(text[], bigint) is
  'Locks those of the promises that are past their deadline, except the ones that another session has locked. A later settlement reads a later clock, so the locked ones may be reported as timed out.';

create or replace function durable._search_promises(
  p_state text, p_tags jsonb, p_limit integer, p_cursor text, p_prefix text, p_bytes bigint)
returns setof durable.promise_record language plpgsql volatile
as $$
declare
  v_page durable._promises[];
  v_more text[];
  v_due text[] := '{}';
begin
  select l.page, l.due into v_page, v_more
  from durable._read_promises_page(p_state, p_tags, p_limit, p_cursor, p_prefix, p_bytes) l;
  while v_more <> '{}' loop
    v_due := v_due || v_more;
    begin
      perform durable._expire(v_due);
      select l.page, l.due into v_page, v_more
      from durable._read_promises_page(p_state, p_tags, p_limit, p_cursor, p_prefix, p_bytes) l;
      if v_more <> '{}' then
        perform durable._start_over();
      end if;
    exception when sqlstate 'WF099' then
      null;
    end;
  end loop;
  return query select r.* from unnest(v_page) p cross join lateral durable._promise_record(p) r order by r.id;
end
$$;
comment on function durable._search_promises(text, jsonb, integer, text, text, bigint) is
  'A page as of one instant. Promises past their deadline are settled first, all at once, because a second settlement would lock promises after tasks. If more promises have come past their deadline meanwhile, the first settlement is undone, and all of them are settled together.';

create or replace function durable._check_search(p_state text, p_states text[], p_limit integer)
returns void language plpgsql stable
as $$
begin
  if p_state <> all (p_states) then
    perform durable._fail_invalid(format('There is no state %L; the states are %s.', p_state, array_to_string(p_states, ', ')));
  elsif p_limit is null or p_limit not between 1 and 1000 then
    perform durable._fail_invalid(format('A search answers 1 to 1000 records, not %s.', coalesce(p_limit::text, 'null')));
  end if;
end
$$;
comment on function durable._check_search(text, text[], integer) is 'Checks the arguments of a search. WF004.';

create or replace function durable.promise_search(
  p_state text default null, p_tags jsonb default null, p_limit integer default 100, p_cursor text default null,
  p_prefix text default null)
returns setof durable.promise_record language plpgsql volatile
as $$
begin
  perform durable._check_search(p_state, array['pending', 'resolved', 'rejected', 'rejected_canceled', 'rejected_timedout'],
                                p_limit);
  return query select * from durable._search_promises(p_state, p_tags, p_limit, p_cursor, p_prefix, null);
end
$$;
comment on function durable.promise_search(text, jsonb, integer, text, text) is
  'Promises in the order of ids: in that state now, with all of p_tags, after p_cursor (the last id of the page before), with ids that begin with p_prefix. Local steps of runs are not included. WF004.';

create or replace function durable.promise_preload(p_id text)
returns setof durable.promise_record language plpgsql volatile
as $$
declare
  v_branch text;
  v_locked text[];
  v_now bigint;
begin
  select p.tags ->> 'resonate:branch' into v_branch from durable._promises p where p.id = p_id;
  v_locked := durable._try_lock_expired_promises(array(
    select p.id from durable._promises p
    where p.tags ->> 'resonate:branch' = v_branch and p.tags ? 'resonate:branch'), durable._now_ms());
  v_now := durable._now_ms();
  return query
    select r.* from (
      select p, sum(coalesce(octet_length(p.param_data), 0) + coalesce(octet_length(p.value_data), 0))
                  over (order by p.id) as bytes
      from durable._promises p
      where p.tags ->> 'resonate:branch' = v_branch and p.tags ? 'resonate:branch' and p.id <> p_id
        and (p.state <> 'pending' or p.timeout_at > v_now or p.id = any (v_locked))
      order by p.id limit 1000) x
    -- lateral, because (f(x)).* would call the function once for each column
    cross join lateral durable._projected_record(x.p, v_now) r
    where x.bytes <= 8388608
    order by r.id;
end
$$;
comment on function durable.promise_preload(text) is
  'The preload of a worker that takes a task: the other promises with the same tag resonate:branch, by id. It waits for no lock, because its caller holds a task: a promise that another session is settling is left out, and so are promises beyond the first 1000 or 8 MiB.';
