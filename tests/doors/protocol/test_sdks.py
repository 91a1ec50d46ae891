"""Law: programs of the published Resonate SDKs run unchanged on the engine, whichever language calls which.

The programs stand in sdks/, one scene for each thing that an SDK can do; a worker and a client of it are
processes of their own, and reach the database through a gateway. Versions are pinned in support/sdks.py;
--newest-sdks takes the newest that are published instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest
from pytest_postgresql.executors import NoopExecutor

from tests.support.cluster import Server, installed_database, of_worker
from tests.support.gateway import Gateway
from tests.support.sdk_house import LANGUAGES, LONG_SCENES, OLDER, SCENES, UNSETTLED, House
from tests.support.sdks import Sdk

FULL = pytest.mark.full
OLDER_ONES = [pytest.param(each, marks=FULL) for each in OLDER]
DEAF_AFTER_S = 310


@pytest.fixture(scope="module")
def street(
    server: Server,
    template: NoopExecutor,
    sdk: Callable[[str], Sdk],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[House]:
    """A house for all tests of this file."""
    with ExitStack() as stack:
        name = of_worker("sdks")
        dsn = stack.enter_context(installed_database(server, name, template.template_dbname))
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        url = stack.enter_context(Gateway(dsn)).url
        house = House(url, conn, sdk, tmp_path_factory.mktemp("sdks"))
        stack.callback(house.end)
        yield house


@pytest.mark.parametrize("language", [*LANGUAGES, *OLDER_ONES])
def test_every_scene(house: House, language: str) -> None:
    """What a client of an SDK asks of a worker of the same SDK it gets."""
    group = house.worker(language)
    asking = house.begin(language, group, "ask", f"{language}-", *SCENES)
    assert dict(zip(SCENES, asking.answers(), strict=True)) == SCENES, house.said()


@pytest.mark.parametrize(("asks", "works"), [LANGUAGES, LANGUAGES[::-1]])
def test_each_language_calls_the_other(house: House, asks: str, works: str) -> None:
    """A client in one language gets the same of workers in the other."""
    scenes = ("rpc", "fan-out", "rejected")
    asking = house.begin(asks, house.worker(works), "ask", f"{asks}-asks-", *scenes)
    assert asking.answers() == [SCENES[scene] for scene in scenes], house.said()


# typescript: test_a_human_with_psql
@pytest.mark.parametrize("language", ["python", pytest.param("typescript", marks=FULL), *OLDER_ONES])
def test_a_human_in_the_loop(house: House, language: str) -> None:
    """A workflow waits for a promise that a process settles later, by the id that is seen in the database."""
    group = house.worker(language)
    asking = house.begin(language, group, "ask", f"{language}-", "human")
    open_ = house.until(UNSETTLED, f"{language}-human")
    assert house.begin(language, group, "settle", open_, "yes").answers() == []
    assert asking.answers() == ["they said yes"]


@pytest.mark.parametrize("language", ["typescript", pytest.param("python", marks=FULL), *OLDER_ONES])
def test_a_human_with_psql(house: House, language: str) -> None:
    """A workflow waits for a promise that a person resolves in SQL."""
    asking = house.begin(language, house.worker(language), "ask", f"{language}-psql-", "human")
    open_ = house.until(UNSETTLED, f"{language}-psql-human")
    house.conn.execute("select durable.resolve(%s, '\"yes\"')", (open_,))
    assert asking.answers() == ["they said yes"]


@pytest.mark.parametrize("language", ["typescript", pytest.param("python", marks=FULL), *OLDER_ONES])
def test_search(house: House, language: str) -> None:
    """A client finds the promises of a workflow by their tags, page by page."""
    asking = house.begin(language, house.worker(language), "ask", f"{language}-found-", "fan-out", "search")
    assert asking.answers() == [SCENES["fan-out"], 21], house.said()


@pytest.mark.parametrize("language", ["typescript", pytest.param("python", marks=FULL)])
def test_a_function_that_only_a_later_worker_has(house: House, language: str) -> None:
    """A worker that does not know a function gives it back in growing pauses; one that does is asked at
    once."""
    group = f"{language}-late"
    house.begin(language, group, "worker")
    asking = house.begin(language, group, "ask", f"{language}-", "missing")
    house.until("select id from durable._tasks where id = %s and releases >= 3", f"{language}-missing")
    house.begin(language, group, "late-worker")
    assert asking.answers() == ["at last"]
    acquired = house.until("select task_version from durable._promises where id = %s", f"{language}-missing")
    assert 4 <= acquired < 20


@FULL
@pytest.mark.parametrize("language", LANGUAGES)
def test_large_scenes(house: House, language: str) -> None:
    """A hundred calls side by side, and calls of calls of calls, over three workers. They are of one
    language: each numbers the calls of a workflow in its own way."""
    group = f"{language}-large"
    for _ in range(3):
        house.begin(language, group, "worker")
    asking = house.begin(language, group, "ask", f"{language}-", *LONG_SCENES)
    assert asking.answers() == list(LONG_SCENES.values()), house.said()


@FULL
@pytest.mark.parametrize("language", [*LANGUAGES, *OLDER])
@pytest.mark.parametrize("scene", ["long-sleep", "work"])
def test_a_worker_that_is_killed(house: House, language: str, scene: str) -> None:
    """Another worker ends what the first began: at once if it slept, after its lease if it worked."""
    group = f"{language}-{scene}"
    first = house.begin(language, group, "worker")
    asking = house.begin(language, group, "ask", f"{language}-", scene)
    state = "suspended" if scene == "long-sleep" else "acquired"
    house.until("select id from durable._tasks where id = %s and state = %s", group, state)
    first.end()
    house.begin(language, group, "worker")
    assert asking.answers() == ["awake" if scene == "long-sleep" else "worked"]


@FULL
def test_a_worker_that_lives_for_long(house: House) -> None:
    """A Python worker stops listening 300 s after it connected, unless its stream ends before; it gets work
    after that time too."""
    group = "python-long"
    house.begin("python", group, "worker")
    asking = house.begin("python", group, "ask", "long-before-", "rpc")
    assert asking.answers() == [SCENES["rpc"]]
    time.sleep(DEAF_AFTER_S)
    asking = house.begin("python", group, "ask", "long-after-", "rpc")
    assert asking.answers() == [SCENES["rpc"]]
