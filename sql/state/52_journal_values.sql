-- Large values of journals, each kept once for its run: a list that grows from step to step is stored as what it grew by.

create table durable._journal_values (
  execution bigint not null,
  bucket integer not null,
  hash bytea not null,
  prefix bytea,
  data text not null,
  constraint journal_values_pk primary key (execution, hash, bucket),
  constraint journal_values_hash_is_sha256 check (octet_length(hash) = 32)
) partition by list (bucket);

comment on table durable._journal_values is
  'Large values of journal rows and the parts of them that are stored apart, each once for its run. Nothing is shared between runs, so a value goes with its run. Rows are never updated.';
comment on column durable._journal_values.bucket is 'Partition: that of the journal of the run.';
comment on column durable._journal_values.hash is
  'SHA-256 of data. Of a list: of its hash before its last element, and that element as it stands in data.';
comment on column durable._journal_values.prefix is
  'The list that this one begins with; for a list without an earlier one, the hash of the empty list, which has no row. Null: the value is no list that was taken apart.';
comment on column durable._journal_values.data is
  'The value as durable._stored_text wrote it; of a list only the elements after its prefix, and without the closing bracket.';
