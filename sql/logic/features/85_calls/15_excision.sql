-- Excision: the content of an object is removed on purpose, and its row stays as a tombstone, so that nothing is ever stored
-- under its id again. Readers refuse it, and results that reach it are misses.

create or replace function durable.object_excise(id bytea, reason text)
returns boolean language plpgsql volatile
as $$
declare
  v_kind text;
  v_now bigint;
begin
  if $2 is null or octet_length($2) not between 1 and 1000 then
    perform durable._fail_invalid('An excision has a reason, 1 to 1000 bytes.');
  end if;
  perform durable._lock_excisions();
  v_kind := (select o.kind from durable._objects o where o.id = $1);
  if v_kind is null then
    perform durable._fail_not_found('object', durable._hex($1), 'Read the ids from durable.objects.');
  elsif v_kind not in ('datum', 'dag', 'request') then
    perform durable._fail_invalid(format('Object %s is a %s, which has no content of its own.', durable._hex($1), v_kind),
                                  'Excise its datums, or the DAG.');
  end if;
  v_now := durable._now_ms();
  update durable._objects o
  set excised_at = greatest(v_now, o.created_at), reason = $2, scalar = null, refs = '{}', names = '{}',
      excision = 1 + coalesce((select max(x.excision) from durable._objects x where x.excision is not null), 0)
  where o.id = $1 and o.excised_at is null;
  return found;
end
$$;
comment on function durable.object_excise(bytea, text) is
  'Removes the content of a datum, DAG or request: select durable.object_excise(''\x5c...'', ''contains a name''). It is gone at once and for ever. Its id is never stored again, not even by a run that computes it again, so a value that anybody may need, as true or 1, is not one to excise. Results that reach it are misses from now on, and their readers get WF015. Answers false if it was excised before. WF001, WF004.';
