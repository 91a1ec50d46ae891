-- Scopes, heads and commits. A head is a branch; a scope (an index) is where work goes on: its exec map is its pins, one row
-- each, and a commit freezes them. Objects are put first, then names are locked in their order, and each change of a name is a
-- compare-and-swap: it names the version that it replaces, or it is begun again.

create or replace function durable._ref(p_name text, p_kinds text[])
returns durable._refs language plpgsql volatile
as $$
declare
  v_ref durable._refs;
begin
  select * into v_ref from durable._refs r where r.name = p_name;
  if v_ref.name is null then
    perform durable._fail_not_found('ref', p_name, 'Open it: select durable.scope_open(''name''); or read durable.refs.');
  elsif v_ref.kind <> all (p_kinds) then
    perform durable._fail_invalid(format('%L is a ref of kind %s, and not %s.', p_name, v_ref.kind,
                                         array_to_string(p_kinds, ' or ')));
  end if;
  return v_ref;
end
$$;
comment on function durable._ref(text, text[]) is 'A ref of one of these kinds. WF001, WF004.';

create or replace function durable._put_first_commit()
returns bytea language plpgsql volatile
as $$
declare
  v_tree bytea := durable._object_id('tree', '', null, '{}', '{}');
begin
  return (durable._put_objects(array[
    row(v_tree, 'tree', '', null, '{}', '{}')::durable._object,
    row(null, 'commit', '', int4send(0), array[v_tree], '{}')::durable._object]))[2];
end
$$;
comment on function durable._put_first_commit() is 'The commit with which every history begins: an empty tree, no parent.';

create or replace function durable._execs_of(p_commit bytea)
returns table (node bytea, exec bytea, request bytea) language sql stable
as $$
  select o.refs[n], o.refs[n + 1], nullif(o.refs[n + 2], durable._no_object())
  from durable._objects o
  cross join lateral generate_series(durable._parents(o.scalar)::integer + 2, cardinality(o.refs), 3) n
  where o.id = p_commit
$$;
comment on function durable._execs_of(bytea) is 'The exec map of a commit, by node.';

create or replace function durable._parents_of(p_commit bytea)
returns bytea[] language sql stable
as $$ select o.refs[2 : durable._parents(o.scalar)::integer + 1] from durable._objects o where o.id = p_commit $$;
comment on function durable._parents_of(bytea) is 'The parents of a commit.';

create or replace function durable._is_ancestor(p_old bytea, p_new bytea)
returns boolean language sql stable
as $$
  with recursive history (id) as (
    select p_new
    union
    select a.id from history h cross join lateral unnest(durable._parents_of(h.id)) a (id) where h.id <> p_old
  )
  select exists (select from history h where h.id = p_old)
$$;
comment on function durable._is_ancestor(bytea, bytea) is 'Whether the new commit is the old one or was made from it.';

create or replace function durable._scope_execs(p_scope text)
returns table (node bytea, exec bytea, request bytea) language sql stable
as $$
  select p.node_id, p.exec_id, q.refs[2]
  from durable._pins p
  left join durable._pin_log l on l.scope = p.scope and l.node_id = p.node_id and l.version = p.version
  left join durable._call_attempts a on a.execution_key = any (array[l.execution_key])
  left join durable._objects q on q.id = any (array[a.request_id])
  where p.scope = p_scope
$$;
comment on function durable._scope_execs(text) is 'The exec map of a scope: its pins, each with the request that its attempt was made with.';

create or replace function durable._pin_commit(p_scope text, p_commit bytea, p_now bigint)
returns void language plpgsql volatile
as $$
begin
  insert into durable._pins (pinned_at, version, scope, node_id, exec_id)
  select p_now, 1, p_scope, e.node, e.exec from durable._execs_of(p_commit) e order by e.node;
  insert into durable._pin_log (pinned_at, version, scope, node_id, exec_id)
  select p_now, 1, p_scope, e.node, e.exec from durable._execs_of(p_commit) e order by e.node;
end
$$;
comment on function durable._pin_commit(text, bytea, bigint) is 'A new scope has the exec map of the commit that it was opened on.';

create or replace function durable.scope_open(name text, kind text default 'index', base text default null)
returns table (version integer, commit_id bytea, is_new boolean) language plpgsql volatile
as $$
declare
  v_ref durable._refs;
  v_commit bytea;
