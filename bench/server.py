"""The server of a run of the bench: its databases, and its facts and those of the machine for the report.
Runs no workload.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from pyengine.doors.embedded.server import EmbeddedPostgres

ROOT = Path(__file__).parent.parent
# durable, as in production, but without timed checkpoints, which would disturb a random system's turn; enough
# connections for sixteen clients with pools; timestamps of commits show the end of a backlog for all systems
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "30min",
    "max_connections": "300",
    "track_commit_timestamp": "on",
}
_TOLD = (
    *("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size", "max_connections"),
    *("checkpoint_timeout", "autovacuum", "jit", "wal_sync_method", "track_commit_timestamp"),
)


@contextmanager
def server(dsn: str | None) -> Iterator[str]:
    """The given server, or an embedded one for this run with durability on."""
    if dsn is not None:
        yield dsn
        return
    folder = Path(tempfile.mkdtemp(prefix="pyengine-bench-", dir="/tmp"))
    try:
        with EmbeddedPostgres(folder, settings=SETTINGS) as embedded:
            yield embedded.dsn
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def named(dsn: str, database: str) -> str:
    """The URL of another database of the same server."""
    return urlsplit(dsn)._replace(path=f"/{database}").geturl()


def create(dsn: str, database: str, template: str | None = None) -> str:
    """Create a database again, empty or from the template; return its URL."""
    drop(dsn, database)
    with psycopg.connect(dsn, autocommit=True) as conn:
        made = sql.SQL("create database {}").format(sql.Identifier(database))
        if template is not None:
            made += sql.SQL(" template {}").format(sql.Identifier(template))
        conn.execute(made)
    return named(dsn, database)


def drop(dsn: str, database: str) -> None:
    """Drop a database, even with connections."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(database)))


def exists(dsn: str, database: str) -> bool:
    """Whether there is such a database."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        return (
            conn.execute("select 1 from pg_database where datname = %s", (database,)).fetchone() is not None
        )


def settings(dsn: str) -> dict[str, str]:
    """The server's version and its relevant settings."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        found = {name: conn.execute("select current_setting(%s)", (name,)).fetchone() for name in _TOLD}
        version = conn.execute("select current_setting('server_version')").fetchone()
    assert version is not None
    return {"version": version[0], **{name: str(row[0]) for name, row in found.items() if row}}


def machine() -> dict[str, str | int | float]:
    """The relevant facts of the machine: cores, memory, systems."""
    page, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count() or 0,
        "memory_gb": round(page * pages / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def commit() -> str:
    """The git commit that is measured, and whether there are changes on it; empty outside a clone."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    try:
        head = git("rev-parse", "HEAD")
        return head + (" with changes" if head and git("status", "--porcelain", "-uno") else "")
    except FileNotFoundError:
        return ""


def version(package: str) -> str | None:
    """The version of a package, or None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
