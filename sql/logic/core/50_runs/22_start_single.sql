-- Skip this file on a first reading. It is the single-row path of a start: statements for one row, in a third of the time of the
-- batch path in 24_start.sql. tests/core/sql/test_start_single.py proves that both answer and write the same. Any other case is
-- left to the batch path, and nothing is written.

create or replace function durable._is_surely_valid(p_request durable._start_request)
returns boolean language sql stable
as $$
  select octet_length(p_request.workflow) between 1 and 256 and strpos(p_request.workflow, ':') = 0
         and (p_request.queue is null or p_request.queue = 'default' or durable._is_plain_name(p_request.queue))
         and p_request.version <> ''
         and jsonb_typeof(p_request.args) in ('array', 'object')
         and (octet_length(p_request.input) <= 1000
              or (octet_length(p_request.input) <= durable._setting_int('payload_max_bytes')
                  and not durable._is_deep(p_request.args)))
         and (p_request.id is null
              or octet_length(p_request.id) between 1 and 512 and not durable._is_of_calls(p_request.id)
                 and (strpos(p_request.id, '.') = 0 or p_request.id !~ E'\\.\\d{1,9}$'))
         and (p_request.key is null or octet_length(p_request.key) between 1 and 512)
         and (p_request.timeout_ms <= 0 or p_request.delay_ms < 0 or p_request.delay_ms >= p_request.timeout_ms) is not true
         and p_request.priority between -32768 and 32767 and octet_length(p_request.tenant) <= 256
         and (p_request.tags = '{}' or (octet_length(p_request.tags::text) <= 65536 and durable._are_tags(p_request.tags)
                                and not durable._has_protocol_tags(p_request.tags)))
$$;
comment on function durable._is_surely_valid(durable._start_request) is
  'True if the request certainly passes all checks of a start, judged by its fields alone. Otherwise the checks decide and explain.';

create or replace function durable._may_exist(p_request durable._start_request)
returns boolean language plpgsql stable
as $$
begin
  return exists (select from durable._executions h
                 where h.tenant = p_request.tenant and h.workflow = p_request.workflow and h.key = p_request.key)
         or exists (select from durable._promises p where p.id >= p_request.id || '.' and p.id < p_request.id || '/')
         or exists (select from durable._removed r where r.id = p_request.id)
         or exists (select from durable._removed r
                    where r.tenant = p_request.tenant and r.workflow = p_request.workflow and r.key = p_request.key);
end
$$;
comment on function durable._may_exist(durable._start_request) is
  'True if a run with this key exists, a promise below this id, or a removed run with one of the two. The caller has locked both.';

create or replace function durable._start_single(
  p_request durable._start_request, p_fresh boolean default false, p_notify boolean default false, p_reply text default null)
returns durable.start_record language plpgsql volatile
as $$
declare
  v_request durable._start_request := p_request;
  v_queue text;
  v_now bigint;
  v_run text;
  v_execution bigint;
  v_worker durable._idle_workers;
  v_is_new boolean := p_request.key is null and (p_fresh or p_request.id is null);
  v_is_copy boolean := not durable._knows_site() and durable._is_copy();
begin
  if durable._is_surely_valid(p_request) is not true then
    return null;
  end if;
  if not p_request.any_workflow or p_request.queue is null then
    select w.queue into v_queue
    from durable._workflows w where w.name = p_request.workflow and w.version = p_request.version;
    if not (found or p_request.any_workflow) then
      perform durable._check_workflow(p_request.workflow);
    end if;
    v_request.queue := coalesce(p_request.queue, v_queue, 'default');
  end if;
  if not v_is_new then
    perform durable._lock_name(durable._key_name(p_request.tenant, p_request.workflow, p_request.key), p_request.id);
    if durable._may_exist(p_request) then
      return null;
    end if;
  end if;
  -- in this order: the lease of a hand-off is younger than the number
  v_execution := durable._next_execution();
  v_now := durable._now_ms();
  v_run := coalesce(p_request.id, case when v_is_new then durable._fresh_id(v_now)
                                       else durable._root_id(p_request.tenant, p_request.workflow, p_request.key) end);
  if p_notify and p_request.delay_ms is null and not v_is_copy then
    v_worker := durable._try_lock_idle(v_request, v_run, p_reply, v_now);
  end if;
  if not durable._insert_run(v_request, v_run, v_execution, v_worker, v_now) then
    return null;
  elsif v_worker.worker is not null then
    perform durable._hand_off(v_worker, v_execution, v_request, p_reply, v_now);
  elsif p_notify then
    perform durable._notify('durable_ready');
  end if;
  return (v_run, true, v_worker.worker is not null);
end
$$;
comment on function durable._start_single(durable._start_request, boolean, boolean, text) is
  'Starts one new run, with statements for one row: the same rows as _start_batch writes, in a third of its time. p_fresh: the caller drew the id at random for this start, so the id cannot exist. p_notify: hands the run off to an idle worker, with p_reply, or sends the hint to all. Null: nothing was written, and the batch path decides.';