begin
  if $1 is null or octet_length($1) not between 1 and 1024 or $1 is not nfc normalized then
    perform durable._fail_invalid('The name of a scope or head has 1 to 1024 bytes, in Unicode form NFC.');
  elsif $2 is null or $2 not in ('index', 'head') then
    perform durable._fail_invalid('Opened are scopes (index) and heads (head); snapshots are made by durable.snapshot_create.');
  end if;
  select * into v_ref from durable._refs r where r.name = $1;
  if v_ref.name is null then
    v_commit := case when $3 is null then durable._put_first_commit() else (durable._ref($3, '{head}')).commit_id end;
    perform durable._lock_objects(array[v_commit]);
    insert into durable._refs (created_at, commit_id, name, kind, base)
    values (durable._now_ms(), v_commit, $1, $2, case when $2 = 'index' then $3 end) on conflict on constraint refs_pk do nothing;
    is_new := found;
    if is_new and $2 = 'index' and $3 is not null then
      perform durable._pin_commit($1, v_commit, durable._now_ms());
    end if;
  end if;
  v_ref := durable._ref($1, array[$2]);
  if $3 is not null and $2 = 'index' and v_ref.base is distinct from $3 then
    perform durable._fail_conflict(format('Scope %L is open on %L.', $1, v_ref.base));
  end if;
  return query select v_ref.version, v_ref.commit_id, coalesce(is_new, false);
end
$$;
comment on function durable.scope_open(text, text, text) is
  'Opens a scope, or makes a head (kind => ''head''); one that exists is answered as it is: select * from durable.scope_open(''exp-7'', base => ''main''). A scope with a base begins with the head''s exec map, and durable.scope_commit moves the head. WF001, WF003 for another base, WF004.';

create or replace function durable._open_run_scope(p_name text)
returns void language plpgsql volatile
as $$
begin
  if not exists (select from durable._refs r where r.name = p_name and r.kind = 'index')
     and (select s.is_new from durable.scope_open(p_name) s) then
    update durable._refs r set of_run = true where r.name = p_name;
  end if;
end
$$;
comment on function durable._open_run_scope(text) is
  'The scope of the calls of a run, which has its name: made with the first call, and dropped after the run is removed. One that people have opened under this name is used, and stays theirs.';

create or replace function durable._tree_with(p_commit bytea, p_name text, p_dag bytea)
returns durable._object language plpgsql stable
as $$
declare
  v_tree durable._objects;
  v_names text[];
  v_refs bytea[];
begin
  select t.* into v_tree from durable._objects c
  cross join lateral (select x.* from durable._objects x where x.id = any (array[c.refs[1]])) t where c.id = p_commit;
  select array_agg(n.name order by n.name collate "C"), array_agg(n.dag order by n.name collate "C") into v_names, v_refs
  from (
    select e.name, e.dag from unnest(v_tree.names, v_tree.refs) e (name, dag) where e.name is distinct from p_name
    union all
    select p_name, p_dag where p_name is not null) n;
  return row(durable._object_id('tree', '', null, v_refs, v_names), 'tree', '', null, coalesce(v_refs, '{}'),
             coalesce(v_names, '{}'))::durable._object;
end
$$;
comment on function durable._tree_with(bytea, text, bytea) is 'The tree of a commit with one DAG under a name, in place of an older one; not put yet.';

create or replace function durable._commit_object(p_tree bytea, p_parent bytea, p_scope text)
returns durable._object language plpgsql stable
as $$
declare
  v_execs bytea[];
begin
  -- the scope wins where both have an exec of a node
  select array_agg(x.id order by e.node, x.place) into v_execs
  from (
    select s.node, s.exec, s.request from durable._scope_execs(p_scope) s
    union all
    select c.node, c.exec, c.request from durable._execs_of(p_parent) c
    where not exists (select from durable._pins p where p.scope = p_scope and p.node_id = any (array[c.node]))) e
  cross join lateral (values (1, e.node), (2, e.exec), (3, coalesce(e.request, durable._no_object()))) as x (place, id);
  return row(null, 'commit', '', int4send(1), array[p_tree, p_parent] || coalesce(v_execs, '{}'), '{}')::durable._object;
end
$$;
comment on function durable._commit_object(bytea, bytea, text) is
  'A commit of a tree on one parent, with the execs of a scope before those of the parent; not put yet.';

create or replace function durable._move_ref(p_name text, p_version integer, p_commit bytea)
returns integer language plpgsql volatile
as $$
declare
  v_version integer;
begin
  update durable._refs r set version = r.version + 1, commit_id = p_commit
  where r.name = p_name and r.version = p_version returning r.version into v_version;
  return v_version;
end
$$;
comment on function durable._move_ref(text, integer, bytea) is
  'The one change of a name: from this version to a commit. Answers the new version; null if it has another version by now. Its caller has locked the name.';

create or replace function durable._commit_scope(p_scope text, p_root bytea, p_name text, p_version integer)
returns bytea language plpgsql volatile
as $$
declare
  v_scope durable._refs := durable._ref(p_scope, '{index}');
  v_target durable._refs := durable._ref(coalesce(v_scope.base, p_scope), '{head,index}');
  v_dag bytea;
  v_new durable._object[] := '{}';
  v_tree durable._object;
  v_commit bytea;
