-- A sweep of retention that fails is left until later, and health tells of it; callbacks of the older API that run out are swept.
-- ACCESS EXCLUSIVE on durable._retention for a moment: a nullable column is added to the catalogue only. It landed if
-- durable._retention has the column problem.

alter table durable._retention add column problem text;
comment on column durable._retention.problem is
  'Why its last portion failed, with the SQLSTATE; null if it did not. It is tried again after ten minutes.';

comment on table durable._retention is
  'The positions of the sweeps by durable.tick(): one row for runs and, once there are any, one each for calls, objects and callbacks of the older API.';
comment on column durable._retention.subject is 'runs, calls, objects or callbacks.';
