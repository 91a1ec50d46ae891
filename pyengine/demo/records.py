"""Distributions, their RECORD, and the verification of their files.

Lives here: finding distributions, reading RECORD, verifying files. May not: know of the engine.

Background: each installed distribution has ``<name>-<version>.dist-info/RECORD``, a CSV of path, hash, size.
Paths are relative to the folder of the dist-info and may climb out of it (``../../../bin/pip``). A hash is
``sha256=`` and the digest in URL-safe base64 without padding; other algorithms are allowed. RECORD itself,
signatures and compiled files have no hash, so they are skipped. A wheel is a zip with the same RECORD inside,
whose members are read in place.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import stat
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from pyengine.errors import InvalidRequest, NotFound

__all__ = [
    "Distribution",
    "Entry",
    "Limits",
    "Problem",
    "Record",
    "Slice",
    "Verdict",
    "entries",
    "find",
    "fingerprint",
    "printable_path",
    "running_environment",
    "slices",
    "verify",
]

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """One distribution: an installed one (its dist-info folder) or a wheel (its file).

    Args:
        name: the name of its folder or file, such as ``rich-15.0.0``.
        path: absolute path of the folder or the wheel.
    """

    name: str
    path: str

    @property
    def wheel(self) -> bool:
        """Whether it is a wheel."""
        return self.path.endswith(".whl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of RECORD that can be verified, or the number of one that cannot be read."""

    path: str
    algorithm: str
    digest: str
    size: int | None
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The content of a RECORD.

    Args:
        entries: lines to verify.
        skipped: number of lines that have no hash.
        absent: there is no RECORD, as with packages of the operating system.
        problem: the reason why it cannot be read.
    """

    entries: tuple[Entry, ...] = ()
    skipped: int = 0
    absent: bool = False
    problem: Problem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest number of files and bytes of one step; a bigger file is a step of its own.

    Args:
        pause_ms: how long each step waits, in a job that would otherwise end before a kill.
    """

    files: int = 32
    bytes: int = 8 << 20
    pause_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The lines that one step verifies: `count` from `first` on."""

    first: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A file that does not match RECORD.

    Args:
        path: path of the file, or of the RECORD.
        kind: mismatch, missing or unreadable.
        detail: the expected and the actual content.
    """

    path: str
    kind: str
    detail: str


@dataclass(slots=True, kw_only=True)
class Verdict:
    """The result of verifying: numbers, and the files that do not match."""

    files: int = 0
    bytes: int = 0
    skipped: int = 0
    problems: list[Problem] = field(default_factory=list)

    def add(self, other: Verdict) -> None:
        """Add the numbers and problems of another verdict."""
        self.files += other.files
        self.bytes += other.bytes
        self.skipped += other.skipped
        self.problems += other.problems


def running_environment() -> list[str]:
    """Return the folders from which this interpreter imports installed distributions."""
    folders = {
        str(Path(entry).resolve()) for entry in sys.path if entry and any(Path(entry).glob("*.dist-info"))
    }
    return sorted(folders)


def find(places: list[str]) -> list[Distribution]:
    """Return the distributions below some folders, or the wheels that are named, by path.

    Raises:
        NotFound: there is no such place, or nothing in any of them.
        InvalidRequest: a place cannot be read.
    """
    found: set[Path] = set()
    for place in places:
        try:
            found |= _below(Path(place))
        except PermissionError as error:
            raise InvalidRequest(f"{error.filename or place} cannot be read: permission denied") from error
    if not found:
        raise NotFound(
            f"there is nothing to audit in {', '.join(places)}: no *.dist-info folder and no wheel",
            hint="name a site-packages folder, a virtual environment or a folder of wheels",
        )
    return [_named(path) for path in sorted(found)]


def _below(root: Path) -> set[Path]:
    if not root.exists():
        raise NotFound(
            f"there is no folder {root}", hint="without a path, the running environment is audited"
        )
    if root.is_file() and root.suffix == ".whl":
        return {root.resolve()}
    if not root.is_dir():
        raise InvalidRequest(f"{root} is neither a folder nor a wheel")
    os.listdir(root)  # a glob does not report folders that it cannot read
    for search in (root.glob, root.rglob):  # in the folder; else below it, as in a virtual environment
        if found := {path.resolve() for kind in ("*.dist-info", "*.whl") for path in search(kind)}:
            return found
    return set()


def _named(path: Path) -> Distribution:
    name = path.name.removesuffix(".dist-info")
    if path.suffix == ".whl":
        name = "-".join(path.stem.split("-")[:2])
    return Distribution(name=name, path=str(path.resolve()))


def entries(distribution: Distribution) -> Record:
    """Read RECORD; an unchanged one is cached."""
    path = Path(distribution.path)
    file = path if distribution.wheel else path / "RECORD"
    try:
        known = file.stat()
    except OSError:
        known = None
    return _entries(distribution, known.st_mtime_ns if known else 0, known.st_size if known else 0)


@lru_cache(maxsize=64)
def _entries(distribution: Distribution, mtime_ns: int, size: int) -> Record:
    try:
        text = _record_text(distribution)
    except FileNotFoundError:
        return Record(absent=True)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        return Record(
            problem=Problem(path=distribution.path, kind="unreadable", detail=f"no RECORD: {error}")
        )
    found, skipped = [], 0
    for number, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        if not row or (len(row) >= 2 and not row[1]):
            skipped += bool(row)
            continue
        algorithm, _, digest = (row[1] if len(row) > 1 else "").partition("=")
        size_text = row[2] if len(row) > 2 else ""
        found.append(
            Entry(
                path=row[0],
                algorithm=algorithm.lower(),
                digest=digest.rstrip("="),
                size=int(size_text) if size_text.isdecimal() else None,
                line=number,
            )
        )
    return Record(entries=tuple(found), skipped=skipped)


