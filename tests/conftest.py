"""Fixtures and options that every test folder has; tests/README.md tells which layer uses which.

A test that asks for `dsn`, `conn`, `clock` or `stage` gets a database of its own, a clone of this worker's
template. After the test, `durable.check()` must return no row and PostgreSQL must have counted no deadlock
in that database.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import TupleRow
from pytest_postgresql import factories

from tests.support import history as transitions
from tests.support.barrier import Stage
from tests.support.clock import Clock
from tests.support.cluster import (
    Cluster,
    Server,
    begin_session,
    broken_laws,
    deadlocks,
    drop_database,
    end_session,
    fresh_database,
    install_schema,
)

Connection = psycopg.Connection[TupleRow]
SEED = "PYENGINE_TEST_SEED"
RESULTS = Path(__file__).parent.parent / "bench" / "results"

_template = factories.postgresql_noproc(depends_on="server", load=[install_schema], dbname="pyengine")
_clone = factories.postgresql("_template")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of this test suite."""
    group = parser.getgroup("pyengine")
    group.addoption("--full", action="store_true", help="also run what is slow or long (marker: full)")
    group.addoption(
        "--seed", type=int, default=None, help="seed of the random programs; printed in the header"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose seed and server folder once; xdist workers inherit both through the environment."""
    if hasattr(config, "workerinput"):
        return
    seed = config.getoption("--seed")
    os.environ[SEED] = str(random.SystemRandom().randrange(2**31) if seed is None else seed)
    begin_session()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the server's folder when the last worker is gone."""
    if not hasattr(config, "workerinput"):
        end_session()


def pytest_report_header() -> str:
    """Say how to repeat what is random."""
    return f"seed: {os.environ[SEED]} (repeat with --seed {os.environ[SEED]})"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the large sizes to --full: they are deselected and counted, not skipped."""
    if config.getoption("--full"):
        return
    large = [item for item in items if item.get_closest_marker("full")]
    if large:
        config.hook.pytest_deselected(items=large)
        items[:] = [item for item in items if item not in large]


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


@pytest.fixture
def dsn(request: pytest.FixtureRequest, server: Server) -> Iterator[str]:
    """URL of the test's own database with the schema installed, for psycopg and asyncpg."""
    clone: Connection = request.getfixturevalue("_clone")
    clone.rollback()
    name = clone.info.dbname
    url = server.dsn(name)
    yield url
    if request.node.get_closest_marker("unlawful") is None:
        broken = broken_laws(url)
        assert not broken, "durable.check() after the test:\n" + "\n".join(map(str, broken))
    found = deadlocks(server, name)
    assert found == 0, f"PostgreSQL counted {found} deadlock(s): the one lock order is broken"


@pytest.fixture
def conn(dsn: str) -> Iterator[Connection]:
    """An autocommit connection to the test's own database."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def clock(dsn: str) -> Iterator[Clock]:
    """The database's clock, standing still until the test moves it."""
    frozen = Clock(dsn)
    yield frozen
    frozen.close()


@pytest.fixture
def history(dsn: str) -> Iterator[str]:
    """What happens in the test's database is written down, and has to keep the laws of transitions. A test
    that also moves the clock asks for `clock` first."""
    transitions.install(dsn)
    yield dsn
    with psycopg.connect(dsn, autocommit=True) as connection:
        broken = transitions.broken(connection)
    assert not broken, "laws of transitions:\n" + "\n".join(map(str, broken))


@pytest.fixture
def stage(dsn: str) -> Iterator[Stage]:
    """Sessions that are led step by step."""
    with Stage(dsn) as theatre:
        yield theatre


@pytest.fixture
def empty_database(request: pytest.FixtureRequest, server: Server) -> Iterator[Callable[[], str]]:
    """Makes databases without any schema; each call gives the URL of another one."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    made: list[str] = []

    def make() -> str:
        made.append(f"empty_{worker}_{len(made)}")
        return fresh_database(server, made[-1])

    yield make
    for name in made:
        drop_database(server, name)


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
