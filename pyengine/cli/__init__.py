"""The command ``pyengine``: what people type.

Lives here: reading arguments, asking the database, printing answers. May not: decide anything about runs;
what can be asked in SQL is asked in SQL. Importing this package costs nothing: typer, rich, psycopg and the
engine are loaded by the command that needs them.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and leave with its exit code."""
    from pyengine.cli.root import run

    sys.exit(run(sys.argv[1:]))
