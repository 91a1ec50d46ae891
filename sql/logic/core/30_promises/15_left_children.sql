-- The end of child runs: a parent may ask that one ends, and a run that has ended leaves none behind.
-- The requests are rows, and a tick carries them out (50_runs/45_end_children.sql).

create or replace function durable._ask_to_cancel(p_ids text[], p_reason jsonb)
returns void language plpgsql volatile
as $$
begin
  insert into durable._cancellations (id, reason) select i, p_reason from unnest(p_ids) i;
end
$$;
comment on function durable._ask_to_cancel(text[], jsonb) is
  'Asks that these child runs are cancelled. Their locks are not needed: a tick does it after the commit.';

create or replace function durable._children_left(p_heads bigint[])
returns text[] language plpgsql stable
as $$
begin
  return array(
    select c.id from unnest(p_heads) e
    join durable._executions h on h.execution = any (array[e])
    -- a journal that went on in the next one has ended, and its run lives
    join durable._promises p on p.id = any (array[h.id]) and p.head = h.execution and p.state <> 'pending'
    join durable._promises c on c.id > h.id || '.' and c.id < h.id || '/' and c.execution = h.execution
         and c.state = 'pending' and c.head is not null
    join durable._executions k on k.execution = any (array[c.head])
    where h.rules >= 4 and h.status not in ('running', 'blocked', 'cancelling')
      and k.abandoned is not true and k.status <> 'cancelling'
    order by c.id);
end
$$;
comment on function durable._children_left(bigint[]) is
  'The live child runs of runs that have ended with these journals under rules 4 or newer, except those that were started to outlive their parent and those that are being cancelled. Ids below a run begin with its own id, so they are neighbours in the key.';

create or replace function durable._end_children(p_heads bigint[])
returns void language plpgsql volatile
as $$
declare
  v_left text[] := durable._children_left(p_heads);
begin
  if v_left <> '{}' then
    perform durable._ask_to_cancel(v_left, '"its parent has ended"');
  end if;
end
$$;
comment on function durable._end_children(bigint[]) is
  'Ends what runs leave behind whose code could not do it: those that passed their deadline or the grace of a cancellation, or that no code could go on with. Code that ends by itself has ended its child runs before.';
