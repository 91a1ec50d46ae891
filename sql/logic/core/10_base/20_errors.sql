-- One function for each failure that has a name. Nothing else in this schema raises.
-- They are volatile: an immutable one could be called while planning a branch that is never reached.
-- MESSAGE is a sentence that says what is wrong and with which object, SQLSTATE is its kind, HINT says what to do; no DETAIL.

create or replace function durable.error_codes()
returns table (code text, name text, meaning text, retryable boolean, status integer)
language sql immutable parallel safe
as $$
  values
    ('WF001', 'not_found', 'no such run, promise, task or setting', false, 404),
    ('WF002', 'lease_lost', 'the task is not held at that version any more', false, 409),
    ('WF003', 'conflict', 'the object is in a state that does not allow this', false, 409),
    ('WF004', 'invalid_argument', 'an argument is malformed; nothing was looked at or written', false, 400),
    ('WF005', 'not_awaitable', 'a promise that nobody outside settles cannot be awaited', false, 422),
    ('WF006', 'nondeterminism', 'a journal append does not fit the journal', false, 409),
    ('WF007', 'schema_mismatch', 'the program and the schema do not speak the same protocol', false, 500),
    ('WF008', 'payload_too_large', 'a payload is larger than payload_max_bytes, or tags than 64 KiB', false, 400),
    ('WF009', 'run_conflict', 'the id or key belongs to a run with another workflow or input', false, 409),
    ('WF010', 'not_targeted', 'a promise named as a task or as an awaiter has no target, hence no task', false, 422),
    ('WF011', 'forbidden', 'an operation that is switched off here', false, 403),
    ('WF012', 'await_cycle', 'a run would wait for itself, through others that wait for it', false, 422),
    ('WF013', 'no_route', 'no adapter serves this function URI', false, 422),
    ('WF014', 'input_unresolved', 'an input of a call has no value: it is pending, failed or was given up', false, 409),
    ('WF015', 'excised', 'the content of an object was removed on purpose', false, 410),
    ('WF016', 'not_adopted', 'the database is a copy, in which nothing runs before it is adopted', false, 503)
$$;
comment on function durable.error_codes() is
  'SQLSTATEs of this schema. Class WF is outside what the standard reserves; programs branch on the code, never on the text. status: what the protocol''s envelope answers.';

create or replace function durable._fail_not_found(
  p_kind text, p_id text, p_hint text default 'Look at select id, state from durable.runs or durable.promises.')
returns void language plpgsql volatile
as $$
begin
  raise exception using errcode = 'WF001', hint = p_hint, message = coalesce(
      (select format('%s %L ended as %s at %s and was removed.', initcap(p_kind), r.id, r.state,
                     to_timestamp(r.ended_at / 1000))
       from durable._removed r where r.id = p_id and p_kind in ('promise', 'run', 'task')),
      format('There is no %s %L.', p_kind, p_id));
end
$$;
comment on function durable._fail_not_found(text, text, text) is 'Raises WF001; its message tells of an object that was removed.';

create or replace function durable._fail_lease_lost(p_id text, p_version integer)
returns void language plpgsql volatile
as $$
begin
  raise exception using errcode = 'WF002', message = format('Task %L is not acquired at version %s.', p_id, p_version),
          hint = 'Drop the work: another worker has it, or the promise is settled.';
end
$$;
comment on function durable._fail_lease_lost(text, integer) is 'Raises WF002: the fence.';

create or replace function durable._fail_conflict(p_detail text, p_hint text default 'Read the object again before you go on.')
returns void language plpgsql volatile
as $$
begin
  raise exception using errcode = 'WF003', message = p_detail, hint = p_hint;
end
$$;
comment on function durable._fail_conflict(text, text) is 'Raises WF003.';

create or replace function durable._fail_invalid(
  p_detail text, p_hint text default 'Nothing was written; mend the argument and call again.')
returns void language plpgsql volatile
as $$
begin
  raise exception using errcode = 'WF004', message = p_detail, hint = p_hint;
