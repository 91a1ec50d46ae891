-- The envelope of the SDKs: the data of a payload is base64 of JSON. The engine stores its own values as plain JSON and names
-- them by the header codec, so that psql reads them; whatever leaves by the protocol is in the envelope, so that every client
-- reads it. A payload without that header belongs to its client: it is stored and answered as it came, and decoded only where
-- our code or people read it.

create or replace function durable._is_plain(p_headers jsonb)
returns boolean language sql immutable parallel safe
as $$ select coalesce(p_headers ->> 'codec' = 'json', false) $$;
comment on function durable._is_plain(jsonb) is 'True for the headers of a payload that the engine encoded: plain JSON.';

create or replace function durable._plain_headers()
returns jsonb language sql immutable parallel safe
as $$ select '{"codec": "json"}'::jsonb $$;
comment on function durable._plain_headers() is 'The headers of a payload that the engine encoded.';

create or replace function durable._in_envelope(p_json text)
returns text language sql immutable parallel safe
as $$
  select case when strpos('{["-0123456789', left(p_json, 1)) > 0 or p_json in ('true', 'false', 'null')
              then translate(encode(convert_to(p_json, 'UTF8'), 'base64'), E'\n', '') else p_json end
$$;
comment on function durable._in_envelope(text) is
  'JSON text as SDKs write it. A text that does not begin like JSON stays as it is: no base64 of JSON begins like JSON, so an envelope is never put into another.';

create or replace function durable._from_envelope(p_data text)
returns text language plpgsql immutable
as $$
declare
  v_json text := nullif(p_data, '');
begin
  if v_json ~ '^[A-Za-z0-9+/]+={0,2}$' and length(v_json) % 4 = 0 then
    begin
      v_json := convert_from(decode(v_json, 'base64'), 'UTF8');
      perform v_json::json;
      return v_json;
    exception when invalid_text_representation or character_not_in_repertoire or untranslatable_character
                   or invalid_parameter_value or statement_too_complex then
      v_json := p_data;
    end;
  end if;
  perform v_json::json;
  return v_json;
exception when invalid_text_representation or statement_too_complex then
  return to_jsonb(p_data)::text;
end
$$;
comment on function durable._from_envelope(text) is
  'The JSON text in the data of a client: what is base64 of JSON is decoded, JSON stays as it is, any other text becomes a JSON string, no data null. A text that is both base64 and JSON has only digits or is a word such as true, and its bytes are never JSON again.';

create or replace function durable._decoded(p_data text)
returns jsonb language sql immutable
as $$ select durable._json(durable._from_envelope(p_data)) $$;
comment on function durable._decoded(text) is 'The data of a payload for people, whoever encoded it.';

create or replace function durable._error_for_sdk(p_error text)
returns text language sql immutable
as $$
  select case
    when jsonb_typeof(e.error) <> 'object' or e.error ? '__type' or not e.error ?| '{type,message}' then p_error
    else jsonb_build_object('__type', 'error', 'name', coalesce(e.error ->> 'type', 'Error'),
                            'message', coalesce(e.error ->> 'message', e.error ->> 'type'))::text end
  from (select durable._json(p_error) as error) e
$$;
comment on function durable._error_for_sdk(text) is
  'An error of the engine in the form of the SDKs: class and message. Its traceback, arguments and cause stay here. JSON that is no error of the engine stays as it is.';

create or replace function durable._error_from_sdk(p_error text)
returns text language sql immutable
as $$
  select case
    when e.error is null or e.error ?| '{type,kind}' and not e.error ? '__type' then p_error
    when e.error ->> '__type' in ('error', 'aggregate_error') then jsonb_strip_nulls(jsonb_build_object(
      'type', coalesce(e.error ->> 'name', 'Error'), 'module', 'resonate', 'message', coalesce(e.error ->> 'message', ''),
      'kind', 'UserError', 'traceback', e.error ->> 'stack', 'data', e.error -> 'errors'))::text
    else jsonb_build_object('type', 'Rejected', 'module', 'resonate', 'message', e.error #>> '{}', 'kind', 'Uncategorized',
                            'data', e.error)::text end
  from (select durable._json(p_error) as error) e
$$;
comment on function durable._error_from_sdk(text) is
  'An error of an SDK, as JSON text, in the form of the engine: its name becomes the type, its stack the traceback. The module says that its class is none of ours. Any other JSON is the data of an error without a class; an error that SQL wrote stays as it is.';

create or replace function durable._plain_value(p_promise durable._promises)
returns text language sql immutable
as $$
  select case
    when p_promise.head is not null or durable._is_plain(coalesce(p_promise.value_headers, p_promise.param_headers))
      then p_promise.value_data
    else durable._from_envelope(p_promise.value_data) end
$$;
comment on function durable._plain_value(durable._promises) is
  'The value of a promise as JSON text, as our code reads it: that of a run as its worker wrote it, that of a client decoded.';

create or replace function durable._plain_error(p_promise durable._promises)
returns text language sql immutable
as $$
  select durable._error_of(p_promise.state, case
    when p_promise.head is not null or durable._is_plain(coalesce(p_promise.value_headers, p_promise.param_headers))
      then p_promise.value_data
    when p_promise.value_data is not null
      then durable._error_from_sdk(nullif(durable._from_envelope(p_promise.value_data), 'null')) end)
$$;
comment on function durable._plain_error(durable._promises) is
  'The error of a promise that was not resolved as JSON text, as our code reads it, with the default of one without a reason.';
