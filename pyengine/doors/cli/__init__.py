"""The command line ``pyengine``.

Lives here: reading arguments, querying the database, printing answers. May not: decide anything about runs;
SQL does. Importing this package costs nothing: typer, rich, psycopg and the engine are loaded by the commands
that need them.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and leave with its exit code."""
    from pyengine.doors.cli.display.logs import log_uncaught
    from pyengine.doors.cli.root import run

    log_uncaught()
    sys.exit(run(sys.argv[1:]))
