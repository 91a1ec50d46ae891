"""Why many runs wait, asked by a client."""

from __future__ import annotations

from pyengine import App, Client, RunFilter
from tests.core.worker.test_steering import play


def test_why_many_runs_wait(dsn: str) -> None:
    """Many are asked about in one query, in the order of the ids; all are grouped by their first cause."""

    async def main(app: App, client: Client) -> None:
        for id in ("a", "b"):
            await client.start("price", 1, id=id, delay="2d")
        found = await client.why_many(["b", "nobody", "a"])
        assert [(id, one.id, one.cause) for id, (one,) in found.items()] == [
            ("b", "b", "delayed"),
            ("nobody", "nobody", "unknown"),
            ("a", "a", "delayed"),
        ]
        assert found["a"] == await client.why("a")
        assert await client.why_many(RunFilter(workflow="price")) == {"a": found["a"], "b": found["b"]}
        assert await client.why_many([]) == {}
        (group,) = await client.why_all()
        assert (group.cause, group.name, group.runs, group.example) == ("delayed", "price", 2, "a")
        assert group.sentence == found["a"][0].sentence

    play(dsn, main)