def _record_text(distribution: Distribution) -> str:
    if not distribution.wheel:
        return (Path(distribution.path) / "RECORD").read_text(encoding="utf-8", errors="surrogateescape")
    with zipfile.ZipFile(distribution.path) as wheel:
        names = [
            name for name in wheel.namelist() if name.count("/") == 1 and name.endswith(".dist-info/RECORD")
        ]
        if len(names) != 1:
            raise ValueError(f"{len(names)} files are named *.dist-info/RECORD")
        return wheel.read(names[0]).decode("utf-8", errors="surrogateescape")


def fingerprint(distributions: list[Distribution]) -> str:
    """Return 16 hex digits that change with the size and times of any file to verify."""
    digest = hashlib.sha256()
    for distribution in distributions:
        digest.update(
            repr((distribution.path, _times(distribution.path))).encode("utf-8", "backslashreplace")
        )
        if distribution.wheel:
            continue
        folder = _Folder(distribution)
        digest.update(repr(_times(f"{distribution.path}/RECORD")).encode())
        for entry in entries(distribution).entries:
            known = (entry.path, entry.digest, _times(folder.path(entry.path)))
            digest.update(repr(known).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()[:16]


def _times(path: str) -> tuple[int, int, int] | None:
    """Return size, modification time and change time of a file; the change time cannot be set back."""
    try:
        known = os.stat(path)
    except (OSError, ValueError):
        return None
    return (0 if stat.S_ISDIR(known.st_mode) else known.st_size, known.st_mtime_ns, known.st_ctime_ns)


def slices(distribution: Distribution, limits: Limits) -> list[Slice]:
    """Cut the lines of RECORD into steps of bounded size."""
    made: list[Slice] = []
    first = count = size = 0
    for number, entry in enumerate(entries(distribution).entries):
        if count and (count >= limits.files or size + (entry.size or 0) > limits.bytes):
            made.append(Slice(first=first, count=count))
            first, count, size = number, 0, 0
        count, size = count + 1, size + (entry.size or 0)
    return [*made, Slice(first=first, count=count)] if count else made


def verify(distribution: Distribution, part: Slice) -> Verdict:
    """Compare the files of some lines of RECORD with their sizes and hashes."""
    verdict = Verdict()
    with _opener(distribution) as opened:
        for entry in entries(distribution).entries[part.first : part.first + part.count]:
            problem, size = _verify_file(entry, opened)
            verdict.files += 1
            verdict.bytes += size
            if problem is not None:
                verdict.problems.append(problem)
    return verdict


class _Folder:
    """The files of an installed distribution."""

    def __init__(self, distribution: Distribution) -> None:
        self._base = os.path.dirname(distribution.path)

    def path(self, name: str) -> str:
        return os.path.normpath(os.path.join(self._base, name))

    def open(self, name: str) -> BinaryIO:
        path = self.path(name)
        # a RECORD may name anything; a pipe or a device is never read
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise FileNotFoundError(path)
        return open(path, "rb")


class _Wheel:
    """The members of a wheel."""

    def __init__(self, distribution: Distribution, archive: zipfile.ZipFile) -> None:
        self._path = distribution.path
        self._archive = archive

    def path(self, name: str) -> str:
        return f"{self._path}/{name}"

    def open(self, name: str) -> BinaryIO:
        try:
            return self._archive.open(name)  # type: ignore[return-value] # a ZipExtFile reads like a file
        except KeyError as error:
            raise FileNotFoundError(name) from error


@contextmanager
def _opener(distribution: Distribution) -> Iterator[_Folder | _Wheel]:
    if not distribution.wheel:
        yield _Folder(distribution)
        return
    with zipfile.ZipFile(distribution.path) as archive:
        yield _Wheel(distribution, archive)


def _verify_file(entry: Entry, files: _Folder | _Wheel) -> tuple[Problem | None, int]:
    path = printable_path(files.path(entry.path))
    if entry.algorithm not in hashlib.algorithms_available or not entry.digest or "shake" in entry.algorithm:
        return Problem(
            path=path, kind="unreadable", detail=f"RECORD line {entry.line} has no hash we know"
        ), 0
    digest, size = hashlib.new(entry.algorithm), 0
    try:
        with files.open(entry.path) as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
    except (FileNotFoundError, NotADirectoryError):
        return Problem(path=path, kind="missing", detail="RECORD lists it, there is no such file"), size
    except zipfile.BadZipFile as error:
        return Problem(path=path, kind="mismatch", detail=printable_path(str(error))), size
    except (OSError, ValueError, zlib.error) as error:
        return Problem(path=path, kind="unreadable", detail=printable_path(str(error))), size
    if entry.size is not None and entry.size != size:
        return Problem(path=path, kind="mismatch", detail=f"{size} bytes, RECORD says {entry.size}"), size
    found = base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=")
    if found != entry.digest:
        return Problem(
            path=path, kind="mismatch", detail=f"its {entry.algorithm} is not the one in RECORD"
        ), size
    return None, size


def printable_path(path: str) -> str:
    """Return a path as text that can be stored, for any bytes."""
    return path.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
