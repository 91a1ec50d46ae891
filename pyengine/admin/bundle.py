"""The engine as one SQL file, for installations with psql alone.

    python -m pyengine.admin.bundle > durable.sql       then: psql -f durable.sql
    python -m pyengine.admin.bundle --initial           rewrites migrations/0001_initial.sql from sql/state

Lives here: concatenation. May not: open a connection, change the content of a file. A database that was
installed from the bundle has the same record of steps and checksums as any other, so a later ``pyengine
migrate`` works. Until the first release ``0001_initial.sql`` follows ``sql/state``; ``migrations/SHA256SUMS``
freezes it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyengine.admin.migrate import INSTALL_LOCK
from pyengine.errors import InvalidRequest
from pyengine.sources import SCHEMA, VERSION, Sources, found

__all__ = ["bundle", "initial", "main", "write_initial"]

_HEAD = """\
-- The first step of the tables: sql/state as a whole, in the order of its file numbers.
-- Why: makes the schema. Locks: none that anybody could wait for. Duration: under a second.
-- Written by `python -m pyengine.admin.bundle --initial`; not edited by hand.
"""


def initial(sources: Sources) -> str:
    """Return the text of migrations/0001_initial.sql, from sql/state."""
    return _HEAD + "".join(_part(path) for path in sources.state_files())


def write_initial(sources: Sources) -> bool:
    """Rewrite migrations/0001_initial.sql; return whether that changed it.

    Raises:
        InvalidRequest: the step is released, so tables change by a new step only.
    """
    if (sources.migrations / "SHA256SUMS").exists():
        raise InvalidRequest(
            "migrations/0001_initial.sql is released and never changes again",
            hint="write the change of the tables as the next numbered migration",
        )
    path = sources.migrations / "0001_initial.sql"
    text = initial(sources)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.write_text(text, encoding="utf-8")
    return True


def bundle(sources: Sources) -> str:
    """Return one transaction that installs the engine into a database that does not have it."""
    return "".join(_bundled(sources))


def _bundled(sources: Sources) -> Iterator[str]:
    yield f"-- pyengine {VERSION}: the schema {SCHEMA} as one file. "
    yield "Run it with: psql -v ON_ERROR_STOP=1 -f durable.sql\n"
    yield "-- It installs; an installed database is brought up to date by `pyengine migrate`.\n\nbegin;\n"
    yield f"select pg_advisory_xact_lock({INSTALL_LOCK});\nset local search_path = '';\n"
    for step in sources.migration_steps():
        yield _part(step.path)
        yield (
            f"\ninsert into {SCHEMA}.migrations (id, name, sha256, applied_at)\n"
            f"  values ({step.id}, '{step.name}', '{step.sha256}', now());\n"
        )
    for path in sources.logic_files():
        yield _part(path)
    yield (
        f"\ninsert into {SCHEMA}.settings (name, value, description)\n"
        f"  values ('logic_sha256', '{sources.logic_sha256()}', 'checksum of sql/logic as installed'),\n"
        f"         ('engine_version', '{VERSION}', 'version of pyengine that installed sql/logic')\n"
        "  on conflict (name) do update\n"
        "  set value = excluded.value, description = excluded.description;\n\ncommit;\n"
    )


def _part(path: Path) -> str:
    text = path.read_text(encoding="utf-8").strip("\n")
    return f"\n-- {path.parent.name}/{path.name}\n\n{text}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line of this module; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pyengine.admin.bundle", description="The engine as one SQL file."
    )
    parser.add_argument(
        "--initial", action="store_true", help="rewrite migrations/0001_initial.sql from sql/state"
    )
    if parser.parse_args(arguments).initial:
        changed = write_initial(found())
        print(f"migrations/0001_initial.sql {'rewritten' if changed else 'is up to date'}", file=sys.stderr)
    else:
        sys.stdout.write(bundle(found()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
