"""The engine as one SQL file, for installations with psql alone.

    python -m pyengine.doors.admin.bundle > schema.sql   then: psql -f schema.sql
    python -m pyengine.doors.admin.bundle --initial      rewrites migrations/0001_initial.sql from sql/state
    python -m pyengine.doors.admin.bundle --freeze       lists all steps in migrations/SHA256SUMS

Lives here: the bundle, and what writes files of ``migrations/``. May not: open a connection. A database that
was installed from the bundle has the same records as any other, so a later ``pyengine db migrate`` works.
``SHA256SUMS`` freezes the steps that it lists, and ``--initial`` refuses once it lists the first one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pyengine.core.sources import SCHEMA, VERSION, Sources, found
from pyengine.doors.admin.migration_parts import Plan, fresh
from pyengine.doors.admin.migration_script import script
from pyengine.errors import InvalidRequest

_BUNDLE_HEAD = f"""\
-- pyengine {VERSION}: the schema {SCHEMA} as one file. Run it with: psql -v ON_ERROR_STOP=1 -f schema.sql
-- It installs; an installed database is brought up to date by `pyengine db migrate`.
"""

_HEAD = """\
-- The first step of the tables: sql/state as a whole, in the order of its file numbers.
-- Why: makes the schema. Locks: none that anybody could wait for. Duration: under a second.
-- Written by `python -m pyengine.doors.admin.bundle --initial`; not edited by hand.
"""


def initial(sources: Sources) -> str:
    """Return the text of migrations/0001_initial.sql, from sql/state."""
    return _HEAD + "".join(_part(path) for path in sources.state_files())


def write_initial(sources: Sources) -> bool:
    """Rewrite migrations/0001_initial.sql; return whether that changed it.

    Raises:
        InvalidRequest: the step is released, so tables change by a new step only.
    """
    if "0001_initial" in sources.released():
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
    """Return the script that installs the engine into a database that does not have it."""
    return script(Plan(parts=fresh(sources)), sources, head=_BUNDLE_HEAD)


def freeze(sources: Sources) -> tuple[str, ...]:
    """Add the steps that are not released yet to migrations/SHA256SUMS; return their names.

    Raises:
        InvalidRequest: a released step was edited.
    """
    if edited := sources.edited():
        raise InvalidRequest(
            f"{', '.join(edited)}: released, and never changed again",
            hint="restore the file, and write the change as the next numbered migration",
        )
    released = sources.released()
    steps = [step for step in sources.migration_steps() if step.name not in released]
    with (sources.migrations / "SHA256SUMS").open("a", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{step.sha256}  {step.path.name}\n" for step in steps)
    return tuple(step.name for step in steps)


def _part(path: Path) -> str:
    text = path.read_text(encoding="utf-8").strip("\n")
    return f"\n-- {path.parent.name}/{path.name}\n\n{text}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line of this module; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pyengine.doors.admin.bundle", description="The engine as one SQL file."
    )
    parser.add_argument(
        "--initial", action="store_true", help="rewrite migrations/0001_initial.sql from sql/state"
    )
    parser.add_argument(
        "--freeze", action="store_true", help="add the checksums of new steps to migrations/SHA256SUMS"
    )
    options = parser.parse_args(arguments)
    if options.initial:
        changed = write_initial(found())
        print(f"migrations/0001_initial.sql {'rewritten' if changed else 'is up to date'}", file=sys.stderr)
    elif options.freeze:
        print(f"released: {', '.join(freeze(found())) or 'nothing new'}", file=sys.stderr)
    else:
        sys.stdout.write(bundle(found()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
