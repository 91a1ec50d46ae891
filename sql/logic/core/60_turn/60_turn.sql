-- The worker's turn: one call, one transaction, for every run that has something to report.
-- Order, once for all reports: promises, tasks, heads, side rows, the claim (SKIP LOCKED), the clock, a verdict each, the writes.

create or replace function durable._try_lock_reports(
  p_batch durable._turn_batch,
  out busy bigint[], out locked text[], out awaiters text[], out owned boolean)
language plpgsql volatile
as $$
declare
  v_promises text[] := '{}';
  v_tasks text[] := '{}';
  v_others text[];
  v_heads bigint[] := array(select b.execution from unnest(p_batch.reports) b);
  v_all_heads bigint[];
  v_owners bigint[] := '{}';
begin
  busy := '{}'; locked := '{}'; awaiters := '{}';
  if p_batch.settles <> '{}' or p_batch.adopts <> '{}' then
    v_promises := durable._try_lock_promises(p_batch.settles || p_batch.adopts);
  end if;
  if p_batch.settles <> '{}' then
    awaiters := durable._awaiters_of(p_batch.settles);
    v_tasks := durable._try_lock_tasks(p_batch.settles, true);
  end if;
  v_others := array(select b.id from unnest(p_batch.reports) b where b.id <> all (p_batch.settles));
  if awaiters <> '{}' then
    v_others := array(select unnest(v_others) union select unnest(awaiters) except select unnest(p_batch.settles));
  end if;
  if v_others <> '{}' then
    v_tasks := v_tasks || durable._try_lock_tasks(v_others, false);
  end if;
  if p_batch.settles <> '{}' then
    v_owners := array(select distinct t.owner from durable._tasks t where t.id = any (p_batch.settles) and t.owner is not null);
  end if;
  owned := v_owners <> '{}';
  if owned or awaiters <> '{}' then
    v_heads := array(
      select unnest(v_heads || v_owners)
      union
      select t.execution from durable._tasks t where t.id = any (awaiters) and t.execution is not null);
  end if;
  v_all_heads := v_heads;
  v_heads := durable._try_lock_heads(v_heads);
  v_tasks := v_tasks || durable._try_lock_side_rows(p_batch, v_all_heads, v_others);
  if v_promises <> '{}' or v_tasks <> '{}' or v_heads <> '{}' then
    v_others := v_promises || v_tasks || durable._busy_settlements(p_batch.settles, v_tasks, v_heads);
    busy := array(select b.execution from unnest(p_batch.reports) b
                  where b.id = any (v_others) or b.execution = any (v_heads)
                     or exists (select from unnest(b.commands) a where a."do" = 'adopt' and a.name = any (v_promises)));
    locked := durable._locked_ids(v_promises || v_tasks, v_heads);
  end if;
  if p_batch.adopts <> '{}' and not durable._try_lock_adoptions(p_batch.adopts) then
    busy := busy || array(select b.execution from unnest(p_batch.reports) b
                          where exists (select from unnest(b.commands) a where a."do" = 'adopt'));
    locked := locked || p_batch.adopts;
  end if;
end
$$;
comment on function durable._try_lock_reports(durable._turn_batch) is
  'Locks all that the reports need, and for each report all or nothing: its task and head; if it settles, its promise, the tasks that await the promise and its owner''s head; the promises that it adopts; the side rows that it writes. busy: reports that miss a lock now. locked: the ids for which they do. awaiters: tasks that this turn may resume. owned: true if a promise to be settled has an owner, whose journal records it.';

create or replace function durable._encode_verdicts(p_reports durable._run_report[])
returns json language plpgsql stable
as $$
begin
  return (
    select json_build_object('execution', json_agg(b.execution), 'verdict', json_agg(b.verdict),
      'state', json_agg(case when b.verdict = 'lost' then 'lost' when k.goes_on then 'acquired'
                             when t.state is null then 'done'
                             when t.state = 'pending' or t.version > b.version then 'released' else t.state end),
      'seq', json_agg(b.seq), 'next', json_agg(b.next))
    from unnest(p_reports) b
    cross join lateral (select b.verdict = 'ok' and (b.ending)."do" is null) as k (goes_on)
    left join durable._tasks t
      on t.id = any (array[case when not k.goes_on and not durable._has_ended(b.verdict, b.ending) then b.id end]));
