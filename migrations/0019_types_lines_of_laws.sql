-- The laws see journal rows whose data is no JSON, and compare the arguments of child runs with their hashes. Older functions make
-- values of this type from all of its attributes, so it changes together with them. No table uses it: no lock on a table.
-- Landed: durable._journal_line has the attributes is_unreadable and input_hash.

alter type durable._journal_line add attribute is_unreadable boolean, add attribute input_hash bytea;
comment on type durable._journal_line is
  'A journal row for the laws, with the data of waits, timers and captured values only. has_references: its data refers to large values; is_unreadable: it is no JSON.';
