-- A copy in which nothing could run is adopted at its first use. Two sessions that use it first at the same moment: one adopts it,
-- the other one goes on, and if the first is rolled back all that the second has written seems to have come with the copy. So that
-- nothing could run is noted outside of transactions. No lock on a table. Landed: durable._idle_copy is there.

create sequence durable._idle_copy;
comment on sequence durable._idle_copy is
  'A hash of this server and database and of those in _site, if somebody has seen that nothing could run in this copy; a sequence, because no rollback takes that back. A copy of it has the hash of its original, which tells nothing about it.';
