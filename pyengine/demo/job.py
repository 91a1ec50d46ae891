"""The description of an audit, before its run.

Lives here: from a path to the id and arguments of a run. May not: the database, processes. The id is derived
from the input (places, RECORDs, sizes and times of all files), so an unchanged environment has the same run,
which is found finished, and a changed one has a new run.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from pyengine.demo import records
from pyengine.demo.records import Limits
from pyengine.sources import VERSION

__all__ = ["Job", "prepare"]

STEPS_WANTED = 100
"""With so many steps, the work is long enough to be killed in the middle."""
LENGTH_WANTED_MS = 2000
PAUSE_MAX_MS = 400
PARALLEL = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One audit.

    Args:
        id: id of its run, unless it is repeated.
        places: folders or wheels.
        limits: size of the steps.
        distributions: number of distributions.
        files: number of files to read.
        bytes: their size, according to RECORD.
        steps: number of steps that will run.
    """

    id: str
    places: list[str]
    limits: Limits
    distributions: int
    files: int
    bytes: int
    steps: int

    @property
    def args(self) -> str:
        """Arguments of the workflow audit_environment."""
        return json.dumps([self.places, asdict(self.limits)])


def prepare(path: Path | None) -> Job:
    """Find the distributions and describe their audit.

    Args:
        path: folder or wheel; None means the environment of the running interpreter.

    Raises:
        NotFound: there is nothing to audit.
        InvalidRequest: it cannot be read.
    """
    places = records.running_environment() if path is None else [str(Path(os.path.abspath(path)))]
    found = records.find(places)
    lines = [records.entries(one).entries for one in found]
    files = sum(map(len, lines))
    most = min(max(files // STEPS_WANTED, 1), Limits().files)
    parts = sum(len(records.slices(one, Limits(files=most))) for one in found)
    limits = Limits(files=most, pause_ms=_pause_ms(parts, min(len(found), PARALLEL)))
    known = repr((VERSION, places, limits, records.fingerprint(found)))
    return Job(
        id="audit-" + hashlib.sha256(known.encode("utf-8", "backslashreplace")).hexdigest()[:12],
        places=places,
        limits=limits,
        distributions=len(found),
        files=files,
        bytes=sum(entry.size or 0 for one in lines for entry in one),
        steps=1 + len(found) + parts,
    )


def _pause_ms(parts: int, parallel: int) -> int:
    """Return how long each step waits, so that a short job lasts long enough for a kill; 0 for a long one."""
    if parts >= STEPS_WANTED:
        return 0
    return min(LENGTH_WANTED_MS * parallel // max(parts, 1), PAUSE_MAX_MS)
