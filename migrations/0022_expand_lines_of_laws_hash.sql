-- The laws compare the arguments of child runs with their hashes. An attribute is added to a type that no table uses: no lock on a table.
-- Landed: durable._journal_line has the attribute input_hash.

alter type durable._journal_line add attribute input_hash bytea;
comment on type durable._journal_line is
  'A journal row for the laws, with the data of waits, timers and captured values only. has_references: its data refers to large values; is_unreadable: it is no JSON.';
