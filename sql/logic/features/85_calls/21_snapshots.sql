-- Snapshots: the commit that a call is given to work on. An orchestrator publishes commits on top of it, and nothing else: execs
-- in such a commit are objects like any other and are never pinned. A snapshot is ephemeral, its result is not.

create or replace function durable._put_snapshot(p_scope text)
returns bytea language plpgsql volatile
as $$
declare
  v_scope durable._refs := durable._ref(p_scope, '{index}');
  v_tree bytea := (select o.refs[1] from durable._objects o where o.id = v_scope.commit_id);
begin
  return (durable._put_objects(array[durable._commit_object(v_tree, v_scope.commit_id, p_scope)]))[1];
end
$$;
comment on function durable._put_snapshot(text) is 'The commit of a scope as it is, its pins included. WF001, WF004.';

create or replace function durable.snapshot_create(scope text, uuid uuid default gen_random_uuid())
returns table (ref text, commit_id bytea) language plpgsql volatile
as $$
begin
  if $2 is null then
    perform durable._fail_invalid('A snapshot is named by a UUID; leave it out for a new one.');
  end if;
  ref := 'exec/' || $2;
  commit_id := durable._put_snapshot($1);
  insert into durable._refs (created_at, commit_id, name, kind)
  values (durable._now_ms(), snapshot_create.commit_id, ref, 'exec') on conflict on constraint refs_pk do nothing;
  if not found then
    perform durable._fail_conflict(format('Snapshot %L exists.', ref), 'Give each snapshot a UUID of its own.');
  end if;
  return next;
end
$$;
comment on function durable.snapshot_create(text, uuid) is
  'Freezes a scope, its pins included, as a commit under the name exec/<uuid>: select * from durable.snapshot_create(''exp-7''). WF001, WF003, WF004.';

create or replace function durable.snapshot_advance(ref text, commit bytea, expect_version integer default null)
returns integer language plpgsql volatile
as $$
begin
  return durable._forward($1, $2, $3, '{exec}');
end
$$;
comment on function durable.snapshot_advance(text, bytea, integer) is
  'Moves a snapshot to a commit that was made from it, which is how a result is published. Execs in it are ignored: only durable.call_report_v1 and its kin pin. WF001, WF003 for a commit that does not come after it, WF015.';

create or replace function durable._prune_snapshots(p_before bigint, p_limit integer)
returns integer language plpgsql volatile
as $$
declare
  v_count integer;
begin
  delete from durable._refs r where r.name = any (array(
    select x.name from durable._refs x
    where x.kind = 'exec' and x.created_at <= p_before
      and (select count(*) from durable._call_attempts a where a.ref_name = x.name and a.ended_at is null) = 0
    order by x.created_at, x.name limit p_limit for update of x skip locked));
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
comment on function durable._prune_snapshots(bigint, integer) is
  'Drops snapshots that are this old, the oldest first, at most so many (null: all). One that a running attempt reads stays.';

create or replace function durable.snapshot_prune(older_than interval default '1 day')
returns integer language plpgsql volatile
as $$
begin
  if $1 is null or $1 < interval '0' then
    perform durable._fail_invalid('Snapshots are pruned from an age on: older_than => ''1 day''.');
  elsif $1 > interval '0' and $1 < interval '1 hour' then
    perform durable._fail_invalid(
      format('older_than is %s: snapshots are pruned from an age of an hour on, or ''0'' for all.', $1),
      'A number without a unit is in seconds. Write the unit: older_than => ''1 day''.');
  end if;
  return durable._prune_snapshots(durable._now_ms() - durable._ms($1), null);
end
$$;
comment on function durable.snapshot_prune(interval) is 'Drops snapshots of this age, except those that a running attempt reads or somebody has locked; answers how many. durable.tick() drops those that are a day old. WF004.';
