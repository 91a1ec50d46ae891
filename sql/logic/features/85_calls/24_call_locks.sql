-- Locks of calls that wait, taken after promises, tasks and heads: _calls, then _call_attempts, then _claims, then _pins, each by
-- key. They belong to verbs, which run in transactions of users. Workers take those of 26_call_try_locks.sql.
-- One call sets pins before it locks _calls: those of the builtins among its inputs, and those that a fork takes over from its
-- journal. All calls set them first, in one order, and no result of an attempt is ever the result of a builtin.

create or replace function durable._lock_call(p_value_key bytea)
returns durable._calls language plpgsql volatile
as $$
declare
  v_call durable._calls;
begin
  select * into v_call from durable._calls c where c.value_key = p_value_key for no key update;
  return v_call;
end
$$;
comment on function durable._lock_call(bytea) is 'The row of a value key: one session at a time decides whether to start an attempt. Answers the row.';

create or replace function durable._lock_attempt(p_execution_key bytea)
returns durable._call_attempts language plpgsql volatile
as $$
declare
  v_attempt durable._call_attempts;
begin
  select * into v_attempt from durable._call_attempts a where a.execution_key = p_execution_key for no key update;
  return v_attempt;
end
$$;
comment on function durable._lock_attempt(bytea) is
  'An attempt, to join or to leave it: its waiters stay as they are meanwhile, and its result is pinned before or after. Answers the row.';

create or replace function durable._lock_claim(p_execution_key bytea)
returns durable._claims language plpgsql volatile
as $$
declare
  v_claim durable._claims;
begin
  select * into v_claim from durable._claims c where c.execution_key = p_execution_key for no key update;
  return v_claim;
end
$$;
comment on function durable._lock_claim(bytea) is 'A claim, whose promise and task are locked already. Answers the row.';

create or replace function durable._lock_pins(p_pins durable._new_pin[])
returns void language plpgsql volatile
as $$
begin
  perform from durable._pins p
  where (p.scope, p.node_id) in (select n.scope, n.node_id from unnest(p_pins) n)
  order by p.scope, p.node_id for no key update;
end
$$;
comment on function durable._lock_pins(durable._new_pin[]) is 'Pins that are to be replaced, in the order of their keys.';
