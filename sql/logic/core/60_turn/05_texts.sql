-- Large texts of reports. They do not stand in the reports, but beside them, so that the many statements of a turn that take the
-- reports take no large text. In its place a report has SUB and its number, from 1; JSON text never begins with SUB.

create or replace function durable._text_apart(p_text text, p_texts text[])
returns text language plpgsql stable
as $$
declare
  v_text text := case when p_text ~ E'^\x1a[1-9][0-9]{0,5}$' then p_texts[substr(p_text, 2)::integer] end;
begin
  if v_text is null then
    perform durable._fail_invalid('A report refers to a text that was not sent with it.');
  end if;
  return v_text;
end
$$;
comment on function durable._text_apart(text, text[]) is 'The text that a report refers to. WF004.';

create or replace function durable._whole(p_text text, p_texts text[])
returns text language sql stable
as $$
  select case when starts_with(p_text, durable._sub()) and cardinality(p_texts) > 0
              then durable._text_apart(p_text, p_texts) else p_text end
$$;
comment on function durable._whole(text, text[]) is
  'A text of a report, or the one beside it that it refers to. Inlined, so a small one costs one comparison.';

create or replace function durable._check_texts(p_texts text[])
returns void language plpgsql stable
as $$
begin
  for i in 1..coalesce(cardinality(p_texts), 0) loop
    perform durable._check_payload('A payload of a run', p_texts[i]);
  end loop;
end
$$;
comment on function durable._check_texts(text[]) is 'Raises WF008 for a text over the limit, WF004 for one that is too deep.';

create or replace function durable._store_apart(p_events durable._event[], p_texts text[])
returns durable._event[] language plpgsql volatile
as $$
begin
  return array(
    select row(e.execution, e.type, e.child, e.attempt, e.name, e.input_hash,
               durable._stored_text(h.bucket, h.execution, durable._whole(e.data, p_texts)))::durable._event
    from unnest(p_events) with ordinality as e (execution, type, child, attempt, name, input_hash, data, ord)
    join durable._executions h on h.execution = any (array[e.execution])
    order by e.ord);
end
$$;
comment on function durable._store_apart(durable._event[], text[]) is
  'Stores the texts that events of reports refer to, each read once, and the other large ones. Answers the events as journal rows have them. The caller has locked the heads.';
