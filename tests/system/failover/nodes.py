"""Servers of tests that change places: a primary, its standby, copies of their data.

What lives here: `Node`, one server with data of its own, which is started, killed, copied and promoted. What
may not: what a test expects. A kill ends every process of a server at once, as a machine does that loses its
power: nothing of it answers afterwards, and nothing commits behind its back.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pyengine.doors.embedded.binaries import Binaries, find_binaries, reachable_binaries, server_account
from pyengine.doors.embedded.postmaster import ServerFolder, is_postmaster, read_postmaster
from pyengine.doors.embedded.server import EmbeddedPostgres
from tests.support.cluster import make_folder

# a kill of processes loses nothing that the system has been given, so the disk need not be waited for
SETTINGS = {
    "fsync": "off",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "wal_level": "replica",
    "max_wal_senders": "4",
    "wal_keep_size": "256MB",
    "hot_standby_feedback": "on",
    "wal_retrieve_retry_interval": "100ms",
    "timezone": "UTC",
}
WAIT_S = 60.0


class Node:
    """One server with a folder of its own.

    Args:
        binaries: programs to use; None means those of the suite.
        settings: in addition to those of this module.
    """

    def __init__(self, binaries: Binaries | None = None, **settings: str) -> None:
        self.folder = Path(make_folder())
        self.data = self.folder / "data"
        self.account = server_account(self.data)
        if self.account is not None:
            os.chown(self.folder, self.account.uid, self.account.gid)
        self.programs = reachable_binaries(binaries or find_binaries(), self.folder, self.account)
        self.settings = {**SETTINGS, **settings}
        self._server = EmbeddedPostgres(self.folder, settings=self.settings, binaries=self.programs)

    def start(self, **settings: str) -> None:
        """Start it; data are made if there are none."""
        self.settings |= settings
        self._server = EmbeddedPostgres(self.folder, settings=self.settings, binaries=self.programs)
        self._server.start()

    def stop(self) -> None:
        """Stop it in an orderly way."""
        self._server.stop()

    def dsn(self, database: str = "postgres", user: str = "postgres") -> str:
        """URL of one of its databases, valid after a kill too."""
        return url(self, database=database, user=user)

    @property
    def place(self) -> tuple[str, str]:
        """Folder of its socket, and its port."""
        parts = conninfo_to_dict(self._server.dsn)
        return str(parts["host"]), str(parts["port"])

    def kill(self) -> None:
        """kill -9 of every process, the postmaster first."""
        pid = int((self.data / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in (pid, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        deadline = time.monotonic() + WAIT_S
        while is_postmaster(pid, self.data) or any(Path(f"/proc/{each}/exe").exists() for each in children):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def run(self, program: str, *arguments: str, **options: Any) -> str:
        """Run one of the programs of PostgreSQL as the user of the server, and return what it prints."""
        user = self.account.popen_args() if self.account else {}
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC", "HOME": str(self.folder)}
        library_path = os.environ.get("LD_LIBRARY_PATH")
        done = subprocess.run(
            [str(self.programs.bin_dir / program), *arguments],
            **{"cwd": self.folder, "capture_output": True, "text": True, **user, **options},
            env=environment | ({"LD_LIBRARY_PATH": library_path} if library_path else {}),
        )
        assert done.returncode == 0, f"{program}: {done.stdout}\n{done.stderr}"
        return str(done.stdout)

    def copy_to(self, other: Node) -> None:
        """Make the data of another node a base backup of this one."""
        shutil.rmtree(other.data, ignore_errors=True)
        host, port = self.place
        options = ("-D", str(other.data), "-h", host, "-p", port, "-U", "postgres")
        other.run("pg_basebackup", *options, "-X", "stream", "-c", "fast", "--no-sync")

    def rewind(self, primary: Node) -> None:
        """Make the data of a primary that was killed those of a standby of its successor, by pg_rewind."""
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        with (self.data / "postgresql.conf").open("a") as conf:
            # its recovery must not recycle the log that pg_rewind reads afterwards
            conf.write("wal_keep_size = '1GB'\n")
        host, port = primary.place
        source = f"host={host} port={port} user=postgres dbname=postgres"
        self.run("pg_rewind", "-D", str(self.data), f"--source-server={source}", "--no-sync")

    def follow(self, primary: Node, *, through: tuple[str, str] | None = None, anew: bool = True) -> None:
        """Become the standby of another node, and wait until it streams.

        Args:
            through: host and port of the way to it.
            anew: with a copy of its data; otherwise with data that were rewound.
        """
        if anew:
            primary.copy_to(self)
        (self.data / "standby.signal").touch()
        if self.account is not None:
            os.chown(self.data / "standby.signal", self.account.uid, self.account.gid)
        host, port = through or primary.place
        self.start(primary_conninfo=f"host={host} port={port} user=postgres application_name=standby")
        primary.until("select exists (select from pg_stat_replication where state = 'streaming')")

    def promote(self) -> None:
        """Make a standby the primary, as a cluster's manager does."""
        self.run("pg_ctl", "promote", "-w", "-D", str(self.data))

    def ask(self, query: str, *values: object, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run a statement and return its rows, if it has any."""
        with psycopg.connect(self.dsn(database), autocommit=True) as conn:
            cursor = conn.execute(query.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def options(self, database: str = "postgres", user: str = "postgres") -> list[str]:
        """The options of pg_dump, psql and others that name one of its databases."""
        host, port = self.place
        return ["-h", host, "-p", port, "-U", user, "-d", database]

    def until(self, query: str, *values: object) -> None:
        """Wait until a query answers true."""
        deadline = time.monotonic() + WAIT_S
        while self.ask(query, *values) != [(True,)]:
            assert time.monotonic() < deadline, f"never true: {query}"
            time.sleep(0.02)

    def waits_for_standby(self, wanted: bool) -> None:
        """Have commits wait for the standby, or no longer."""
        self.ask(f"alter system set synchronous_standby_names = '{'*' if wanted else ''}'")
        self.ask("select pg_reload_conf()")
        self.until("select (current_setting('synchronous_standby_names') <> '') = %s", wanted)
        if wanted:
            self.until("select exists (select from pg_stat_replication where sync_state = 'sync')")

    def remove(self) -> None:
        """Stop it, whatever its state, and remove its folder."""
        with suppress(Exception):
            self.stop()
        if (server := read_postmaster(self.data)) is not None:
            os.kill(server.pid, signal.SIGQUIT)
            ServerFolder(self.folder, self.account).shut_down(server, WAIT_S)
        shutil.rmtree(self.folder, ignore_errors=True)


def url(*nodes: Node, database: str = "postgres", user: str = "postgres", **options: str) -> str:
    """One URL for several servers."""
    hosts, ports = zip(*(node.place for node in nodes), strict=True)
    more = "".join(f"&{name}={value}" for name, value in options.items())
    host = ",".join(quote(each, safe="/") for each in hosts)
    return f"postgresql://{user}@/{database}?host={host}&port={','.join(ports)}{more}"


@contextmanager
def nodes(count: int, **settings: str) -> Iterator[list[Node]]:
    """So many servers, of which none is started, removed at the end."""
    made: list[Node] = []
    try:
        for _ in range(count):
            made.append(Node(**settings))
        yield made
    finally:
        for node in made:
            node.remove()
