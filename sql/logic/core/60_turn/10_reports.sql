-- Reports of workers: each is read, gets a verdict, and is turned into journal rows and children. A report that does not fit
-- never fails the others. The turn (60_turn.sql) composes them with claims and endings.

create or replace function durable._is_single(p_commands durable._command[], p_outcomes durable._step_outcome[])
returns boolean language sql immutable parallel safe
as $$ select p_commands = '{}' and cardinality(p_outcomes) <= 1 $$;
comment on function durable._is_single(durable._command[], durable._step_outcome[]) is
  'A report of at most one outcome, as most are: its journal row is made with its verdict, without reading other rows.';

create or replace function durable._is_unknown(p_ending durable._ending)
returns boolean language sql immutable parallel safe
as $$
  select p_ending is distinct from null
     and coalesce(p_ending."do" <> all ('{complete,suspend,fail,release,cancel,halt,continue,refuse}'), true)
$$;
comment on function durable._is_unknown(durable._ending) is 'True for an ending that this schema does not know.';

create or replace function durable._read_reports(p_reports jsonb, p_adopts text[] default '{}')
returns durable._turn_batch language plpgsql stable
as $$
declare
  v_batch durable._turn_batch;
begin
  select coalesce(array_agg(row(b.execution, b.version, b.seen, coalesce(b.outcomes, '{}'), coalesce(b.commands, '{}'), b."end",
                                h.id, null, null, null, null)::durable._run_report), '{}'),
         coalesce(bool_or(b.commands <> '{}'), false), coalesce(bool_or(b.outcomes <> '{}'), false),
         coalesce(bool_or(not durable._is_single(coalesce(b.commands, '{}'), coalesce(b.outcomes, '{}'))), false),
         coalesce(bool_or(b.id is null or durable._is_unknown(b."end")), false),
         coalesce(array_agg((b."end")."do"), '{}'),
         coalesce(array_agg(h.id) filter (where (b."end")."do" in ('complete', 'fail', 'cancel', 'continue', 'refuse')
                                            and h.id is not null), '{}'),
         coalesce(bool_or((b."end")."do" = 'continue'), false)
           or (coalesce(bool_or(b.commands <> '{}'), false)
               and p_reports @? '$[*].commands[*].do ? (@ == "receive" || @ == "take")'),
         p_adopts,
         coalesce(array_agg(row(b.execution, h.id, (b.progress).seq, (b.progress).done, (b.progress).total, (b.progress).note,
                                (b.progress).named)::durable._progress_report)
                    filter (where b.progress is distinct from null and h.id is not null), '{}')
  into v_batch
  from jsonb_to_recordset(p_reports)
         as b (execution bigint, id text, version integer, seen integer, outcomes durable._step_outcome[],
               commands durable._command[], "end" durable._ending, progress durable._progress_report)
  left join durable._executions h
    on h.execution = any (array[b.execution]) and h.id = b.id;
  return v_batch;
end
$$;
comment on function durable._read_reports(jsonb, text[]) is
  'The reports of a turn, typed. p_adopts: the promises that they adopt, once these are known. A report whose id is not the id of the run with its number belongs to no run: after a crash of the server a number may be given twice.';

create or replace function durable._with_verdict(
  p_report durable._run_report, p_verdict text, p_seq integer, p_next integer, p_event durable._event)
returns durable._run_report language sql immutable parallel safe
as $$
  select row(p_report.execution, p_report.version, p_report.seen, p_report.outcomes, p_report.commands, p_report.ending,
             p_report.id, p_verdict, p_seq, p_next, p_event)::durable._run_report
$$;
comment on function durable._with_verdict(durable._run_report, text, integer, integer, durable._event) is
  'The report with its verdict, the numbers before and after its rows, and the row of its single outcome.';

create or replace function durable._with_ending(p_report durable._run_report, p_ending durable._ending)
returns durable._run_report language sql immutable parallel safe
as $$
  select row(p_report.execution, p_report.version, p_report.seen, p_report.outcomes, p_report.commands, p_ending, p_report.id,
             p_report.verdict, p_report.seq, p_report.next, p_report.event)::durable._run_report
$$;
comment on function durable._with_ending(durable._run_report, durable._ending) is 'The report with another ending, or none.';

create or replace function durable._set_aside(p_report durable._run_report, p_ending durable._ending, p_seq integer)
returns durable._run_report language sql immutable parallel safe
as $$
  select row(p_report.execution, p_report.version, p_report.seen, '{}', '{}', p_ending, p_report.id,
             'ok', p_seq, p_seq, null)::durable._run_report
