-- Of a worker: the signals of its workflows; the digests of their code, so that a run is left to a worker with the code that wrote
-- its journal; its rules of replay (0011); and whether it keeps its runs while it is there, as that of app.run does. ACCESS
-- EXCLUSIVE on durable._workers, which is small, for a moment: no row is rewritten. It landed if durable._workers has the column keeps.

alter table durable._workers add column signals jsonb;
comment on column durable._workers.signals is 'For each of its workflows, at the same place, its signals as in _workflows; null: none was registered.';

alter table durable._workers add column digests text[];
comment on column durable._workers.digests is 'Digest of the code of each of workflows; null: a worker that registered before these were kept.';

alter table durable._workers add column rules smallint not null default 1;
comment on column durable._workers.rules is 'The newest rules of replay that it knows; a worker of 0.1.0 says nothing, and knows the first.';

alter table durable._workers add column keeps boolean not null default false;
comment on column durable._workers.keeps is 'Its runs are not for others while it is there: it is that of app.run.';
