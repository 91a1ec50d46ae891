"""Law: a head with all results that it pins goes to a remote and comes from one, forward only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyengine import App
from pyengine.errors import Conflict, InvalidRequest, NotFound


class Site:
    """An installation with one function, whose runs are counted; a lie is added to its results."""

    def __init__(self, dsn: str, lie: int = 0) -> None:
        self.dsn = dsn
        self.lie = lie
        self.app = App(dsn)
        self.ran: list[int] = []

        @self.app.memo(version="1")
        def square(n: int) -> int:
            """The square of a number."""
            self.ran.append(n)
            return n * n + lie

        self.square = square

    def ask(self, query: str) -> Any:
        """The first column of the first row."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            row = conn.execute(query.encode()).fetchone()
        return None if row is None else row[0]

    async def commit(self, scope: str, n: int) -> str:
        """Call the function in a new index on main and commit it; return how the result was found."""
        async with self.app.worker(), self.app.index(scope, base="main") as index:
            call = await index.call(self.square, n)
            assert await call.result(timeout=30) == n * n + self.lie
            await index.commit(call)
            return call.at


@pytest.fixture
def sites(dsn: str, another_database: Callable[[], str]) -> tuple[Site, Site]:
    """Two installations; the first one has a head."""
    first, second = Site(dsn), Site(another_database())
    first.ask("select version from durable.scope_open('main', kind => 'head')")
    return first, second


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["folder", "database"])
def test_results_go_from_one_installation_to_another(
    sites: tuple[Site, Site], tmp_path: Path, kind: str
) -> None:
    """What the first has computed is a pinned hit in the second, whose own results come back."""
    first, second = sites

    async def main() -> list[Any]:
        url = f"file://{tmp_path}/shared" if kind == "folder" else second.dsn
        found = [await first.commit("one", 3)]
        async with first.app.remote(url) as remote:
            pushed = await remote.push("main")
            assert await remote.push("main") == pushed
        if kind == "folder":
            async with second.app.remote(url) as remote:
                assert (await remote.pull("main")).commit == pushed.commit
                assert (await remote.pull("main")).commit == pushed.commit
        found += [await second.commit("two", 3), await second.commit("three", 4)]
        if kind == "folder":
            async with second.app.remote(url) as remote:
                await remote.push("main")
        async with first.app.remote(url) as remote:
            await remote.pull("main")
        return [*found, await first.commit("four", 4)]

    assert asyncio.run(main()) == ["started", "pinned_hit", "started", "pinned_hit"]
    assert (first.ran, second.ran) == ([3], [4])
    for site in sites:
        assert site.ask("select count(*) from durable.check()") == 0


def test_a_head_that_has_moved_is_refused(sites: tuple[Site, Site], tmp_path: Path) -> None:
    """Both sides have a commit that the other has not: neither direction loses one."""
    first, second = sites

    async def main() -> None:
        url = f"file://{tmp_path}/shared"
        async with first.app.remote(url) as here, second.app.remote(url) as there:
            await here.push("main")
            await there.pull("main")
            await first.commit("one", 3)
            await second.commit("two", 4)
            await here.push("main")
            with pytest.raises(Conflict, match="does not come after"):
                await there.push("main")
            with pytest.raises(Conflict, match="does not come after"):
                await there.pull("main")

    asyncio.run(main())


def test_what_is_not_there_is_named(sites: tuple[Site, Site], tmp_path: Path) -> None:
    """A head that is nowhere, and a URL that is no remote; nothing is made."""
    first, _ = sites

    async def main() -> None:
        async with first.app.remote(f"file://{tmp_path}/shared") as remote:
            with pytest.raises(NotFound, match="no head 'other' here"):
                await remote.push("other")
            with pytest.raises(NotFound, match="no head 'main' there"):
                await remote.pull("main")
        for url in ("s3://bucket/x", "shared", "file://elsewhere/x"):
            with pytest.raises(InvalidRequest, match="no folder"):
                async with first.app.remote(url):
                    pass

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []
    assert first.ask("select count(*) from durable.refs") == 1


def test_an_index_is_no_head(sites: tuple[Site, Site], tmp_path: Path) -> None:
    """Its name is refused in both directions: what is committed to a head goes."""
    first, second = sites
    first.ask("select version from durable.scope_open('exp-7')")
    second.ask("select version from durable.scope_open('exp-7', kind => 'head')")

    async def main() -> None:
        url = f"file://{tmp_path}/shared"
        async with second.app.remote(url) as remote:
            await remote.push("exp-7")
        async with first.app.remote(url) as remote:
            for verb in (remote.push, remote.pull):
                with pytest.raises(InvalidRequest, match="'exp-7' is no head: it is an index") as caught:
                    await verb("exp-7")
                assert "commit" in str(caught.value.hint)

    asyncio.run(main())
    assert not (tmp_path / "shared" / "refs" / "exp-7" / "2").exists()


def test_a_remote_is_trusted_like_the_database(
    dsn: str, another_database: Callable[[], str], tmp_path: Path
) -> None:
    """What a head that was pulled says of a call counts in every index that is opened on it, although the
    call has never run so; an index that is not on it runs the call (executor 9)."""
    liar, honest = Site(another_database(), lie=100), Site(dsn)
    liar.ask("select version from durable.scope_open('main', kind => 'head')")

    async def main() -> list[tuple[str, Any]]:
        url = f"file://{tmp_path}/shared"
        await liar.commit("one", 3)
        async with liar.app.remote(url) as remote:
            await remote.push("main")
        async with honest.app.remote(url) as remote:
            await remote.pull("main")
        found = []
        async with honest.app.worker():
            for scope, base in (("on it", "main"), ("not on it", None)):
                async with honest.app.index(scope, base=base) as index:
                    call = await index.call(honest.square, 3)
                    found.append((call.at, await call.result(timeout=30)))
        return found

    assert asyncio.run(main()) == [("pinned_hit", 109), ("started", 9)]
