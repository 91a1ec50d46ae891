"""Law: what people read costs what they ask for, not what there is: runs by id, by state, newest first,
failed since; promises by id and by state. No plan reads a growing table whole.

Buffers of EXPLAIN ANALYZE are the witness, on tables of finished runs that have many times as many pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.rows import TupleRow

from pyengine.core.database.statements.procedures import (
    LIST_FAILED,
    LIST_LIVE,
    LIST_RUNS,
    LIST_TAGGED,
    RUN,
    Procedure,
)
from pyengine.doors.admin import conditions, queries, queries_runs
from tests.support.cluster import Server, broken_laws, installed_database
from tests.support.finished import fill
from tests.support.verbs import Call, ask, begin_run, create, promise, report, suspend, take_turn, timer

Connection = psycopg.Connection[TupleRow]
# 20 rows with promise, head and parent, at most four blocks each, and the upper levels of indexes
BLOCKS = 300
EXPLAIN = "explain (analyze, buffers, costs off, timing off, summary off, format json) "
GROWING = ("_promises", "_executions")
# three that completed and one that failed
TAGGED = """update durable._promises set tags = '{"batch": "7"}' where head in (5001, 5002, 5003, 5007)"""
LIVE = ("alone", "asleep", "idle", "waiting")
COLUMNS = "id, state, args, result, error, waits_for, age, parent"
READS: dict[str, tuple[str, int]] = {
    "newest first": (f"select {COLUMNS} from durable.newest limit 5", 5),
    "newest of a workflow": (f"select {COLUMNS} from durable.newest where workflow = 'w3' limit 20", 20),
    "by id": (f"select {COLUMNS} from durable.runs where id = '{{id}}'", 1),
    "by ids": (f"select {COLUMNS} from durable.runs where id in ('{{id}}', 'waiting')", 2),
    "no such id": ("select * from durable.runs where id = 'nobody'", 0),
    "failed": (f"select {COLUMNS} from durable.runs where state = 'failed' limit 20", 20),
    "completed": (f"select {COLUMNS} from durable.runs where state = 'completed' limit 20", 20),
    "failed in the last hour": (
        f"select {COLUMNS} from durable.runs where state = 'failed' "
        "and settled_at > now() - interval '1 hour'",
        1,
    ),
    "live": (f"select {COLUMNS} from durable.runs where state in ('running', 'queued', 'waiting')", 4),
    "unsettled": ("select * from durable.runs where settled_at is null", 4),
    "live view": ("select * from durable.live", 4),
    "failed, newest": (
        "select * from durable.failed where state = 'failed' order by execution desc limit 20",
        20,
    ),
    "promise by id": ("select * from durable.promises where id = '{id}'", 1),
    "pending promise by id": ("select * from durable.promises where id = 'waiting.0'", 1),
    "no such promise": ("select * from durable.promises where id = 'nobody'", 0),
    "pending promises": ("select * from durable.promises where state = 'pending' limit 10", 7),
    "unsettled promises": ("select * from durable.promises where settled_at is null", 7),
    "settled promises": ("select * from durable.promises where state = 'resolved' limit 10", 10),
    "promise_search": ("select id from durable.promise_search('pending')", 7),
    "promise_search, a page": (
        "select id from durable.promise_search('pending', p_limit => 2, p_cursor => 'b')",
        2,
    ),
    "steps of a run": ("select * from durable.steps where run = '{id}'", 1),
    "events of a run": ("select seq, event from durable.journal_events where id = '{id}'", 5),
}
"""What people ask, and how many rows that is where one of a hundred runs failed, in 10,000."""


@pytest.fixture(scope="module")
def full(quiet: Server, request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A database with finished runs, four live ones and three promises without a task."""
    with installed_database(quiet, "reads") as url:
        with psycopg.connect(url, autocommit=True) as conn:
            fill(conn, 100_000 if request.config.getoption("--full") else 10_000, 100)
            conn.execute(TAGGED)
            held = begin_run(conn, "waiting")
            answer = take_turn(conn, "W", report(held, commands=[promise(0), timer(1, 3_600_000)]))
            take_turn(conn, "W", report(held, end=suspend(0, 1), seen=answer.next_of(held)))
            begin_run(conn, "idle")
            for id_ in ("alone", "asleep"):
                ask(conn, ("select durable.start('w', id => %s)", (id_,)))
            ask(conn, create("free", external="true"))
            yield conn
        assert broken_laws(url) == []


