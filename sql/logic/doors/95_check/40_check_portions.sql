-- durable.check(): the division of the database into portions, and the check of each by all laws. A portion has about 10,000
-- events or 2,000 promises, so a check of any size sorts little and keeps nothing. It goes through runs by number, then through
-- ids in order, then through objects, keys of calls, scopes and steps. The space between two heads or two promises belongs to a
-- portion too, so rows without a head or promise are found.

create or replace function durable._after(p_id text)
returns text language sql immutable parallel safe
as $$ select p_id || chr(1) $$;
comment on function durable._after(text) is 'The first id after this one in the order of ids.';

create or replace function durable._runs_from(p_first bigint)
returns int8multirange language plpgsql stable
as $$
begin
  return (
    select int8multirange(int8range(p_first, coalesce(
      -- the head that fills the portion, or the last one of the largest number of heads
      min(x.execution) filter (where x.events >= 10000 or x.place = 2000) + 1, 9223372036854775807)))
    from (
      select h.execution, sum(h.next_seq) over w as events, row_number() over w as place
      from (select e.execution, e.next_seq from durable._executions e
            where e.execution >= p_first order by e.execution limit 2000) h
      window w as (order by h.execution)) x);
end
$$ set enable_sort = off set jit = off;
comment on function durable._runs_from(bigint) is
  'The portion of runs that begins with this number; the last portion has no end.';

create or replace function durable._ids_from(p_first text)
returns text language plpgsql stable
as $$
begin
  return coalesce(
    (select p.id from durable._promises p where p.id >= p_first order by p.id offset 2000 limit 1),
    durable._after(greatest(
      p_first collate "C",
      (select p.id from durable._promises p order by p.id desc limit 1),
      (select t.id from durable._tasks t order by t.id desc limit 1),
      (select k.awaited_id from durable._callbacks k order by k.awaited_id desc limit 1),
      (select l.awaited_id from durable._listeners l order by l.awaited_id desc limit 1),
      (select r.task_id from durable._resumes r order by r.task_id desc limit 1),
      (select u.promise_id from durable._unblocks u order by u.promise_id desc limit 1),
      (select w.promise_id from durable._row_waits w order by w.promise_id desc limit 1),
      (select r.id from durable._removed r order by r.id desc limit 1),
      (select s.id from durable._removed_signals s order by s.id desc limit 1),
      (select b.id from durable._backlog b order by b.id desc limit 1),
      (select f.id from durable._forks f order by f.id desc limit 1),
      (select g.id from durable._progress g order by g.id desc limit 1))));
end
$$ set enable_sort = off set jit = off;
comment on function durable._ids_from(text) is
  'The end of the portion of ids that begins with this one: after 2000 promises, or after the last id of any table.';

create or replace function durable._runs_before(
  p_last bigint, p_since bigint, out heads bigint[], out last bigint, out is_end boolean)
returns record language plpgsql stable
as $$
begin
  select array_agg(x.execution) filter (where x.born >= p_since), min(x.execution),
         count(*) < 1000 or not coalesce(bool_or(x.born >= p_since), false)
  into heads, last, is_end
  from (
    select h.execution, (select j.ts from durable._journal j
                         where j.execution = h.execution and j.bucket = h.bucket and j.seq = 0) as born
    from durable._executions h where h.execution < p_last order by h.execution desc limit 1000) x;
end
$$ set enable_sort = off set jit = off;
comment on function durable._runs_before(bigint, bigint) is
  'The heads among a thousand, backwards from a number, that began since an instant. Heads are numbered in the order of their births, except among starts that are under way together, so a thousand older heads in a row end the search.';

create or replace function durable._check_trees(p_heads bigint[])
returns setof durable.check_record language plpgsql stable
as $$
declare
  v_from text[];
  v_to text[];
  v_runs int8multirange;
