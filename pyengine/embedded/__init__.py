"""Our own Postgres for people who have none: find its programs, run one server, share it between processes.

Lives here: everything about a server process and its data folder. May not: the schema, and a server that
somebody else runs.

The way of a URL: `database_url` (server.py) takes the one that is configured, or names a folder; the first
process starts a server there (postmaster.py) with programs that were found (binaries.py), the last one stops
it.
"""

from __future__ import annotations

from pyengine.embedded.server import EmbeddedPostgres, database_url, default_data_dir

__all__ = ["EmbeddedPostgres", "database_url", "default_data_dir"]
