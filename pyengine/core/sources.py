"""The SQL files of the engine, in their order.

Lives here: finding ``sql/`` and ``migrations/`` (package data of an installed wheel, or the folders of a
checkout), the ordered lists of their files, their checksums, and the version of the code. May not: parse
SQL, open a connection, know the content of a file.

Design: state (tables, indexes) changes only by the numbered steps of ``migrations/``; logic (functions,
views, grants) is replaced as a whole whenever its checksum differs from the one that the database has
recorded. Logic has three groups, of which each needs only itself and those before it. The number at the front
of the name of a folder or file is its place in the order.
``debug/`` is logic for test installations only, after all other logic: it replaces the clock. ``facade/`` is
logic in a schema of its own, for installations that want it.
"""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

VERSION = "0.1.0"
SCHEMA = "durable"
FACADE = "resonate"
# the core, what hangs on it, and the ways in
GROUPS = ("core", "features", "doors")
# settings and rights of all entry points, so it comes after them
LAST = "99_entry_points"

_NUMBERED = re.compile(r"^(\d{2,})_[a-z0-9_]+$")
_MIGRATION = re.compile(r"^(\d{4})_([a-z0-9_]+)$")
_PHASED = re.compile(r"^\d{4}_(expand|values|types|index|backfill|contract)_")

_SUM = re.compile(r"^([0-9a-f]{64})  (\d{4}_[a-z0-9_]+)\.sql$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One numbered step of the tables: ``0001_initial.sql`` has id 1 and name ``0001_initial``."""

    id: int
    name: str
    path: Path

    @property
    def text(self) -> str:
        """The SQL text of the step."""
        return self.path.read_text(encoding="utf-8")

    @property
    def phase(self) -> str:
        """expand, values, types, index, backfill or contract (migrations/README.md); the first is expand."""
        return "expand" if self.id == 1 else self.name.split("_")[1]

    @property
    def sha256(self) -> str:
        """Checksum that detects a later edit."""
        return text_sha256(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The two folders that define a database."""

    sql: Path
    migrations: Path

    def state_files(self) -> tuple[Path, ...]:
        """Tables and indexes as they are today, in dependency order."""
        return _numbered(self.sql / "state")

    def logic_files(self) -> tuple[Path, ...]:
        """Functions, views and grants, in dependency order."""
        return tuple(path for place in (*GROUPS, LAST) for path in _numbered(self.sql / "logic" / place))

    def debug_files(self) -> tuple[Path, ...]:
        """Logic for test installations, in dependency order; it comes after all other logic."""
        return _numbered(self.sql / "debug")

    def facade_files(self) -> tuple[Path, ...]:
        """The functions of the schema resonate; they come after all other logic."""
        return tuple(sorted((self.sql / "facade").glob("*.sql")))

    def functions(self, *, debug: bool, facade: bool = False) -> tuple[Path, ...]:
        """The files of logic of an ordinary or a test installation, in dependency order."""
        return (
            *self.logic_files(),
            *(self.debug_files() if debug else ()),
            *(self.facade_files() if facade else ()),
        )

    def migration_steps(self) -> tuple[Migration, ...]:
        """The numbered steps of the tables, lowest first.

        Raises:
            ValueError: a file is misnamed, or a number is missing or used twice.
        """
        steps = []
        for path in sorted(self.migrations.glob("*.sql")):
            match = _MIGRATION.match(path.stem)
            if match is None:
                raise ValueError(f"{path}: a migration is named NNNN_words.sql")
            steps.append(Migration(id=int(match.group(1)), name=path.stem, path=path))
        for expected, step in enumerate(steps, start=1):
            if step.id != expected:
                raise ValueError(
                    f"{step.path}: expected number {expected:04d}; numbers are consecutive and unique"
                )
            if step.id > 1 and not _PHASED.match(step.name):
                raise ValueError(f"{step.path}: a migration says its phase: NNNN_expand_words.sql")
        return tuple(steps)

    def released(self) -> dict[str, str]:
        """Checksums of the steps that are released, by name: the content of ``SHA256SUMS``.

        Raises:
            ValueError: a line of it cannot be read.
        """
        path = self.migrations / "SHA256SUMS"
        if not path.exists():
            return {}
        lines = path.read_text(encoding="utf-8").splitlines()
        sums = [_SUM.match(line) for line in lines]
        if None in sums:
            raise ValueError(f"{path}:{sums.index(None) + 1}: not as sha256sum writes it")
        return {match[2]: match[1] for match in sums if match is not None}

    def edited(self) -> tuple[str, ...]:
        """Names of released steps that are missing or differ from their checksum."""
        sums = {step.name: step.sha256 for step in self.migration_steps()}
        return tuple(name for name, sha256 in self.released().items() if sums.get(name) != sha256)

    def logic_sha256(self, *, debug: bool = False, facade: bool = False) -> str:
        """One checksum over names and texts of the files of `functions`."""
        digest = hashlib.sha256()
        for path in self.functions(debug=debug, facade=facade):
            name = path.relative_to(self.sql).as_posix()
            digest.update(f"{name}\n{text_sha256(path.read_text(encoding='utf-8'))}\n".encode())
        return digest.hexdigest()


def text_sha256(text: str) -> str:
    """Return the checksum of a SQL text, which does not depend on the platform's line ends."""
    return hashlib.sha256(text.replace("\r\n", "\n").encode()).hexdigest()


@functools.cache
def found() -> Sources:
    """Return the SQL that belongs to this code: package data if installed, else the checkout.

    Raises:
        FileNotFoundError: neither exists, so the installation is damaged.
    """
    package = Path(__file__).resolve().parent.parent
    for sql, migrations in (
        (package / "_sql", package / "_migrations"),
        (package.parent / "sql", package.parent / "migrations"),
    ):
        if sql.is_dir() and migrations.is_dir():
            return Sources(sql=sql, migrations=migrations)
    raise FileNotFoundError(f"no SQL sources in or beside {package}; install pyengine again")


def _numbered(folder: Path) -> tuple[Path, ...]:
    """Return the files of a folder and of the folders in it, by their numbers."""
    if not folder.is_dir():
        return ()
    found: list[Path] = []
    taken: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if not path.is_dir() and path.suffix != ".sql":
            continue
        match = _NUMBERED.match(path.stem)
        if match is None:
            raise ValueError(
                f"{path}: what lies in sql/ is named NN_words, its number is its place in the order"
            )
        other = taken.setdefault(match[1], path)
        if other != path:
            raise ValueError(f"{path}: {other.name} has that number already")
        found += _numbered(path) if path.is_dir() else [path]
    return tuple(found)
