"""Debian packages without installing them: fetched, and unpacked into the user's cache, once for a machine.

What lives here: `unpacked`. What may not: what is done with the files. Neither root nor up-to-date lists are
needed: where the lists of the machine do not do, lists of our own are made. Only Debian and what is made of
it has `apt-get`; elsewhere, and where no registry answers, `NoPackage` says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import platformdirs

if sys.platform != "win32":
    import fcntl

APT_S = 240


class NoPackage(Exception):
    """The package cannot be had here, and this is why."""


def unpacked(package: str, *more: str, program: str | None = None) -> Path:
    """Return the folder that stands for `/`, with the files of a package.

    Args:
        package: its name.
        more: other packages, unpacked over it.
        program: a program in it, whose missing libraries are fetched too.

    Raises:
        NoPackage: it is not to be had.
    """
    if sys.platform == "win32":
        raise NoPackage("Debian packages are not for Windows")
    home = Path(platformdirs.user_cache_dir("pyengine-tests"))
    home.mkdir(parents=True, exist_ok=True)
    made = home / package
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if made.exists():
            return made
        # short-lived and beside its goal, so that a half-made folder never has its name
        with tempfile.TemporaryDirectory(dir=home) as folder:
            try:
                _fetch(Path(folder), (package, *more), program)
            except FileNotFoundError as error:
                raise NoPackage(f"there is no {error.filename} here, so no Debian package either") from None
            except subprocess.TimeoutExpired as error:
                raise NoPackage(f"no answer for {package} from {error.cmd[0]} in {APT_S} s") from None
            except subprocess.CalledProcessError as error:
                said = str(error.stderr or "").strip().splitlines() or ["no word"]
                raise NoPackage(f"the Debian package {package} is not to be had: {said[-1]}") from None
            (Path(folder) / "root").rename(made)
    return made


def libraries(root: Path) -> dict[str, str]:
    """Environment in which programs of such a folder find the libraries of it."""
    folders = [str(one) for one in (*root.glob("usr/lib/*-linux-*"), *root.glob("lib/*-linux-*"))]
    return {"LD_LIBRARY_PATH": os.pathsep.join(folders)} if folders else {}


def _fetch(folder: Path, packages: tuple[str, ...], program: str | None) -> None:
    apt: tuple[str, ...] = ()
    try:
        _download(folder, apt, *packages)
    except subprocess.CalledProcessError:
        apt = _own_lists(folder)
        _download(folder, apt, *packages)
    if program is None:
        return
    root = folder / "root"
    if _missing(root, program):
        told = _run(folder, "apt-cache", *apt, "depends", packages[0]).splitlines()
        needs = [line.split(":", 1)[1].strip() for line in told if line.strip().startswith("Depends: lib")]
        for one in needs:
            if one != "libc6" and _missing(root, program):
                _download(folder, apt, one)
    if missing := _missing(root, program):
        raise NoPackage(f"the Debian package {packages[0]} does not run here: {', '.join(missing)}")


def _own_lists(folder: Path) -> tuple[str, ...]:
    """Fetch lists of packages, and return the options that name them."""
    for part in ("state/lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    told = {
        "Dir::State": folder / "state",
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "",
    }
    apt = tuple(part for name, value in told.items() for part in ("-o", f"{name}={value}"))
    _run(folder, "apt-get", *apt, "update")
    return apt


def _download(folder: Path, apt: tuple[str, ...], *names: str) -> None:
    _run(folder, "apt-get", *apt, "download", *names)
    for package in folder.glob("*.deb"):
        _run(folder, "dpkg-deb", "-x", str(package), str(folder / "root"))
        package.unlink()


def _missing(root: Path, program: str) -> list[str]:
    """Libraries that a program would not find."""
    told = _run(root, "ldd", str(root / program), environment=libraries(root))
    return [line.split("=>")[0].strip() for line in told.splitlines() if "not found" in line]


def _run(folder: Path, *command: str, environment: dict[str, str] | None = None) -> str:
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(2, "no such program", command[0])
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "LC_ALL": "C", **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=APT_S,
        check=True,
    )
    return done.stdout
