"""Dumps: a database as SQL, and the same in another one.

What lives here: `restore`. What may not: making the databases.
"""

from __future__ import annotations

import subprocess

from pyengine.doors.embedded.binaries import find_binaries


def restore(original: str, copy: str) -> None:
    """Dump a database as pg_dump does by itself, and restore that into an empty one; both are URLs."""
    programs = find_binaries().bin_dir
    dumped = subprocess.run([programs / "pg_dump", original], check=True, capture_output=True).stdout
    psql = [programs / "psql", "-q", "-v", "ON_ERROR_STOP=1", "-o", "/dev/null", copy]
    subprocess.run(psql, check=True, input=dumped)
