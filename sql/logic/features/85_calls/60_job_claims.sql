-- Claims of orchestrators: one owner for each execution key submits the job, the others follow it. The owner's lease is the task
-- of the promise claim:<key>, so a takeover is an acquire after the lease has ended, and its version fences the owner before it.

create or replace function durable._claim_promise(p_execution_key bytea)
returns text language sql immutable parallel safe
as $$ select 'claim:' || encode(p_execution_key, 'hex') $$;
comment on function durable._claim_promise(bytea) is 'Id of the promise of a claim.';

create or replace function durable._claim_answer(p_role text, p_claim durable._claims, p_took_over boolean)
returns jsonb language sql stable
as $$
  select jsonb_build_object(
    'role', p_role, 'version', t.version, 'took_over', p_took_over, 'owner', t.pid, 'lease_until', t.expires_at,
    'backend', p_claim.backend, 'job', p_claim.job_id, 'submit_token', p_claim.submit_token,
    'value', case when p_claim.outcome is not null
                  then jsonb_build_object('outcome', p_claim.outcome, 'dag', encode(p_claim.dag_id, 'hex')) end)
  from (select durable._claim_promise(p_claim.execution_key) as id) x left join durable._tasks t on t.id = x.id
$$;
comment on function durable._claim_answer(text, durable._claims, boolean) is 'A claim as an orchestrator reads it.';

create or replace function durable._create_claim(p_execution_key bytea, p_owner text, p_ttl_ms bigint)
returns boolean language plpgsql volatile
as $$
declare
  v_now bigint := durable._now_ms();
begin
  if not durable._insert_promise(
    row(durable._claim_promise(p_execution_key), durable._never(), null, null, '{"resonate:target": "poll://any@claim"}',
        null)::durable._new_promise, p_owner, p_ttl_ms, v_now) then
    return false;
  end if;
  insert into durable._claims (created_at, execution_key, submit_token)
  values (v_now, p_execution_key, encode(p_execution_key, 'hex'));
  return true;
end
$$;
comment on function durable._create_claim(bytea, text, bigint) is
  'A new claim with its lease; false if there is one. Sessions that race for it meet in the promise''s key, one key each.';

create or replace function durable.claim_acquire(execution_key bytea, owner text, ttl_ms bigint)
returns jsonb language plpgsql volatile
as $$
declare
  v_id text := durable._claim_promise($1);
  v_claim durable._claims;
  v_task durable._tasks;
  v_now bigint;
begin
  perform durable._check_claim($2, $3);
  perform durable._check_site();
  if octet_length($1) is distinct from 32 then
    perform durable._fail_invalid('An execution key has 32 bytes.');
  elsif durable._create_claim($1, $2, $3) then
    select * into v_claim from durable._claims c where c.execution_key = $1;
    return durable._claim_answer('owner', v_claim, false);
  end if;
  perform durable._lock_tasks_to_revoke(array[v_id]);
  v_claim := durable._lock_claim($1);
  v_now := durable._now_ms();
  select * into v_task from durable._tasks t where t.id = v_id;
  if num_nonnulls(v_claim.execution_key, coalesce(v_claim.outcome, v_task.id)) < 2 then
    perform durable._fail_conflict(format('Promise %L was made or settled by hand; such ids are reserved.', v_id));
  elsif v_claim.outcome is not null then
    return durable._claim_answer('settled', v_claim, false);
  elsif v_task.state = 'acquired' and v_task.expires_at > v_now then
    if v_task.pid = $2 then
      update durable._tasks t set ttl = $3, expires_at = v_now + $3 where t.id = v_id;
    end if;
    return durable._claim_answer(case when v_task.pid = $2 then 'owner' else 'follower' end, v_claim, false);
  elsif v_task.state = 'acquired' then
    perform durable._revoke_leases(array[v_id], 'lease lost', v_now);
  end if;
  perform from durable._acquire(array[v_id], $2, $3, v_now, false);
  update durable._claims c set takeovers = c.takeovers + 1 where c.execution_key = $1 returning c.* into v_claim;
  return durable._claim_answer('owner', v_claim, true);
