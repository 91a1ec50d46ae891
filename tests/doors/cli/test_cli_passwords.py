"""Law: no door says the password of a URL, nor a piece of it, wherever a driver thinks that it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pyengine import Client, EngineError
from pyengine.core.database.error_mapping import named
from pyengine.core.passwords import hidden
from pyengine.doors.admin import migrate
from pyengine.sync import Client as SyncClient

HEAD, TAIL = "Qz7", "Wy9"
BETWEEN = [
    "",
    "@",
    "@@",
    "/",
    "?",
    "#",
    ":",
    ",",
    "[",
    "]",
    "%40",
    "%2F",
    "%",
    "&",
    "=",
    "'",
    "\\",
    "@:",
    "/@",
    "?@",
]
PASSWORDS = [
    *(f"{HEAD}{mark}{TAIL}" for mark in BETWEEN),
    *(f"{mark}{HEAD}" for mark in ("@", "/", ":", "#")),
    *(f"{HEAD}{mark}" for mark in ("@", "/", ":", "#")),
    f"{HEAD}@{TAIL}/{HEAD}@{TAIL}:1",
]
FORMS = [
    "postgresql://bob:{}@127.0.0.1:1/db",
    "postgresql://bob:{}@nowhere.invalid/db",
    "postgres://bob:{}@127.0.0.1:1,127.0.0.1:2/db?connect_timeout=2",
    "postgresql://bob:{}@/db?host=/nowhere",
    "postgresql://127.0.0.1:1/db?user=bob&password={}",
]
URLS = [
    *(FORMS[number % len(FORMS)].format(password) for number, password in enumerate(PASSWORDS)),
    *(
        pytest.param(form.format(password), marks=pytest.mark.full)
        for number, password in enumerate(PASSWORDS)
        for form in (*FORMS[: number % len(FORMS)], *FORMS[number % len(FORMS) + 1 :])
    ),
]


def told(call: Callable[[str], object], url: str) -> str:
    """What a call that cannot succeed says."""
    with pytest.raises(EngineError) as caught:
        call(url)
    return f"{caught.value} {caught.value.hint} {caught.value.detail}"


def awaited(url: str) -> None:
    """Open a client that awaits."""

    async def main() -> None:
        async with Client(url):
            pass

    asyncio.run(main())


def blocked(url: str) -> None:
    """Open a client that blocks."""
    with SyncClient(url):
        pass


@pytest.mark.parametrize("url", URLS)
def test_no_entry_point_prints_a_password(pyengine: Any, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """The command with a URL, or one of the environment, the clients and the installer, of whatever form."""
    answers = [
        pyengine("ps", "--database-url", url),
        pyengine("db", "status", f"--database-url={url}", "--json"),
    ]
    monkeypatch.setenv("PYENGINE_DATABASE_URL", url)
    answers += [pyengine("ps"), pyengine("db", "init")]
    said = [answer.out + answer.err for answer in answers]
    assert all(answer.code != 0 for answer in answers)
    said += [told(call, url) for call in (awaited, blocked, migrate.install)]
    said += [named(url)]
    for text in said:
        assert HEAD not in text
        assert TAIL not in text


def test_a_short_one() -> None:
    """The tail of a password that drivers take for a host is cut off, though it is two letters long."""
    url = "postgresql://bob:s3cret@pw@host/db"
    assert hidden('no connection to pw@host:5432/db: no host "pw@host"', url) == (
        'no connection to host:5432/db: no host "host"'
    )
    assert hidden("s3cret, the power of pw", url) == "***, the power of ***"


def test_other_text_is_not_changed() -> None:
    """A URL without a password hides nothing, and a one-letter password leaves words alone."""
    assert hidden("host at a bad address", "postgresql://bob@host/a") == "host at a bad address"
    assert hidden("has an address", "postgresql://bob:a@host/db") == "has an address"