begin
  -- a run and its descendants; a run that is a descendant of another one in the list is left out
  select array_agg(s.first), array_agg(s.beyond) into v_from, v_to from (
    select x.first, x.beyond, max(x.beyond collate "C") over (
             order by x.first collate "C", x.beyond collate "C" desc rows between unbounded preceding and 1 preceding) as reached
    from (
      select distinct y.first, y.beyond from durable._executions h
      cross join lateral (values (h.id, durable._after(h.id)), (h.id || '.', h.id || '/')) as y (first, beyond)
      where h.execution = any (p_heads)) x) s
  where s.reached is null or s.beyond collate "C" > s.reached;
  return query select x.law, x.id, x.detail from durable._check_ids(v_from, v_to) x;
  for v_runs in
    select range_agg(int8range(x.execution, x.execution + 1))
    from (select h.execution, sum(h.next_seq) over (order by h.execution) / 10000 as portion
          from durable._executions h where h.execution = any (p_heads)) x
    group by x.portion order by x.portion
  loop
    return query select x.law, x.id, x.detail from durable._check_runs(v_runs) x;
  end loop;
end
$$;
comment on function durable._check_trees(bigint[]) is 'All laws of these runs and of the promises below them.';

create or replace function durable._check_run(p_id text)
returns setof durable.check_record language plpgsql stable
as $$
declare
  v_heads bigint[];
begin
  v_heads := array(
    select distinct g.execution from durable._promises_within(
      array[p_id, p_id || '.'], array[durable._after(p_id), p_id || '/']) p
    cross join lateral durable._generations(array[p.head]) g where p.head is not null);
  if v_heads = '{}' then
    return query select x.law, x.id, x.detail
      from durable._check_ids(array[p_id, p_id || '.'], array[durable._after(p_id), p_id || '/']) x;
  else
    return query select * from durable._check_trees(v_heads);
  end if;
end
$$;
comment on function durable._check_run(text) is 'All laws of a run or promise and its descendants, with all generations.';

create or replace function durable._check_keys_of_calls(p_keys bytea[])
returns setof durable.check_record language plpgsql stable
as $$
declare
  v_values bytea[] := array(
    select distinct a.value_key from unnest(p_keys) k join durable._call_attempts a on a.execution_key = any (array[k])
    order by a.value_key);
begin
  return query
    select x.law, x.id, x.detail
    from durable._check_calls(p_keys, array(select k || E'\\x00'::bytea from unnest(p_keys) k)) x
    union all
    select x.law, x.id, x.detail
    from durable._check_call_generations(v_values, array(select k || E'\\x00'::bytea from unnest(v_values) k)) x;
end
$$;
comment on function durable._check_keys_of_calls(bytea[]) is 'All laws of these attempts, and of the value keys that they belong to.';

create or replace function durable._check_scope(p_scope text)
returns setof durable.check_record language plpgsql stable
as $$
declare
  v_after text := durable._after(p_scope);
begin
  return query
    select x.law, x.id, x.detail from durable._check_names(array[p_scope], array[''::bytea], array[v_after], array[''::bytea]) x
    union all
    select x.law, x.id, x.detail from durable._check_pins(array[p_scope], array[''::bytea], array[v_after], array[''::bytea]) x
    union all
    select x.law, x.id, x.detail from durable._check_keys_of_calls(array(
      select distinct l.execution_key from durable._pin_log l
      where l.scope = p_scope and l.execution_key is not null order by l.execution_key)) x;
end
$$;
comment on function durable._check_scope(text) is
  'All laws of a scope: of its name, its pins with their history, and of the attempts that gave them.';

create or replace function durable._check_pins_since(p_since bigint)
returns setof durable.check_record language plpgsql stable
as $$
declare
  v_some record;
  v_last bigint := 9223372036854775807;
begin
  loop
    select count(*) as pins, min(x.id) as first, coalesce(bool_or(x.is_new), false) as is_new,
           array_agg(distinct x.execution_key) filter (where x.is_new and x.execution_key is not null) as keys,
           array_agg(x.scope order by x.id) filter (where x.is_new) as scopes,
           array_agg(x.node_id order by x.id) filter (where x.is_new) as nodes
    into v_some
    from (select l.id, l.scope, l.node_id, l.execution_key, l.pinned_at >= p_since as is_new
          from durable._pin_log l where l.id < v_last order by l.id desc limit 1000) x;
    exit when not v_some.is_new;
    return query
      select distinct x.law, x.id, x.detail from durable._check_pins(
        v_some.scopes, v_some.nodes, v_some.scopes, array(select n || E'\\x00'::bytea from unnest(v_some.nodes) n)) x;
    return query select * from durable._check_keys_of_calls(coalesce(v_some.keys, '{}'));
    v_last := v_some.first;
  end loop;
