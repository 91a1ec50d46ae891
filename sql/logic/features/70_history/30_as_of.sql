-- The state of a run at an earlier moment, computed from its journal as the head is, but up to an earlier row. Values are read
-- where they are stored; they do not change once they are recorded.

create or replace function durable._past_head(p_id text, p_generation integer, p_at timestamptz)
returns table (execution bigint, generation integer) language plpgsql volatile
as $$
declare
  v_generation integer;
  v_oldest integer;
  v_first timestamptz;
begin
  select max(g.generation) filter (where g.generation = coalesce(p_generation, g.generation)
                                     and (p_generation is not null or p_at is null or g.started_at <= p_at)),
         min(g.generation), min(g.started_at) filter (where g.generation = coalesce(p_generation, g.generation))
  into v_generation, v_oldest, v_first from durable.generations(p_id) g;
  if p_generation between 1 and v_oldest - 1 or (p_generation is null and v_oldest > 1 and p_at < v_first) then
    perform durable._fail_invalid(
      format('Generations 1 to %s of run %L were removed, because they ended long ago.', v_oldest - 1, p_id),
      format('select * from durable.generations(%L)', p_id));
  elsif p_generation is not null and v_generation is null then
    perform durable._fail_invalid(format('Run %L has no generation %s.', p_id, p_generation),
                                  format('select * from durable.generations(%L)', p_id));
  elsif p_at < v_first then
    perform durable._fail_invalid(format('Run %L began at %s, which is later.', p_id, v_first));
  end if;
  return query select g.execution, g.generation from durable.generations(p_id) g where g.generation = v_generation;
end
$$;
comment on function durable._past_head(text, integer, timestamptz) is
  'The generation of a run that is asked for: the given one, else the one that ran at the instant, else the present one. WF001, WF004.';

create or replace function durable._past_seq(p_head durable._executions, p_seq integer, p_at timestamptz)
returns integer language plpgsql stable
as $$
begin
  if p_seq not between 1 and p_head.next_seq then
    perform durable._fail_invalid(format('Run %L has %s events: there is nothing after %s.', p_head.id, p_head.next_seq, p_seq),
                                  'A seq is from 1, when it has begun, to the number of its events.');
  end if;
  return coalesce(p_seq, (
    select min(j.seq) from durable._journal j
    where j.execution = p_head.execution and j.bucket = p_head.bucket and durable._at(j.ts) > p_at), p_head.next_seq);
end
$$;
comment on function durable._past_seq(durable._executions, integer, timestamptz) is
  'The number of events in the journal at that moment. WF004.';

create or replace function durable._past(p_head durable._executions, p_upto integer)
returns table (seq integer, type durable.row_type, child integer, attempt integer, name text, data text, event text, ts bigint)
language sql stable
as $$
  select j.seq, j.type, j.child, j.attempt, j.name, durable._data(j), y.events[least(cardinality(y.events), p_upto - j.seq)], j.ts
  from durable._journal j
  join durable.journal_types() y on y.type = j.type
  where j.execution = p_head.execution and j.bucket = p_head.bucket and j.seq < p_upto
$$;
comment on function durable._past(durable._executions, integer) is
  'The rows before a position, each with its last event before that position.';

create or replace function durable._past_children(p_head durable._executions, p_upto integer)
returns table (child integer, type durable.row_type, name text, last_type durable.row_type, event text, attempt integer,
               referred text, data text)
language sql stable
as $$
  select distinct on (r.child) r.child, first_value(r.type) over made, first_value(r.name) over made, r.type, r.event, r.attempt,
         r.name, r.data
  from durable._past(p_head, p_upto) r
  where r.child is not null and r.type not in ('join_set_submitted', 'join_set_awaited')
  window made as (partition by r.child order by r.seq)
  order by r.child, r.seq desc
$$;
comment on function durable._past_children(durable._executions, integer) is 'Children with their first row and their last event.';

create or replace function durable._kind_of(p_type durable.row_type)
returns text language sql immutable parallel safe
as $$
  select case p_type
    when 'child_run_scheduled' then 'run' when 'promise_registered' then 'promise' when 'timer_scheduled' then 'timer'
    when 'random_generated' then 'random' when 'time_recorded' then 'time' when 'signal_received' then 'signal'
    when 'join_set_created' then 'join_set' else 'step'
  end
$$;
comment on function durable._kind_of(durable.row_type) is 'The kind of a child by its first row, as readable text.';

create or replace function durable._outcome_of(p_state text, p_value text)
returns jsonb language sql immutable
as $$
  select jsonb_build_object('state', p_state)
         || case when p_state = 'resolved' then jsonb_build_object('value', coalesce(durable._json(p_value), 'null'))
                 when p_state like 'rejected%'
                   then jsonb_build_object('error', durable._json(durable._error_of(p_state, p_value)))
                 else '{}' end
$$;
comment on function durable._outcome_of(text, text) is 'State and, if it is settled, value or error.';