end
$$;
comment on function durable.claim_acquire(bytea, text, bigint) is
  'For orchestrators: select durable.claim_acquire(execution_key, ''me'', 30000). Answers {role, version, took_over, owner, lease_until, backend, job, submit_token, value}. role: owner, who submits with submit_token unless job is there, and renews the lease; follower, who polls the same job; settled with the value. The same owner again renews its lease. A lease that has ended is taken over: the version is one higher, and the job stays. WF004, WF016.';

create or replace function durable._lock_own_claim(p_execution_key bytea, p_version integer)
returns durable._claims language plpgsql volatile
as $$
declare
  v_claim durable._claims;
begin
  perform durable._lock_settlement(array[durable._claim_promise(p_execution_key)]);
  v_claim := durable._lock_claim(p_execution_key);
  if v_claim.execution_key is null then
    perform durable._fail_not_found('claim', encode(p_execution_key, 'hex'), 'Look at select * from durable.claims.');
  end if;
  perform durable._check_lease(durable._claim_promise(p_execution_key), p_version, durable._now_ms());
  return v_claim;
end
$$;
comment on function durable._lock_own_claim(bytea, integer) is 'The claim of an owner at this version, locked with all that its end needs. WF001, WF002.';

create or replace function durable.claim_submitted(execution_key bytea, version integer, backend text, job text)
returns text language plpgsql volatile
as $$
declare
  v_claim durable._claims;
begin
  if coalesce($3, '') = '' or coalesce($4, '') = '' then
    perform durable._fail_invalid('A job has a backend and an id.');
  end if;
  v_claim := durable._lock_own_claim($1, $2);
  if v_claim.job_id is null then
    update durable._claims c set backend = $3, job_id = $4 where c.execution_key = $1;
  end if;
  return coalesce(v_claim.job_id, $4);
end
$$;
comment on function durable.claim_submitted(bytea, integer, text, text) is
  'Records the job that the owner has submitted. Answers the job that counts, which is the first one recorded. WF001, WF002, WF004.';

create or replace function durable.claim_refresh(execution_key bytea, version integer, is_empty boolean default false)
returns integer language plpgsql volatile
as $$
declare
  v_claim durable._claims := durable._lock_own_claim($1, $2);
  v_now bigint := durable._now_ms();
begin
  update durable._tasks t set expires_at = v_now + t.ttl where t.id = durable._claim_promise($1);
  update durable._claims c set empty_polls = case when $3 then c.empty_polls + 1 else 0 end
  where c.execution_key = $1 returning c.* into v_claim;
  return v_claim.empty_polls;
end
$$;
comment on function durable.claim_refresh(bytea, integer, boolean) is
  'Renews the owner''s lease, at each poll of the backend. is_empty: the job has succeeded and its output is not there yet; answers how often in a row, so that the owner can end it after some. WF001, WF002.';

create or replace function durable.claim_done(execution_key bytea, version integer, outcome text, dag bytea)
returns void language plpgsql volatile
as $$
begin
  if $3 is null or $3 not in ('ok', 'error') or octet_length($4) is distinct from 32 then
    perform durable._fail_invalid('A claim ends with ok or error, and the id of a DAG.');
  end if;
  perform durable._lock_own_claim($1, $2);
  update durable._claims c set outcome = $3, dag_id = $4 where c.execution_key = $1;
  perform durable._settle_one(durable._claim_promise($1), 'resolved',
                              jsonb_build_object('outcome', $3, 'dag', encode($4, 'hex'))::text, null, durable._now_ms());
end
$$;
comment on function durable.claim_done(bytea, integer, text, bytea) is
  'Ends a claim with the result of its job, after the result is published: whoever asks from now on gets it. WF001, WF002, WF004.';

create or replace function durable.claim_release(execution_key bytea, version integer)
returns void language plpgsql volatile
as $$
declare
  v_id text := durable._claim_promise($1);
begin
  perform durable._lock_own_claim($1, $2);
  perform durable._release_tasks(array[v_id], array[0::bigint], durable._now_ms());
  update durable._tasks t set preference = null where t.id = v_id;
end
$$;
comment on function durable.claim_release(bytea, integer) is
  'Gives a claim back before its lease ends: the next one who asks owns it, at a higher version and with the same job. WF001, WF002.';
