-- An index for durable.health, which names the schedules whose instants were missed a short while ago. Nobody waits for it.
-- Landed: pg_index has indisvalid for durable.schedule_instants_missed.

create index schedule_instants_missed on durable._schedule_instants (recorded_at) where outcome = 'missed';
comment on index durable.schedule_instants_missed is 'Serves durable.health: what was missed a short while ago.';
