"""Law: programs of the published SDKs run on a database that has the facade, without a gateway or a worker.

The programs are those that run over HTTP (sdks/); here they reach the database by the Postgres transport of
the TypeScript SDK and by resonate-pg, under a role that may call the facade and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from pytest_postgresql.executors import NoopExecutor

from pyengine.doors.admin import migrate
from tests.support.cluster import Server, installed_database, of_worker
from tests.support.sdk_house import SCENES, UNSETTLED, House
from tests.support.sdks import Sdk

SDKS = ("python-postgres", "typescript-postgres")
OLDER = ("older-typescript-postgres",)
FULL = pytest.mark.full
OLDER_ONES = [pytest.param(each, marks=FULL) for each in OLDER]


@pytest.fixture(scope="module")
def street(
    server: Server,
    template: NoopExecutor,
    sdk: Callable[[str], Sdk],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[House]:
    """A house for all tests of this file, before the database itself."""
    with ExitStack() as stack:
        name = of_worker("facade")
        dsn = stack.enter_context(installed_database(server, name, template.template_dbname))
        migrate.set_facade(dsn, True)
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        role = of_worker("sdk_of_facade")
        conn.execute(f"create role {role} login in role resonate_worker".encode())
        stack.callback(conn.execute, f"drop role {role}".encode())
        url = dsn.replace(f"{conninfo_to_dict(dsn)['user']}@", f"{role}@", 1)
        house = House(url, conn, sdk, tmp_path_factory.mktemp("facade"))
        stack.callback(house.end)
        yield house


@pytest.mark.parametrize("language", [*SDKS, *OLDER_ONES])
def test_every_scene(house: House, language: str) -> None:
    """A client of an SDK gets from a worker of the same SDK what it gets over HTTP."""
    group = house.worker(language)
    asking = house.begin(language, group, "ask", f"{language}-", *SCENES)
    assert dict(zip(SCENES, asking.answers(), strict=True)) == SCENES, house.said()


@pytest.mark.parametrize(
    "language", ["typescript-postgres", pytest.param("python-postgres", marks=FULL), *OLDER_ONES]
)
def test_a_human_with_psql(house: House, language: str) -> None:
    """A workflow waits for a promise that a person resolves in SQL; a call from SQL runs a function."""
    group = house.worker(language)
    asking = house.begin(language, group, "ask", f"{language}-", "human")
    open_ = house.until(UNSETTLED, f"{language}-human")
    house.conn.execute("select durable.resolve(%s, '\"yes\"')", (open_,))
    assert asking.answers() == ["they said yes"]
    house.conn.execute(
        "select resonate.invoke(%s, 'add', '[2, 3]', %s)", (f"{language}-psql", f"poll://any@{group}")
    )
    house.until("select id from durable._promises where id = %s and state <> 'pending'", f"{language}-psql")
    row = house.conn.execute("select state, value from durable.promises where id = %s", (f"{language}-psql",))
    assert row.fetchone() == ("resolved", 5)


@pytest.mark.parametrize(
    "language", ["python-postgres", pytest.param("typescript-postgres", marks=FULL), *OLDER_ONES]
)
def test_search(house: House, language: str) -> None:
    """A client finds the promises of a workflow by their tags, page by page."""
    asking = house.begin(language, house.worker(language), "ask", f"{language}-found-", "fan-out", "search")
    assert asking.answers() == [SCENES["fan-out"], 21], house.said()


@FULL
@pytest.mark.parametrize(("asks", "works"), [SDKS, SDKS[::-1]])
def test_each_language_calls_the_other(house: House, asks: str, works: str) -> None:
    """A client in one language gets the same of workers in the other."""
    scenes = ("rpc", "fan-out", "rejected")
    asking = house.begin(asks, house.worker(works), "ask", f"{asks}-asks-", *scenes)
    assert asking.answers() == [SCENES[scene] for scene in scenes], house.said()


@FULL
@pytest.mark.parametrize("language", [*SDKS, *OLDER])
@pytest.mark.parametrize("scene", ["long-sleep", "work"])
def test_a_worker_that_is_killed(house: House, language: str, scene: str) -> None:
    """Another worker ends what the first began: at once if it slept, after its lease if it worked."""
    group, id_ = f"{language}-{scene}", f"{language}-{scene}"
    first = house.begin(language, group, "worker")
    asking = house.begin(language, group, "ask", f"{language}-", scene)
    state = "suspended" if scene == "long-sleep" else "acquired"
    house.until("select id from durable._tasks where id = %s and state = %s", id_, state)
    first.end()
    house.begin(language, group, "worker")
    assert asking.answers() == ["awake" if scene == "long-sleep" else "worked"]
