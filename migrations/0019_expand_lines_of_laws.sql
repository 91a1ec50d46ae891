-- The laws see journal rows whose data is no JSON. An attribute is added to a type that no table uses: no lock on a table.
-- Landed: durable._journal_line has the attribute is_unreadable.

alter type durable._journal_line add attribute is_unreadable boolean;
comment on type durable._journal_line is
  'A journal row for the laws, with the data of waits and timers only. has_references: its data refers to large values; is_unreadable: it is no JSON.';