@pytest.fixture(params=["as they are", "as if they were many"])
def tasks(full: Connection, request: pytest.FixtureRequest) -> Iterator[None]:
    """What the statistics say of the tasks: what is, or what was before a backlog was done."""
    many = request.param == "as if they were many"
    before = ask(full, ("select relpages, reltuples from pg_class where relname = '_tasks'", ()))
    change = "update pg_class set relpages = %s, reltuples = %s where relname = '_tasks'"
    full.execute(change, (20_000, 500_000) if many else before)
    yield
    full.execute(change, before)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A node of a plan and all below it."""
    yield plan
    for below in plan.get("Plans", []):
        yield from nodes(below)


def passed(node: dict[str, Any]) -> float:
    """Rows that a node looked at."""
    found = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    return float(found * node["Actual Loops"])


def cost(conn: Connection, text: str, values: Any = None) -> tuple[int, int, set[str]]:
    """Rows of a statement, blocks that it looked at, and growing tables of which it scanned many rows; a scan
    that stops after a few is none."""
    ((answer,),) = conn.execute((EXPLAIN + text).encode(), values).fetchall()
    plan = answer[0]["Plan"]
    scans = [node for node in nodes(plan) if node["Node Type"] == "Seq Scan"]
    whole = {
        node["Relation Name"] for node in scans if node["Relation Name"] in GROWING and passed(node) > BLOCKS
    }
    return int(plan["Actual Rows"]), plan["Shared Hit Blocks"] + plan["Shared Read Blocks"], whole


def a_finished_one(conn: Connection) -> str:
    """The id of a run from the middle."""
    (id_,) = ask(conn, ("select id from durable._executions where execution = 5001", ()))
    return str(id_)


@pytest.mark.usefixtures("tasks")
def test_reads_cost_what_they_answer(full: Connection) -> None:
    """Each statement, as people type it, answers right and looks at few blocks."""
    id_, found = a_finished_one(full), {}
    for name, (text, rows) in READS.items():
        answered, blocks, whole = cost(full, text.replace("{id}", id_))
        if answered != rows or blocks > BLOCKS or whole:
            found[name] = (answered, blocks, whole)
    assert not found, f"rows, blocks, tables read whole: {found}"


class Explained:
    """In the place of a connection: statements are explained, and answer nothing."""

    row_factory = None

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self.costs: list[tuple[int, int, set[str]]] = []

    @contextmanager
    def cursor(self, **_: object) -> Iterator[Explained]:
        """Itself."""
        yield self

    def execute(self, text: bytes | str, values: Any) -> Explained:
        """Explain a statement."""
        self.costs.append(cost(self._conn, text if isinstance(text, str) else text.decode(), values))
        return self

    def fetchall(self) -> list[Any]:
        """No rows."""
        return []


@pytest.mark.usefixtures("tasks")
def test_the_cost_of_ps_grows_with_its_rows(full: Connection) -> None:
    """`pyengine ps` with any of its options reads few blocks more than it has rows."""
    filters = [
        queries_runs.Filter(state=state, workflow=workflow, limit=21)
        for state in (None, *queries.STATES)
        for workflow in (None, "w3" if state == "cancelled" else "w7")
    ]
    filters.append(queries_runs.Filter(roots_only=True, limit=21))
    filters.append(queries_runs.Filter(before=5000, limit=21))
    filters += [
        queries_runs.Filter(where=conditions.parse(text, queries_runs.columns(full)), before=before, limit=21)
        for text in ("state!=completed", "state=failed", "state=running", "workflow~w7% and tags.x=null")
        for before in (None, 5000)
    ]
    for wanted in filters:
        explained: Any = Explained(full)
        queries_runs.runs(explained, wanted)
        ((rows, blocks, whole),) = explained.costs
        assert (blocks <= BLOCKS + 10 * 21, whole) == (True, set()), (wanted, rows, blocks)
        assert rows == 21 or "completed" not in wanted.states, wanted


@pytest.mark.usefixtures("tasks")
def test_ids_are_found_by_their_parts(full: Connection) -> None:
    """A beginning, and a beginning with an end, cost what begins so; many candidates cost a few."""
    id_ = a_finished_one(full)
    for head, tail, expected in ((id_[:16], "", 1), (id_[:8], id_[-9:], 1), ("0", "", 9), (id_ + "x", "", 0)):
        explained: Any = Explained(full)
        queries_runs.ids_like(explained, head, tail, 9)
        ((rows, blocks, whole),) = explained.costs
        assert (rows, whole) == (expected, set()), (head, tail)
        assert blocks <= BLOCKS, (head, tail, blocks)


CLIENT: list[tuple[Procedure, Call]] = [
    (RUN, ("", ("'{id}'",))),
    (LIST_RUNS, ("", ("null", "null", "20"))),
    (LIST_RUNS, ("", ("'w3'", "null", "20"))),
    (LIST_RUNS, ("", ("null", "'completed'", "20"))),
    (LIST_LIVE, ("", ("null", "'waiting'", "20"))),
    (LIST_FAILED, ("", ("null", "'failed'", "20"))),
    (LIST_TAGGED, ("", ("null", "null", "20", """'{"batch": "7"}'"""))),
    (LIST_TAGGED, ("", ("null", "'failed'", "20", """'{"batch": "7"}'"""))),
]


@pytest.mark.sample(2)
@pytest.mark.usefixtures("tasks")
@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_the_client_reads_the_listed_columns(full: Connection, mode: str) -> None:
    """The statements of `Client.list` and `Run.status` too, with plans for one value or for any."""
    full.execute(f"set plan_cache_mode = {mode}".encode())
    id_, found = a_finished_one(full), []
    for number, (procedure, (_, values)) in enumerate(CLIENT):
        full.execute(f"prepare s{number} as {procedure.sql}".encode())
        called = ", ".join(values).replace("{id}", id_)
        rows, blocks, whole = cost(full, f"execute s{number} ({called})")
        full.execute(f"deallocate s{number}".encode())  # not all: the driver prepares statements, too
        if blocks > BLOCKS or whole or not rows:
            found.append((procedure.verb, values, rows, blocks, whole))
    full.execute("reset plan_cache_mode")
    assert not found, found