end
$$;
comment on function durable._encode_verdicts(durable._run_report[]) is 'The answer to each report, as parallel arrays: a third cheaper for both sides than an object each.';

create or replace function durable._rows_of_others(p_reports durable._run_report[], p_has_new_rows boolean, p_now bigint)
returns json language plpgsql stable
as $$
begin
  -- the statement below plans for every partition of the journal, and most turns have no tails
  if not p_has_new_rows and not exists (select from unnest(p_reports) b where b.seen < b.seq) then
    return '[]';
  end if;
  return (
    select coalesce(json_agg(json_build_array(b.execution, x."rows", y."rows")), '[]')
    from unnest(p_reports) b
    join durable._executions h
      on h.execution = any (array[case when not durable._has_ended(b.verdict, b.ending) then b.execution end])
    left join durable._tasks t on t.id = any (array[b.id])
    cross join lateral durable._rows(h.execution, h.bucket, h.id, b.seen, b.seq) x
    cross join lateral durable._rows(h.execution, h.bucket, h.id, b.next, h.next_seq) y
    where b.verdict = 'ok' and durable._is_leased(t, b.version, p_now) is true and (b.seen < b.seq or b.next < h.next_seq));
end
$$;
comment on function durable._rows_of_others(durable._run_report[], boolean, bigint) is
  'For leased runs: rows that others appended before and after those of the report, [execution, before, after]. p_has_new_rows: this turn itself may have appended such rows.';

create or replace function durable._write_reports(p_batch durable._turn_batch, p_texts text[], p_now bigint)
returns durable._run_report[] language plpgsql volatile
as $$
declare
  v_events durable._event[] := array(select b.event from unnest(p_batch.reports) b where b.event is distinct from null
                                     and (cardinality(p_texts) > 0 or not durable._is_last(b.verdict, b.ending, b.event)));
begin
  if p_batch.has_commands then
    v_events := v_events || durable._command_events(p_batch.reports, p_now);
  end if;
  if p_batch.has_several and p_batch.has_outcomes then
    v_events := v_events || durable._outcome_events(p_batch.reports, p_now);
  end if;
  perform durable._check_retries(v_events);
  if cardinality(p_texts) > 0 then
    perform durable._append(durable._store_apart(v_events, p_texts), p_now, true, true);
  else
    perform durable._append(v_events, p_now, true);
  end if;
  if not p_batch.has_several then
    return p_batch.reports;
  end if;
  return array(
    select durable._with_verdict(
             b, b.verdict, b.seq,
             case when cardinality(p_texts) = 0 and durable._is_last(b.verdict, b.ending, b.event) then b.next
                  else coalesce(h.next_seq, b.next) end, b.event)
    from unnest(p_batch.reports) b left join durable._executions h on h.execution = any (array[b.execution]) order by b.id);
end
$$;
comment on function durable._write_reports(durable._turn_batch, text[], bigint) is
  'Appends the commands and outcomes of accepted reports, except a last result that its run ends with, if no text stands beside them (p_texts). Answers the reports with the numbers after their rows.';

create or replace function durable._answer_commands(p_reports durable._run_report[], p_adopted text[], p_now bigint)
returns durable._run_report[] language plpgsql volatile
as $$
declare
  v_answered bigint[];
begin
  if not exists (select from unnest(p_reports) b cross join lateral unnest(b.commands) a
                 where a."do" in ('receive', 'adopt', 'until', 'cancel')) then
    return p_reports;
  end if;
  perform durable._ask_to_cancel(
    array(select b.id || '.' || a.child from unnest(p_reports) b cross join lateral unnest(b.commands) a
          where b.verdict = 'ok' and a."do" = 'cancel' order by b.id, a.child), '"cancelled by its parent"');
  v_answered := durable._adopt(p_reports, p_adopted, p_now) || durable._receive_buffered(p_reports, p_now)
            || durable._begin_waits(p_reports, p_now);
  return array(
    select case when (b.ending)."do" = 'suspend' and b.execution = any (v_answered) then durable._with_ending(b, null) else b end
    from unnest(p_reports) b order by b.id);
