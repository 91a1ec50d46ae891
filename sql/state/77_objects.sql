-- Content-addressed objects: values, calls, results and their history. An object never changes and is named by the hash of what
-- it is (durable._object_id), so equal things are one row, and what an object refers to existed before it: there is no cycle.
-- Only 85_calls/12_objects.sql inserts here. Only excision changes a row, and leaves its tombstone.

create domain durable._hash as bytea
  constraint hash_has_32_bytes check (octet_length(value) = 32);
comment on domain durable._hash is 'A SHA-256, which is the id of an object. In JSON and Python 64 lower-case hexadecimal digits.';

create domain durable._object_name as text
  constraint object_name_is_at_most_255_bytes check (octet_length(value) <= 255)
  constraint object_name_is_normalized check (value is nfc normalized);
comment on domain durable._object_name is 'A name within a DAG or a tree: Unicode form NFC, at most 255 bytes of UTF-8.';

create type durable._object_form as (
  created_at durable.epoch_ms, excised_at durable.epoch_ms, excision integer, id_bytes integer, kind text, sub text,
  scalar_bytes integer, refs durable._hash[], names durable._object_name[], reason text
);
comment on type durable._object_form is 'The columns that the laws of an object use. Of the scalar only its length, because a row is copied to be checked.';

create domain durable._lawful_object as durable._object_form
  constraint objects_id_is_a_hash check ((value).id_bytes = 32)
  constraint objects_kind_is_known check (
    (value).sub = any (case (value).kind
      when 'datum' then '{"null",bool,i64,f64,bytes,string,uri,list,set,map}'::text[]
      when 'node' then '{literal,call,import,builtin}'
      when 'exec' then '{ok,error}'
      when 'dag' then '{""}' when 'tree' then '{""}' when 'commit' then '{""}' when 'request' then '{""}' else '{}' end))
  constraint objects_excised_are_empty check (
    num_nonnulls((value).excised_at, (value).excision, (value).reason) in (0, 3)
    and ((value).excised_at is null
         or ((value).scalar_bytes is null and (value).refs = '{}' and (value).names = '{}'
             and (value).created_at <= (value).excised_at)))
  constraint objects_scalar_has_the_length_of_its_kind check (
    (value).excised_at is not null
    or case when (value).kind = 'commit' then (value).scalar_bytes = 4
            when (value).kind <> 'datum' then (value).scalar_bytes is null
            when (value).sub = 'bool' then (value).scalar_bytes = 1
            when (value).sub in ('i64', 'f64') then (value).scalar_bytes = 8
            when (value).sub in ('bytes', 'string') then (value).scalar_bytes between 0 and 1048576
            when (value).sub = 'uri' then (value).scalar_bytes between 1 and 1048576
            else (value).scalar_bytes is null end is true)
  constraint objects_refs_are_a_list check (
    coalesce(array_ndims((value).refs), 1) = 1 and array_position((value).refs, null) is null)
  constraint objects_refs_are_as_many_as_their_kind_has check (
    (value).excised_at is not null
    or case when (value).kind = 'datum' then
              case (value).sub when 'list' then true when 'set' then true
                               when 'map' then cardinality((value).refs) % 2 = 0 else (value).refs = '{}' end
            when (value).kind = 'node' then
              case when (value).sub in ('literal', 'import') then cardinality((value).refs) = 1
                   else cardinality((value).refs) >= 1 end
            when (value).kind = 'dag' then cardinality((value).refs) >= 1
            when (value).kind = 'commit' then cardinality((value).refs) >= 1
            when (value).kind in ('exec', 'request') then cardinality((value).refs) = 2
            else true end)
  constraint objects_names_match_refs check (
    coalesce(array_ndims((value).names), 1) = 1 and array_position((value).names, null) is null
    and ((value).excised_at is not null
         or cardinality((value).names) = case when (value).kind in ('dag', 'tree') then cardinality((value).refs) else 0 end));
comment on domain durable._lawful_object is
  'The laws of a row of _objects, applied by its constraint objects_are_lawful. The laws of bytes and of order are in durable._object_flaw, and durable.check() applies all of them.';

create table durable._objects (
  created_at durable.epoch_ms not null,
  excised_at durable.epoch_ms,
  excision integer,
  id bytea not null,
  kind text not null,
  sub text not null,
  scalar bytea,
  refs bytea[] not null default '{}',
  names text[] not null default '{}',
  reason text,
  constraint objects_pk primary key (id),
  constraint objects_are_lawful check (row(
    created_at, excised_at, excision, octet_length(id), kind, sub, octet_length(scalar), refs, names, reason
  )::durable._lawful_object is distinct from null)
);
comment on table durable._objects is
  'Content-addressed objects. Every id in refs has its row here. A table that names an object refers to it by a foreign key, or collection knows the table; so nothing that is named is collected. People read the view durable.objects.';
comment on column durable._objects.created_at is 'When it was first put. It is not part of its identity.';
comment on column durable._objects.excised_at is 'When its content was removed on purpose; null: it is there.';
comment on column durable._objects.excision is 'Number of that removal, one higher with each, in the order of their commits.';
comment on column durable._objects.id is 'durable._object_id of kind, sub, scalar, refs and names.';
comment on column durable._objects.kind is 'datum, node, dag, tree, commit, exec or request.';
comment on column durable._objects.sub is
  'The kind within the kind: type of a datum (null, bool, i64, f64, bytes, string, uri, list, set, map), of a node (literal, call, import, builtin), outcome of an exec (ok, error); empty for the others.';
