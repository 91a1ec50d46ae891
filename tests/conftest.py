"""Fixtures and options that every test folder has; tests/README.md tells which layer uses which.

A test that asks for `dsn`, `conn`, `clock` or `stage` has a database to itself, a clone of this worker's
template, or one that is again as that clone was. After the test, `durable.check()` must return no row and
PostgreSQL must have counted no deadlock in that database. With `--pooled` that database is reached through
PgBouncer in transaction mode.
A test that counts rows, or for which nobody else may write meanwhile, asks for `alone`: a database on a
`quiet` server of its own.
"""

from __future__ import annotations

import gc
import hashlib
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.rows import TupleRow
from pytest_postgresql import factories
from pytest_postgresql.executors import NoopExecutor

from tests.support import history as transitions
from tests.support import sampling
from tests.support.barrier import Stage
from tests.support.bytecode import keep_bytecode
from tests.support.clock import Clock
from tests.support.cluster import (
    Cluster,
    Server,
    begin_session,
    broken_laws,
    create_database,
    drop_database,
    end_session,
    end_sessions,
    install_schema,
    installed_database,
    make_folder,
    of_worker,
)
from tests.support.laboratory import Laboratory
from tests.support.own_database import OwnDatabase

if TYPE_CHECKING:
    from tests.support.pooler import Pooler

Connection = psycopg.Connection[TupleRow]
SEED, FULL, SAMPLED = "PYENGINE_TEST_SEED", "PYENGINE_TEST_FULL", "PYENGINE_TEST_SAMPLED"
RESULTS = Path(__file__).parent.parent / "bench" / "results"
# the mark `fast`: replay, style and one SQL file, without what starts many processes
FAST = re.compile(
    r"tests/(core/replay/|core/sql/test_start\.py|style/test_(imports|rooms|sql_style|waits|py_style))"
)
NOT_FAST = re.compile(r"test_typing|test_loop_hashseed|test_mypy|in_every_process|mebibyte")
# what takes seconds begins first: at the end no process waits for the last long test of another
LONG = re.compile(r"tests/(system/(chaos|crash|failover|pythons|worker)|examples)/")