end
$$;
comment on function durable._answer_commands(durable._run_report[], text[], bigint) is
  'Answers commands that need no wait: child runs that are to be cancelled, receives with a buffered signal, adoptions of promises that are settled or cannot be awaited. A run with such an answer does not suspend; the rows are in its tail.';

create or replace function durable._write_turn(
  p_batch durable._turn_batch, p_texts text[], p_worker text, p_now bigint, out reports durable._run_report[], out queues text[])
language plpgsql volatile
as $$
declare
  v_batch durable._turn_batch := p_batch;
  v_endings text[] := p_batch.endings;
begin
  queues := '{}';
  if not (p_batch.has_commands or p_batch.has_outcomes) then
    reports := durable._decide_end_verdicts(p_batch.reports, p_worker, p_now);
    if 'refuse' = any (v_endings) then
      reports := durable._decide_refusals(reports);
      v_endings := v_endings || '{fail,halt}'::text[];
    end if;
  else
    v_batch.reports := durable._decide_verdicts(p_batch, p_worker, p_now);
    if 'refuse' = any (v_endings) then
      v_batch.reports := durable._decide_refusals(v_batch.reports);
      v_endings := v_endings || 'fail'::text;
    end if;
    reports := durable._write_reports(v_batch, p_texts, p_now);
    -- a verdict may halt a run
    v_endings := v_endings || 'halt'::text;
  end if;
  if p_batch.has_commands then
    queues := durable._make_children(reports, p_worker, p_now) || durable._make_calls(reports, p_now);
    reports := durable._answer_commands(reports, p_batch.adopts, p_now);
  end if;
  queues := queues || durable._end_reports(reports, v_endings, p_texts, p_now);
  if 'refuse' = any (p_batch.endings) then
    perform durable._end_children(array(select b.execution from unnest(reports) b where b.verdict = 'ok'));
  end if;
  if p_batch.progress <> '{}' then
    perform durable._report_progress(p_batch.progress, reports, p_now);
  end if;
end
$$;
comment on function durable._write_turn(durable._turn_batch, text[], text, bigint) is
  'Gives the verdicts and writes the turn. Answers the reports as they are now, and the queues that got ready tasks. The caller holds all locks.';

create or replace function durable._distinct(p_texts text[])
returns text[] language plpgsql immutable parallel safe
as $$
begin
  if cardinality(p_texts) < 2 then
    return p_texts;
  end if;
  return array(select distinct t from unnest(p_texts) t);
end
$$;
comment on function durable._distinct(text[]) is
  'Each text once. A function, so that a caller with fewer than two texts runs no query.';

create or replace function durable._turn_without_reports(
  p_worker text, p_queues text[], p_codes text[], p_digests text[], p_rules integer, p_want integer, p_ttl_ms integer)
returns json language plpgsql volatile
as $$
declare
  v_claim record;
  v_head durable._executions;
  v_tasks json := '[]';
  v_queues text[] := '{}';
  v_answer durable._turn_answer;
  v_now bigint;
begin
  perform durable._check_may_lock();
  perform durable._check_site();
  select * into v_claim from durable._try_lock_claim(p_worker, p_queues, p_codes, p_rules, greatest(p_want, 0)) c;
  v_now := durable._now_ms();
  if cardinality(v_claim.ids) = 1 and not v_claim.owned then
    select * into v_head from durable._executions h where h.execution = v_claim.heads[1];
    v_tasks := durable._claim_single(v_claim.ids[1], v_head, p_worker, p_ttl_ms, p_codes, p_digests, v_now);
  end if;
  if v_tasks is null or cardinality(v_claim.ids) > 1 or v_claim.owned then
    select c.tasks, c.queues into v_tasks, v_queues
    from durable._claim(v_claim.ids, v_claim.owned, p_worker, p_ttl_ms, v_claim.warm, p_codes, p_digests, v_now) c;
  end if;
  v_answer := durable._empty_turn_answer(v_now);
  v_answer.tasks := v_tasks;
  v_answer.hints := v_queues;
  v_answer.due_in := case when p_want > 0 then coalesce(durable._due_in(v_now), durable._never()) end;
  v_answer.locked := durable._locked_ids('{}', v_claim.missed);
  return row_to_json(v_answer);