$$;
comment on function durable._set_aside(durable._run_report, durable._ending, integer) is
  'A report that is replaced by an ending which halts the run.';

create or replace function durable._check_sizes(p_reports durable._run_report[])
returns void language plpgsql stable
as $$
declare
  v_limit bigint := durable._setting_int('payload_max_bytes');
  v_id text;
  v_bytes integer;
begin
  select b.id, octet_length(x.payload) into v_id, v_bytes
  from unnest(p_reports) b
  cross join lateral (
    select unnest(array[f.value, f.param]), v_limit from unnest(b.outcomes) f
    union all
    select f.error, greatest(v_limit, 4096) from unnest(b.outcomes) f
    union all
    select unnest(array[a.param, a.value]), v_limit from unnest(b.commands) a
    union all
    values ((b.ending).value, v_limit), ((b.ending).error, greatest(v_limit, 4096))
  ) as x (payload, most)
  where octet_length(x.payload) > x.most limit 1;
  if found then
    perform durable._fail_too_large(format('A payload of run %L', v_id), v_bytes, v_limit);
  end if;
end
$$;
comment on function durable._check_sizes(durable._run_report[]) is
  'Raises WF008 for a payload over the limit; an error may always have 4096 bytes. Called only for turns that are larger than the limit as a whole.';

create or replace function durable._check_depths(p_reports durable._run_report[])
returns void language plpgsql stable
as $$
begin
  perform durable._check_depth(format('A payload of run %L', x.id), x.payload)
  from (
    select b.id, unnest(array[f.value, f.param, f.error]) as payload
    from unnest(p_reports) b cross join lateral unnest(b.outcomes) f
    union all
    select b.id, unnest(array[a.param, a.value]) from unnest(p_reports) b cross join lateral unnest(b.commands) a
    union all
    select b.id, unnest(array[(b.ending).value, (b.ending).error]) from unnest(p_reports) b
  ) x
  where octet_length(x.payload) > 1000;
end
$$;
comment on function durable._check_depths(durable._run_report[]) is
  'Raises WF004 for a payload that is too deep. Our own workers refuse such a payload before they report it.';

create or replace function durable._outcome_type(
  p_begun boolean, p_retried boolean, p_failed boolean, p_attempt integer, p_before durable._attempt,
  p_free boolean)
returns durable.row_type language sql immutable
as $$
  select case
    when p_before is null and (p_attempt <> 1 or not p_free) then null
    when p_before.number <> p_attempt or p_before.state = 'complete' or (p_before.state = 'running' and p_begun) then null
    when p_begun then case when p_before is null then 'step_started'::durable.row_type else 'attempt_started' end
    when p_retried then case when p_before is null then 'first_attempt_failed'::durable.row_type
                             when p_before.state = 'running' then 'open_attempt_failed' else 'attempt_failed' end
    when p_failed then case when p_before is null then 'step_failed'::durable.row_type
                            when p_before.state = 'running' then 'open_step_failed' else 'last_attempt_failed' end
    when p_before is null then 'step_completed'
    when p_before.state = 'running' then 'open_step_completed'
    else 'last_attempt_completed'
  end
$$;
comment on function durable._outcome_type(boolean, boolean, boolean, integer, durable._attempt, boolean) is
  'The row type for an outcome of a local step whose state is p_before, or null if the outcome does not fit. p_free: whether its child number is free.';

create or replace function durable._recorded(p_begun boolean, p_retried boolean, p_attempt integer, p_open durable._attempt)
returns boolean language sql immutable
as $$
  select coalesce(case when p_begun then 2 * p_attempt when p_retried then 2 * p_attempt + 1 end
                  <= case p_open.state when 'running' then 2 * p_open.number when 'due' then 2 * p_open.number - 1 end, false)
$$;
comment on function durable._recorded(boolean, boolean, integer, durable._attempt) is
  'True for a begin or a failed attempt that the head has recorded already; p_open: the open attempt of the step. It was sent again after a lost answer, and is left out so that the outcomes after it are written.';

create or replace function durable._outcome_data(
  p_begun boolean, p_retry_in bigint, p_param text, p_error text, p_value text, p_retry text, p_now bigint)
returns text language sql immutable
as $$
  select case
    when p_begun then '{"input":' || p_param || coalesce(', "retry": ' || p_retry, '') || '}'
    when p_retry_in is not null
      then '{"error": ' || p_error || ', "retry_at": ' || (p_now + p_retry_in)::text || ', "interrupted": false'
           || coalesce(', "retry": ' || p_retry, '') || '}'
    when p_error is not null then p_error
    else p_value
  end