end
$$ set jit = off;
comment on function durable._check_pins_since(bigint) is
  'All laws of pins that were set since an instant, and of the attempts that gave them: backwards through the log, until a thousand in a row are older.';

create or replace function durable._check_objects_since(p_since bigint)
returns setof durable.check_record language plpgsql stable
as $$
declare
  v_ids bytea[];
  v_at bigint := p_since;
  v_id bytea := '';
begin
  loop
    select array_agg(x.id), (array_agg(x.created_at order by x.created_at desc, x.id desc))[1],
           (array_agg(x.id order by x.created_at desc, x.id desc))[1]
    into v_ids, v_at, v_id
    from (select o.created_at, o.id from durable._objects o
          where (o.created_at, o.id) > (v_at, v_id) and o.excised_at is null order by o.created_at, o.id limit 2000) x;
    exit when v_ids is null;
    return query select x.law, x.id, x.detail
      from durable._check_objects(v_ids, array(select i || E'\\x00'::bytea from unnest(v_ids) i)) x;
  end loop;
end
$$ set jit = off;
comment on function durable._check_objects_since(bigint) is 'All laws of objects that were put first since an instant.';

create or replace function durable._check_since(p_since bigint)
returns setof durable.check_record language plpgsql stable
as $$
declare
  v_some record;
  v_heads bigint[];
  v_last bigint := 9223372036854775807;
  v_ids text[];
begin
  loop
    select * into v_some from durable._runs_before(v_last, p_since) r;
    return query select * from durable._check_trees(coalesce(v_some.heads, '{}'));
    v_last := v_some.last;
    exit when v_some.is_end;
  end loop;
  for v_heads in
    select array_agg(x.execution) from (
      select h.execution, row_number() over () / 1000 as portion
      from durable._tasks t
      join durable._executions h on h.execution = any (array[t.execution])
      cross join lateral (
        select j.ts from durable._journal j where j.execution = h.execution and j.bucket = h.bucket
        order by j.seq desc limit 1) l
      where l.ts >= p_since) x
    group by x.portion
  loop
    return query select * from durable._check_trees(v_heads);
  end loop;
  v_ids := array(select p.id from durable._promises p
                 where p.execution is null and p.head is null and p.created_at >= p_since order by p.created_at, p.id);
  return query select x.law, x.id, x.detail
    from durable._check_ids(v_ids, array(select durable._after(i) from unnest(v_ids) i)) x;
  return query select * from durable._check_keys_of_calls(array(
    select durable._call_key(i) from unnest(v_ids) i where durable._call_key(i) is not null));
  return query select * from durable._check_pins_since(p_since);
  return query select * from durable._check_objects_since(p_since);
end
$$ set enable_sort = off set jit = off;
comment on function durable._check_since(bigint) is
  'All laws of the runs that began since an instant, of the live ones whose journal has grown since, and of promises without a run, attempts, pins and objects that were made since.';

create or replace function durable._stage_after(p_stage text)
returns jsonb language plpgsql stable
as $$
begin
  return (
    select jsonb_build_object(s.stage, '')
    from (values
      (1, 'object', exists (select from durable._objects)),
      (2, 'key', exists (select from durable._calls) or exists (select from durable._call_attempts)
                 or exists (select from durable._call_waiters) or exists (select from durable._claims)
                 or exists (select from durable._promises p where p.id > 'call:' and p.id < 'call;')),
      (3, 'scope', exists (select from durable._refs) or exists (select from durable._pins)
                   or exists (select from durable._pin_log)),
      (4, 'step', exists (select from durable._call_steps))) as s (place, stage, has_rows)
    where s.has_rows and s.place > coalesce(array_position('{object,key,scope,step}', p_stage), 0)
    order by s.place limit 1);
end
$$;
comment on function durable._stage_after(text) is
  'Where a check goes on after this stage: after runs and ids there are objects, keys of calls, scopes with their pins, and steps. A stage without rows is passed over.';

create or replace function durable._check_object_portion(p_from bytea, out broken durable.check_record[], out more jsonb)
language plpgsql stable
as $$
declare
  -- a variable: as an argument the look-up would be inlined, and made again for each object
  v_to bytea := durable._objects_to(p_from);
