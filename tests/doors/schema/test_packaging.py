"""Law: what pip installs holds the SQL of this tree, and the code finds it wherever it lies."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from pyengine.core import sources
from tests.support.tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture
def installed() -> Distribution:
    """The installed distribution, if it is a copy of this tree (as in .ci/run) and not a link to it."""
    try:
        found = distribution("pyengine-durable")
    except PackageNotFoundError:
        pytest.skip("pyengine is not installed, the checkout is used")
    if not any("_sql" in path.parts for path in found.files or ()):
        pytest.skip("pyengine is installed as a link to a checkout")
    return found


def test_the_wheel_holds_every_sql_file(installed: Distribution) -> None:
    """Each file of sql/ and migrations/ is package data, byte for byte."""
    packed = {path.as_posix(): Path(str(path.locate())) for path in installed.files or ()}
    for folder in ("sql", "migrations"):
        for path in sorted((ROOT / folder).rglob("*.sql")):
            name = f"pyengine/_{folder}/{path.relative_to(ROOT / folder).as_posix()}"
            assert name in packed, name
            assert packed[name].read_bytes() == path.read_bytes(), f"{name} is stale: install again"


def test_the_wheel_says_the_version_of_the_code(installed: Distribution) -> None:
    """The version stands in one place, pyengine/core/sources.py."""
    assert installed.version == sources.VERSION
    assert installed.metadata["License-Expression"] == "Apache-2.0"


def test_the_sources_are_found() -> None:
    """State, logic and migrations are there, in the order of their numbers; logic group by group."""
    here = sources.found()
    logic = here.logic_files()
    groups = [path.relative_to(here.sql / "logic").parts[0] for path in logic]
    places = (*sources.GROUPS, sources.LAST)
    assert sorted(set(groups)) == sorted(places)
    assert groups == sorted(groups, key=places.index)
    for paths in (here.state_files(), *([p for p in logic if each in p.parts] for each in places)):
        assert paths
        assert list(paths) == sorted(paths)
    assert here.migration_steps()[0].name == "0001_initial"


def test_a_new_python_installs_without_what_has_no_wheel_for_it() -> None:
    """The embedded server is left out there; and no version of a library that this code does not know is
    taken: an httpx that lacks names, a typer that cannot show these commands.
    """
    needs = {one.name: one for one in map(Requirement, PROJECT["project"]["dependencies"])}
    servers = [one for one in map(Requirement, PROJECT["project"]["dependencies"]) if "pgserver" in one.name]
    here = {"sys_platform": "linux", "platform_machine": "x86_64"}
    for python, there in (("3.11", True), ("3.14", True), ("3.15", False)):
        found = [one.marker for one in servers if one.marker]
        assert any(marker.evaluate({**here, "python_version": python}) for marker in found) == there
    assert not needs["httpx"].specifier.contains("1.0.dev6", prereleases=True)
    assert not needs["typer"].specifier.contains("0.16.0")


def test_both_folders_are_packed() -> None:
    """The build puts top-level sql/ and migrations/ where pyengine/core/sources.py looks for them."""
    packed = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert packed == {"sql": "pyengine/_sql", "migrations": "pyengine/_migrations"}


def test_licences_are_said() -> None:
    """Each package that is installed with ours is on the page, and those that ask for more than their notice
    are among them, also where another package needs them (F13)."""
    page = (ROOT / "docs/reference/licences.md").read_text(encoding="utf-8")
    table = {
        name.lower() for line in re.findall(r"^\| ([^|]+)\|", page, re.M) for name in line.strip().split(", ")
    }
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["serve"]]
    direct = {re.split(r"[^\w.-]", one)[0].lower() for one in wanted}
    assert direct <= table
    found: dict[str, str] = {}
    waiting = set(direct)
    while waiting:
        name = waiting.pop()
        try:
            one = distribution(name)
        except PackageNotFoundError:
            continue  # of another system or Python
        said = one.metadata.get_all("Classifier") or []
        found[name] = " ".join(
            [
                one.metadata.get("License-Expression") or one.metadata.get("License") or "",
                *(text for text in said if text.startswith("License ::")),
            ]
        )
        needs = {
            re.split(r"[^\w.-]", need)[0].lower() for need in one.requires or () if "extra ==" not in need
        }
        waiting |= needs - found.keys()
    asking = {name for name, text in found.items() if re.search(r"GPL|MPL|Mozilla|EPL|CDDL", text)}
    assert {"psycopg", "certifi"} <= asking <= table
