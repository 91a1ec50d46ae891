"""Law: an SDK that cannot be had fails its tests in CI and with --full; elsewhere they are skipped."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import sdks
from tests.support.sdks import PYTHON_SDK, TYPESCRIPT_SDK, NoSdk, missing, python_sdk, typescript_sdk


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The URL of a registry that does not answer, for pip and npm, and an empty cache."""
    monkeypatch.setattr(sdks.platformdirs, "user_cache_dir", lambda _: str(tmp_path))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        for name in ("npm_config_registry", "PIP_INDEX_URL"):
            monkeypatch.setenv(name, url)
        for name in ("npm_config_fetch_retries", "PIP_RETRIES"):
            monkeypatch.setenv(name, "0")
        for name in ("PIP_CONFIG_FILE", "npm_config_userconfig"):
            monkeypatch.setenv(name, "/dev/null")
        for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
            monkeypatch.delenv(name, raising=False)
        yield url


@pytest.mark.parametrize(
    ("ci", "full", "end"),
    [
        ("true", False, pytest.fail.Exception),
        ("", True, pytest.fail.Exception),
        ("", False, pytest.skip.Exception),
    ],
)
def test_what_becomes_of_its_tests(
    monkeypatch: pytest.MonkeyPatch, ci: str, full: bool, end: type[BaseException]
) -> None:
    """CI never passes without it."""
    monkeypatch.setenv("CI", ci)
    with pytest.raises(end, match="no Node here"):
        missing(NoSdk("no Node here"), full=full)


def test_no_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without Node nothing is asked of npm."""
    monkeypatch.setattr(sdks, "NODE", tmp_path / "node")
    with pytest.raises(NoSdk, match=f"no Node for @resonatehq/sdk@{TYPESCRIPT_SDK}"):
        typescript_sdk(TYPESCRIPT_SDK)


def test_no_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Python that is too old for the SDK is none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setattr(sdks, "NEEDED", (4, 0))
    with pytest.raises(NoSdk, match=r"no Python 4\.0 or newer"):
        python_sdk(PYTHON_SDK)


@pytest.mark.usefixtures("nowhere")
def test_no_registry_of_npm() -> None:
    """What npm says is the reason."""
    with pytest.raises(NoSdk, match=f"npm does not get @resonatehq/sdk@{TYPESCRIPT_SDK}.*ECONNREFUSED"):
        typescript_sdk(TYPESCRIPT_SDK)


@pytest.mark.full
@pytest.mark.usefixtures("nowhere")
def test_no_registry_of_pip() -> None:
    """So is what pip says."""
    with pytest.raises(NoSdk, match=f"pip does not get resonate-sdk=={PYTHON_SDK}: "):
        python_sdk(PYTHON_SDK)
