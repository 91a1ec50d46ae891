-- Two generated columns of _promises become ordinary ones, which the settlement writes.
-- Why: PostgreSQL reads the expression of a generated column from the catalogue for each statement that writes its table, which was
-- a tenth of the cost of a start. Locks: ACCESS EXCLUSIVE on _promises, for a moment: no row is read. Landed: pg_attribute has an
-- empty attgenerated for failed_at and failure. A database that has functions has older ones, which write neither, until those
-- that know the columns replace them: a trigger does it for them, and goes afterwards, because no source defines it.

alter table durable._promises alter column failed_at drop expression, alter column failure drop expression;
comment on column durable._promises.failed_at is
  'When a run failed, for people; null for any other promise, so that completing a run changes no index. The settlement writes it: PostgreSQL would read the expression of a generated column for each statement.';
comment on column durable._promises.failure is
  'How a run failed, in the terms of the view durable.runs: failed, timed_out or cancelled; null for any other promise. The settlement writes it.';

do $older$
begin
  if exists (select from pg_catalog.pg_proc p where p.pronamespace = 'durable'::pg_catalog.regnamespace) then
    create function durable._write_failure() returns trigger language plpgsql as $body$
    begin
      new.failed_at := to_timestamp(new.settled_at / 1000.0);
      new.failure := case new.state when 'rejected' then 'failed' when 'rejected_timedout' then 'timed_out' else 'cancelled' end;
      return new;
    end
    $body$;
    create trigger write_failure before insert or update on durable._promises for each row
      when (new.failure is null and new.head is not null and new.state in ('rejected', 'rejected_timedout', 'rejected_canceled'))
      execute function durable._write_failure();
  end if;
end
$older$;
