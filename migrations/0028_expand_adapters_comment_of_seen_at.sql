-- The row is written every 20 s. SHARE UPDATE EXCLUSIVE on durable._adapters for a moment. It landed if the comment of
-- durable._adapters.seen_at says so.

comment on column durable._adapters.seen_at is 'When the worker last asked for work of this adapter, to 20 seconds.';
