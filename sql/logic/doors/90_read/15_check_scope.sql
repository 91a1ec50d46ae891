-- The scope of the laws. A law is checked on a portion: on spans of ids, or on runs by number. Other rows that it reads are
-- looked up by key, so the cost of a check depends on its portion alone, and a portion fits into memory. Every join of the laws
-- is a look-up (durable.check leaves the planner no other), so rows that belong together are grouped, never joined.

create or replace function durable._promises_within(p_from text[], p_to text[])
returns setof durable._promises language sql stable
as $$
  select x.* from unnest(p_from, p_to) as s (first, beyond)
  cross join lateral (select p.* from durable._promises p where p.id >= s.first and p.id < s.beyond offset 0) x
$$;
comment on function durable._promises_within(text[], text[]) is
  'Promises whose ids lie in the spans; a span has its first id and not its last.';

create or replace function durable._heads_within(p_runs int8multirange)
returns setof durable._executions language sql stable
as $$
  select x.* from unnest(p_runs) as s (span)
  cross join lateral (
    select h.* from durable._executions h where h.execution >= lower(s.span) and h.execution < upper(s.span) offset 0) x
$$;
comment on function durable._heads_within(int8multirange) is 'Heads of a portion.';

create or replace function durable._rows_within(p_runs int8multirange)
returns durable._journal_line[] language sql stable
as $$
  select array_agg(x.line) from unnest(p_runs) as s (span)
  cross join lateral (
    select row(j.execution, j.bucket, j.seq, j.ts, j.type, j.child, j.attempt, j.name, j.data is not null,
               case when j.type in ('execution_awaiting', 'timer_scheduled', 'random_generated', 'time_recorded')
                    then durable._data(j) end,
               -- substr reads the beginning of a compressed text only
               substr(j.data, 1, 2) = durable._sub() || 'f',
               -- a value that is stored apart is known by its hash (LV-3)
               case when not starts_with(j.data, durable._sub()) then durable._is_unreadable(j.data) end,
               j.input_hash)::durable._journal_line as line
    from durable._journal j where j.execution >= lower(s.span) and j.execution < upper(s.span)
    order by j.execution, j.seq offset 0) x
$$;
comment on function durable._rows_within(int8multirange) is
  'Journal rows of a portion, with or without a head, read once for all laws; without payloads, so that they are small.';
