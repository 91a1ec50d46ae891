-- A publication of the schema let no row of durable._object_uses be deleted, so objects were never collected. ACCESS EXCLUSIVE on
-- durable._object_uses for a moment, however big it is: the catalogue alone changes. It landed if pg_class.relreplident of it is f.

alter table durable._object_uses replica identity full;