begin
  broken := array(select row(x.law, x.id, x.detail)::durable.check_record
                  from durable._check_objects(array[p_from], array[coalesce(v_to, durable._no_key_reaches())]) x);
  if p_from = '' then
    broken := broken || array(select row(x.law, x.id, x.detail)::durable.check_record from durable._check_excisions() x);
  end if;
  more := case when v_to is null then durable._stage_after('object') else jsonb_build_object('object', durable._hex(v_to)) end;
end
$$;
comment on function durable._check_object_portion(bytea) is 'The portion of objects that begins with this id.';

create or replace function durable._check_key_portion(p_from bytea, out broken durable.check_record[], out more jsonb)
language plpgsql stable
as $$
declare
  v_to bytea := durable._keys_to(p_from);
  v_end bytea := coalesce(v_to, durable._no_key_reaches());
begin
  broken := array(
    select row(x.law, x.id, x.detail)::durable.check_record from durable._check_calls(array[p_from], array[v_end]) x
    union all
    select row(x.law, x.id, x.detail)::durable.check_record from durable._check_call_generations(array[p_from], array[v_end]) x);
  more := case when v_to is null then durable._stage_after('key') else jsonb_build_object('key', durable._hex(v_to)) end;
end
$$;
comment on function durable._check_key_portion(bytea) is
  'The portion of calls whose keys begin here: execution keys and value keys, which have one range and the same spread.';

create or replace function durable._check_scope_portion(
  p_scope text, p_node bytea, out broken durable.check_record[], out more jsonb)
language plpgsql stable
as $$
declare
  v_to record;
  v_end text;
begin
  select * into v_to from durable._pins_to(p_scope, p_node) e;
  v_end := coalesce(v_to.scope, durable._no_name_reaches());
  broken := array(
    select row(x.law, x.id, x.detail)::durable.check_record
    from durable._check_names(array[p_scope], array[p_node], array[v_end], array[coalesce(v_to.node, '')]) x
    union all
    select row(x.law, x.id, x.detail)::durable.check_record
    from durable._check_pins(array[p_scope], array[p_node], array[v_end], array[coalesce(v_to.node, '')]) x);
  more := case when v_to.scope is null then durable._stage_after('scope')
               else jsonb_build_object('scope', v_to.scope, 'node', durable._hex(v_to.node)) end;
end
$$;
comment on function durable._check_scope_portion(text, bytea) is 'The portion of names and pins that begins at this scope and node.';

create or replace function durable._check_step_portion(p_from text, out broken durable.check_record[], out more jsonb)
language plpgsql stable
as $$
declare
  v_to text := (select s.step_id from durable._call_steps s where s.step_id >= p_from order by s.step_id offset 2000 limit 1);
begin
  broken := array(select row(x.law, x.id, x.detail)::durable.check_record
                  from durable._check_steps(p_from, coalesce(v_to, durable._no_name_reaches())) x);
  more := case when v_to is not null then jsonb_build_object('step', v_to) end;
end
$$;
comment on function durable._check_step_portion(text) is 'The portion of steps that begins with this id.';

create or replace function durable._check_run_portion(
  p_from bigint, out broken durable.check_record[], out runs bigint, out more jsonb)
language plpgsql stable
as $$
declare
  v_runs int8multirange := durable._runs_from(coalesce(p_from, -9223372036854775808));
begin
  broken := array(select row(x.law, x.id, x.detail)::durable.check_record from durable._check_runs(v_runs) x);
  if p_from is null then
    broken := broken || array(
      select row(x.law, x.id, x.detail)::durable.check_record
      from (select * from durable._check_setup() union all select * from durable._check_schedules()
            union all select * from durable._check_row_events()) x);
  end if;
  runs := (select count(*) from durable._heads_within(v_runs));
  more := case when upper(v_runs) < 9223372036854775807 then jsonb_build_object('run', upper(v_runs)) else '{"id": ""}' end;
end
$$;
comment on function durable._check_run_portion(bigint) is
  'The portion of runs that begins with this number; with the first one, null, the laws of rows that lie in no portion.';

create or replace function durable._check_id_portion(
  p_from text, out broken durable.check_record[], out promises bigint, out more jsonb)
language plpgsql stable
as $$
declare
  v_to text := durable._ids_from(p_from);
