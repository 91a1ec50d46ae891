"""Law: the core works without the functions of any feature or door, and its hooks cost nothing.

The core is what `parts.toml` says. `sql/state` and the core's files of `sql/logic` make a database without
the rest, in which runs start, are claimed, told, driven and ended, and time passes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import psycopg
import pytest

from pyengine.core.sources import found
from tests.style.test_parts import part_of
from tests.support.clock import Clock
from tests.support.cluster import Server, create_database, drop_database
from tests.support.verbs import (
    NEVER,
    TTL_MS,
    Call,
    Connection,
    Held,
    ask,
    at_end,
    begin_run,
    claim,
    complete,
    done,
    progress,
    promise,
    promise_of,
    receive,
    report,
    send,
    start,
    suspend,
    take_turn,
    tick,
    timer,
    turn,
)

ROUNDS = 20
HEAD = "select execution, next_seq from durable._executions where id = %s"


def install_core(dsn: str) -> None:
    """Make a database that has nothing but the core."""
    sources = found()
    with psycopg.connect(dsn, autocommit=True) as conn:
        for path in (*sources.state_files(), *sources.logic_files()):
            if part_of(f"sql/{path.relative_to(sources.sql).as_posix()}") == "core":
                conn.execute(path.read_bytes())


@pytest.fixture
def core(empty_database: Callable[[], str]) -> Iterator[Connection]:
    """A session in such a database."""
    dsn = empty_database()
    install_core(dsn)
    with psycopg.connect(dsn, autocommit=True) as conn:
        yield conn


def test_the_core_stands_alone(core: Connection) -> None:
    """A run starts, is claimed, records a step, is told and woken, and ends, with progress that nobody writes
    and a wait that nobody begins; deadlines come, a lost lease is taken."""
    clock = Clock(core.info.dsn)
    held = begin_run(core, "r")
    answer = take_turn(core, "W", report(held, outcomes=[done(0)], commands=[timer(1, 100), promise(2, 200)]))
    take_turn(core, "W", report(held, commands=[receive(3)], end=suspend(3), seen=answer.next_of(held)))
    ask(core, send("r"))
    held = claim(core, "W", "q-r")
    waits = {"do": "until", "child": 4, "name": "paid", "param": "{}"}
    answer = take_turn(core, "W", report(held, commands=[waits], progress=progress(held, 1, 5)))
    assert answer.of(held) == ("ok", "acquired")
    clock.advance(200)
    assert tick(core)["promises"] == 2
    clock.advance(TTL_MS)
    assert tick(core)["leases"] == 1
    held = claim(core, "W", "q-r")
    take_turn(core, "W", report(held, end=complete(), progress=progress(held, 9, 5)))
    assert promise_of(core, "r")[0] == "resolved"
    assert ask(core, ("select count(*) from durable._progress", ())) == (0,)
    clock.close()


def cost(conn: Connection, call: Call) -> tuple[int, int, int]:
    """Pages, records and bytes of WAL of a call, but for calls that log a whole page."""
    ((plan,),) = ask(conn, (f"explain (analyze, buffers, wal, format json) {call[0]}", call[1]))
    node = plan["Plan"]
    pages = sum(node[f"Shared {what} Blocks"] for what in ("Hit", "Read"))
    return pages, node["WAL Records"], node["WAL Bytes"] if not node["WAL FPI"] else 10**9


def costs(dsn: str) -> dict[str, tuple[int, ...]]:
    """The least that each call of a run's life costs, of many runs."""
    clock = Clock(dsn)
    with psycopg.connect(dsn, autocommit=True) as conn:
        found = rounds(conn)
    clock.close()
    return {name: tuple(map(min, zip(*each, strict=True))) for name, each in found.items()}


def rounds(conn: Connection) -> dict[str, list[tuple[int, int, int]]]:
    """What each of these calls costs."""
    found: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for number in range(10, 10 + ROUNDS):
        id_, queue = f"r{number}", f"q{number}"
        found["start"].append(cost(conn, start(id_, queue=queue)))
        found["claim"].append(cost(conn, turn("W", want=1, queues=[queue])))
        execution, last = ask(
            conn, ("select execution, next_seq from durable._executions where id = %s", (id_,))
        )
        held = Held(execution=execution, id=id_, version=1, next=last)
        found["signal"].append(cost(conn, send(id_)))
        seen = last + 1
        found["result"].append(cost(conn, turn("W", report(at_end(held, seen), outcomes=[done(0)]))))
        commands = report(at_end(held, seen + 1), commands=[timer(1, NEVER), receive(2)], outcomes=[done(3)])
        found["turn"].append(cost(conn, turn("W", commands)))
        _, last = ask(conn, (HEAD, (id_,)))
        found["end"].append(cost(conn, turn("W", report(at_end(held, last), end=complete()))))
        assert promise_of(conn, id_)[0] == "resolved"
    return found


@pytest.fixture
def core_alone(quiet: Server) -> Iterator[str]:
    """URL of a database with nothing but the core, on a server with nobody else on it."""
    with psycopg.connect(quiet.dsn(quiet.maintenance_dbname), autocommit=True) as conn:
        create_database(conn, "core", "template0")
        install_core(quiet.dsn("core"))
        yield quiet.dsn("core")
        drop_database(conn, "core")


def test_hooks_cost_nothing(alone: str, core_alone: str) -> None:
    """Start, claim, signal and turns read as many pages and log as much in a database with all features as in
    one whose hooks are empty."""
    assert costs(alone) == costs(core_alone)