end
$$;
comment on function durable._fail_invalid(text, text) is 'Raises WF004.';

create or replace function durable._fail_unfolded(p_id bytea, p_flaw text)
returns void language plpgsql volatile
as $$
begin
  raise exception using errcode = 'WF004', message = format('Value %s cannot be unfolded: %s.', encode(p_id, 'hex'), p_flaw),
          hint = 'Store it elsewhere and pass its URI.', datatype = 'durable.unfolded';
end
$$;
comment on function durable._fail_unfolded(bytea, text) is
  'Raises WF004 for a value that is too much for its readers, with a mark in the field for a data type: a report tells it from objects that are malformed.';

create or replace function durable._fail_not_awaitable(p_id text)
returns void language plpgsql volatile
as $$
begin
  raise exception using errcode = 'WF005',
        message = format('Promise %L does not exist or has no target, timer or external tag.', p_id),
          hint = 'Create it with the tag resonate:external = true.';
end
$$;
comment on function durable._fail_not_awaitable(text) is 'Raises WF005.';

create or replace function durable._fail_not_targeted(p_id text)
returns void language plpgsql volatile
as $$
begin
  raise exception using errcode = 'WF010', message = format('Promise %L does not exist or has no target, hence no task.', p_id),
          hint = 'Create it with the tag resonate:target.';
end
$$;
comment on function durable._fail_not_targeted(text) is 'Raises WF010.';

create or replace function durable._fail_forbidden(
  p_detail text, p_hint text default 'Debug operations exist only where pyengine db init --debug was typed.')
returns void language plpgsql volatile
as $$
begin
  raise exception using errcode = 'WF011', message = p_detail, hint = p_hint;
end
$$;
comment on function durable._fail_forbidden(text, text) is 'Raises WF011.';

create or replace function durable._await_cycle(p_path text[])
returns text language sql immutable parallel safe
as $$
  select array_to_string(case when cardinality(p_path) <= 12 then p_path
                              else p_path[1:6] || '...'::text || p_path[cardinality(p_path) - 4:] end, ' -> ')
         || ' would wait for itself'
$$;
comment on function durable._await_cycle(text[]) is
  'A circle of awaits as text: A -> B -> A would wait for itself. Of a long circle the middle is left out.';

create or replace function durable._fail_await_cycle(p_path text[])
returns void language plpgsql volatile
as $$
begin
  raise exception using errcode = 'WF012', message = format('Run %s.', durable._await_cycle(p_path)),
          hint = 'Let one of them send a signal or settle a promise instead of being waited for.';
end
$$;
comment on function durable._fail_await_cycle(text[]) is 'Raises WF012.';

create or replace function durable._fail_no_route(p_function text, p_served text[])
returns void language plpgsql volatile
as $$
begin
  raise exception using errcode = 'WF013', message = format('No adapter serves the function %L.', p_function),
          hint = format('Adapters and prefixes that are known here: %s.',
                        coalesce(nullif(array_to_string(p_served, ', '), ''), 'none'));
end
$$;
comment on function durable._fail_no_route(text, text[]) is 'Raises WF013 with what there is.';

create or replace function durable._fail_input_unresolved(p_node bytea, p_status text)
returns void language plpgsql volatile
as $$
begin
  raise exception using errcode = 'WF014', message = format('Input node %s has no value: %s.', encode(p_node, 'hex'), p_status),
          hint = 'Wait for it first, or retry it.';
end
$$;
comment on function durable._fail_input_unresolved(bytea, text) is 'Raises WF014 with the node and its status.';

create or replace function durable._fail_excised(p_id bytea)
returns void language plpgsql volatile
as $$
begin
  raise exception using errcode = 'WF015', hint = 'Run the call again; what was excised is never stored again.',
          message = format('Object %s was excised.', encode(p_id, 'hex'));
end
$$;
comment on function durable._fail_excised(bytea) is 'Raises WF015.';

create or replace function durable._fail_not_adopted()
returns void language plpgsql volatile
as $$
begin
  raise exception using errcode = 'WF016',
          message = 'This database was adopted on another server or as another database, so it is a copy and nothing runs in it.',
          hint = 'If the original does not run any more, or this is to run beside it, type: pyengine db adopt';