create or replace function durable._children_then(p_head durable._executions, p_upto integer)
returns jsonb language sql stable
as $$
  select coalesce(jsonb_object_agg(c.child, jsonb_build_object('kind', durable._kind_of(c.type))
           || case when c.name is null then '{}' else jsonb_build_object('name', c.name) end
           || case
             when c.type = 'join_set_created' then '{"state": "open"}'::jsonb || coalesce(m.details, '{"members": []}')
             when c.type in ('random_generated', 'time_recorded') then durable._outcome_of('resolved', c.data)
             when c.type = 'signal_received' then durable._outcome_of('resolved', s.data)
             when c.event not in ('InvokeCompleted', 'TimerFired') then durable._outcome_of('pending', null)
             when c.last_type in ('open_child_settled', 'child_settled', 'timer_fired') and p.id is not null
               then durable._outcome_of(p.state, case when p.state = 'resolved' then durable._plain_value(p)
                                                      when p.state <> 'pending' then durable._plain_error(p) end)
             when durable._holds_result(c.last_type) then durable._outcome_of('resolved', c.data)
             else durable._outcome_of('rejected', c.data) end), '{}')
  from durable._past_children(p_head, p_upto) c
  left join durable._promises p on c.last_type in ('open_child_settled', 'child_settled', 'timer_fired')
       and p.id = any (array[coalesce(c.referred, p_head.id || '.' || c.child)])
  left join durable._signals s on c.type = 'signal_received' and s.execution = p_head.execution and s.name = any (array[c.name])
       and s.delivery = any (array[c.attempt])
  left join (
    select r.attempt as child, jsonb_build_object(
             'members', coalesce(jsonb_agg(r.child order by r.seq) filter (where r.type = 'join_set_submitted'), '[]'))
           || case when bool_or(r.type = 'join_set_awaited') then jsonb_build_object(
                     'state', 'closed',
                     'taken', jsonb_agg(r.child order by r.seq) filter (where r.type = 'join_set_awaited'))
                   else '{}' end as details
    from durable._past(p_head, p_upto) r where r.type in ('join_set_submitted', 'join_set_awaited') group by r.attempt
  ) m on m.child = c.child
$$;
comment on function durable._children_then(durable._executions, integer) is
  'The children by their numbers: kind, name, state, value or error; a join set with its members and the members whose results were taken.';

create or replace function durable._running_then(p_head durable._executions, p_upto integer)
returns jsonb language sql stable
as $$
  select coalesce(jsonb_agg(jsonb_build_object(
           'name', c.name, 'child', c.child,
           'attempt', case c.event when 'InvokeStarted' then c.attempt when 'InvokeRetrying' then c.attempt + 1 else 1 end,
           'state', case c.event when 'InvokeStarted' then 'running' when 'InvokeRetrying' then 'retrying' else 'scheduled' end)
         order by c.child), '[]')
  from durable._past_children(p_head, p_upto) c
  where durable._is_local(c.type) and c.event <> 'InvokeCompleted'
$$;
comment on function durable._running_then(durable._executions, integer) is
  'Local steps that were open at that moment, with the attempt that ran or came next.';

create or replace function durable._signals_then(p_head durable._executions, p_upto integer)
returns jsonb language sql stable
as $$
  select coalesce(jsonb_object_agg(u.name, jsonb_build_object('delivered', u.delivered, 'received', u.received)), '{}')
  from (select r.name, count(*) filter (where r.type = 'signal_delivered') as delivered,
               count(*) filter (where r.type = 'signal_received') as received
        from durable._past(p_head, p_upto) r where r.type in ('signal_delivered', 'signal_received') group by r.name) u
$$;
comment on function durable._signals_then(durable._executions, integer) is 'Deliveries and receipts by name.';

create or replace function durable._as_of(p_head durable._executions, p_generation integer, p_upto integer)
returns durable.as_of_record language plpgsql stable
as $$
declare
  v_then durable.as_of_record;
  v_wait jsonb;
begin
  select durable._at(max(r.ts)), coalesce(max(r.child) filter (where durable._allocates(r.type)) + 1, p_head.first_child),
         (array_agg(s.status order by r.seq desc) filter (where s.status is not null))[1],
         (array_agg(r.data order by r.seq desc) filter (where r.type = 'execution_awaiting'))[1]::jsonb -> 'on'
  into v_then.at, v_then.next_child, v_then.status, v_wait
  from durable._past(p_head, p_upto) r, lateral durable._status_after(r.type) as s (status);
  v_then.generation := p_generation;
  v_then.seq := p_upto;
  v_then.waiting_on := array(
    select p_head.id || '.' || w.child from jsonb_array_elements_text(v_wait) with ordinality as w (child, ord)
    where v_then.status = 'blocked' order by w.ord);
  v_then.running := durable._running_then(p_head, p_upto);
  v_then.children := durable._children_then(p_head, p_upto);
  v_then.signals := durable._signals_then(p_head, p_upto);
  return v_then;
end
$$;
comment on function durable._as_of(durable._executions, integer, integer) is
  'The state of a run after the rows before a position.';

create or replace function durable.as_of(
  id text, seq integer default null, at timestamptz default null, generation integer default null)
returns durable.as_of_record language plpgsql volatile
as $$
declare
  v_past record;
  v_head durable._executions;
begin
  if $2 is not null and $3 is not null then
    perform durable._fail_invalid('A moment is a seq or an instant, not both.');
  end if;
  select * into v_past from durable._past_head($1, $4, $3);
  select * into v_head from durable._executions h where h.execution = v_past.execution;
  return durable._as_of(v_head, v_past.generation, durable._past_seq(v_head, $2, $3));
end
$$;
comment on function durable.as_of(text, integer, timestamptz, integer) is
  'The state of a run when its journal had seq events, or at an instant; now if neither is given: select * from durable.as_of(''order-42'', at => now() - interval ''1 hour''). generation: an earlier one of a run that continued as new; an instant finds its own. WF001, WF004 for a moment before the run began.';
