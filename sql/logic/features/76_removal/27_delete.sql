-- The removal of one run on request, whatever its age: by the functions of retention, with its laws and its tombstone. A
-- refusal says what still needs the run.

create or replace function durable._check_ended_tree(p_run durable._promises)
returns void language plpgsql stable
as $$
declare
  v_live text;
begin
  if p_run.state = 'pending' then
    perform durable._fail_conflict(format('Run %L has not ended.', p_run.id),
                                   format('select durable.cancel(%L), then delete it once it has ended.', p_run.id));
  elsif p_run.execution is not null then
    perform durable._fail_conflict(
      format('Run %L is a child: its parent, whose journal reads its result, is deleted with all its children.', p_run.id),
      format('select parent from durable.runs where id = %L', p_run.id));
  end if;
  select t.id into v_live from durable._tree(array[p_run.id]) t where t.is_live order by t.id limit 1;
  if v_live is not null then
    perform durable._fail_conflict(format('%L, which run %L began, has not ended.', v_live, p_run.id),
                                   format('select durable.cancel(%L), then delete the run once that has ended.', v_live));
  end if;
end
$$;
comment on function durable._check_ended_tree(durable._promises) is
  'Refuses the deletion of a run that lives, is a child, or has a child that lives. WF003.';

create or replace function durable._fail_needed(p_id text, p_reason text)
returns void language plpgsql volatile
as $$
begin
  if p_reason = 'busy' then
    perform durable._fail_busy(format('A part of run %L', p_id));
  end if;
  perform durable._fail_conflict(
    format('Run %L stays: %s.', p_id, case p_reason
      when 'row' then 'a row of a table of yours refers to it by a foreign key'
      when 'journal' then 'another run reads its result'
      when 'awaited' then 'a run waits for it, or is about to see its end'
      else 'a listener has not got the message of its end' end),
    case p_reason
      when 'row' then 'Delete that row first, or declare its foreign key with on delete cascade.'
      when 'journal' then 'Delete the run that reads it first.'
      when 'awaited' then 'Call again once that run has gone on.'
      else 'Call again once the message was acknowledged.' end);
end
$$;
comment on function durable._fail_needed(text, text) is
  'Raises WF003 for a run that is needed, by a reason of durable._needed, and 55P03 for one that others have locked.';

create or replace function durable.delete(id text)
returns boolean language plpgsql volatile
as $$
declare
  v_reason text;
begin
  perform durable._check_may_lock();
  if exists (select from durable._removed r where r.id = $1 and r.workflow is not null) then
    return false;
  end if;
  perform durable._check_ended_tree(durable._find_run($1));
  select k into v_reason from durable._remove_ended(array[$1], durable._never()) r cross join lateral jsonb_object_keys(r.kept) k;
  if v_reason is not null then
    perform durable._fail_needed($1, v_reason);
  end if;
  return true;
end
$$;
comment on function durable.delete(text) is
  'Deletes a run that has ended, with its children, journals, signals and all else that belongs to it, as durable.purge does, whatever its age: select durable.delete(''order-42''). Its id and its key stay taken for the setting removed_ids_days. True; false if it was removed before and is remembered. It waits for nobody. WF001, WF003 it has not ended, is a child, or is still needed; 55P03 another session has locked a part of it.';