begin
  if p_version <> v_target.version then
    perform durable._fail_conflict(format('%L has version %s, not %s.', v_target.name, v_target.version, p_version));
  end if;
  if p_root is not null then
    v_dag := durable._object_id('dag', '', null, array[p_root], array['']);
    v_new := array[row(v_dag, 'dag', '', null, array[p_root], array[''])::durable._object];
  end if;
  v_tree := durable._tree_with(v_target.commit_id, p_name, v_dag);
  v_new := v_new || v_tree || durable._commit_object(v_tree.id, v_target.commit_id, p_scope);
  v_commit := (durable._put_objects(v_new))[cardinality(v_new)];
  perform durable._lock_refs(array[v_target.name, p_scope]);
  if durable._move_ref(v_target.name, v_target.version, v_commit) is null then
    return null;
  end if;
  if v_target.name <> p_scope then
    update durable._refs r set version = r.version + 1, commit_id = v_commit where r.name = p_scope;
  end if;
  return v_commit;
end
$$;
comment on function durable._commit_scope(text, bytea, text, integer) is 'One try of durable.scope_commit; null if the head has moved meanwhile.';

create or replace function durable.scope_commit(
  scope text, root bytea default null, name text default null, expect_version integer default null)
returns bytea language plpgsql volatile
as $$
declare
  v_commit bytea;
begin
  if ($2 is null) <> ($3 is null) or octet_length($3) not between 1 and 255 then
    perform durable._fail_invalid('A commit has a root node and the name of its DAG, 1 to 255 bytes, or neither.');
  end if;
  loop
    begin
      v_commit := durable._commit_scope($1, $2, normalize($3, nfc), $4);
      exit when v_commit is not null;
      perform durable._start_over();
    exception when sqlstate 'WF099' then
      null;  -- the head is unlocked again: the next round puts other objects, and may wait for whoever waits for the head
    end;
  end loop;
  return v_commit;
end
$$;
comment on function durable.scope_commit(text, bytea, text, integer) is
  'Commits a scope: its pins, and a DAG with this root under a name: select durable.scope_commit(''exp-7'', root, ''model''). The commit is one on top of the head on which the scope is open, which moves to it; where both have an exec of a node, that of the scope counts. A head that moved meanwhile is read again, unless expect_version names its version. WF001, WF003, WF004, WF015.';

create or replace function durable._forward(p_name text, p_commit bytea, p_version integer, p_kinds text[])
returns integer language plpgsql volatile
as $$
declare
  v_ref durable._refs;
begin
  perform durable._lock_objects(array[p_commit]);
  perform durable._lock_refs(array[p_name]);
  v_ref := durable._ref(p_name, p_kinds);
  if not exists (select from durable._objects o where o.id = p_commit and o.kind = 'commit') then
    perform durable._fail_not_found('commit', durable._hex(p_commit), 'Import it first: durable.objects_import.');
  elsif v_ref.version <> p_version then
    perform durable._fail_conflict(format('%L has version %s, not %s.', p_name, v_ref.version, p_version));
  elsif not durable._is_ancestor(v_ref.commit_id, p_commit) then
    perform durable._fail_conflict(format('Commit %s does not come after that of %L.', durable._hex(p_commit), p_name),
                                   'Commit on top of it as it is now.');
  elsif durable.closure_status(p_commit) <> 'ok' then
    perform durable._fail_excised(p_commit);
  end if;
  return durable._move_ref(p_name, v_ref.version, p_commit);
end
$$;
comment on function durable._forward(text, bytea, integer, text[]) is
  'Moves a name of one of these kinds to a commit that was made from its own. WF001, WF003, WF004, WF015.';

create or replace function durable.head_forward(head text, commit bytea, expect_version integer default null)
returns integer language plpgsql volatile
as $$
begin
  return durable._forward($1, $2, $3, '{head}');
end
$$;
comment on function durable.head_forward(text, bytea, integer) is
  'Moves a head to a commit that was made from it, at the version that was read, and answers its new version. WF001, WF003 for any other commit or version, WF015.';

create or replace function durable._has_running_calls(p_scope text)
returns boolean language sql stable
as $$
  select exists (select from durable._call_waiters w
                 join durable._call_attempts a on a.execution_key = any (array[w.execution_key])
                 -- not "is null", which would let the planner read the index of all that run
                 where w.scope = p_scope and coalesce(a.ended_at, -1) = -1)
$$;
comment on function durable._has_running_calls(text) is 'Whether an attempt goes on for a scope.';

create or replace function durable.scope_drop(name text)
returns boolean language plpgsql volatile
as $$
begin
  perform durable._lock_ref_to_drop($1);
  if exists (select from durable._refs r where r.base = $1) then
    perform durable._fail_conflict(format('Scopes are open on %L.', $1), 'Drop them first: durable.refs names them as base.');
  elsif durable._has_running_calls($1) then
    perform durable._fail_conflict(format('Calls of %L are running.', $1), 'Wait for them or cancel them: durable.calls.');
  end if;
  delete from durable._pins p where p.scope = $1;
  delete from durable._refs r where r.name = $1;
  return found;
end
$$;
comment on function durable.scope_drop(text) is
  'Drops a scope with its pins, a head or a snapshot; answers whether there was one. The history of its pins stays for the retention of calls, durable.calls_purge. Waits for calls that are being made in it. WF003 while scopes are open on it or its calls run.';
