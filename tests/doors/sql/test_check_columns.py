"""Law: for every column of every table, durable.check() sees some wrong value of it, or the table FREE says
why no law can: nothing else in the database knows what the value should be.

A column that is added needs a law or a reason.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import psycopg
import pytest

from tests.support.hands import laws_of
from tests.support.laboratory import transaction_of
from tests.support.populace import populate
from tests.support.verbs import Connection

COLUMNS = """
select c.relname, a.attname, t.typname from pg_class c
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
  and a.attgenerated = '' and a.attidentity <> 'a'
join pg_type t on t.oid = a.atttypid
where c.relnamespace = 'durable'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
order by 1, a.attnum
"""
FAR = "32503680000000"
# other values of a column by its type; $ is the value that is there
OTHERS = {
    "int8": ("$ + 1", "$ - 1", FAR, "null"),
    "epoch_ms": ("$ + 1", "$ - 1", FAR, "null"),
    "int4": ("$ + 1", "$ - 1", "1", "null"),
    "int2": ("$ + 1", "$ - 1", "null"),
    "bool": ("not $",),
    "text": ("$ || 'x'", "'x'", "null"),
    "row_type": ("'step_started'", "'child_settled'", "'execution_failed'"),
    "jsonb": ("""'{"x": "y"}'""", "'{}'", "null"),
    "bytea": ("sha256($)", "null", "sha256('')"),
    "float8": ("$ + 1",),
    "timestamptz": ("now()",),
    "uuid": ("gen_random_uuid()",),
    "oid": ("'1'",),
    "xid8": ("'5'",),
    "_int4": ("$ || 7", "'{}'"),
    "_bool": ("$ || true", "'{}'"),
    "_text": ("$ || 'x'::text", "'{}'"),
    "_bytea": ("$ || sha256('')", "'{}'"),
    "regclass": ("'pg_class'::regclass",),
}
FREE = {
    # users choose it, and it stands nowhere else
    "_call_attempts.budget",
    "_call_attempts.request_id",
    "_call_attempts.share",
    "_call_waiters.anonymous",
    "_call_waiters.forced",
    "_callbacks.id",
    "_callbacks.recv_headers",
    "_callbacks.timeout_at",
    "_executions.abandoned",
    "_executions.key",
    "_forks.by",
    "_forks.replaced",
    "_progress.done",
    "_progress.note",
    "_progress.total",
    "_promises.ikey_create",
    "_promises.value_headers",
    "_schedules.declared",
    "_schedules.id",
    "_schedules.priority",
    "_schedules.promise_param_headers",
    "_schedules.promise_tags",
    "_schedules.promise_timeout",
    "_schedules.queue",
    "_schedules.tenant",
    "_schedules.workflow",
    "_schedules.workflow_version",
    "_schedules.catch_up",
    "_schedules.ends_at",
    "_schedules.jitter",
    "_schedules.pause_after",
    "_signals.key",
    "_tasks.priority",
    # whoever runs it says it, and it stands nowhere else
    "_call_attempts.error",
    "_call_attempts.ref_name",
    "_call_attempts.token",
    "_call_attempts.uuid",
    "_call_polls.message",
    "_call_polls.stderr",
    "_call_polls.version",
    "_call_polls.worker",
    "_claims.submit_token",
    "_executions.code_seq",
    "_executions.digest",
    "_executions.former_digest",
    "_site.adopted_by",
    "_site.previous_timeline",
    "_site.timeline",
    "_workers.about",
    "_workers.digests",
    "_workers.id",
    "_workers.keeps",
    "_workers.queues",
    "_workers.rules",
    "_workers.signals",
    # it counts what is not kept, or says what is to come
    "_call_attempts.cancel_due",
    "_call_attempts.empty_polls",
    "_call_attempts.failures",
    "_call_attempts.woken",
    "_call_polls.seq",
    "_call_steps.has_left",
    "_calls.results_from",
    "_claims.empty_polls",
    "_claims.takeovers",
    "_refs.version",
    "_row_waits.since",
    "_row_waits.tests",
    "_tasks.crashes",
    "_tasks.suspect",
    "_workers.blocked",
    "_workers.present",
    "_workers.unrenewed",
    # a delay, the pause of a retry and a lease are as long as users want
    "_tasks.retry_at",
    "_tasks.ttl",
    # which worker holds it, or is to have it, only the task says
    "_tasks.pid",
    "_tasks.preference",
    # durable.health compares it with the server
    "_site.database",
    "_site.system_identifier",
    # what it names may be dropped or removed before it is
    "_call_steps.node_id",
    "_call_steps.run_id",
    "_call_steps.scope",
    "_pin_log.execution_key",
    "_refs.of_run",
    "_schedules.latest",
    # for people: a text, copies of what a node refers to
    "settings.description",
    "_call_waiters.inputs",
    "_pins.inputs",
    # it may lie anywhere in the past
    "_schedules.created_at",
}
# tables that have no laws, or no rows here
OUTSIDE = {
    "_adapters": "who serves which adapter: a worker says it again and again",
    "_buckets": "the partitions that were made: durable.health names what is missing",
    "_cancellations": "child runs that are to be cancelled: looked at by each tick",
    "_closures": "its law has its hand in tests/features/calls/test_object_laws.py",
    "_code_waits": "runs that wait for code: looked at again by each tick",
    "_hints": "not logged: when a channel was notified last",
    "_idle_workers": "not logged: who is idle",
    "_logic": "what was installed: pyengine db check compares it",
    "_object_uses": "when objects were used last",
    "_published": "what people have published",
    "_removed": "its laws have their hands in test_check.py",
    "_removed_signals": "its law has its hand in test_check.py",
    "_retention": "the place of a sweep",
    "_routes": "what people have routed",
    "_row_events": "its law has its hand in test_watch_views.py",
    "_schedule_instants": "its laws have their hands in tests/features/sql/test_policies.py",
    "_services": "what people have let serve",
    "_watches": "what people watch: the view durable.watches compares it with their tables",
    "_workflows": "what workers have said that they can run",
    "migrations": "what was applied: pyengine db status compares it",
}
ROWS = 80


@pytest.fixture
def inhabited(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A transaction in which there is a row of every kind, and no trigger or foreign key looks at a hand."""
    with transaction_of(request, populate) as connection:
        connection.execute("set local session_replication_role = replica")
        yield connection


