"""Published SDKs for the tests of the protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.sdk_house import LANGUAGES, SDKS, House
from tests.support.sdks import NEWEST, NoSdk, Sdk, missing


@pytest.fixture(scope="session")
def sdk(request: pytest.FixtureRequest) -> Callable[[str], Sdk]:
    """A function: the SDK of a language, installed. One that cannot be had is tried once."""
    newest = request.config.getoption("--newest-sdks")
    known: dict[str, Sdk | NoSdk] = {}

    def get(language: str) -> Sdk:
        if language not in known:
            get_it, pinned, _ = SDKS[language]
            try:
                known[language] = get_it(NEWEST if newest and language in LANGUAGES else pinned)
            except NoSdk as reason:
                known[language] = reason
        found = known[language]
        if isinstance(found, NoSdk):
            missing(found, full=request.config.getoption("--full"))
        return found

    return get


@pytest.fixture
def house(street: House) -> Iterator[House]:
    """The house of the file, `street`, in which the laws hold after each test."""
    yield street
    broken = street.conn.execute("select * from durable.check()").fetchall()
    assert not broken, "\n".join(map(str, broken))
