-- Payloads and tags: their limits, and how opaque text becomes readable JSON for people.

create or replace function durable._json(p_text text)
returns jsonb language plpgsql immutable
as $$
begin
  return p_text::jsonb;
exception when invalid_text_representation or untranslatable_character or statement_too_complex then
  return to_jsonb(p_text);
end
$$;
comment on function durable._json(text) is
  'Text as JSON where it is JSON, else as a JSON string: payloads of other codecs stay visible. So does JSON that is too deep for the server itself.';

create or replace function durable._is_unreadable(p_text text)
returns boolean language plpgsql immutable strict
as $$
begin
  perform p_text::json;
  return false;
exception when invalid_text_representation or untranslatable_character then
  return true;
end
$$;
comment on function durable._is_unreadable(text) is 'True for a text that is no JSON.';

create or replace function durable._is_deep(p_json jsonb)
returns boolean language sql immutable parallel safe
as $$
  select jsonb_path_exists(p_json, 'strict $.**{500} ? (@.type() == "array" || @.type() == "object")')
$$;
comment on function durable._is_deep(jsonb) is 'JSON that is nested deeper than 500 levels: readers of other languages fail at it, mostly at 1000.';

create or replace function durable._is_deep(p_text text)
returns boolean language plpgsql immutable
as $$
begin
  -- 500 levels need as many opening brackets, and a list or map around them. To count brackets is to copy the text
  if octet_length(p_text) <= 1000 or ltrim(left(p_text, 100), E' \t\n\r') ~ '^[^[{]'
     or octet_length(p_text) - octet_length(translate(p_text, '[{', '')) <= 500 then
    return false;
  end if;
  return durable._is_deep(p_text::jsonb);
exception
  when invalid_text_representation or untranslatable_character then
    return false;
  when statement_too_complex then
    return true;
end
$$;
comment on function durable._is_deep(text) is 'The same for a text that may be JSON; false for a text in another codec.';

create or replace function durable._check_depth(p_subject text, p_text text)
returns void language plpgsql stable
as $$
begin
  if durable._is_deep(p_text) then
    perform durable._fail_invalid(format('%s is JSON that is nested deeper than 500 levels.', p_subject),
                                  'Flatten it, or pass it as a text.');
  end if;
end
$$;
comment on function durable._check_depth(text, text) is 'Raises WF004 for JSON that is nested too deep for readers.';

create or replace function durable._check_payload(p_subject text, p_text text)
returns void language plpgsql stable
as $$
begin
  if octet_length(p_text) <= 1000 then
    return;
  elsif octet_length(p_text) > durable._setting_int('payload_max_bytes') then
    perform durable._fail_too_large(p_subject, octet_length(p_text), durable._setting_int('payload_max_bytes'));
  end if;
  perform durable._check_depth(p_subject, p_text);
end
$$;
comment on function durable._check_payload(text, text) is
  'Raises WF008 for a payload over the limit, WF004 for JSON that is too deep. Payloads of up to 1000 bytes are not checked.';

create or replace function durable._check_tags_size(p_subject text, p_tags jsonb)
returns void language plpgsql stable
as $$
begin
  if octet_length(p_tags::text) > 65536 then
    perform durable._fail_too_large(format('Tags of %s', p_subject), octet_length(p_tags::text), 65536,
                                    'Tags are for finding runs and promises; what is said about them goes into arguments.');
  end if;
end
$$;
comment on function durable._check_tags_size(text, jsonb) is
  'Raises WF008 for tags of more than 64 KiB in all, because each tag is in an index.';

create or replace function durable._check_json(p_subject text, p_text text)
returns void language plpgsql stable
as $$
begin
  perform durable._check_payload(p_subject, p_text);
  perform p_text::json;
exception when invalid_text_representation then
  perform durable._fail_invalid(format('%s is no JSON: %s', p_subject, left(p_text, 60)));
end
$$;
comment on function durable._check_json(text, text) is 'Raises WF008 for a payload over the limit, WF004 for one that is no JSON text.';

create or replace function durable._error_of(p_state text, p_data text)
returns text language sql immutable parallel safe
as $$
  select coalesce(p_data, case p_state
    when 'rejected_timedout' then '{"type": "Timeout", "kind": "Timeout", "message": "the deadline passed"}'
    when 'rejected_canceled' then '{"type": "Cancelled", "kind": "Cancelled", "message": "cancelled"}'
    else '{"type": "Rejected", "kind": "Uncategorized", "message": "rejected without a reason"}' end)
$$;
comment on function durable._error_of(text, text) is
  'The error of a rejected promise as JSON text; a promise that was rejected without one gets a default.';

create or replace function durable._error_kind(p_type text)
returns text language sql immutable parallel safe
as $$
  select case
    when p_type is null or p_type = 'Rejected' then 'Uncategorized'
    when p_type in ('Timeout', 'TimeoutError', 'StepTimeout', 'RunTimedOut', 'Interrupted') then 'Timeout'
    when p_type in ('Cancelled', 'CancelledError', 'RunCancelled') then 'Cancelled'
    when p_type in ('Nondeterminism', 'NondeterminismError') then 'Nondeterminism'
    when p_type in ('Crashed', 'StepInterrupted') then 'Trap'
    else 'UserError'
  end
$$;
comment on function durable._error_kind(text) is
  'Kind of an error by its type: Trap (the process that ran it is gone), UserError, Timeout (a lost lease too), Cancelled, Nondeterminism or Uncategorized.';

create or replace function durable._with_kind(p_error jsonb)
returns jsonb language sql immutable parallel safe
as $$
  select case
    when jsonb_typeof(p_error) is distinct from 'object'
      then jsonb_build_object('kind', 'Uncategorized', 'message', coalesce(p_error #>> '{}', 'no reason given'))
    when p_error ? 'kind' then p_error
    else jsonb_build_object('kind', durable._error_kind(p_error ->> 'type')) || p_error
  end
$$;
comment on function durable._with_kind(jsonb) is
  'An error as journals show it: an object with a kind. An error with a kind of its own keeps it; a value that is no object becomes a message.';
