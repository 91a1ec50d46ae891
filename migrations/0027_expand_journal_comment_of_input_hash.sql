-- The comment did not know of the second hash, which calls with defaults have since rules 4. SHARE UPDATE EXCLUSIVE on
-- durable._journal for a moment. It landed if the comment of durable._journal.input_hash speaks of defaults.

comment on column durable._journal.input_hash is
  'First 8 bytes of the hash of name and arguments: compared on every replay. Since rules 4 those of the hash without defaults stand before them, if the call has defaults.';
