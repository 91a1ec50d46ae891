-- Publishing workflows: from then on calls of protocol clients under a name become runs. The decision is made when a call is
-- born (30_promises/35_published.sql); these are the verbs for people.

create or replace function durable.publish(
  workflow text, queue text default 'default', name text default null, version integer default 1,
  workflow_version text default '1')
returns integer language plpgsql volatile
as $$
declare
  v_workflow text := case when $1 ~* '^sql://' then durable._service_named($1) else $1 end;
  v_ids text[];
  v_count integer;
begin
  if $4 is null or $4 < 1 then
    perform durable._fail_invalid('The version of a published function is a whole number from 1 on.');
  elsif octet_length(coalesce($3, $1)) > 256 or $3 = '' then
    perform durable._fail_invalid('The name of a published function has 1 to 256 bytes.');
  end if;
  perform durable._check_start(v_workflow, null, null, $2, $5);
  perform durable._check_workflow(v_workflow);
  insert into durable._published as f (queue, name, version, workflow, workflow_version)
  values ($2, coalesce($3, $1), $4, v_workflow, $5)
  on conflict on constraint published_pk
    do update set workflow = excluded.workflow, workflow_version = excluded.workflow_version;
  v_ids := array(select t.id from durable._tasks t where t.queue = $2 and t.state = 'pending' and t.workflow is null);
  perform durable._lock_settlement(v_ids);
  perform durable._make_runs(v_ids, durable._now_ms());
  v_count := (select count(*) from durable._tasks t where t.id = any (v_ids) and t.workflow is not null);
  perform durable._hint('durable_ready', durable._now_ms()) where v_count > 0;
  return v_count;
end
$$;
comment on function durable.publish(text, text, text, integer, text) is
  'Lets protocol clients, such as the Resonate SDKs, call a workflow: select durable.publish(''charge'', ''billing''); then a call of charge with the target poll://any@billing is a run, for a worker that serves this queue. name: the function that callers name, by default the workflow; version: its version there; a service is published by its address sql://schema.function. Tasks of other functions stay with the clients of the group, and so does a call that a client acquired as it was made. Answers how many calls that waited became runs; a call that another transaction is just making may be missed, and a second call of publish finds it. WF001, WF004.';

create or replace function durable.unpublish(name text, queue text default 'default', version integer default 1)
returns boolean language plpgsql volatile
as $$
begin
  delete from durable._published f where f.name = $1 and f.queue = $2 and f.version = $3;
  return found;
end
$$;
comment on function durable.unpublish(text, text, integer) is
  'Ends a publication: select durable.unpublish(''charge'', ''billing''). Calls that are runs already go on; later ones are for the clients of the group. Answers whether there was one.';
