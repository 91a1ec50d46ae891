"""A trial of the next version: a copy of this tree with a step of each phase and changed functions.

Every function changes. One that every start and settlement calls has another name, so the old one is dropped
under load, and one that views call has grown by a parameter. Commands and workers of the copy run as
processes of their own. Asserts nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO

from pyengine.core.sources import Sources, found

NEXT = "99.1.0"
ROOT = Path(__file__).parent.parent.parent

EXPAND = """
-- Why: a trial. Locks: ACCESS EXCLUSIVE on _promises, for a moment. See: durable._promises.region.
alter table durable._promises add column region text;
alter table durable._promises alter column region set default 'here';
comment on column durable._promises.region is 'A trial.';
"""
VALUES = "alter type durable.row_type add value 'trial';"
BACKFILL = """
-- Why: rows of the old version have no region. Locks: the rows of a batch.
with batch as (select p.id from durable._promises p where p.region is null order by p.id limit {batch})
update durable._promises p set region = 'here' from batch where p.id = batch.id;
"""
CONTRACT = "alter table durable._promises alter column region set not null;"
BROKEN = "select 1 / 0;"


def make(folder: Path, *, batch: int = 100) -> Sources:
    """Write the copy into an empty folder, and return its SQL."""
    shutil.copytree(
        ROOT / "pyengine", folder / "pyengine", ignore=shutil.ignore_patterns("__pycache__", "_*ql")
    )
    shutil.copytree(found().sql, folder / "sql")
    shutil.copytree(found().migrations, folder / "migrations")
    version = folder / "pyengine/core/sources.py"
    version.write_text(re.sub(r'^VERSION = ".*"$', f'VERSION = "{NEXT}"', version.read_text(), flags=re.M))
    for path in (folder / "sql/logic").rglob("*.sql"):
        path.write_text(_changed(path.read_text()))
    sources = Sources(sql=folder / "sql", migrations=folder / "migrations")
    steps = {
        "expand": EXPAND,
        "values": VALUES,
        "backfill": BACKFILL.format(batch=batch),
        "contract": CONTRACT,
    }
    for number, (phase, text) in enumerate(steps.items(), start=len(sources.migration_steps()) + 1):
        (sources.migrations / f"{number:04d}_{phase}_trial.sql").write_text(text)
    return sources


def break_step(sources: Sources) -> None:
    """Add a step that fails, to those that expand."""
    number = len(sources.migration_steps()) + 1
    (sources.migrations / f"{number:04d}_expand_broken.sql").write_text(BROKEN)


def mend_step(sources: Sources) -> None:
    """Remove the step that fails."""
    sources.migration_steps()[-1].path.unlink()


def command(dsn: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the copy to its end."""
    return subprocess.run(
        [sys.executable, "-m", "pyengine", *words],
        cwd=ROOT,
        env=_environment(dsn, folder),
        capture_output=True,
        text=True,
        check=False,
    )


def launch_worker(dsn: str, folder: Path, job: str, log: IO[bytes] | int) -> subprocess.Popen[bytes]:
    """Start a worker of the copy, or of this tree if the folder is its root."""
    return subprocess.Popen(
        [sys.executable, "-m", "pyengine", "worker", job],
        cwd=folder,
        env=_environment(dsn, folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=log,
    )


def _environment(dsn: str, folder: Path) -> dict[str, str]:
    paths = os.pathsep.join([str(folder), str(ROOT)])
    return {**os.environ, "PYENGINE_DATABASE_URL": dsn, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}


def _changed(text: str) -> str:
    text = re.sub(r"\bdurable\._later\b", "durable._moment_later", text)
    text = text.replace("durable._at(p_ms bigint)", "durable._at(p_ms bigint, p_trial text default null)")
    text = text.replace("durable._at(bigint)", "durable._at(bigint, text)")
    return re.sub(r"^as \$\$(?= |$)", "as $$ /* next */", text, flags=re.M)
