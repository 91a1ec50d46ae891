-- Failures of runs that were settled while 0007 waited for its lock.
-- Why: the older settlement left both columns to PostgreSQL. Locks: ROW EXCLUSIVE on _promises, and the rows of a batch, usually none.
-- It reads the table once, without waiting for anybody. Landed: no row with a head and a state like 'rejected%' has a null in failure.

with incomplete as (
  select p.id from durable._promises p
  where p.head is not null and p.state in ('rejected', 'rejected_timedout', 'rejected_canceled') and p.failure is null
  limit 1000)
update durable._promises p
set failed_at = to_timestamp(p.settled_at / 1000.0),
    failure = case p.state when 'rejected' then 'failed' when 'rejected_timedout' then 'timed_out' else 'cancelled' end
from incomplete i where p.id = i.id;
