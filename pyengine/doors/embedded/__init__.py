"""The embedded Postgres: find its programs, run one server, share it between processes.

Lives here: everything about a server process and its data folder. May not: the schema, or other servers.

The way of a URL: `database_url` (server.py) returns the configured one, or names a folder; the first process
starts a server there (postmaster.py) with the programs that are found (binaries.py), and the last process
stops it.
"""

from __future__ import annotations

from pyengine.doors.embedded.server import EmbeddedPostgres, database_url, default_data_dir

__all__ = ["EmbeddedPostgres", "database_url", "default_data_dir"]
