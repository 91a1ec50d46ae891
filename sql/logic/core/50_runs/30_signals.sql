-- Signals: sent to a run by name, numbered within the name, buffered, and received in that order.

create or replace function durable._check_signal(p_run text, p_name text, p_payload text, p_key text)
returns void language plpgsql stable
as $$
begin
  if p_run is null or p_run = '' then
    perform durable._fail_invalid('A signal goes to a run: its id is not empty.');
  elsif p_name is null or octet_length(p_name) not between 1 and 256 then
    perform durable._fail_invalid(format('The name of a signal has 1 to 256 bytes, this one has %s.',
                                         coalesce(octet_length(p_name), 0)));
  elsif octet_length(p_key) not between 1 and 512 then
    perform durable._fail_invalid(format('A deduplication key has 1 to 512 bytes, this one has %s.', octet_length(p_key)));
  end if;
  perform durable._check_json(format('Payload of signal %L to run %L', p_name, p_run), p_payload);
end
$$;
comment on function durable._check_signal(text, text, text, text) is
  'Checks the arguments of a signal before any state is read. WF004, WF008.';

create or replace function durable._find_run(p_id text)
returns durable._promises language plpgsql volatile
as $$
declare
  v_promise durable._promises;
begin
  perform durable.promise_get(p_id);
  select * into v_promise from durable._promises p where p.id = p_id;
  if v_promise.head is null then
    perform durable._fail_not_found('run', p_id);
  end if;
  return v_promise;
end
$$;
comment on function durable._find_run(text) is
  'The promise of a run, settled first if it is past its deadline. WF001 if there is no such run.';

create or replace function durable._lock_run(p_id text)
returns durable._executions language plpgsql volatile
as $$
declare
  v_head durable._executions;
begin
  perform durable._lock_tasks(array[p_id]);
  -- read under the lock: a run that continues as new changes its head
  perform durable._lock_heads(array(select t.execution from durable._tasks t where t.id = p_id));
  select h.* into v_head from durable._executions h
  where h.execution = any (array(select t.execution from durable._tasks t where t.id = p_id));
  return v_head;
end
$$;
comment on function durable._lock_run(text) is
  'Locks a live run, task then head, so that its worker keeps its lease; null if the run has ended.';

create or replace function durable._known_delivery(p_execution bigint, p_name text, p_key text)
returns integer language plpgsql stable
as $$
begin
  return (
    with recursive generation as (
      select h.execution, h.previous, h.id, h.generations_removed from durable._executions h where h.execution = p_execution
      union all
      select h.execution, h.previous, h.id, h.generations_removed
      from generation g join durable._executions h on h.execution = any (array[g.previous])
    )
    select d.delivery from (
      select (select (b.number - i.backlog_from)::integer from durable._backlog b
              join durable._inboxes i on i.execution = g.execution and i.name = b.name and i.backlog_from < b.number
              where b.id = g.id and b.name = p_name and b.key = p_key) as delivery
      from generation g where g.execution = p_execution and g.previous is not null
      union all
      select (select s.delivery from durable._signals s
              where s.execution = g.execution and s.name = p_name and s.key = p_key)
      from generation g
      union all
      select (select s.delivery from durable._removed_signals s where s.id = g.id and s.name = p_name and s.key = p_key)
      from generation g where g.generations_removed is not null) d
    where d.delivery is not null limit 1);
end
$$;
comment on function durable._known_delivery(bigint, text, text) is
  'The number of the delivery with this key, to the present generation of the run or to an earlier one, also to one that was removed; or of that to come, for a signal in the backlog.';

