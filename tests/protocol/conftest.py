"""Published SDKs for the tests of the protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.sdk_house import LANGUAGES, SDKS, House
from tests.support.sdks import NEWEST, NoPython, NoSdk, Sdk


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


@pytest.fixture
def house(street: House) -> Iterator[House]:
    """The house of the file, `street`, in which the laws hold after each test."""
    yield street
    broken = street.conn.execute("select * from durable.check()").fetchall()
    assert not broken, "\n".join(map(str, broken))
