-- A run may continue as another version of its workflow, so the report of a worker says which. Functions make values of this type
-- from all of its attributes, so it changes together with them. No table uses it: no lock on a table.
-- Landed: durable._ending has the attribute version.

alter type durable._ending add attribute version text;
