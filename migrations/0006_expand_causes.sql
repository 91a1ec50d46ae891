-- The form in which the functions behind durable.why pass causes on. Takes no lock on a table and no time.
-- It has landed if to_regtype('durable._cause') is not null.

create type durable._cause as (
  cause text, name text, sentence text, since bigint, until bigint, details jsonb, leads_to text
);
comment on type durable._cause is
  'Why a run or promise waits. cause: a code for programs; name: what it is about, such as a signal; since and until in ms; leads_to: the promise that it waits for, whose own causes come next.';
