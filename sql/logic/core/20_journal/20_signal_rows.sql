-- Inboxes, updated by rows about signals. Called by _append only, under the lock of the head.

create or replace function durable._update_inboxes(p_events durable._event[])
returns void language plpgsql volatile
as $$
begin
  insert into durable._inboxes as i (execution, name, delivered)
  select e.execution, e.name, max(e.attempt)
  from unnest(p_events) e where e.type = 'signal_delivered' group by e.execution, e.name
  on conflict (execution, name) do update set delivered = excluded.delivered;
  update durable._inboxes i set received = r.received, receiver = null
  from (select e.execution, e.name, max(e.attempt) as received
        from unnest(p_events) e where e.type = 'signal_received' group by 1, 2) r
  where i.execution = any (array[r.execution]) and i.name = any (array[r.name]);
end
$$;
comment on function durable._update_inboxes(durable._event[]) is
  'Counts deliveries and receipts, and ends the wait of a run that received.';

create or replace function durable._check_inboxes(p_events durable._event[])
returns void language plpgsql stable
as $$
begin
  perform durable._fail_journal(e.execution, e.type, e.child,
                                format('number %s of signal %L is not the next one', e.attempt, e.name))
  from (
    select x.*, row_number() over (partition by x.execution, x.type, x.name order by x.ord) as place,
           count(*) filter (where x.type = 'signal_delivered')
             over (partition by x.execution, x.name order by x.ord) as delivered_here
    from unnest(p_events) with ordinality as x (execution, type, child, attempt, name, input_hash, data, ord)
    where x.type in ('signal_delivered', 'signal_received')
  ) e
  left join durable._inboxes i on i.execution = any (array[e.execution]) and i.name = any (array[e.name])
  where e.attempt is distinct from e.place + coalesce(case e.type when 'signal_delivered' then i.delivered else i.received end, 0)
     or (e.type = 'signal_received' and e.attempt > coalesce(i.delivered, 0) + e.delivered_here);
end
$$;
comment on function durable._check_inboxes(durable._event[]) is
  'Guards of signals: deliveries of a name are numbered densely from 1; receipt n takes delivery n, which exists (CF-2, CF-3, X-6).';