$$;
comment on function durable._outcome_data(boolean, bigint, text, text, text, text, bigint) is
  'Journal data of an outcome: the input or the failed attempt, each with the retry policy if the worker sent one; else the error or the result.';

create or replace function durable._outcome_events(p_reports durable._run_report[], p_now bigint)
returns durable._event[] language plpgsql stable
as $$
begin
  return array(
    select row(g.execution, g.type, g.child, g.attempt, g.name, g.hash, g.data)::durable._event
    from (
      select f.*, bool_and(f.type is not null) over (partition by f.execution, f.child) as fits
      from (
        select b.execution, u.ord, u.child, u.attempt, u.name, decode(u.hash, 'hex') as hash,
               durable._outcome_data(u.begun, u.retry_in, u.param, u.error, u.value, u.retry, p_now) as data,
               durable._outcome_type(u.begun, u.retry_in is not null, u.error is not null, u.attempt,
                 coalesce(lag(case when u.begun then row(u.attempt, 'running')::durable._attempt
                                   when u.retry_in is not null then row(u.attempt + 1, 'due')::durable._attempt
                                   else row(null, 'complete')::durable._attempt end)
                            over (partition by b.execution, u.child order by u.ord), o.attempt),
                 u.child >= h.next_child or u.child = any (h.reserved)) as type
        from unnest(p_reports) b
        join durable._executions h
          on h.execution = any (array[case when b.outcomes <> '{}' and not durable._is_single(b.commands, b.outcomes)
                                           then b.execution end])
        cross join lateral unnest(b.outcomes) with ordinality
          as u (child, name, hash, attempt, value, error, retry_in, begun, param, retry, ord)
        cross join lateral (select durable._open_attempt(h, u.child)) as o (attempt)
        where b.verdict <> 'lost' and h.status in ('running', 'cancelling')
          and not durable._recorded(u.begun, u.retry_in is not null, u.attempt, o.attempt)
      ) f
    ) g
    where g.fits
    order by g.execution, g.ord);
end
$$;
comment on function durable._outcome_events(durable._run_report[], bigint) is
  'Journal rows for the outcomes of reports that are not single (_is_single), if they fit. An outcome that was recorded before, by a turn whose answer was lost, does not fit.';

create or replace function durable._outcome_event(
  p_execution bigint, p_type durable.row_type, p_outcome durable._step_outcome, p_now bigint)
returns durable._event language sql immutable
as $$
  select row(p_execution, p_type, p_outcome.child, p_outcome.attempt, p_outcome.name, decode(p_outcome.hash, 'hex'),
             durable._outcome_data(p_outcome.begun, p_outcome.retry_in, p_outcome.param, p_outcome.error, p_outcome.value,
                                   p_outcome.retry, p_now)
            )::durable._event
$$;
comment on function durable._outcome_event(bigint, durable.row_type, durable._step_outcome, bigint) is 'Journal row for one outcome.';

create or replace function durable._check_retries(p_events durable._event[])
returns void language plpgsql stable
as $$
begin
  if not exists (select from unnest(p_events) e where durable._fails_attempt(e.type)) then
    return;
  end if;
  perform durable._fail_journal(e.execution, e.type, e.child, format('its retry policy allows %s attempts', p.most))
  from (
    select x.*,
           min(case when x.type in ('first_attempt_failed', 'step_started')
                    then durable._most_attempts(durable._json(x.data) -> 'retry') end)
             over (partition by x.execution, x.child) as most
    from unnest(p_events) as x (execution, type, child, attempt, name, input_hash, data)
    where durable._is_local(x.type)
  ) e
  join durable._executions h on h.execution = any (array[e.execution])
  left join lateral (
    -- the first row of the step, so that a retry without end is not read again with each attempt
    select durable._most_attempts(durable._json(durable._data(j)) -> 'retry') as most from durable._journal j
    where e.type in ('open_attempt_failed', 'attempt_failed')
      and j.execution = any (array[h.execution]) and j.bucket = h.bucket and j.child = e.child
      and j.type in ('first_attempt_failed', 'step_started')
    order by j.execution, j.seq limit 1) f on true
  cross join lateral (select coalesce(e.most, f.most) as most) p
  cross join lateral (
    -- by the numbers: rows of attempts that lie far back are removed, but for interrupted ones
    select e.attempt - count(*) as failures from durable._journal j
    where e.attempt >= p.most and e.type in ('open_attempt_failed', 'attempt_failed')
      and j.execution = any (array[h.execution]) and j.bucket = h.bucket and j.child = e.child
      and durable._fails_attempt(j.type) and durable._json(durable._data(j)) -> 'interrupted' = 'true') s
  where durable._fails_attempt(e.type) and e.attempt >= p.most and s.failures >= p.most;
