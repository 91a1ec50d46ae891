-- Replaces the only function that reads a clock. Production has no such door: this file is installed by tests alone.
-- Called by every transaction, the instant stands in one row that the fixture `clock` moves.

create schema test_clock;
create table test_clock.instant (now_ms bigint not null);
insert into test_clock.instant (now_ms) values (1800000000000);
grant usage on schema test_clock to public;
grant select on test_clock.instant to public;

create or replace function durable._now_ms()
returns bigint language sql volatile parallel unsafe
as $$ select i.now_ms from test_clock.instant i $$;