end
$$;
comment on function durable._fail_not_adopted() is 'Raises WF016. The command and the view durable.would_run show everything that would begin to run.';

create or replace function durable._fail_append(p_run text, p_event text, p_problem text)
returns void language plpgsql volatile
as $$
begin
  raise exception using errcode = 'WF006', message = format('Run %L, %s: %s.', p_run, p_event, p_problem),
          hint = format('select * from durable.journal_events where id = %L order by seq -- the code may have changed', p_run);
end
$$;
comment on function durable._fail_append(text, text, text) is 'Raises WF006; its hint can be run as it is.';

create or replace function durable._fail_too_large(
  p_subject text, p_bytes bigint, p_limit bigint,
  p_hint text default 'Store it elsewhere and pass a reference, or durable.set_setting(''payload_max_bytes'', ...).')
returns void language plpgsql volatile
as $$
begin
  raise exception using errcode = 'WF008', message = format('%s has %s bytes, the limit is %s.', p_subject, p_bytes, p_limit),
          hint = p_hint;
end
$$;
comment on function durable._fail_too_large(text, bigint, bigint, text) is 'Raises WF008.';

create or replace function durable._fail_as_user(
  p_sqlstate text, p_message text, p_detail text, p_hint text, p_constraint text, p_table text)
returns void language plpgsql volatile
as $$
begin
  raise exception using errcode = p_sqlstate, message = p_message, detail = p_detail, hint = p_hint, constraint = p_constraint,
                        table = p_table, datatype = 'durable.user';
end
$$;
comment on function durable._fail_as_user(text, text, text, text, text, text) is
  'Raises an error of a function of a user again, with a mark in the field for a data type: no text tells whose an error is.';

create or replace function durable._fail_busy(p_subject text)
returns void language plpgsql volatile
as $$
begin
  raise exception using errcode = '55P03', message = format('%s was locked by others for too long.', p_subject),
          hint = 'Call again: all that was done is taken back.';
end
$$;
comment on function durable._fail_busy(text) is 'Raises 55P03, lock_not_available. Our client calls again by itself.';

create or replace function durable._start_over()
returns void language plpgsql volatile
as $$
begin
  raise exception 'start over' using errcode = 'WF099';
end
$$;
comment on function durable._start_over() is
  'Raises WF099, which undoes the block of the caller; the caller catches it and starts again. It is the only way to release row locks before the transaction ends. No answer ever has this code.';

create or replace function durable._fail_run_conflict(p_id text, p_subject text)
returns void language plpgsql volatile
as $$
begin
  raise exception using errcode = 'WF009', message = format('Run %L exists with another %s.', p_id, p_subject),
          hint = 'Use another id or key, or start it with the same workflow and input to get the same run.';
end
$$;
comment on function durable._fail_run_conflict(text, text) is 'Raises WF009.';

create or replace function durable._refusal(p_type text, p_message text, p_data jsonb)
returns text language sql immutable parallel safe
as $$
  select jsonb_build_object('type', p_type, 'module', 'pyengine', 'kind', 'UserError', 'message', p_message,
                            'args', jsonb_build_array(p_message), 'retryable', false,
                            'data', '{"detail": null, "hint": null}'::jsonb || p_data)::text
$$;
comment on function durable._refusal(text, text, jsonb) is
  'An error that the database gives a run in answer to a command, in the form in which its code reads errors.';

create or replace function durable._fail_value_missing(p_execution bigint, p_hash bytea)
returns text language plpgsql volatile
as $$
begin
  raise exception using errcode = 'data_corrupted',
          message = format('The journal of execution %s refers to value %s, which is not stored.', p_execution,
                          encode(p_hash, 'hex')),
          hint = 'Rows of _journal_values were removed by hand: restore them from a backup. durable.check() finds all.';
end
$$;
comment on function durable._fail_value_missing(bigint, bytea) is 'Raises XX001: a part of a journal is gone.';