end
$$;
comment on function durable._check_retries(durable._event[]) is
  'Guards SE-5: a step has no more attempts than its recorded retry policy allows. Reads a journal only for an attempt that failed after the first row of its step, and there the attempts only if this one has the last number that is allowed, or a higher one.';

create or replace function durable._command_type(p_do text)
returns durable.row_type language sql immutable parallel safe
as $$
  select case p_do
    when 'run' then 'child_run_scheduled'::durable.row_type
    when 'timer' then 'timer_scheduled'
    when 'promise' then 'promise_registered' when 'adopt' then 'promise_registered' when 'until' then 'promise_registered'
    when 'rpc' then 'promise_registered'
    when 'random' then 'random_generated' when 'time' then 'time_recorded'
    when 'intent' then 'step_started' when 'transaction' then 'step_completed'
    when 'join_set' then 'join_set_created' when 'submit' then 'join_set_submitted' when 'take' then 'join_set_awaited'
  end
$$;
comment on function durable._command_type(text) is
  'Row type of a command; null for a receive, whose row comes with the signal, and for cancel, whose row is in the journal of the child run.';

create or replace function durable._check_reports(p_batch durable._turn_batch, p_size integer)
returns void language plpgsql stable
as $$
declare
  v_unknown text;
begin
  if p_size > 1000 then
    if p_size > durable._setting_int('payload_max_bytes') then
      perform durable._check_sizes(p_batch.reports);
    end if;
    perform durable._check_depths(p_batch.reports);
  end if;
  if p_batch.has_unknown then
    v_unknown := (
      select format('an ending %L', (b.ending)."do") from unnest(p_batch.reports) b
      where durable._is_unknown(b.ending) limit 1);
    if v_unknown is null then
      perform durable._fail_invalid('A report does not name its run.', 'Its id goes with its number.');
    end if;
  end if;
  if p_batch.has_commands then
    v_unknown := coalesce(v_unknown, (
      select format('a command %L', a."do") from unnest(p_batch.reports) b cross join lateral unnest(b.commands) a
      where durable._command_type(a."do") is null and coalesce(a."do" not in ('receive', 'cancel'), true) limit 1));
  end if;
  if v_unknown is not null then
    perform durable._fail_invalid(format('There is no such thing as %s in a report.', v_unknown),
                                  'A newer worker needs a newer schema: pyengine db migrate.');
  elsif cardinality(p_batch.reports) > 1 and (select count(distinct b.execution) < count(*) from unnest(p_batch.reports) b) then
    perform durable._fail_invalid('A run stands in two reports of one turn.',
                                  'A worker reports a run again when its turn is back.');
  end if;
end
$$;
comment on function durable._check_reports(durable._turn_batch, integer) is
  'Checks a turn of p_size bytes before any state is read. WF008 for a payload that is too large. WF004 for a command or ending that this schema does not know, because leaving it out would lose it; for a report without a run; and for two reports of one run.';

create or replace function durable._command_events(p_reports durable._run_report[], p_now bigint)
returns durable._event[] language plpgsql stable
as $$
begin
  return array(
    select row(
      b.execution,
      k.type, a.child, case when a."do" in ('intent', 'transaction') then 1 else a."set" end, a.name, decode(a.hash, 'hex'),
      case when a."do" = 'timer'
             then jsonb_build_object('duration', a.duration, 'fire_at', durable._later(p_now, a.duration))::text
           when a.detached then (
             select jsonb_build_object('id', d.id)::text from durable._executions h
             cross join lateral durable._detached_id(b.id, a.child) as d (id)
             where h.execution = b.execution and h.rules >= 2 and d.id <> b.id || '.' || a.child)
           when a."do" = 'intent' then durable._outcome_data(true, null, a.param, null, null, a.retry, p_now)
           when a."do" in ('random', 'time', 'transaction') then a.value end)::durable._event
    from unnest(p_reports) b
    cross join lateral unnest(b.commands) with ordinality
      as a ("do", child, name, version, queue, hash, param, timeout, detached, duration, value, "set", abandon, retry, ord)
    cross join lateral durable._command_type(a."do") as k (type)
    where b.verdict = 'ok' and k.type is not null
    order by b.execution, a.ord);
end
$$;
comment on function durable._command_events(durable._run_report[], bigint) is
  'Journal rows for the commands of accepted reports.';

