"""Law: a worker process that is stopped while its answer is on its way holds locks for one lease, not for as
long as it is stopped.
"""

from __future__ import annotations

import json

import psycopg
import pytest

from tests.support.verbs import ask, claim
from tests.system.crash.processes import until

LARGE = json.dumps(["x" * 3_000_000])


@pytest.mark.session("a session of the worker is looked for")
def test_a_frozen_session_is_ended_by_the_next_heartbeat(dsn: str) -> None:
    """Its claim is undone, so another worker gets the run; one that is slow for less than a lease stays."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        for name in "abcd":
            conn.execute("select durable.start('w', %s::jsonb, id => %s, queue => 'big')", (LARGE, name))
        frozen = psycopg.connect(dsn, autocommit=True, application_name="pyengine turn")
        pid = frozen.info.backend_pid
        frozen.pgconn.send_query_params(
            b"select durable.worker_turn_v1('W', '{big}', '{1:w1}', '{ab}', 4, '[]', 15000)", []
        )
        stuck = "select exists (select from pg_stat_activity where pid = %s and wait_event = 'ClientWrite')"
        until(dsn, stuck, pid)
        conn.execute("select durable.worker_heartbeat_v1('V', '{}', '{}', '{}')")
        assert ask(conn, (stuck, (pid,))) == (True,)
        conn.execute("select durable.set_setting('lease_ttl_ms', '1000')")
        until(dsn, "select query_start < now() - interval '1.1 s' from pg_stat_activity where pid = %s", pid)
        conn.execute("select durable.worker_heartbeat_v1('V', '{}', '{}', '{}')")
        until(dsn, "select not exists (select from pg_stat_activity where pid = %s)", pid)
        assert claim(conn, "V", "big").version == 1
        frozen.close()