comment on column durable._objects.scalar is
  'Bytes of a datum: bool 00 or 01; i64 and f64 8 bytes, big endian; string and uri UTF-8. Of a commit: the number of its parents, 4 bytes.';
comment on column durable._objects.refs is
  'Ids of other objects. list: members in order; set: members sorted; map: key, value, ... sorted by key id; literal: datum; import: dag; call and builtin: datum of the function URI, input nodes; dag: root node, named nodes; tree: dags; commit: tree, parents, then node, exec and request (or 32 zero bytes) of each exec, sorted by node; exec: node, then dag of a call or datum of a builtin; request: node, map datum.';
comment on column durable._objects.names is
  'Names of the refs of a dag (the first is empty, for its root, the others sorted) and of a tree (sorted), by their bytes.';
comment on column durable._objects.reason is 'Why it was excised; null: it was not.';

create index objects_by_ref on durable._objects using gin (refs) with (fastupdate = off) where refs <> '{}';
comment on index durable.objects_by_ref is 'Serves collection: whether any object refers to one. Without a list of pending entries, which each look-up would read, and without objects that refer to none.';
create index objects_execs_by_node on durable._objects ((refs[1])) where kind = 'exec';
comment on index durable.objects_execs_by_node is 'Serves the history of a node: its execs.';
create unique index objects_by_excision on durable._objects (excision) where excision is not null;
comment on index durable.objects_by_excision is 'Serves closure_status: the number of the latest excision.';
create index objects_by_created_at on durable._objects (created_at, id) where excised_at is null;
comment on index durable.objects_by_created_at is 'Serves collection, which goes through old objects portion by portion.';
create index objects_by_hex on durable._objects using hash (encode(id, 'hex'));
comment on index durable.objects_by_hex is 'Serves people, who filter views by an id as text. A hash, because an entry of it has no text.';

create type durable._object as (
  id bytea, kind text, sub text, scalar bytea, refs bytea[], names text[]
);
comment on type durable._object is 'An object to be put. Its id may be null; one that is given must be that of its content. Refs and names may be null: none.';

create table durable._object_uses (
  used_at durable.epoch_ms not null,
  id bytea not null,
  constraint object_uses_are_of_objects foreign key (id) references durable._objects (id) on delete cascade
);
-- it has no key, and a publication lets no row without an identity be deleted
alter table durable._object_uses replica identity full;
comment on table durable._object_uses is
  'Old objects that were put again, so collection treats them as new. Rows are only inserted, never changed: sessions that put the same object at the same moment do not wait for each other.';
comment on column durable._object_uses.used_at is 'When it was put again.';
comment on column durable._object_uses.id is 'The object.';
create index object_uses_by_id on durable._object_uses (id, used_at);
comment on index durable.object_uses_by_id is 'Serves puts and collection: the latest use of an object.';

create table durable._closures (
  excision integer not null,
  is_whole boolean not null,
  id bytea not null,
  constraint closures_pk primary key (id),
  constraint closures_are_of_objects foreign key (id) references durable._objects (id) on delete cascade,
  constraint closures_excision_positive check (excision > 0)
);
comment on table durable._closures is
  'Objects whose closure was walked since something was excised, so that no closure is walked again at each hit. A cache: any row may be deleted at any time.';
comment on column durable._closures.excision is 'Number of the latest excision that the walk saw. The row holds until the next one.';
comment on column durable._closures.is_whole is 'No object that it reaches was excised. False holds for ever.';
comment on column durable._closures.id is 'The object at the top.';

create table durable._refs (
  version integer not null default 1,
  created_at durable.epoch_ms not null,
  of_run boolean not null default false,
  commit_id bytea not null,
  name text collate "C" not null,
  kind text not null,
  base text collate "C",
  constraint refs_pk primary key (name),
  constraint refs_commit_exists foreign key (commit_id) references durable._objects (id),
  constraint refs_base_exists foreign key (base) references durable._refs (name),
  constraint refs_kind_is_known check (kind in ('head', 'index', 'exec')),
  constraint refs_name_is_1_to_1024_bytes check (octet_length(name) between 1 and 1024),
  constraint refs_version_positive check (version >= 1),
  constraint refs_only_an_index_has_a_base check (base is null or kind = 'index'),
  constraint refs_of_runs_are_scopes check (not of_run or (kind = 'index' and base is null))
);
comment on table durable._refs is
  'Names of commits, the only mutable part of the store. Each change is a compare-and-swap of version, and heads and snapshots go forward only. People read the view durable.refs.';
comment on column durable._refs.version is 'One higher with each change.';
comment on column durable._refs.created_at is 'When the name was made.';
comment on column durable._refs.of_run is 'A scope that was made for the calls of the run of this name, and is dropped after that run is removed.';
comment on column durable._refs.commit_id is 'The commit that it names.';
comment on column durable._refs.kind is 'head: a branch; index: a scope, in which work goes on; exec: a snapshot that a call was given, ephemeral.';
comment on column durable._refs.base is 'The head that an index was opened on and is committed to; null: none.';
create index refs_by_commit on durable._refs (commit_id);
comment on index durable.refs_by_commit is 'Serves collection: whether a commit is named.';
create index refs_by_base on durable._refs (base) where base is not null;
comment on index durable.refs_by_base is 'Serves people: the scopes of a head.';
create index refs_of_runs on durable._refs (name) where of_run;
comment on index durable.refs_of_runs is 'Serves retention: scopes whose runs may be removed.';
create index refs_ephemeral on durable._refs (created_at) where kind = 'exec';
comment on index durable.refs_ephemeral is 'Serves retention: snapshots, the oldest first.';