create or replace function durable._advanced_while_blocked(p_waiting_on integer[])
returns durable._ending language sql immutable
as $$
  select row('halt', null, null, null, null, null, jsonb_build_object('type', 'Nondeterminism', 'message',
    'the run is blocked on children ' || array_to_string(p_waiting_on, ', ') || ', but the code went on')::text, null)::durable._ending
$$;
comment on function durable._advanced_while_blocked(integer[]) is
  'The ending that halts a blocked run which was claimed again and does not wait for the same children (R20).';

create or replace function durable._conflicting(p_reports durable._run_report[])
returns bigint[] language plpgsql stable
as $$
begin
  return array(
    select u.execution
    from (
      select b.execution, a.child, h.next_child, h.reserved
      from unnest(p_reports) b
      join durable._executions h on h.execution = any (array[case when b.commands <> '{}' then b.execution end])
      cross join lateral unnest(b.commands) a
      where a."do" not in ('submit', 'take', 'cancel')
      union all
      select distinct b.execution, f.child, h.next_child, h.reserved
      from unnest(p_reports) b
      join durable._executions h
        on h.execution = any (array[case when b.outcomes <> '{}' and not durable._is_single(b.commands, b.outcomes)
                                         then b.execution end])
      cross join lateral unnest(b.outcomes) f
      where f.child <> all (h.open_steps)
    ) u
    group by u.execution
    having count(*) <> count(distinct u.child) or not bool_and(u.child >= u.next_child or u.child = any (u.reserved))
    union
    -- these take no number, so it is by their rows that a report is seen to come again
    select b.execution
    from unnest(p_reports) b
    cross join lateral unnest(b.commands) a
    join durable._executions h on h.execution = any (array[b.execution])
    where a."do" in ('submit', 'take')
      and (select count(*) from durable._journal j
           where j.execution = h.execution and j.bucket = h.bucket and j.seq >= b.seen and j.child = a.child
             and j.attempt = a."set" and j.type = durable._command_type(a."do")) > 0);
end
$$;
comment on function durable._conflicting(durable._run_report[]) is
  'Executions whose report has several outcomes or commands, one of which takes a child number that is not free, or that came before and was recorded. Commands are known by number, not by position, so rows between them do no harm.';

create or replace function durable._invalid_child(p_commands durable._command[])
returns durable._ending language plpgsql immutable
as $$
begin
  return (
    select row('halt', null, null, null, null, null, jsonb_build_object('type', 'InvalidRequest', 'message',
      format('child %s: %s', x.child, x.why))::text, null)::durable._ending
    from (
      select a.child, case
        when a."do" in ('run', 'promise', 'until', 'rpc') and a.timeout <= 0 then 'a timeout is more than 0'
        when a."do" = 'rpc' and durable._canonical_address(a.queue) is null then format('%L is no address', a.queue)
        when a."do" <> 'run' then null
        when a.queue is not null and not durable._is_queue(a.queue) then format('%L is not a queue name', a.queue)
        when a.name is null or octet_length(a.name) not between 1 and 256 then 'a workflow name has 1 to 256 bytes'
        when a.name like 'sql://%' and durable._canonical_address(a.name) is null then format('%L is no service', a.name)
        when a.version is null or a.version = '' then 'a workflow version is not empty' end as why
      from unnest(p_commands) a
    ) x
    where x.why is not null order by x.child limit 1);
end
$$;
comment on function durable._invalid_child(durable._command[]) is
  'The ending that halts a run whose code asks for a child that no start may create (the rules of _check_start); null if all children may be created. The other runs of the turn go on.';

create or replace function durable._verdict_on(
  p_version integer, p_seen integer, p_does boolean, p_head durable._executions, p_task durable._tasks, p_worker text,
  p_is_stale boolean, p_now bigint)
returns text language sql immutable
as $$
  select case
    when p_head.execution is null or p_task.pid is distinct from p_worker
         or not coalesce(durable._is_leased(p_task, p_version, p_now), false)
      then 'lost'
    when p_is_stale then 'stale'
    when p_does and p_head.status = 'cancelling' and p_seen <= p_head.cancel_seq then 'stale'
    else 'ok' end
$$;
comment on function durable._verdict_on(
  integer, integer, boolean, durable._executions, durable._tasks, text, boolean, bigint) is
  'The verdict on a report: lost (drop the run), stale (replay from the journal) or ok. A report that was made before its worker saw a request of cancellation is stale. p_does: it has outcomes, commands or an ending. p_is_stale: its child numbers are taken.';

