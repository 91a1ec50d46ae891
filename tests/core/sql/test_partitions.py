"""Law: journals have partitions ahead, and no start waits for one."""

from __future__ import annotations

from tests.support.clock import Clock
from tests.support.verbs import Connection, ask, begin_run


def bucket_of(conn: Connection, id_: str) -> int:
    """The week of the partition of a run."""
    (bucket,) = ask(conn, ("select bucket from durable._executions where id = %s", (id_,)))
    return int(bucket)


def test_a_start_never_fails_for_want_of_a_partition(conn: Connection, clock: Clock) -> None:
    """Beyond the newest partition a run is put into the newest one; the sweep opens this week's and four
    more."""
    clock.set(clock.now_ms + 100 * 604_800_000)
    begin_run(conn, "late")
    (newest,) = ask(conn, ("select max(bucket) from durable._buckets", ()))
    assert bucket_of(conn, "late") == newest
    ask(conn, ("select durable.tick_v1(1)", ()))
    weeks = [week for (week,) in conn.execute("select bucket from durable._buckets order by 1").fetchall()]
    assert weeks[-5:] == list(range(clock.now_ms // 604_800_000, clock.now_ms // 604_800_000 + 5))
    begin_run(conn, "new")
    assert bucket_of(conn, "new") == clock.now_ms // 604_800_000
