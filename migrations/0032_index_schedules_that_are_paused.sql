-- An index for durable.health, which names the schedules that are paused. Nobody waits for it.
-- Landed: pg_index has indisvalid for durable.schedules_paused.

create index schedules_paused on durable._schedules (paused_at) where paused_at is not null;
comment on index durable.schedules_paused is 'Serves durable.health: the schedules that are paused.';