template = factories.postgresql_noproc(depends_on="server", load=[install_schema], dbname="pyengine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of this test suite."""
    group = parser.getgroup("pyengine")
    group.addoption("--full", action="store_true", help="also run what is slow or long (marker: full)")
    group.addoption(
        "--seed", type=int, default=None, help="seed of the random programs; printed in the header"
    )
    group.addoption(
        "--pooled",
        action="store_true",
        help="every test that uses a database of its own reaches it through PgBouncer in transaction mode",
    )
    group.addoption(
        "--newest-sdks",
        action="store_true",
        help="try the newest published Resonate SDKs, not the pinned ones",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Spread the whole suite over the processors, unless the command says otherwise."""
    # tests wait for half of their time: two processes more than there are processors keep them busy
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not hasattr(config, "workerinput")
    if whole and config.option.numprocesses is None and not config.option.usepdb:
        config.option.numprocesses = (os.cpu_count() or 1) + 2
        config.option.dist = "worksteal"


def pytest_configure(config: pytest.Config) -> None:
    """Choose seed, size, server folder and cache once; xdist workers inherit all through the environment."""
    if hasattr(config, "workerinput"):
        return
    keep_bytecode()
    seed = config.getoption("--seed")
    os.environ[SEED] = str(random.SystemRandom().randrange(2**31) if seed is None else seed)
    os.environ[FULL] = "1" if config.getoption("--full") else ""
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    os.environ[SAMPLED] = "1" if whole and not config.getoption("--full") else ""
    begin_session()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the server's folder when the last worker is gone."""
    if not hasattr(config, "workerinput"):
        end_session()


def pytest_report_header() -> str:
    """Say how to repeat what is random."""
    return f"seed: {os.environ[SEED]} (repeat with --seed {os.environ[SEED]})"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector away from collected tests, while they are collected and while they run."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what is fast."""
    if FAST.search(item.nodeid) and not NOT_FAST.search(item.nodeid):
        item.add_marker(pytest.mark.fast)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the large sizes to --full, the forms of a test that were not drawn to other seeds, and with
    --pooled all that the option cannot change, because it has no database of its own, needs a session of its
    own, or asks for the pooler by name: they are deselected and counted, not skipped."""

    def left_out(item: pytest.Item) -> bool:
        if item.get_closest_marker("full") and not config.getoption("--full"):
            return True
        fixtures = getattr(item, "fixturenames", ())
        changes = "dsn" in fixtures and "pooled" not in fixtures and not item.get_closest_marker("session")
        return bool(config.getoption("--pooled")) and not changes

    out = {id(item) for item in items if left_out(item)}
    if os.environ.get(SAMPLED):
        sizes = [
            (item.nodeid, mark.args[0])
            for item in items
            if id(item) not in out and (mark := item.get_closest_marker("sample"))
        ]
        of_other_seeds = sampling.left_out(sizes, os.environ[SEED])
        out |= {id(item) for item in items if item.nodeid in of_other_seeds}
    if out:
        config.hook.pytest_deselected(items=[item for item in items if id(item) in out])
        items[:] = [item for item in items if id(item) not in out]
    items.sort(key=lambda item: LONG.match(item.nodeid) is None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Repeat the seed where failures are read; print the figures that tests took."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(pytest_report_header())
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name == "figures":
                terminalreporter.write_line(value)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The server of this session, durability off."""
    with Cluster() as running:
        yield running


@pytest.fixture(scope="session")
def server(cluster: Cluster) -> Server:
    """Address of that server."""
    return cluster.server


@pytest.fixture(scope="session")
def quiet() -> Iterator[Server]:
    """A server with nobody else on it than this process, not even autovacuum: a writer in whatever database
    keeps rows in their pages that were removed elsewhere."""
    folder = make_folder()
    with Cluster(folder) as running:
        yield running.server
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def quiet_template(quiet: Server) -> Iterator[str]:
    """Name of a database there with the schema, which nobody writes to."""
    with installed_database(quiet, "template"):
        yield "template"


@pytest.fixture
def alone(quiet: Server, quiet_template: str) -> Iterator[str]:
    """URL of the test's own database there, with the schema."""
    with psycopg.connect(quiet.dsn(quiet.maintenance_dbname), autocommit=True) as connection:
        create_database(connection, "alone", quiet_template)
        yield quiet.dsn("alone")
        assert broken_laws(quiet.dsn("alone")) == []
        drop_database(connection, "alone")


@pytest.fixture(scope="session")
def maintenance(server: Server) -> Iterator[Connection]:
    """This worker's session for making and dropping databases."""
    with psycopg.connect(server.dsn(server.maintenance_dbname), autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="session")
def still_template(server: Server, template: NoopExecutor, maintenance: Connection) -> Iterator[str]:
    """Name of a database with the schema whose clock stands still, with the partitions of that time."""
    name = of_worker("still_template")
    create_database(maintenance, name, template.template_dbname)
    Clock(server.dsn(name)).close()
    with psycopg.connect(server.dsn(name), autocommit=True) as connection:
        connection.execute("select durable._create_partitions()")
    end_sessions(maintenance, name)
    yield name
    drop_database(maintenance, name)


@pytest.fixture(scope="session")
def own_database(server: Server, template: NoopExecutor, maintenance: Connection) -> Iterator[OwnDatabase]:
    """The database that each test of this worker has to itself."""
    names = {"name": template.dbname, "template": template.template_dbname}
    made = OwnDatabase(maintenance=maintenance, server=server, **names)
    yield made
    made.drop()


@pytest.fixture(scope="session")
def still_database(server: Server, still_template: str, maintenance: Connection) -> Iterator[OwnDatabase]:
    """The same of tests whose clock stands still."""
    names = {"name": of_worker("still"), "template": still_template}
    made = OwnDatabase(maintenance=maintenance, server=server, **names)
    yield made
    made.drop()


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[OwnDatabase]:
    """The test's own database, as this worker's template is."""
    is_still = "standing_clock" in request.fixturenames
    own: OwnDatabase = request.getfixturevalue("still_database" if is_still else "own_database")
    own.begin(new=request.node.get_closest_marker("new_database") is not None)
    yield own
    own.end()


@pytest.fixture(scope="session")
def laboratory(server: Server, template: NoopExecutor, maintenance: Connection) -> Iterator[Laboratory]:
    """A database into which nothing is ever committed, with one session for all tests."""
    yield from _laboratory(server, template.template_dbname, maintenance, "laboratory")


@pytest.fixture(scope="session")
def laboratory_at_rest(server: Server, still_template: str, maintenance: Connection) -> Iterator[Laboratory]:
    """Another one, whose clock stands still: replacing a clock makes every plan void that reads it."""
    yield from _laboratory(server, still_template, maintenance, "laboratory_at_rest")


def _laboratory(server: Server, template: str, maintenance: Connection, name: str) -> Iterator[Laboratory]:
    own = of_worker(name)
    create_database(maintenance, own, template)
    made = Laboratory(server.dsn(own))
    yield made
    made.close()
    drop_database(maintenance, own)


@pytest.fixture(scope="session")
def pooler(cluster: Cluster) -> Iterator[Pooler]:
    """PgBouncer in transaction mode before that server, with few sessions."""
    from tests.support.pooler import NoPooler, Pooler

    try:
        made = Pooler(cluster.server, cluster.folder / "data")
    except NoPooler as reason:
        pytest.skip(f"PgBouncer: {reason}")
    with made:
        yield made


@pytest.fixture
def direct(database: OwnDatabase) -> str:
    """URL of the test's own database with a session of one's own, also with --pooled."""
    return database.dsn


@pytest.fixture
def pooled(database: OwnDatabase, pooler: Pooler, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """URL of the test's own database through the pooler, which has some sessions open."""
    from tests.support.pooler import as_users_must

    as_users_must(monkeypatch)
    pooler.warm(database.name)
    yield pooler.dsn(database.name)
    pooler.forget(database.name)


@pytest.fixture
def dsn(request: pytest.FixtureRequest, database: OwnDatabase, direct: str) -> Iterator[str]:
    """URL of the test's own database with the schema installed, for psycopg and asyncpg."""
    yield request.getfixturevalue("pooled") if request.config.getoption("--pooled") else direct
    if request.node.get_closest_marker("unlawful") is None:
        broken = database.broken_laws()
        assert not broken, "durable.check() after the test:\n" + "\n".join(map(str, broken))
    found = 0
    if request.node.get_closest_marker("circles") is None:
        found = database.deadlocks()
    assert found == 0, f"PostgreSQL counted {found} deadlock(s): the one lock order is broken"


@pytest.fixture
def session(dsn: str, database: OwnDatabase) -> Iterator[Connection]:
    """An autocommit connection to the test's own database."""
    with database.session() as connection:
        yield connection


@pytest.fixture
def conn(session: Connection) -> Connection:
    """The same; folders whose tests are rolled back have another one of this name."""
    return session


@pytest.fixture
def standing_clock() -> None:
    """Asked for where a test would replace the clock of its own database: there it is replaced already."""


@pytest.fixture
def clock(standing_clock: None, dsn: str, direct: str) -> Iterator[Clock]:
    """The database's clock, standing still until the test moves it."""
    frozen = Clock(direct)
    yield frozen
    frozen.close()


@pytest.fixture
def history(dsn: str, direct: str) -> Iterator[str]:
    """What happens in the test's database is written down, and has to keep the laws of transitions. A test
    that also moves the clock asks for `clock` first."""
    transitions.install(direct)
    yield dsn
    with psycopg.connect(direct, autocommit=True) as connection:
        broken = transitions.broken(connection)
    assert not broken, "laws of transitions:\n" + "\n".join(map(str, broken))


@pytest.fixture
def stage(dsn: str, direct: str) -> Iterator[Stage]:
    """Sessions that are led step by step."""
    with Stage(direct) as theatre:
        yield theatre


@pytest.fixture
def empty_database(server: Server, maintenance: Connection) -> Iterator[Callable[[], str]]:
    """Makes databases without any schema; each call gives the URL of another one."""
    with _databases(server, maintenance, "empty", "template0") as make:
        yield make


@pytest.fixture
def another_database(
    server: Server, template: NoopExecutor, maintenance: Connection
) -> Iterator[Callable[[], str]]:
    """Makes databases with the schema; each call gives the URL of another one."""
    with _databases(server, maintenance, "another", template.template_dbname) as make:
        yield make


@contextmanager
def _databases(
    server: Server, maintenance: Connection, name: str, template: str
) -> Iterator[Callable[[], str]]:
    made: list[str] = []

    def make() -> str:
        made.append(of_worker(f"{name}_{len(made)}"))
        create_database(maintenance, made[-1], template)
        return server.dsn(made[-1])

    yield make
    for each in made:
        drop_database(maintenance, each)


@pytest.fixture
def copy_of(server: Server, maintenance: Connection, database: OwnDatabase) -> Iterator[Callable[[str], str]]:
    """Makes copies of the test's database, in which no session may be then, as a template or by a dump; each
    call gives the URL of another one."""
    from tests.support.dumps import restore

    made: list[str] = []

    def copy(how: str) -> str:
        made.append(of_worker(f"copy_{len(made)}"))
        database.leave()
        create_database(maintenance, made[-1], database.name if how == "template" else "template0")
        if how == "dump":
            restore(database.dsn, server.dsn(made[-1]))
        return server.dsn(made[-1])

    yield copy
    for name in made:
        drop_database(maintenance, name)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """This test's share of the session's seed: another number for every test, the same again with --seed."""
    text = f"{os.environ[SEED]} {request.node.nodeid}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Report measured figures: printed after the run, and with --full written to bench/results/<name>.md."""

    def report(name: str, text: str) -> None:
        request.node.user_properties.append(("figures", f"{name}: {text}"))
        if request.config.getoption("--full"):
            RESULTS.mkdir(parents=True, exist_ok=True)
            (RESULTS / f"{name}.md").write_text(f"# {name}\n\n{text}\n", encoding="utf-8")

    return report
