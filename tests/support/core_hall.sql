-- The functions of features that the views of runs name, with empty bodies: what a database without features has in their place.
-- Lives here: what style/test_core_alone.py lays into a copy of the core. May not: a function that those views do not name.

create or replace function durable._call_key(p_promise text)
returns bytea language sql immutable parallel safe
as $$ select null::bytea $$;

create or replace function durable._completion(p_type durable.row_type, p_data text, p_child durable._promises)
returns jsonb language sql stable
as $$ select null::jsonb $$;

create or replace function durable._completion_of(p_execution bigint, p_bucket integer, p_id text, p_child integer)
returns jsonb language sql stable
as $$ select null::jsonb $$;

create or replace function durable._shown_next(p_schedule durable._schedules)
returns bigint language sql stable
as $$ select null::bigint $$;

create or replace function durable._occurrence_id(p_schedule durable._schedules, p_at bigint)
returns text language sql stable
as $$ select null::text $$;

create or replace function durable._runs_of_schedule(p_schedule text, p_before text, p_most integer)
returns setof text language sql stable
as $$ select null::text where false $$;

create or replace function durable._schedule_text(p_cron text, p_timezone text)
returns text language sql stable
as $$ select null::text $$;

create or replace function durable.check()
returns table (law text, id text, detail text) language sql stable
as $$ select null::text, null::text, null::text where false $$;
