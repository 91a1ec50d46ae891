"""Makes the functions of a release that tests run beside its later versions.

    python -m tests.doors.schema.freeze_functions ef7a5f7 | xz > tests/doors/schema/functions_of_0_1_0.sql.xz

Lives here: what takes the functions and views out of the bundle that a commit makes; this one froze the
tables of 0.1.0. May not: the tables, which are its first migration. Comments of both kinds are left out: they
are half of it, and no call needs them.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from pyengine.doors.admin.logic import split

__all__ = ["functions_of"]

ROOT = Path(__file__).parents[3]
FIRST = "create or replace function durable._now_ms()"


def functions_of(commit: str) -> str:
    """Return the statements that install the functions and views of a commit, on its tables."""
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    with TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as files:
            files.extractall(folder, filter="data")
        # the code of that commit, from where it had it
        command = [sys.executable, "-m", "pyengine.admin.bundle"]
        made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    statements = [_without_comments(text) for text, _ in split(made)]
    begin = next(number for number, text in enumerate(statements) if text.startswith(FIRST))
    # the last one ends the transaction of the bundle
    return "".join(f"{text};\n" for text in statements[begin:-1] if not text.startswith("comment on "))


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.strip().splitlines() if not line.lstrip().startswith("--")).strip()


if __name__ == "__main__":
    sys.stdout.write(functions_of(sys.argv[1]))
