-- Pins: the executions that stand for nodes in a scope. A result is visible through its pin only.

create or replace function durable._pin(p_pins durable._new_pin[], p_execution_key bytea, p_now bigint)
returns void language plpgsql volatile
as $$
declare
  v_replacing durable._new_pin[];
begin
  with pinned as (
    insert into durable._pins as p (pinned_at, version, scope, node_id, exec_id, inputs)
    select p_now, 1, n.scope, n.node_id, n.exec_id, n.inputs from unnest(p_pins) n order by n.scope collate "C", n.node_id
    on conflict on constraint pins_pk do nothing
    returning p.scope, p.node_id, p.exec_id
  )
  insert into durable._pin_log (pinned_at, version, scope, node_id, exec_id, execution_key)
  select p_now, 1, p.scope, p.node_id, p.exec_id, p_execution_key from pinned p order by p.scope, p.node_id;
  v_replacing := array(
    select n from unnest(p_pins) n
    join durable._pins p on p.scope = any (array[n.scope]) and p.node_id = any (array[n.node_id])
    where n.replaces and (p.exec_id, p.inputs) is distinct from (n.exec_id, n.inputs));
  if v_replacing = '{}' then
    return;
  end if;
  perform durable._lock_pins(v_replacing);
  insert into durable._pin_log (pinned_at, version, scope, node_id, exec_id, prev_exec, execution_key)
  select p_now, p.version + 1, p.scope, p.node_id, n.exec_id, p.exec_id, p_execution_key
  from unnest(v_replacing) n
  join durable._pins p on p.scope = any (array[n.scope]) and p.node_id = any (array[n.node_id])
  where p.exec_id <> n.exec_id order by p.scope, p.node_id;
  update durable._pins p
  set exec_id = n.exec_id, inputs = n.inputs, version = p.version + (p.exec_id <> n.exec_id)::integer,
      pinned_at = case when p.exec_id = n.exec_id then p.pinned_at else p_now end
  from unnest(v_replacing) n
  where p.scope = any (array[n.scope]) and p.node_id = any (array[n.node_id]);
end
$$;
comment on function durable._pin(durable._new_pin[], bytea, bigint) is
  'Pins results. Where a scope has a pin of the node already, the first one stays unless the new one replaces it. Both are written to the log. The same execution from other inputs is no other pin, but no longer a stale one.';

create or replace function durable.pin_set(scope text, node bytea, exec bytea, expect bytea default null)
returns boolean language plpgsql volatile
as $$
declare
  v_exec durable._objects;
  v_inputs bytea[];
  v_now bigint;
begin
  perform durable._check_may_lock();
  select * into v_exec from durable._objects o where o.id = $3;
  if not exists (select from durable._refs r where r.name = $1 and r.kind = 'index') then
    perform durable._fail_not_found('scope', $1, 'select durable.scope_open(...) makes one.');
  elsif v_exec.kind is distinct from 'exec' then
    perform durable._fail_not_found('execution', encode($3, 'hex'), 'Look at select * from durable.call_history(node).');
  elsif v_exec.refs[1] is distinct from $2 then
    perform durable._fail_invalid(format('Execution %s is not of node %s.', encode($3, 'hex'), encode($2, 'hex')));
  elsif durable.closure_status($3) <> 'ok' then
    perform durable._fail_excised($3);
  end if;
  v_inputs := array(
    select coalesce(p.exec_id, durable._no_object())
    from durable._objects o
    cross join lateral unnest(o.refs[2:]) with ordinality as i (id, place)
    left join durable._pins p on p.scope = $1 and p.node_id = any (array[i.id])
    where o.id = $2 order by i.place);
  perform durable._lock_scope($1);
  perform durable._lock_pins(array[row($1, $2, $3, v_inputs, true)::durable._new_pin]);
  v_now := durable._now_ms();
  if (select p.exec_id from durable._pins p where p.scope = $1 and p.node_id = $2) is distinct from $4 then
    return false;
  end if;
  perform durable._pin(array[row($1, $2, $3, v_inputs, $4 is not null)::durable._new_pin], null, v_now);
  return exists (select from durable._pins p where p.scope = $1 and p.node_id = $2 and p.exec_id = $3);
end
$$;
comment on function durable.pin_set(text, bytea, bytea, bytea) is
  'Pins an execution by hand, only if the scope has expect pinned at this moment (null: nothing): compare and swap. False if it has another. WF001, WF004, WF015.';
