-- The code of a new run, as a start reads it. Takes no lock on a table and no time. Landed: durable._run_code exists.

create type durable._run_code as (workflow text, version text, digest bytea, rules smallint);
comment on type durable._run_code is 'The workflow of a new run, the digest of its code, and its rules of replay.';