def test_the_populace_is_lawful(inhabited: Connection) -> None:
    """All of it was made through the doors."""
    assert inhabited.execute("select * from durable.check()").fetchall() == []


def is_seen(conn: Connection, table: str, column: str, type_: str) -> bool:
    """Whether some other value in some row is reported, or none is taken by the table."""
    query = f"select tableoid::regclass::text, ctid::text from durable.{table} order by 1, 2 limit {ROWS}"
    taken = False
    for part, place in conn.execute(query.encode()).fetchall():
        for other in OTHERS[type_]:
            value = other.replace("$", f'"{column}"')
            hand = f"""update {part} set "{column}" = {value}
            where ctid = '{place}' and ({value}) is distinct from "{column}" """
            conn.execute("savepoint hand")
            try:
                if conn.execute(hand.encode()).rowcount:
                    taken = True
                    if laws_of(conn):
                        return True
            except psycopg.errors.IntegrityError:
                pass
            finally:
                conn.execute("rollback to hand")
    return not taken


@pytest.mark.unlawful
def test_a_wrong_value_of_each_column_is_seen(
    inhabited: Connection, seed: int, request: pytest.FixtureRequest
) -> None:
    """Those that are not are listed with the reason. By default a quarter of them, by the seed."""
    columns = inhabited.execute(COLUMNS).fetchall()
    if not request.config.getoption("--full"):
        columns = random.Random(seed).sample(columns, len(columns) // 4)
    unseen = {
        f"{table}.{column}"
        for table, column, type_ in columns
        if table not in OUTSIDE
        and f"{table}.{column}" not in FREE
        and not is_seen(inhabited, table, column, type_)
    }
    assert unseen == set()


def test_no_reason_is_for_what_is_gone(inhabited: Connection) -> None:
    """Every table and column that is listed is there, and every other table has rows."""
    columns = inhabited.execute(COLUMNS).fetchall()
    for table in {table for table, *_ in columns} - set(OUTSIDE):
        assert inhabited.execute(f"select from durable.{table} limit 1".encode()).fetchall(), table
    assert set(OUTSIDE) <= {table for table, *_ in columns}
    assert {f"{table}.{column}" for table, column, _ in columns if table not in OUTSIDE} >= FREE