begin
  broken := array(select row(x.law, x.id, x.detail)::durable.check_record from durable._check_ids(array[p_from], array[v_to]) x);
  promises := (select count(*) from durable._promises p where p.id >= p_from and p.id < v_to);
  more := case when exists (select from durable._promises p where p.id >= v_to) then jsonb_build_object('id', v_to)
               else durable._stage_after('id') end;
end
$$;
comment on function durable._check_id_portion(text) is 'The portion of promises, and of what belongs to them, that begins with this id.';

create or replace function durable.check_portion(after jsonb default null)
returns table (broken durable.check_record[], runs bigint, promises bigint, more jsonb) language plpgsql stable
as $$
begin
  runs := 0;
  promises := 0;
  if $1 ? 'object' then
    select p.* into broken, more from durable._check_object_portion(decode($1 ->> 'object', 'hex')) p;
  elsif $1 ? 'key' then
    select p.* into broken, more from durable._check_key_portion(decode($1 ->> 'key', 'hex')) p;
  elsif $1 ? 'scope' then
    select p.* into broken, more
    from durable._check_scope_portion($1 ->> 'scope', decode(coalesce($1 ->> 'node', ''), 'hex')) p;
  elsif $1 ? 'step' then
    select p.* into broken, more from durable._check_step_portion($1 ->> 'step') p;
  elsif $1 ? 'id' then
    select p.* into broken, promises, more from durable._check_id_portion($1 ->> 'id') p;
  else
    select p.* into broken, runs, more from durable._check_run_portion(($1 ->> 'run')::bigint) p;
  end if;
  return next;
end
$$;
comment on function durable.check_portion(jsonb) is
  'One portion of durable.check(): the violations in it, how many runs and promises it had, and where to continue (after); more is null after the last one. Each portion may be a transaction of its own.';

create or replace function durable._check_named(p_id text)
returns setof durable.check_record language plpgsql stable
as $$
declare
  v_key bytea := durable._call_key(p_id);
  v_is_promise boolean := exists (select from durable._promises p where p.id = p_id);
  v_is_attempt boolean := exists (select from durable._call_attempts a where a.execution_key = v_key);
  v_is_scope boolean := exists (select from durable._refs r where r.name = p_id)
                        or exists (select from durable._pins p where p.scope = p_id);
begin
  if not (v_is_promise or v_is_attempt or v_is_scope) then
    perform durable._fail_not_found('promise', p_id);
  end if;
  if v_is_promise then
    return query select * from durable._check_run(p_id);
  end if;
  if v_key is not null then
    return query select * from durable._check_keys_of_calls(array[v_key]);
  end if;
  if v_is_scope then
    return query select * from durable._check_scope(p_id);
  end if;
end
$$;
comment on function durable._check_named(text) is
  'All laws of that which has this id: a run or promise, an attempt, a scope; a run and its scope have one name. WF001.';

create or replace function durable.check(id text default null, since interval default null)
returns setof durable.check_record language plpgsql stable
as $$
declare
  v_portion record;
  v_after jsonb;
begin
  if $1 is not null and $2 is not null then
    perform durable._fail_invalid('A check is of one run or of what happened since, not both.');
  elsif $2 is not null then
    return query select distinct x.* from durable._check_since(durable._now_ms() - durable._ms($2)) x;
    return;
  elsif $1 is not null then
    return query select distinct x.* from durable._check_named($1) x;
    return;
  end if;
  loop
    select * into v_portion from durable.check_portion(v_after);
    return query select b.* from unnest(v_portion.broken) b;
    v_after := v_portion.more;
    exit when v_after is null;
  end loop;
end
$$;
comment on function durable.check(text, interval) is
  'One row for each violated law: its name, the object, the values; no row if all laws hold. check() reads everything, in portions: on a big database run it on a replica, or use pyengine check, which shows its progress. check(''order-42'') reads a run with its descendants, and the scope of that name; its parent''s journal is checked with the parent. check(''call:<key>'') reads one attempt with its waiters and its call, check(''exp-7'') one scope with its pins and their attempts. check(since => ''1 hour'') reads the runs that began since then and the live ones whose journal has grown, and attempts, pins and objects that were made since; only the complete check reads what began before and has changed since. WF001, WF004.';
