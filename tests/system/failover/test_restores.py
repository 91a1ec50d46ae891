"""Law: a dump and a base backup hold all of a database with live runs. A copy runs nothing beside its
original before it is adopted; then it goes on, and the original is as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pyengine.doors.admin import migrate
from tests.support.catalogue import differences
from tests.system.failover import life
from tests.system.failover.contents import contents
from tests.system.failover.nodes import Node, nodes

ROLES = """
create role shop_owner login createdb;
create role shop_app login;
create role other login createdb;
"""
RIGHTS = """
grant usage on schema durable to shop_app;
grant select, insert, update, delete on all tables in schema durable to shop_app;
grant usage on all sequences in schema durable to shop_app
"""
# the numbers of transactions in the dump are ahead of those of a new server
MANY = "do $$ begin for n in 1..30000 loop perform pg_current_xact_id(); commit; end loop; end $$"
AHEAD = """
select (select count(*) from durable._row_waits where since >= pg_current_xact_id()),
       (select count(*) from durable._row_events where xid > pg_current_xact_id())
"""
OWNERS = """
select distinct pg_get_userbyid(c.relowner) from pg_class c where c.relnamespace = 'durable'::regnamespace
union select pg_get_userbyid(p.proowner) from pg_proc p where p.pronamespace = 'durable'::regnamespace
"""


@dataclass(frozen=True, kw_only=True)
class Shop:
    """A database with live runs, whose owner is an ordinary role.

    Args:
        node: its server.
        left: what was left behind.
        file: the trail of its steps.
        before: all that is in it.
    """

    node: Node
    left: life.Life
    file: Path
    before: dict[str, str]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """The original of all copies."""
    folder = tmp_path_factory.mktemp("shop")
    with nodes(1) as (node,):
        node.start()
        node.ask(ROLES)
        node.ask("create database shop owner shop_owner")
        node.ask(MANY)
        owners = node.dsn("shop", "shop_owner")
        migrate.install(owners)
        node.ask(RIGHTS, database="shop")
        left = life.begin(owners, folder / "trail", folder / "log")
        yield Shop(node=node, left=left, file=folder / "trail", before=contents(owners))


def dump_and_restore(shop: Shop, target: Node) -> str:
    """In pg_dump's own format, to another server, by its administrator."""
    target.start()
    target.ask(ROLES)
    target.ask("create database copy owner shop_owner")
    archive = str(target.folder / "shop.dump")
    target.run("pg_dump", *shop.node.options("shop"), "-Fc", "-f", archive)
    target.run("pg_restore", *target.options("copy"), "--exit-on-error", archive)
    return target.dsn("copy", "shop_owner")


def dump_as_the_owner(shop: Shop, target: Node) -> str:
    """As SQL, beside the original, by its owner."""
    shop.node.ask("create database beside owner shop_owner")
    script = str(shop.node.folder / "shop.sql")
    shop.node.run("pg_dump", *shop.node.options("shop", "shop_owner"), "-f", script)
    options = shop.node.options("beside", "shop_owner")
    shop.node.run("psql", *options, "-v", "ON_ERROR_STOP=1", "-q", "-f", script)
    return shop.node.dsn("beside", "shop_owner")


def restore_as_another_role(shop: Shop, target: Node) -> str:
    """In pg_dump's own format, beside the original, by a role that gets everything."""
    shop.node.ask("create database theirs owner other")
    archive = str(shop.node.folder / "theirs.dump")
    shop.node.run("pg_dump", *shop.node.options("shop"), "-Fc", "-f", archive)
    options = shop.node.options("theirs", "other")
    shop.node.run("pg_restore", *options, "--no-owner", "--no-privileges", "--exit-on-error", archive)
    return shop.node.dsn("theirs", "other")


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(dump_and_restore, marks=pytest.mark.full),
        pytest.param(dump_as_the_owner, marks=pytest.mark.full),
        pytest.param(restore_as_another_role, marks=pytest.mark.full),
    ],
)
def test_a_dump_brings_everything_back(shop: Shop, tmp_path: Path, way: Callable[[Shop, Node], str]) -> None:
    """Rows, sequences, partitions, triggers, comments, rights and the checksum of the logic."""
    same_rights = way is not restore_as_another_role
    with nodes(1) as (target,):
        copy = way(shop, target)
        original = shop.before if same_rights else contents(shop.node.dsn("shop"), rights=False)
        assert differences(original, contents(copy, rights=same_rights)) == []
        assert migrate.install(copy).changed is False
        owner = "shop_owner" if same_rights else "other"
        assert life.trail.ask(copy, OWNERS) == [(owner,)]
        file, log = tmp_path / "trail", tmp_path / "log"
        file.write_text(shop.file.read_text())
        life.stands_still(copy, file, log)
        life.adopt(copy)
        assert life.trail.ask(copy, AHEAD) == [(0, 0)]
        life.go_on(copy, file, log, shop.left)
    assert differences(shop.before, contents(shop.node.dsn("shop", "shop_owner"))) == []


@pytest.mark.full
def test_a_base_backup_runs_nothing_if_its_configuration_says_that_it_is_a_copy(tmp_path: Path) -> None:
    """Its server and its database have the numbers of the original, so only the setting durable.site tells
    them apart. Without it, once the original is gone, everything goes on, and nothing has to be adopted."""
    with nodes(2) as (original, copy):
        original.start()
        migrate.install(original.dsn())
        file, log = tmp_path / "trail", tmp_path / "log"
        left = life.begin(original.dsn(), file, log)
        original.copy_to(copy)
        copy.start(**{"durable.site": "copy"})
        assert differences(contents(original.dsn()), contents(copy.dsn())) == []
        life.stands_still(copy.dsn(), file, log)
        original.stop()
        copy.stop()
        copy.start(**{"durable.site": ""})
        life.go_on(copy.dsn(), file, log, left)
