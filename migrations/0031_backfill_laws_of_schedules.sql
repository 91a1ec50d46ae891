-- Validates the laws of schedules, which 0030 created without reading the rows.
-- Locks: SHARE UPDATE EXCLUSIVE on _schedules, which is read four times. Landed: pg_constraint has convalidated for the four.

alter table durable._schedules
  validate constraint schedules_overlap_is_known, validate constraint schedules_pause_is_whole,
  validate constraint schedules_limits_not_negative, validate constraint schedules_policies_are_of_runs;