create or replace function durable._decide_end_verdicts(p_reports durable._run_report[], p_worker text, p_now bigint)
returns durable._run_report[] language plpgsql stable
as $$
begin
  return array(
    select durable._with_verdict(
             b, durable._verdict_on(b.version, b.seen, (b.ending)."do" is not null, h, t, p_worker, false, p_now),
             h.next_seq, h.next_seq, null)
    from unnest(p_reports) b
    left join durable._executions h on h.execution = any (array[b.execution])
    left join durable._tasks t on t.id = any (array[b.id]));
end
$$;
comment on function durable._decide_end_verdicts(durable._run_report[], text, bigint) is
  'The verdicts of a turn in which no report has outcomes or commands. The caller holds tasks and heads.';

create or replace function durable._decide_verdicts(p_batch durable._turn_batch, p_worker text, p_now bigint)
returns durable._run_report[] language plpgsql stable
as $$
declare
  v_conflicting bigint[] := '{}';
begin
  if p_batch.has_several then
    v_conflicting := durable._conflicting(p_batch.reports);
  end if;
  -- "offset 0": an expression that is used more than once is computed once
  return array(
    select case
        when v.verdict = 'ok' and h.status = 'blocked' and (b.commands <> '{}' or b.outcomes <> '{}')
          then durable._set_aside(b, durable._advanced_while_blocked(h.waiting_on), h.next_seq)
        when v.verdict = 'ok' and (m.ending)."do" is not null
          then durable._set_aside(b, m.ending, h.next_seq)
        else durable._with_verdict(
          b, v.verdict, h.next_seq, h.next_seq + case when r.type is null then 0 else durable._width(r.type) end,
          case when r.type is not null then durable._outcome_event(b.execution, r.type, f.one, p_now) end) end
    from unnest(p_batch.reports) b
    left join durable._executions h on h.execution = any (array[b.execution])
    left join durable._tasks t on t.id = any (array[b.id])
    cross join lateral (select case when durable._is_single(b.commands, b.outcomes) then b.outcomes[1] end offset 0) as f (one)
    cross join lateral (select durable._open_attempt(h, (f.one).child),
                               (f.one).child >= h.next_child or (f.one).child = any (h.reserved) offset 0) as o (attempt, is_free)
    cross join lateral (
      select durable._verdict_on(b.version, b.seen, b.commands <> '{}' or b.outcomes <> '{}' or (b.ending)."do" is not null, h, t,
                             p_worker, b.execution = any (v_conflicting) or (not o.is_free and o.attempt is null), p_now)
      offset 0) as v (verdict)
    cross join lateral (select case
      when (f.one).child is not null and v.verdict <> 'lost' and h.status in ('running', 'cancelling')
        and not durable._recorded((f.one).begun, (f.one).retry_in is not null, (f.one).attempt, o.attempt)
      then durable._outcome_type((f.one).begun, (f.one).retry_in is not null, (f.one).error is not null, (f.one).attempt,
                              o.attempt, o.is_free) end offset 0) as r (type)
    cross join lateral (select case when b.commands <> '{}' then durable._invalid_child(b.commands) end) as m (ending));
end
$$;
comment on function durable._decide_verdicts(durable._turn_batch, text, bigint) is
  'The verdicts of a turn, and the journal row of a single outcome. The caller holds tasks and heads.';

create or replace function durable._make_children(p_reports durable._run_report[], p_worker text, p_now bigint)
returns text[] language plpgsql volatile
as $$
declare
  v_queues text[];
