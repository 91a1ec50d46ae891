-- A settlement passes on the instant that it has written. Older functions make values of this type from all of its attributes, so
-- it changes together with them. No table uses it: no lock on a table. Landed: durable._settled has the attribute settled_at.

alter type durable._settled add attribute settled_at bigint;
