-- Objects, refs and exec maps as people read them.

create or replace view durable.objects as
select durable._hex(o.id) as id, o.kind, o.sub,
       case when o.kind = 'datum' and o.excised_at is null and o.sub not in ('list', 'set', 'map')
            then durable._plain_json(durable._datum_json(o.id)) end as value,
       array(select durable._hex(r.id) from unnest(o.refs) with ordinality r (id, place) order by r.place) as refs,
       o.names, durable._at(o.created_at) as created_at, durable._at(o.excised_at) as excised_at, o.reason
from durable._objects o;
comment on view durable.objects is
  'Content-addressed objects: values, nodes, DAGs, trees, commits, execs and requests, with the values of datums that have no parts. For the others: durable.datum(id), durable.dag(id).';

create or replace view durable.refs as
select r.name, r.kind, durable._hex(r.commit_id) as commit, r.version, r.base, durable._at(r.created_at) as created_at
from durable._refs r;
comment on view durable.refs is 'Names of commits: heads, scopes (index) and snapshots of calls (exec).';

create or replace view durable.execs as
select durable._hex(e.id) as exec, durable._hex(n.id) as node, n.sub as call, durable._text_of(f.scalar) as function,
       e.sub as status, durable._hex(e.refs[2]) as result, durable._at(e.created_at) as created_at
from durable._objects e
join durable._objects n on n.id = e.refs[1]
left join durable._objects f on f.id = n.refs[1]
where e.kind = 'exec' and e.excised_at is null;
comment on view durable.execs is
  'Results of calls and builtins. The result of a call is a DAG, also if it failed; that of a builtin a datum. A node with more than one has a function that is not deterministic, or failed and was tried again.';

create or replace view durable.exec_map as
select p.scope as ref, durable._hex(p.node_id) as node, durable._hex(p.exec_id) as exec, durable._hex(s.request) as request
from durable._pins p
cross join lateral (select x.request from durable._scope_execs(p.scope) x where x.node = p.node_id) s
union all
select r.name, durable._hex(e.node), durable._hex(e.exec), durable._hex(e.request)
from durable._refs r cross join lateral durable._execs_of(r.commit_id) e where r.kind <> 'index';
comment on view durable.exec_map is
  'Which exec stands for a node, by ref: the pins of a scope as they are now, the commit of a head or snapshot. A path to a result is exec/<node>/<exec>.';
