-- Time where no worker runs: people and pg_cron call durable.tick(), which also serves the tasks of services.

create or replace function durable._sweep_for_people()
returns jsonb language plpgsql volatile
as $$
declare
  -- randomly if waits for rows are due too, because testing them needs a transaction without locks
  v_fired jsonb := durable.tick_v1(500, not durable._rows_due(durable._now_ms()) or random() < 0.5);
  v_answer jsonb := v_fired;
begin
  if (v_fired ->> 'schedules')::integer > 0 then
    v_answer := durable.tick_v1(500, false);
    v_answer := v_answer || jsonb_build_object('schedules', v_fired -> 'schedules',
                                               'hints', (v_fired -> 'hints') || (v_answer -> 'hints'));
  end if;
  if v_answer -> 'hints' <> '[]' then
    perform durable._hint('durable_ready', durable._now_ms());
  end if;
  return v_answer || jsonb_build_object('served', 0,
    'more', (v_answer ->> 'more')::boolean or exists (select from durable.next_service_v1()));
end
$$;
comment on function durable._sweep_for_people() is
  'One bounded round of housekeeping, for both schedules and deadlines, with its hints.';

create or replace function durable._serve_for_people()
returns jsonb language plpgsql volatile
as $$
declare
  v_answer jsonb;
begin
  v_answer := (select durable._serve(n.id) from durable.next_service_v1() n);
  if v_answer is null then
    -- every ready task is locked, or served by another session: this transaction has no locks
    return durable._sweep_for_people();
  end if;
  if (v_answer ->> 'served')::integer > 0 then
    perform durable._hint('durable_ready', durable._now_ms());
    perform durable._hint('durable_settled', durable._now_ms());
  end if;
  return jsonb_build_object('promises', 0, 'leases', 0, 'schedules', 0, 'next_due_ms', 0, 'more', true,
                            'hints', coalesce(v_answer -> 'hints', '[]'), 'served', coalesce(v_answer -> 'served', '0'));
end
$$;
comment on function durable._serve_for_people() is
  'Serves one task, alone in its transaction: its locks must not be held while a sweep waits. Not pinned, because the function runs under the settings of the session.';

create or replace function durable._tick()
returns jsonb language plpgsql volatile
as $$
begin
  -- randomly, so that a backlog of one kind never delays the other
  if durable.services_due_v1() = 0 and not durable._paused() and random() < 0.75 then
    return durable._serve_for_people();
  end if;
  return durable._sweep_for_people();
end
$$;
comment on function durable._tick() is 'Serves one task of a service, or does one round of housekeeping.';

create or replace function durable.tick()
returns jsonb language sql volatile
as $$ select durable._tick() $$;
comment on function durable.tick() is
  'For people and for pg_cron where no worker runs: serves one task of a service (durable.serve) or does one bounded round of housekeeping, for both schedules and deadlines. Call it again while it answers "more".';
