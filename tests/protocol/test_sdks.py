"""Law: programs of the published Resonate SDKs run unchanged on the engine, whichever language calls which.

The programs stand in sdks/, one scene for each thing that an SDK can do; a worker and a client of it are
processes of their own, and reach the database through a gateway. Versions are pinned in
support/sdks.py; --newest-sdks takes the newest that are published instead.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psycopg
import pytest

from tests.support.cluster import Server, installed_database, of_worker
from tests.support.gateway import Gateway
from tests.support.sdks import (
    NEWEST,
    OLDER_PYTHON_SDK,
    OLDER_TYPESCRIPT_SDK,
    PYTHON_SDK,
    TYPESCRIPT_SDK,
    NoPython,
    NoSdk,
    Sdk,
    python_sdk,
    typescript_sdk,
)
from tests.support.verbs import Connection

PROGRAMS = Path(__file__).parent / "sdks"
WAIT_S = 120.0
LANGUAGES = ("python", "typescript")
OLDER = ("older-python", "older-typescript")
# how an SDK is made, which version of it, and its program
SDKS: dict[str, tuple[Callable[[str], Sdk], str, str]] = {
    "python": (python_sdk, PYTHON_SDK, "program.py"),
    "typescript": (typescript_sdk, TYPESCRIPT_SDK, "program.mjs"),
    "older-python": (python_sdk, OLDER_PYTHON_SDK, "program.py"),
    "older-typescript": (typescript_sdk, OLDER_TYPESCRIPT_SDK, "program.mjs"),
}
# scene -> what the client gets
SCENES: dict[str, Any] = {
    "run": 6,
    "rpc": 5,
    "fan-out": 55,
    "recursion": 8,
    "sleep": "awake",
    "detached": 5,
    "rejected": "no luck",
    "again": [2, 2],
    "schedule": "* * * * *",
}
LONG_SCENES: dict[str, Any] = {"fan-out-of-hundred": 5050, "deep-recursion": 34}
UNSETTLED = """
select p.id from durable._promises p
where p.tags ->> 'resonate:origin' = %s and p.state = 'pending' and p.target is null
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A process of an SDK."""

    process: subprocess.Popen[str]
    errors: IO[str]

    def answers(self) -> list[Any]:
        """What a client printed before it ended well."""
        try:
            told, _ = self.process.communicate(timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            told = self.end()
        assert self.process.returncode == 0, f"{told}\n{self.said()}"
        return [json.loads(line) for line in told.splitlines()]

    def said(self) -> str:
        """Its log."""
        self.errors.seek(0)
        return self.errors.read()

    def end(self) -> str:
        """Kill it, unless it has ended; returns what it had printed."""
        if self.process.returncode is not None:
            return ""
        self.process.kill()
        return self.process.communicate()[0]


class House:
    """A database, the gateway before it, and processes of SDKs that talk to it."""

    def __init__(self, url: str, conn: Connection, sdk: Callable[[str], Sdk], folder: Path) -> None:
        self.conn = conn
        self._url = url
        self._sdk = sdk
        self._folder = folder
        self._programs: list[Program] = []
        self._groups: set[str] = set()

    def begin(self, language: str, group: str, role: str, *more: str) -> Program:
        """Start a process; nothing that this one was told of the engine is in its environment."""
        sdk = self._sdk(language)
        pid = f"{language}-{len(self._programs)}"
        errors = (self._folder / f"{pid}-{role}").open("w+", encoding="utf-8")
        process = subprocess.Popen(
            [*sdk.command, PROGRAMS / SDKS[language][2], sdk.folder, self._url, group, pid, role, *more],
            env={
                key: text for key, text in os.environ.items() if not key.startswith(("RESONATE_", "PYTHON"))
            },
            cwd=self._folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        self._programs.append(Program(process=process, errors=errors))
        return self._programs[-1]

    def worker(self, language: str) -> str:
        """The group of the worker of this language, which is started when it is first asked for."""
        if language not in self._groups:
            self._groups.add(language)
            self.begin(language, language, "worker")
        return language

    def until(self, text: str, *values: object) -> Any:
        """The first row of a query as soon as it has one."""
        late = time.monotonic() + WAIT_S
        while (row := self.conn.execute(text.encode(), values).fetchone()) is None:
            assert time.monotonic() < late, f"no row in {WAIT_S} s: {text}\n{self.said()}"
            time.sleep(0.05)
        return row[0]

    def said(self) -> str:
        """The logs of all processes."""
        return "\n".join(f"{each.errors.name}:\n{each.said()}" for each in self._programs)

    def end(self) -> None:
        """Kill every process."""
        for each in self._programs:
            each.end()
            each.errors.close()


@pytest.fixture(scope="session")
def sdk(request: pytest.FixtureRequest) -> Callable[[str], Sdk]:
    """A function: the SDK of a language, installed. Without a Python that is new enough its tests are
    skipped, and fail with --full."""
    newest = request.config.getoption("--newest-sdks")
    known: dict[str, Sdk] = {}

    def get(language: str) -> Sdk:
        if language not in known:
            get_it, pinned, _ = SDKS[language]
            try:
                known[language] = get_it(NEWEST if newest and language in LANGUAGES else pinned)
            except NoPython as reason:
                (pytest.fail if request.config.getoption("--full") else pytest.skip)(str(reason))
            except NoSdk as reason:
                pytest.fail(str(reason), pytrace=False)
        return known[language]

    return get


@pytest.fixture(scope="module")
def street(
    server: Server, sdk: Callable[[str], Sdk], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[House]:
    """A house for all tests of this file."""
    with ExitStack() as stack:
        name = of_worker("sdks")
        dsn = stack.enter_context(installed_database(server, name))
        conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        url = stack.enter_context(Gateway(dsn)).url
        house = House(url, conn, sdk, tmp_path_factory.mktemp("sdks"))
        stack.callback(house.end)
        yield house


@pytest.fixture
def house(street: House) -> Iterator[House]:
    """The house, in which the laws hold after each test."""
    yield street
    broken = street.conn.execute("select * from durable.check()").fetchall()
    assert not broken, "\n".join(map(str, broken))


@pytest.mark.parametrize(
    "language", [*LANGUAGES, *(pytest.param(each, marks=pytest.mark.full) for each in OLDER)]
)
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


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_human_in_the_loop(house: House, language: str) -> None:
    """A workflow waits for a promise that a process settles later, by the id that is seen in the database."""
    group = house.worker(language)
    asking = house.begin(language, group, "ask", f"{language}-", "human")
    open_ = house.until(UNSETTLED, f"{language}-human")
    assert house.begin(language, group, "settle", open_, "yes").answers() == []
    assert asking.answers() == ["they said yes"]


@pytest.mark.parametrize("language", LANGUAGES)
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


@pytest.mark.full
@pytest.mark.parametrize("language", LANGUAGES)
def test_large_scenes(house: House, language: str) -> None:
    """A hundred calls side by side, and calls of calls of calls, over three workers. They are of one
    language: each numbers the calls of a workflow in its own way."""
    group = f"{language}-large"
    for _ in range(3):
        house.begin(language, group, "worker")
    asking = house.begin(language, group, "ask", f"{language}-", *LONG_SCENES)
    assert asking.answers() == list(LONG_SCENES.values()), house.said()


@pytest.mark.full
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_worker_that_is_killed_in_its_sleep(house: House, language: str) -> None:
    """A workflow that sleeps outlives its worker: another one ends it."""
    group = f"{language}-killed"
    first = house.begin(language, group, "worker")
    asking = house.begin(language, group, "ask", f"{language}-", "long-sleep")
    house.until(
        "select id from durable._tasks where id = %s and state = 'suspended'", f"{language}-long-sleep"
    )
    first.end()
    house.begin(language, group, "worker")
    assert asking.answers() == ["awake"]
