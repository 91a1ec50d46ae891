"""Law: whatever happens to the workers, each leg of a transfer is written exactly once: a worker that lost
its lease cannot commit, and one that died has committed all or nothing.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable

import psycopg
import pytest

from tests.system.chaos.bank import TABLES
from tests.system.crash.processes import kill, launch, stop, until, worker

ACCOUNTS = 6
MONEY = 1_000
AT_ONCE = 12
FROZEN_S = (0.2, 1.3, 2.5)
JOB = "tests.system.chaos.bank:app"
# nobody tells a worker what it has lost: only the fence is left
DEAF = """
create or replace function durable.worker_heartbeat_v1(
  p_worker text, p_executions bigint[], p_ids text[], p_versions integer[], p_ticked_ms bigint default null)
returns bigint[] language sql volatile
as $$ select '{}'::bigint[] $$ set search_path = '';
"""
# the journal row goes in once, as before; who commits is not asked
NO_FENCE = """
create or replace function durable._check_commit(
  p_id text, p_worker text, p_execution bigint, p_version integer, p_seen integer, p_child integer,
  p_now bigint)
returns void language plpgsql stable
as $$
begin
  if exists (select from durable._journal j where j.execution = p_execution and j.child = p_child) then
    raise sqlstate 'XX777';
  end if;
end
$$;
alter function durable.worker_commit_v1(
  text, bigint, text, integer, integer, integer, text, text, text, jsonb) rename to guarded;
create function durable.worker_commit_v1(
  p_worker text, p_execution bigint, p_id text, p_version integer, p_seen integer, p_child integer,
  p_name text, p_hash text, p_value text, p_effects jsonb)
returns json language plpgsql volatile
as $$
begin
  return durable.guarded(
    p_worker, p_execution, p_id, p_version, p_seen, p_child, p_name, p_hash, p_value, p_effects);
exception when sqlstate 'XX777' then
  return json_build_object('next', 0, 'rows', '[]'::json);
end
$$;
"""

# the first commit that comes waits for the test, and no other one does
HELD = """
alter function durable.worker_commit_v1(
  text, bigint, text, integer, integer, integer, text, text, text, jsonb) rename to arrived;
create function durable.worker_commit_v1(
  p_worker text, p_execution bigint, p_id text, p_version integer, p_seen integer, p_child integer,
  p_name text, p_hash text, p_value text, p_effects jsonb)
returns json language plpgsql volatile
as $$
begin
  if pg_try_advisory_xact_lock(72) then
    perform pg_advisory_xact_lock_shared(71);
  end if;
  return durable.arrived(
    p_worker, p_execution, p_id, p_version, p_seen, p_child, p_name, p_hash, p_value, p_effects);