create or replace function durable._wake(p_ids text[], p_now bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_woken text[];
begin
  with woken as (
    update durable._tasks t
    set state = 'pending', retry_at = p_now, prefer_until = durable._prefer_until(t.preference, p_now)
    where t.id = any (p_ids) and (t.state is not distinct from 'suspended'
                                  or (t.state is not distinct from 'pending' and t.retry_at > p_now))
    returning t.id
  )
  select coalesce(array_agg(w.id), '{}') into v_woken from woken w;
  return v_woken;
end
$$;
comment on function durable._wake(text[], bigint) is
  'Makes suspended or postponed tasks ready and answers them; the caller holds them.';

create or replace function durable._receipts(
  p_executions bigint[], p_name text, p_deliveries integer[], p_children integer[], p_now bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_events durable._event[];
  v_ready text[];
  v_counted bigint[];
begin
  select array_agg(x.event order by h.execution, x.place),
         array_agg(h.id) filter (where x.place = 1 and (o.is_over or h.status = 'running')),
         array_agg(h.execution) filter (where x.place = 1 and w.has_waited and not o.is_over)
  into v_events, v_ready, v_counted
  from unnest(p_executions, p_deliveries, p_children) as u (execution, delivery, child)
  cross join lateral (select e.* from durable._executions e where e.execution = u.execution offset 0) h
  cross join lateral (select h.status = 'blocked' and u.child = any (h.waiting_on) as has_waited) w
  cross join lateral (select w.has_waited and (h.wait_kind <> 'all' or h.wait_left <= 1) as is_over) o
  cross join lateral (
    select 1 as place, row(h.execution, 'signal_received', u.child, u.delivery, p_name, null, null)::durable._event as event
    union all
    select 2, row(h.execution, 'execution_resumed', null, null, null, null, null)::durable._event where o.is_over) x;
  perform durable._append(v_events, p_now);
  if v_counted is not null then
    update durable._executions h set wait_left = h.wait_left - 1
    from unnest(v_counted) as u (execution) where h.execution = any (array[u.execution]);
  end if;
  -- a run that waits for other children stays suspended
  return durable._wake(v_ready, p_now);
end
$$;
comment on function durable._receipts(bigint[], text, integer[], integer[], bigint) is
  'Completes waiting receives of one name, one for each run, with deliveries, and ends the wait of a run that has no other child to wait for. Answers the runs that became ready.';

create or replace function durable._put_behind(p_executions bigint[], p_name text, p_payloads text[], p_key text)
returns void language sql volatile
as $$
  with counted as (
    update durable._inboxes i set backlog_upto = i.backlog_upto + 1
    from unnest(p_executions, p_payloads) as u (execution, payload)
    where i.execution = any (array[u.execution]) and i.name = p_name
    returning i.execution, i.backlog_upto, u.payload
  )
  insert into durable._backlog (execution, number, seq, id, name, key, data)
  select h.execution, c.backlog_upto, h.next_seq, h.id, p_name, p_key, c.payload
  from counted c join durable._executions h on h.execution = any (array[c.execution])
$$;
comment on function durable._put_behind(bigint[], text, text[], text) is
  'Puts a signal behind the backlogs of its name; its journal row comes when it is received.';

create or replace function durable._deliver_backlog(p_receipts durable._event[], p_now bigint)
returns void language plpgsql volatile
as $$
declare
  v_events durable._event[] := array(
    select row(e.execution, 'signal_delivered', null, e.attempt, e.name, null, null)::durable._event
    from unnest(p_receipts) e
    join durable._inboxes i on i.execution = any (array[e.execution]) and i.name = any (array[e.name])
    where e.type = 'signal_received' and i.delivered < e.attempt order by e.execution, e.child);
begin
  insert into durable._signals (execution, name, delivery, key, data)
  select e.execution, e.name, e.attempt, b.key, b.data
  from unnest(v_events) e
  join durable._executions h on h.execution = any (array[e.execution])
  join durable._inboxes i on i.execution = any (array[e.execution]) and i.name = any (array[e.name])
  cross join lateral (
    select x.key, x.data from durable._backlog x
    where x.id = h.id and x.name = e.name and x.number = i.backlog_from + e.attempt offset 0) b;
  perform durable._append(v_events, p_now);
end
$$;
comment on function durable._deliver_backlog(durable._event[], bigint) is
  'Delivers the next signal of a backlog for each of these receipts whose delivery is not in the journal yet. The row of the backlog stays until the run continues as new.';

create or replace function durable._deliver(
  p_executions bigint[], p_name text, p_payloads text[], p_key text, p_now bigint)
returns table (deliveries integer[], woken boolean) language plpgsql volatile
as $$
declare
  v_deliveries integer[];
  v_behind bigint[];
  v_waiting bigint[];
  v_numbers integer[];
  v_receivers integer[];
  v_is_awaited boolean;
  v_woken text[] := '{}';
begin
  select bool_or(i.receiver is not null),
         array_agg(case when b.lies then (i.backlog_upto - i.backlog_from)::integer
                        else coalesce(i.delivered, 0) end + 1 order by u.ord),
         coalesce(array_agg(h.execution order by u.ord) filter (where b.lies), '{}'),
         array_agg(h.execution order by u.ord) filter (where r.receives),
         array_agg(i.delivered + 1 order by u.ord) filter (where r.receives),
         array_agg(i.receiver order by u.ord) filter (where r.receives)
  into v_is_awaited, v_deliveries, v_behind, v_waiting, v_numbers, v_receivers
  from unnest(p_executions) with ordinality as u (execution, ord)
  cross join lateral (select e.* from durable._executions e where e.execution = u.execution offset 0) h
  left join lateral (
    select x.* from durable._inboxes x where x.execution = u.execution and x.name = p_name offset 0) i on true
  cross join lateral (select i.backlog_upto > i.backlog_from + i.delivered as lies) b
  cross join lateral (
    select h.status in ('running', 'blocked')
           and (i.receiver >= h.next_child or i.receiver = any (h.reserved)) as receives) r;
  if v_behind <> '{}' then
    perform durable._put_behind(v_behind, p_name, array(
      select u.payload from unnest(p_executions, p_payloads) with ordinality as u (execution, payload, ord)
      where u.execution = any (v_behind) order by u.ord), p_key);
  end if;
  insert into durable._signals (execution, name, delivery, key, data)
  select u.execution, p_name, u.delivery, p_key, u.payload
  from unnest(p_executions, v_deliveries, p_payloads) as u (execution, delivery, payload) where u.execution <> all (v_behind);
  if v_is_awaited then
    -- an inbox with a waiting receive has no unread signal; a run that is being cancelled waits no more
    update durable._inboxes i set receiver = null
    from unnest(p_executions) as u (execution)
    cross join lateral (
      select x.ctid as place from durable._inboxes x
      where x.execution = u.execution and x.name = p_name and x.receiver is not null offset 0) x
    where i.ctid = x.place;
  end if;
  perform durable._append(array(
    select row(u.execution, 'signal_delivered', null, u.delivery, p_name, null, null)::durable._event
    from unnest(p_executions, v_deliveries) as u (execution, delivery) where u.execution <> all (v_behind)), p_now);
  if v_waiting is not null then
    v_woken := durable._receipts(v_waiting, p_name, v_numbers, v_receivers, p_now);
  end if;
  return query select v_deliveries, v_woken <> '{}';
end
$$;
comment on function durable._deliver(bigint[], text, text[], text, bigint) is
  'Delivers one signal of a name to each of these runs: writes SignalDelivered and, for a waiting receive, SignalReceived. The signal stays unread in a run that is being cancelled (R14), and in a run whose code changed and used the number of the receive for another call. It goes behind a backlog, if there is one. Answers the numbers in the order of the runs, and whether a run became ready.';

create or replace function durable.signal_v1(p_run text, p_name text, p_payload text, p_key text)
returns table (delivery integer, created boolean, woken boolean) language plpgsql volatile rows 1
as $$
declare
  v_head durable._executions;
  v_known integer;
  v_fault text;
  v_now bigint;
begin
  perform durable._check_signal(p_run, p_name, p_payload, p_key);
  perform durable._find_run(p_run);
  v_head := durable._lock_run(p_run);
  v_now := durable._now_ms();
  if p_key is not null then
    v_known := durable._known_delivery(
      coalesce(v_head.execution, (select p.head from durable._promises p where p.id = p_run)), p_name, p_key);
  end if;
  if v_known is not null then
    return query select v_known, false, false;
    return;
  elsif v_head.execution is null
        or not exists (select from durable._tasks t where t.id = p_run and t.deadline > v_now) then
    perform durable._fail_conflict(format('Run %L has ended; nobody would receive signal %L.', p_run, p_name),
                                   format('select * from durable.result(%L)', p_run));
  end if;
  v_fault := durable._signal_refusal(v_head.execution, p_name, p_payload);
  if v_fault is not null then
    perform durable._fail_signal(v_head.execution, p_name, v_fault);
  end if;
  return query select d.deliveries[1], true, d.woken
  from durable._deliver(array[v_head.execution], p_name, array[p_payload], p_key, v_now) d;
end
$$;
comment on function durable.signal_v1(text, text, text, text) is
  'For our clients: delivers a signal; created is false if a signal with this key was delivered before, also to a run that has ended since. A name that the workflow of the run does not receive is WF001, a payload of another type WF004. Sends no hint. WF001, WF003, WF004, WF008.';

create or replace function durable.signal(run text, name text, payload jsonb default null, dedup text default null)
returns integer language plpgsql volatile
as $$
declare
  v_signal record;
begin
  select * into v_signal from durable.signal_v1($1, $2, $3::text, $4);
  if v_signal.created then
    perform durable._hint(case when v_signal.woken then 'durable_ready' else 'durable_settled' end, durable._now_ms());
  end if;
  return v_signal.delivery;
end
$$;
comment on function durable.signal(text, text, jsonb, text) is
  'Sends a signal to a run and answers its number among those of that name: select durable.signal(''order-42'', ''approve'', ''{"ok": true}''). The signal is kept until it is received, in the order of sending. The same dedup again is the same signal. Two of these in one transaction hold the first run while they wait for the second, so two transactions that cross deadlock (40P01): durable.signal_many sends many at once. WF001 no such run, or its workflow receives no signal of this name; WF003 it has ended; WF004 the payload is of another JSON type than the workflow declares, or lacks a key; WF008.';

create or replace function durable._check_receives(p_reports durable._run_report[])
returns void language plpgsql stable
as $$
begin
  perform durable._fail_journal(r.execution, 'signal_received', r.child,
                                format('child %s receives signal %L already', r.first, r.name))
  from (
    select b.execution, a.name, max(a.child) as child, least(min(a.child), min(i.receiver)) as first
    from unnest(p_reports) b
    cross join lateral unnest(b.commands) a
    left join durable._inboxes i on i.execution = any (array[b.execution]) and i.name = any (array[a.name])
    where b.verdict = 'ok' and a."do" = 'receive'
    group by b.execution, a.name having count(*) > 1 or min(i.receiver) <> min(a.child)
  ) r;
end
$$;
comment on function durable._check_receives(durable._run_report[]) is
  'Refuses a second receive of a name while one waits, except one that takes over the number of a receive that was given up (R24). WF006.';

create or replace function durable._receive_buffered(p_reports durable._run_report[], p_now bigint)
returns bigint[] language plpgsql volatile
as $$
declare
  v_events durable._event[];
  v_has_backlog boolean;
begin
  perform durable._check_receives(p_reports);
  select coalesce(array_agg(row(b.execution, 'signal_received', a.child, i.received + 1, a.name, null, null)::durable._event
                              order by b.execution, a.child), '{}'), bool_or(i.delivered = i.received)
  into v_events, v_has_backlog
  from unnest(p_reports) b
  join durable._executions h on h.execution = any (array[b.execution]) and h.status = 'running'
  cross join lateral unnest(b.commands) a
  join durable._inboxes i on i.execution = any (array[b.execution]) and i.name = any (array[a.name])
  where b.verdict = 'ok' and a."do" = 'receive'
    and (i.delivered > i.received or i.backlog_upto > i.backlog_from + i.delivered);
  if v_has_backlog then
    perform durable._deliver_backlog(v_events, p_now);
  end if;
  perform durable._append(v_events, p_now);
  insert into durable._inboxes as i (execution, name, receiver)
  select b.execution, a.name, a.child
  from unnest(p_reports) b
  join durable._executions h on h.execution = any (array[b.execution]) and h.status = 'running'
  cross join lateral unnest(b.commands) a
  where b.verdict = 'ok' and a."do" = 'receive'
    and not exists (select from unnest(v_events) e where e.execution = b.execution and e.child = a.child)
  on conflict (execution, name) do update set receiver = excluded.receiver;
  return array(select e.execution from unnest(v_events) e);
end
$$;
comment on function durable._receive_buffered(durable._run_report[], bigint) is
  'Handles the receives that the reports ask for: a buffered signal, or the next of a backlog, is received at once; else the next delivery of that name will be. A run that is being cancelled receives nothing (R14). Answers the executions that received a signal.';

create or replace function durable.unread_signals_v1(p_executions bigint[])
returns table (execution bigint, name text, unread integer) language plpgsql stable
as $$
begin
  return query
  select i.execution, i.name, n.unread
  from unnest(p_executions) as u (execution)
  join durable._inboxes i on i.execution = any (array[u.execution])
  cross join lateral (
    select greatest(i.delivered, (i.backlog_upto - i.backlog_from)::integer) - i.received as unread) n
  where n.unread > 0
  order by i.execution, i.name;
end
$$;
comment on function durable.unread_signals_v1(bigint[]) is
  'For our workers and views: how many signals of each name these executions have not received, those in the backlog too.';
