-- Callbacks of the older API that run out are swept: durable._retention may have one row more. Only comments change. Locks:
-- SHARE UPDATE EXCLUSIVE on _retention, for a moment. Landed: the comment of durable._retention.subject names callbacks.

comment on table durable._retention is
  'The positions of the sweeps by durable.tick(): one row for runs and, once there are any, one each for calls, objects and callbacks of the older API.';
comment on column durable._retention.subject is 'runs, calls, objects or callbacks.';