begin
  with command as materialized (
    select case when a.detached and h.rules >= 2 then durable._detached_id(b.id, a.child) else b.id || '.' || a.child end as id,
           b.id as parent, a.child, a."do", a.name, a.version, a.param,
           -- a detached run with a short id is nobody's child
           case when a.detached is not true or h.rules < 2 or durable._detached_id(b.id, a.child) = b.id || '.' || a.child
                then b.execution end as owner,
           case when a.name like 'sql://%' then durable._canonical_address(a.name)
                else coalesce(a.queue, t.queue) end as queue, t.priority, coalesce(a.detached, false) as detached, h.tenant,
           durable._later(p_now, case when a."do" = 'timer' then a.duration else a.timeout end) as timeout_at,
           coalesce(a.abandon, false) or coalesce(a.detached, false) as abandoned,
           case when a."do" = 'run' then durable._next_execution() end as head,
           w.digest, coalesce(w.rules, 1::smallint) as rules
    from unnest(p_reports) b
    left join durable._tasks t on t.id = any (array[b.id])
    join durable._executions h on h.execution = any (array[b.execution])
    cross join lateral unnest(b.commands) a
    left join durable._workflows w on w.name = any (array[case when a."do" = 'run' then a.name end])
                                      and w.version = any (array[a.version])
    where b.verdict = 'ok' and a."do" in ('run', 'timer', 'promise', 'until')
  ), reserved as materialized (
    -- once, and not for each child
    select durable._reserved_until(p_worker, p_now, p_now) as until
  ), begun as (
    select durable._begin(array_agg(a.head), array_agg(a.id), array_agg(a.tenant),
                          array_agg(row(a.name, a.version, a.digest, a.rules)::durable._run_code), null,
                          p_now, array_agg(a.abandoned))
    from command a where a."do" = 'run' having count(*) > 0
  ), promise as (
    insert into durable._promises (id, tenant, timeout_at, created_at, execution, head, child, timer, external, target,
                                   param_data, param_headers)
    select a.id, a.tenant, a.timeout_at, p_now, a.owner, a.head, case when a.owner is not null then a.child end,
           a."do" = 'timer', true,
           case when a."do" = 'run' then durable._target_of(a.queue) end, case when a."do" <> 'promise' then a.param end,
           case a."do" when 'run' then '{"codec": "json"}'::jsonb
                       when 'until' then jsonb_build_object('codec', 'json', 'durable:until', a.name)
                       when 'promise' then case when a.param is not null then jsonb_build_object('durable:type', a.param) end end
    from command a
  ), task as (
    insert into durable._tasks (id, execution, owner, deadline, retry_at, queue, priority, rules, workflow, workflow_version,
                                preference, prefer_until)
    select a.id, a.head, a.owner, a.timeout_at, p_now, a.queue, a.priority, a.rules, a.name, a.version,
           case when k.until is not null then p_worker end, k.until
    from command a cross join reserved k where a."do" = 'run'
  ), callback as (
    insert into durable._callbacks (awaited_id, awaiter_id) select a.id, a.parent from command a where not a.detached
  )
  select coalesce(array_agg(distinct a.queue) filter (where a."do" = 'run'), '{}') into v_queues
  from command a left join begun on true;
  return v_queues;
end
$$;
comment on function durable._make_children(durable._run_report[], text, bigint) is
  'Creates the promises of new children, the tasks and heads of child runs, and the parent''s callbacks. Returns the queues of child runs.';

create or replace function durable._adopted_by(p_reports durable._run_report[])
returns text[] language plpgsql stable
as $$
begin
  return array(select a.name from unnest(p_reports) b cross join lateral unnest(b.commands) a
               where a."do" = 'adopt' and (select count(*) from durable._promises p where p.id = a.name) > 0);
end
$$;
comment on function durable._adopted_by(durable._run_report[]) is
  'Promises of others that these reports adopt and that exist; they are locked before any verdict is given. A promise that is created later is treated as missing, because it is not locked.';

create or replace function durable._circles(p_reports durable._run_report[], p_now bigint)
returns durable._event[] language plpgsql stable
as $$
declare
  v_awaited text[];
  v_awaiters text[];
  v_command record;
  v_circle text[];
  v_events durable._event[] := '{}';
begin
  select array_agg(a.name), array_agg(b.id) into v_awaited, v_awaiters
  from unnest(p_reports) b cross join lateral unnest(b.commands) a where b.verdict = 'ok' and a."do" = 'adopt';
  if not durable._may_close_circle(v_awaited, v_awaiters, p_now) then
    return '{}';
  end if;
  v_awaited := '{}';
  v_awaiters := '{}';
  for v_command in select b.execution, b.id, a.child, a.name
               from unnest(p_reports) b cross join lateral unnest(b.commands) a
               where b.verdict = 'ok' and a."do" = 'adopt' order by b.id, a.child loop
    v_circle := durable._circle(v_command.name, v_command.id, v_awaited, v_awaiters, p_now);
    if v_circle is null then
      v_awaited := v_awaited || v_command.name;
      v_awaiters := v_awaiters || v_command.id;
    else
      v_events := v_events || row(v_command.execution, 'child_settled', v_command.child, 1, null, null,
                                  durable._refusal('AwaitCycle', durable._await_cycle(v_circle),
                                                   jsonb_build_object('path', v_circle)))::durable._event;
    end if;
  end loop;
  return v_events;
end
$$;
comment on function durable._circles(durable._run_report[], bigint) is
  'Errors for the adoptions by which a run would wait for itself. First one query asks whether any of a turn could; only then each is checked, one after the other.';