end
$$;
comment on function durable._turn_without_reports(text, text[], text[], text[], integer, integer, integer) is
  'A turn without reports, which only claims. One new run is claimed by the single-row path.';

create or replace function durable._without(p_reports jsonb, p_executions bigint[])
returns jsonb language sql immutable parallel safe
as $$
  select coalesce(jsonb_agg(b), '[]') from jsonb_array_elements(p_reports) b
  where (b ->> 'execution')::bigint <> all (p_executions)
$$;
comment on function durable._without(jsonb, bigint[]) is 'The reports of all other runs.';

create or replace function durable._turn(
  p_worker text, p_queues text[], p_codes text[], p_digests text[], p_rules integer, p_want integer, p_reports jsonb,
  p_ttl_ms integer)
returns durable._turn_answer language plpgsql volatile
as $$
declare
  v_batch durable._turn_batch := durable._read_reports(p_reports);
  v_answer durable._turn_answer;
  v_taken record;
  v_written record;
  v_claim text[] := '{}';
  v_warm text[] := '{}';
  v_owned boolean := false;
  v_missed bigint[] := '{}';
  v_woken text[] := '{}';
  v_now bigint;
begin
  perform durable._check_site();
  perform durable._check_reports(v_batch, pg_column_size(p_reports));
  if v_batch.has_commands then
    v_batch.adopts := durable._adopted_by(v_batch.reports);
  end if;
  perform durable._mark_engine_xact();
  select * into v_taken from durable._try_lock_reports(v_batch) t;
  if v_taken.busy <> '{}' then
    -- without the busy reports the turn goes on as if they had not been sent
    v_batch := durable._read_reports(durable._without(p_reports, v_taken.busy), v_batch.adopts);
  end if;
  if p_want > 0 then
    select c.ids, c.warm, c.owned, c.missed into v_claim, v_warm, v_owned, v_missed
    from durable._try_lock_claim(p_worker, p_queues, p_codes, p_rules, p_want) c;
  end if;
  v_now := durable._now_ms();
  v_answer := durable._empty_turn_answer(v_now);
  select * into v_written from durable._write_turn(v_batch, '{}', p_worker, v_now) t;
  if p_want >= 0 then
    v_woken := durable._woken_warm(v_taken.awaiters, p_worker, v_now);
  end if;
  if v_claim <> '{}' or v_woken <> '{}' then
    select c.tasks, v_written.queues || c.queues into v_answer.tasks, v_written.queues
    from durable._claim(v_claim || v_woken, v_owned or v_woken <> '{}', p_worker, p_ttl_ms, v_warm || v_woken, p_codes, p_digests,
                        v_now) c;
  end if;
  v_answer.settled := v_batch.settles <> '{}';
  v_answer.verdicts := durable._encode_verdicts(v_written.reports);
  v_answer.tails := durable._rows_of_others(
    v_written.reports, v_batch.has_commands or v_taken.owned or v_taken.awaiters <> '{}' or v_owned, v_now);
  v_answer.hints := durable._distinct(v_written.queues);
  if p_want > 0 or v_batch.has_commands or cardinality(v_written.reports) > 1 then
    v_answer.due_in := coalesce(durable._due_in(v_now), durable._never());
  end if;
  v_answer.busy := v_taken.busy;
  v_answer.locked := durable._locked_ids(v_taken.locked, v_missed);
  return v_answer;
end
$$;
comment on function durable._turn(text, text[], text[], text[], integer, integer, jsonb, integer) is
  'A turn with any number of reports, which may also claim. p_codes: the workflows that the worker can run.';

create or replace function durable._large_turn(p_worker text, p_reports jsonb, p_texts text[])
returns durable._turn_answer language plpgsql volatile
as $$
declare
  v_batch durable._turn_batch := durable._read_reports(p_reports);
  v_answer durable._turn_answer;
  v_taken record;
  v_written record;
  v_now bigint;
