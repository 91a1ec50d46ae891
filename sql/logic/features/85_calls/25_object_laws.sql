-- The laws of objects and names as queries: a row is a bug of the engine or a hand in the tables. durable.check() asks for them
-- portion by portion. A number of the list of invariants (I24), which is in 90_call_laws.sql, stands before its law.

create or replace function durable._objects_within(p_from bytea[], p_to bytea[])
returns setof durable._objects language sql stable
as $$
  select x.* from unnest(p_from, p_to) as s (first, beyond)
  cross join lateral (select o.* from durable._objects o where o.id >= s.first and o.id < s.beyond offset 0) x
$$;
comment on function durable._objects_within(bytea[], bytea[]) is 'Objects whose ids lie in the spans; a span has its first id and not its last.';

create or replace function durable._check_contents(p_from bytea[], p_to bytea[])
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, durable._hex(o.id), format('%s %s, %s refs', o.kind, o.sub, cardinality(o.refs))
  from durable._objects_within(p_from, p_to) o
  cross join lateral (values
    ('I1 object_id_is_the_hash_of_its_content',
      o.excised_at is null and o.id <> durable._object_id(o.kind, o.sub, o.scalar, o.refs, o.names)),
    ('I23 object_is_canonical',
      o.excised_at is null and durable._object_flaw(o.kind, o.sub, o.scalar, o.refs, o.names) is not null),
    ('object_was_put_in_the_past', greatest(o.created_at, o.excised_at) > durable._latest(durable._now_ms())),
    ('object_kind_is_known', o.kind <> all ('{datum,node,dag,tree,commit,exec,request}')),
    ('object_scalar_has_the_length_of_its_kind',
      o.excised_at is null and octet_length(o.scalar) is distinct from (case
        when o.kind = 'commit' then 4 when o.kind <> 'datum' then null
        when o.sub = 'bool' then 1 when o.sub in ('i64', 'f64') then 8
        when o.sub in ('bytes', 'string', 'uri') then least(coalesce(octet_length(o.scalar), 0), 1048576) end)),
    ('object_has_as_many_refs_as_its_kind',
      o.excised_at is null and (
        (o.kind in ('exec', 'request') and cardinality(o.refs) <> 2)
        or (o.kind = 'node' and o.sub in ('literal', 'import') and cardinality(o.refs) <> 1)
        or (o.kind in ('node', 'dag', 'commit') and cardinality(o.refs) = 0)
        or (o.kind = 'datum' and o.sub <> all ('{list,set,map}') and o.refs <> '{}'))),
    ('object_names_match_its_refs',
      o.excised_at is null and cardinality(o.names) <> case when o.kind in ('dag', 'tree') then cardinality(o.refs) else 0 end),
    ('object_excised_is_empty',
      num_nonnulls(o.excised_at, o.excision, o.reason) not in (0, 3)
      or (o.excised_at is not null and (o.scalar is not null or o.refs <> '{}' or o.names <> '{}')))
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_contents(bytea[], bytea[]) is 'Laws of single objects.';

create or replace function durable._check_references(p_from bytea[], p_to bytea[])
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, durable._hex(o.id), format('%s %s, ref %s: %s', o.kind, o.sub, r.place, durable._hex(r.id))
  from durable._objects_within(p_from, p_to) o
  cross join lateral unnest(o.refs) with ordinality r (id, place)
  cross join lateral durable._ref_kind(o.kind, o.sub, o.scalar, r.place) e (expected)
  left join durable._objects t on t.id = any (array[r.id])
  left join durable._objects n on o.kind = 'exec' and n.id = any (array[o.refs[1]])
  cross join lateral (values
    ('I24 object_refs_exist', t.id is null and not (e.expected = 'map or none' and r.id = durable._no_object())),
    ('object_refs_are_of_their_kind', not durable._ref_fits(e.expected, t.kind, t.sub)),
    ('exec_result_is_a_dag_or_a_datum',
      o.kind = 'exec' and r.place = 2 and t.kind <> case n.sub when 'call' then 'dag' else 'datum' end),
    ('exec_of_a_commit_is_of_its_node', o.kind = 'commit' and t.kind = 'exec' and t.refs[1] <> o.refs[r.place - 1])
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_references(bytea[], bytea[]) is 'Laws of what objects refer to.';

create or replace function durable._check_closures(p_from bytea[], p_to bytea[])
returns table (law text, id text, detail text) language sql stable
as $$
  select 'closure_is_as_it_was_walked', durable._hex(c.id), format('excision %s, whole %s', c.excision, c.is_whole)
  from unnest(p_from, p_to) as s (first, beyond)
  cross join lateral (select x.* from durable._closures x where x.id >= s.first and x.id < s.beyond offset 0) c
  where c.is_whole and exists (
    select from durable._reached(array[c.id], '{}') x
    join durable._objects o on o.id = any (array[x]) where o.excision <= c.excision)
$$;
comment on function durable._check_closures(bytea[], bytea[]) is 'The law of remembered walks.';

create or replace function durable._check_excisions()
returns table (law text, id text, detail text) language sql stable
as $$
  select 'excisions_are_numbered', 'excisions', format('%s excised, the last is number %s', count(*), max(o.excision))
  from durable._objects o where o.excision is not null having count(*) <> max(o.excision)
$$;
comment on function durable._check_excisions() is 'The law of the numbers of excisions, of which there are few.';

create or replace function durable._check_names(p_scopes text[], p_nodes bytea[], p_to_scopes text[], p_to_nodes bytea[])
returns table (law text, id text, detail text) language sql stable
as $$
  select v.law, r.name, format('kind %s, version %s, commit %s, base %s', r.kind, r.version, durable._hex(r.commit_id), r.base)
  from unnest(p_scopes, p_nodes, p_to_scopes, p_to_nodes) as s (scope, node, to_scope, to_node)
  cross join lateral (
    select x.* from durable._refs x
    where x.name >= s.scope and x.name <= s.to_scope
      and (x.name, ''::bytea) >= (s.scope, s.node) and (x.name, ''::bytea) < (s.to_scope, s.to_node) offset 0) r
  left join durable._objects c on c.id = any (array[r.commit_id])
  left join durable._refs b on b.name = any (array[r.base])
  cross join lateral (values
    ('ref_names_a_commit', c.kind is distinct from 'commit'),
    ('ref_base_is_a_head', r.base is not null and b.kind is distinct from 'head'),
    ('ref_version_positive', r.version < 1),
    ('ref_was_made_in_the_past', r.created_at > durable._latest(durable._now_ms())),
    ('ref_kind_is_known', r.kind <> all ('{head,index,exec}'))
  ) as v (law, broken)
  where v.broken
$$;
comment on function durable._check_names(text[], bytea[], text[], bytea[]) is
  'Laws of names, in the spans of the pins: a name lies before the pins of its scope.';

create or replace function durable._objects_to(p_from bytea)
returns bytea language sql stable
as $$ select o.id from durable._objects o where o.id >= p_from order by o.id offset 2000 limit 1 $$;
comment on function durable._objects_to(bytea) is 'Where a portion of objects that begins with this id ends; null: it is the last.';

create or replace function durable._check_objects(p_from bytea[], p_to bytea[])
returns table (law text, id text, detail text) language sql stable
as $$
  select x.* from durable._check_contents(p_from, p_to) x
  union all select x.* from durable._check_references(p_from, p_to) x
  union all select x.* from durable._check_closures(p_from, p_to) x
$$;
comment on function durable._check_objects(bytea[], bytea[]) is 'All laws of objects whose ids lie in the spans.';
