"""Law: programs of the SDKs before the envelope run unchanged on the older API of the gateway.

Their programs stand in sdks/ and play the scenes of the others as far as these SDKs have them; requests and
streams reach the gateway at two ports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest
from pytest_postgresql.executors import NoopExecutor

from tests.support.cluster import Server, installed_database, of_worker
from tests.support.gateway import Gateway
from tests.support.sdk_house import SCENES, House
from tests.support.sdks import Sdk
from tests.system.crash.processes import worker

SDKS = ("python-0.6", "python-0.4")
FULL = pytest.mark.full
FEW = ("run", "rpc", "fan-out", "rejected")
# 0.4 has no schedules; neither has a search
ABSENT = {"python-0.6": set(), "python-0.4": {"schedule"}}
OPEN = """
select p.id from durable._promises p
where p.id like %s and p.state = 'pending' and p.target is null and not p.timer
"""


@pytest.fixture(scope="module")
def dsn_v0(server: Server, template: NoopExecutor) -> Iterator[str]:
    """The database of all tests of this file."""
    with installed_database(server, of_worker("sdks_v0"), template.template_dbname) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def street(
    dsn_v0: str, sdk: Callable[[str], Sdk], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[House]:
    """A house for all tests of this file."""
    with ExitStack() as stack:
        conn = stack.enter_context(psycopg.connect(dsn_v0, autocommit=True))
        gateway = stack.enter_context(Gateway(dsn_v0, older_port=0))
        url = f"{gateway.url},{gateway.older_url}"
        house = House(url, conn, sdk, tmp_path_factory.mktemp("sdks_v0"))
        stack.callback(house.end)
        yield house


@pytest.mark.parametrize("language", SDKS)
def test_some_scenes(house: House, language: str) -> None:
    """A client gets from a worker of the same SDK what it asks for."""
    group = house.worker(language)
    asking = house.begin(language, group, "ask", f"{language}-", *FEW)
    assert asking.answers() == [SCENES[scene] for scene in FEW], house.said()


@FULL
@pytest.mark.parametrize("language", SDKS)
def test_every_other_scene(house: House, language: str) -> None:
    """So it does in each other scene that the SDK can play."""
    group = house.worker(language)
    scenes = [scene for scene in SCENES if scene not in (*FEW, *ABSENT[language])]
    asking = house.begin(language, group, "ask", f"{language}-", *scenes)
    assert asking.answers() == [SCENES[scene] for scene in scenes], house.said()


@FULL
@pytest.mark.parametrize("language", SDKS)
def test_a_human_with_psql(house: House, language: str) -> None:
    """A workflow waits for a promise that a person resolves in SQL."""
    group = house.worker(language)
    asking = house.begin(language, group, "ask", f"{language}-", "human")
    open_ = house.until(OPEN, f"{language}-human.%")
    house.conn.execute("select durable.resolve(%s, '\"yes\"')", (open_,))
    assert asking.answers() == ["they said yes"], house.said()


@FULL
@pytest.mark.parametrize("language", SDKS)
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
    assert asking.answers() == ["awake" if scene == "long-sleep" else "worked"], house.said()


@FULL
@pytest.mark.parametrize("language", SDKS)
def test_it_calls_a_workflow_of_ours(house: House, dsn_v0: str, language: str) -> None:
    """A published name answers as a function of the SDK does: the value, the error by its message."""
    for name, function in (("ours.add", "add"), ("ours.fail", "refuses")):
        house.conn.execute("select durable.publish(%s, 'ours', %s)", (name, function))
    with worker(dsn_v0, "--queue", "ours", job="tests.doors.protocol.calls_job:app"):
        asking = house.begin(language, "ours", "ask", f"{language}-ours-", "rpc", "rejected", "again")
        assert asking.answers() == [5, "no luck", [2, 2]], house.said()