begin
  perform durable._check_site();
  perform durable._check_reports(v_batch, pg_column_size(p_reports));
  perform durable._check_texts(p_texts);
  if v_batch.has_commands then
    v_batch.adopts := durable._adopted_by(v_batch.reports);
  end if;
  perform durable._mark_engine_xact();
  select * into v_taken from durable._try_lock_reports(v_batch) t;
  if v_taken.busy <> '{}' then
    v_batch := durable._read_reports(durable._without(p_reports, v_taken.busy), v_batch.adopts);
  end if;
  v_now := durable._now_ms();
  v_answer := durable._empty_turn_answer(v_now);
  select * into v_written from durable._write_turn(v_batch, p_texts, p_worker, v_now) t;
  v_answer.settled := v_batch.settles <> '{}';
  v_answer.verdicts := durable._encode_verdicts(v_written.reports);
  v_answer.tails := durable._rows_of_others(
    v_written.reports, v_batch.has_commands or v_taken.owned or v_taken.awaiters <> '{}', v_now);
  v_answer.hints := durable._distinct(v_written.queues);
  v_answer.busy := v_taken.busy;
  v_answer.locked := durable._locked_ids(v_taken.locked, '{}');
  return v_answer;
end
$$;
comment on function durable._large_turn(text, jsonb, text[]) is
  'A turn with large texts beside its reports: as _turn, but it claims nothing, because its answer is late.';

create or replace function durable.worker_turn_v1(
  p_worker text, p_queues text[], p_codes text[], p_digests text[], p_want integer, p_reports jsonb, p_ttl_ms integer,
  p_notify boolean default false, p_idle_ms integer default 0, p_rules integer default 1,
  p_texts text[] default '{}')
returns json language plpgsql volatile
as $$
declare
  v_kind text;
  v_answer json;
  v_turn durable._turn_answer;
begin
  if coalesce(p_reports, '[]') = '[]' then
    return durable._turn_without_reports(p_worker, p_queues, p_codes, p_digests, p_rules, p_want, p_ttl_ms);
  elsif p_want <= 0 and durable._knows_site() and cardinality(p_texts) = 0 then
    v_kind := durable._single_kind(p_reports);
    if v_kind = 'end' then
      v_answer := durable._end_single(p_worker, p_reports -> 0, p_notify, p_idle_ms);
    elsif v_kind = 'outcome' then
      v_answer := durable._record_single(p_worker, p_reports -> 0);
    end if;
  end if;
  if v_answer is null then
    if cardinality(p_texts) > 0 then
      v_turn := durable._large_turn(p_worker, p_reports, p_texts);
    else
      v_turn := durable._turn(p_worker, p_queues, p_codes, p_digests, p_rules, p_want, p_reports, p_ttl_ms);
    end if;
    if p_notify and v_turn.settled then
      perform durable._notify('durable_settled');
    end if;
    v_answer := row_to_json(v_turn);
  end if;
  return v_answer;
end
$$ set lock_timeout = '1s';
comment on function durable.worker_turn_v1(text, text[], text[], text[], integer, jsonb, integer, boolean, integer, integer, text[]) is
  'One round trip of a worker: takes reports (outcomes, commands, ending), claims up to p_want tasks, renews leases. p_codes: the workflows that it can run, as worker_hello_v1 answered; p_digests: those of their code, at the same places. p_want < 0: claims nothing, not even tasks that this turn resumed. Verdicts: ok, stale, lost; none of them fails the other reports. due_in: milliseconds to the next deadline of all, 2^53-1 for none; null if the turn did not read it, as for a single report. p_notify: sends the hint that a promise settled, with its own commit. p_idle_ms > 0: if the turn ends one run and does nothing else, it registers the worker as idle for so long, as worker_idle_v1 does; idle: it did. p_rules: the newest rules of replay that it knows; it gets no run with newer ones. p_texts: large results of the reports, each of which has the character SUB and the number of its text, from 1, in its place; such a turn claims nothing. WF016.';

create or replace function durable.worker_watch_v1(p_worker text)
returns integer language plpgsql stable
as $$
begin
  return case when exists (select from durable._tasks t where t.state = 'acquired' and t.pid <> p_worker)
              then 1 else -1 end * (select count(*)::integer from durable._workers w where w.present or w.id = p_worker);
end
$$ set lock_timeout = '1s';
comment on function durable.worker_watch_v1(text) is
  'How many workers share the watch over leases: positive while other workers have leases, so that tick is called often; else negative.';