create or replace function durable._refused(p_reports durable._run_report[], p_known text[], p_now bigint)
returns durable._event[] language plpgsql stable
as $$
begin
  return array(
    select row(b.execution, 'child_settled', a.child, 1, null, null,
               durable._refusal('NotFound', format('There is no promise %L to wait for.', a.name), '{}'))::durable._event
    from unnest(p_reports) b cross join lateral unnest(b.commands) a
    where b.verdict = 'ok' and a."do" = 'adopt'
      and (a.name <> all (p_known) or (select count(*) from durable._promises p where p.id = a.name) = 0)
      and not exists (select from unnest(p_reports) n cross join lateral unnest(n.commands) m
                      where n.verdict = 'ok' and m."do" in ('run', 'timer', 'promise', 'until')
                        and n.id || '.' || m.child = a.name))
    || durable._circles(p_reports, p_now);
end
$$;
comment on function durable._refused(durable._run_report[], text[], bigint) is
  'Completion rows for adoptions that fail. The row has the error, because no promise does. A promise is missing if it is not one of the known ones, which are locked, and no report of this turn creates it.';

create or replace function durable._adopt(p_reports durable._run_report[], p_known text[], p_now bigint)
returns bigint[] language plpgsql volatile
as $$
declare
  v_ends durable._event[] := durable._refused(p_reports, p_known, p_now);
  v_numbers text[] := array(select e.execution || '.' || e.child from unnest(v_ends) e);
begin
  v_ends := v_ends || array(
    select row(b.execution, 'child_settled', a.child, 1, a.name, null, null)::durable._event
    from unnest(p_reports) b
    cross join lateral unnest(b.commands) a
    join durable._promises p on p.id = any (array[a.name])
    where b.verdict = 'ok' and a."do" = 'adopt' and p.state <> 'pending' and b.execution || '.' || a.child <> all (v_numbers));
  perform durable._append(v_ends, p_now);
  insert into durable._callbacks (awaited_id, awaiter_id, child)
  select a.name, b.id, a.child
  from unnest(p_reports) b
  cross join lateral unnest(b.commands) a
  join durable._promises p on p.id = any (array[a.name])
  where b.verdict = 'ok' and a."do" = 'adopt' and p.state = 'pending' and b.execution || '.' || a.child <> all (v_numbers);
  update durable._promises p set external = true
  where p.id = any (array(select a.name from unnest(p_reports) b cross join lateral unnest(b.commands) a
                          where b.verdict = 'ok' and a."do" = 'adopt' and b.execution || '.' || a.child <> all (v_numbers)))
    and p.state = 'pending' and not p.external;
  return array(select distinct e.execution from unnest(v_ends) e);
end
$$;
comment on function durable._adopt(durable._run_report[], text[], bigint) is
  'Registers runs for the promises of others that they adopt (R13). An adoption of a settled promise is complete at once, and so is one that fails. Answers the executions with such an adoption.';

create or replace function durable._has_ended(p_verdict text, p_ending durable._ending)
returns boolean language sql immutable parallel safe
as $$
  select coalesce(p_verdict = 'ok' and p_ending."do" in ('complete', 'fail', 'cancel'), false)
$$;
comment on function durable._has_ended(text, durable._ending) is
  'True if the turn settles the run of this report; afterwards the turn reads nothing of it.';

create or replace function durable._is_last(p_verdict text, p_ending durable._ending, p_event durable._event)
returns boolean language sql immutable parallel safe
as $$
  select coalesce(durable._has_ended(p_verdict, p_ending) and durable._completes_step(p_event.type), false)
$$;
comment on function durable._is_last(text, durable._ending, durable._event) is
  'True if the row of a report is the result with which its run ends: both rows are appended together, so that the head is written once.';

create or replace function durable._has_seen(p_report durable._run_report, p_head durable._executions)
returns boolean language plpgsql stable
as $$
begin
  if p_report.seen = p_report.seq and p_report.next = p_head.next_seq then
    return true;
  end if;
  return not exists (
    select from durable._journal j
    join durable.journal_types() y on y.type = j.type
    where j.execution = p_head.execution and j.bucket = p_head.bucket and j.seq >= p_report.seen
      and (j.seq < p_report.seq or j.seq >= p_report.next) and (y.resolves or j.type = 'cancel_requested'));
end
$$;
comment on function durable._has_seen(durable._run_report, durable._executions) is
  'True if the coroutine has seen every resolution and request of cancellation, both before its report and in answer to it.';

create or replace function durable._empty_turn_answer(p_now bigint)
returns durable._turn_answer language sql immutable parallel safe
as $$
  select row(p_now, '{"execution": null, "verdict": null, "state": null, "seq": null, "next": null}', '[]', '[]', '{}',
             false, null, '{}', '{}', false)::durable._turn_answer
$$;
comment on function durable._empty_turn_answer(bigint) is 'The empty answer of a turn.';
