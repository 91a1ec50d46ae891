-- The comment promised each heartbeat, but not all of them write the row. SHARE UPDATE EXCLUSIVE on durable._workers for a moment.
-- It landed if the comment of durable._workers.seen_at speaks of 20 s.

comment on column durable._workers.seen_at is
  'Last hello, presence call or heartbeat that was written: one that renewed all leases is written every 20 s, or once in a lease of a worker without presence.';