end
$$;
"""

# other advisory locks are waited for too, by a worker that begins
HELD_UP = "select from pg_locks where locktype = 'advisory' and objid = 71 and not granted"


def prepare(dsn: str) -> psycopg.Connection[tuple[object, ...]]:
    """A bank, and leases that a frozen worker loses."""
    conn = psycopg.connect(dsn, autocommit=True)
    for name, setting in (("lease_ttl_ms", "1000"), ("max_crashes", "10000")):
        conn.execute("select durable.set_setting(%s, %s)", (name, setting))
    conn.execute(TABLES.encode())
    conn.execute(
        "insert into account select 'a' || n, %s from generate_series(0, %s) n", (MONEY, ACCOUNTS - 1)
    )
    return conn


def audit(conn: psycopg.Connection[tuple[object, ...]]) -> list[str]:
    """What is wrong with the books."""
    laws = {
        "money was made or lost": f"select 1 where (select sum(amount) from account) <> {ACCOUNTS * MONEY}",
        "an account is not the sum of its entries": f"select 1 from account a where amount <> {MONEY} + "
        "(select coalesce(sum(e.amount), 0) from entry e where e.account = a.name)",
        "a leg was written twice": "select 1 from entry group by run, leg having count(*) > 1",
        "a leg of a transfer is missing": "select 1 from durable.runs r where r.workflow = 'transfer' and "
        "r.state = 'completed' and (select count(*) from entry e where e.run = r.id) "
        "<> case when r.result = '-1' then 0 else 2 end",
        "a receipt is missing, or one too many": "select 1 from (select run from receipt) r full join "
        "(select run from entry where leg = 'debit') e using (run) group by run "
        "having count(r.run) <> 1 or count(e.run) <> 1",
        "a transfer did not end well": "select 1 from durable.runs where state <> 'completed'",
        "the engine's own laws": "select 1 from durable.check()",
    }
    return [law for law, query in laws.items() if conn.execute(query.encode()).fetchone() is not None]


class Trouble:
    """Two workers to which things happen.

    Args:
        dsn: the database.
        chance: what is made from the seed.
    """

    def __init__(self, dsn: str, chance: random.Random) -> None:
        self._dsn = dsn
        self._chance = chance
        self._workers = [self._launch() for _ in range(2)]
        self.done: Counter[str] = Counter()

    def strike(self) -> None:
        """Kill a worker, or freeze it for less or more than its lease."""
        place = self._chance.randrange(2)
        if self._chance.random() < 0.5:
            kill(self._workers[place])
            self._workers[place] = self._launch()
            self.done["killed"] += 1
        else:
            self._workers[place].send_signal(signal.SIGSTOP)
            time.sleep(self._chance.choice(FROZEN_S))
            self._workers[place].send_signal(signal.SIGCONT)
            self.done["frozen"] += 1

    def close(self) -> None:
        """End the workers."""
        for process in self._workers:
            stop(process)

    def _launch(self) -> subprocess.Popen[bytes]:
        return launch(self._dsn, "-m", "pyengine", "worker", JOB)


@pytest.mark.parametrize(
    "strikes", [pytest.param(4, id="4"), pytest.param(500, id="500", marks=pytest.mark.full)]
)
def test_transfers_are_exact(
    another_database: Callable[[], str], seed: int, strikes: int, figures: Callable[[str, str], None]
) -> None:
    """Sums are exact, no leg is lost or double, each receipt was started once."""
    dsn = another_database()
    conn = prepare(dsn)
    chance = random.Random(seed)
    trouble = Trouble(dsn, chance)
    started = 0
    begin = time.monotonic()
    try:
        while sum(trouble.done.values()) < strikes:
            (live,) = conn.execute("select count(*) from durable._tasks").fetchone() or (0,)
            for _ in range(AT_ONCE - int(str(live))):
                source, target = chance.sample(range(ACCOUNTS), 2)
                conn.execute(
                    "select durable.start('transfer', jsonb_build_array(%s::text, %s::text, %s::int), "
                    "id => %s, any_workflow => true)",
                    (f"a{source}", f"a{target}", chance.randrange(1, 400), f"t{started}"),
                )
                started += 1
            time.sleep(chance.random() * 0.3)
            trouble.strike()
        until(dsn, "select not exists (select from durable._tasks)")
    finally:
        trouble.close()
    assert audit(conn) == [], f"seed {seed}"
    again = conn.execute(
        "select count(*) from durable.journal_events where event = 'InvokeRetrying'"
    ).fetchone()
    figures(
        "transfers",
        f"{started} transfers, seed {seed}, in {time.monotonic() - begin:.0f} s, workers "
        f"{', '.join(f'{what} {number} times' for what, number in sorted(trouble.done.items()))}: "
        "sums exact, no leg lost or double, every receipt started once; "
        f"{again and again[0]} attempts of steps were cut off",
    )
    conn.close()


def wake_a_zombie(dsn: str, conn: psycopg.Connection[tuple[object, ...]]) -> None:
    """Freeze a worker whose commit is on its way, have another one end the run, let the commit arrive, and
    wake the first.
    """
    conn.execute(HELD.encode())
    conn.execute("select pg_advisory_lock(71)")
    conn.execute("select durable.start('one_entry', id => 'z', any_workflow => true)")
    others = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    with worker(dsn, job=JOB) as zombie:
        until(dsn, f"select exists ({HELD_UP})")
        zombie.send_signal(signal.SIGSTOP)
        conn.execute("update durable._tasks set expires_at = durable._now_ms()")
        with worker(dsn, job=JOB):
            until(dsn, "select (select state from durable.runs where id = 'z') = 'completed'")
            conn.execute("select pg_advisory_unlock(71)")
            until(dsn, f"select exists (select {others} and state like 'idle in transaction%%')")
        zombie.send_signal(signal.SIGCONT)
        until(dsn, f"select not exists (select {others} and xact_start is not null)")
        stop(zombie)


@pytest.mark.parametrize(
    "fence", [pytest.param(True, id="fence"), pytest.param(False, id="no-fence", marks=pytest.mark.full)]
)
def test_a_zombie_cannot_commit(another_database: Callable[[], str], fence: bool) -> None:
    """A worker that is frozen when its commit is on its way, while another one takes its run over and ends
    it, is refused. Nothing before the fence can know; so without it the leg is there twice, and the audit
    says so.
    """
    dsn = another_database()
    conn = prepare(dsn)
    conn.execute("select durable.set_setting('lease_ttl_ms', '60000')")
    conn.execute(DEAF.encode())
    if not fence:
        conn.execute(NO_FENCE.encode())
    wake_a_zombie(dsn, conn)
    written = conn.execute("select count(*) from entry where run = 'z'").fetchone()
    twice = "a leg was written twice" in audit(conn)
    assert (written, twice) == (((1,), False) if fence else ((2,), True))
    conn.close()
