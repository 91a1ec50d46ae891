"""Law: a remote takes a manifest whole or not at all, and its names move forward only."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyengine.clients import Client
from pyengine.errors import Conflict, InvalidRequest, NotFound
from pyengine.features.calls.datums import datum_of, from_objects, value_of
from pyengine.features.calls.identity import NO_OBJECT, NewObject
from pyengine.features.calls.remotes import DatabaseRemote, FileRemote, Manifest, RefMove
from tests.support.verbs import Connection, ask

Objects = tuple[NewObject, ...]


def result(value: object, *parents: bytes, execs: tuple[bytes, ...] = ()) -> tuple[Objects, bytes]:
    """The objects of a commit whose one DAG has this value, and its id."""
    datum = datum_of(value)
    node = NewObject("node", "literal", None, (datum.id,))
    dag = NewObject("dag", "", None, (node.id,), ("",))
    tree = NewObject("tree", "", None, (dag.id,), ("result",))
    commit = NewObject("commit", "", len(parents).to_bytes(4, "big"), (tree.id, *parents, *execs))
    return (*datum.objects(), node, dag, tree, commit), commit.id


def pushed(remote: FileRemote, name: str, value: object, *parents: bytes, version: int = 0) -> bytes:
    """Push a commit and move a name to it."""
    objects, commit = result(value, *parents)
    remote.push(Manifest(objects, RefMove(name=name, commit=commit, version=version)))
    return commit


@pytest.fixture
def remote(tmp_path: Path) -> FileRemote:
    """An empty folder as a remote."""
    return FileRemote(f"file://{tmp_path}/remote")


def test_a_folder_gives_what_it_was_given(remote: FileRemote) -> None:
    """All that a commit reaches, or what the receiver does not have."""
    name = "exec/00000000-0000-0000-0000-000000000001"
    first = pushed(remote, name, {"a": [1]})
    second = pushed(remote, name, {"a": [1, 2]}, first, version=1)
    assert remote.ref(name) == (second, 2) and remote.ref("other") is None
    whole = remote.fetch([second])
    assert {each.id for each in whole.objects} >= {first, second, datum_of([1, 2]).id}
    news = {each.id for each in remote.fetch([second], known=[first]).objects}
    assert second in news and first not in news and datum_of(1).id not in news
    by_id = {each.id: each for each in whole.objects}
    assert value_of(from_objects(datum_of({"a": [1, 2]}).id, by_id)) == {"a": [1, 2]}
    assert Manifest.from_json(whole.to_json()) == whole
    remote.drop(name)
    assert remote.ref(name) is None and remote.fetch([second]) == whole


def test_s44_a_folder_goes_forward_only(remote: FileRemote) -> None:
    """Another version, a commit that was not made from it, or none: nothing of the manifest is stored."""
    first = pushed(remote, "main", 1)
    for move, parents, error in (
        (RefMove(name="main", commit=first, version=0), (), Conflict),
        (RefMove(name="main", commit=first, version=2), (first,), Conflict),
        (RefMove(name="main", commit=datum_of(2).id, version=1), (first,), NotFound),
        (RefMove(name="main", commit=bytes(31) + b"\1", version=1), (first,), NotFound),
    ):
        objects, _ = result(2, *parents)
        with pytest.raises(error):
            remote.push(Manifest(objects, move))
        with pytest.raises(NotFound):
            remote.fetch([datum_of(2).id])
    objects, stray = result(3)
    with pytest.raises(Conflict, match="does not come after"):
        remote.push(Manifest(objects, RefMove(name="main", commit=stray, version=1)))
    assert remote.ref("main") == (first, 1)


def test_a_manifest_with_a_gap_is_refused(remote: FileRemote) -> None:
    """Nothing of it is stored."""
    objects, commit = result([1, 2])
    for missing in range(len(objects) - 1):
        with pytest.raises(NotFound):
            remote.push(Manifest(objects[:missing] + objects[missing + 1 :]))
    with pytest.raises(NotFound):
        remote.fetch([commit])


def test_a_damaged_file_is_named(remote: FileRemote, tmp_path: Path) -> None:
    """It is never taken for something else."""
    commit = pushed(remote, "main", "text")
    path = tmp_path / "remote" / "objects" / commit.hex()[:2] / commit.hex()[2:]
    whole = json.loads(path.read_text())
    for text in ("", "{}", json.dumps(whole | {"sub": "x"}), json.dumps(whole | {"id": "00" * 32})):
        path.write_text(text)
        with pytest.raises(InvalidRequest, match="damaged"):
            remote.fetch([commit])


def test_a_damaged_name_is_named(remote: FileRemote, tmp_path: Path) -> None:
    """As a damaged object is; a link is not followed, and nothing of what it leads to is said."""
    commit = pushed(remote, "main", "text")
    ref = tmp_path / "remote" / "refs" / "main" / "1"
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    for spoil in (
        lambda: ref.write_bytes(b"zz"),
        lambda: ref.write_bytes(b"\xff"),
        lambda: ref.symlink_to(secret),
        lambda: ref.symlink_to(tmp_path / "nowhere"),
        lambda: os.mkfifo(ref),
        ref.mkdir,
    ):
        ref.unlink()
        spoil()
        with pytest.raises(InvalidRequest) as caught:
            remote.ref("main")
        assert str(ref) in caught.value.message and "s3cret" not in f"{caught.value} {caught.value.detail}"
    ref.rmdir()
    (ref.parent / "²").write_text(commit.hex())
    (ref.parent / "٣").write_text(commit.hex())
    (ref.parent / "02").write_text(commit.hex())
    assert remote.ref("main") is None
    ref.write_text(commit.hex())
    assert remote.ref("main") == (commit, 1)
    path = tmp_path / "remote" / "objects" / commit.hex()[:2] / commit.hex()[2:]
    content = path.read_bytes()
    for spoil in (
        lambda: path.write_bytes(b"\xff" + content),
        lambda: path.write_bytes(b"[" * 100_000),
        lambda: path.symlink_to(secret),
    ):
        path.unlink()
        spoil()
        with pytest.raises(InvalidRequest) as caught:
            remote.fetch([commit])
        assert "s3cret" not in f"{caught.value} {caught.value.detail}"


@pytest.mark.parametrize(
    "wrong",
    [{"v": 2}, {"objects": None}, {"objects": [{}]}, {"ref": {"name": "x"}}, {"ref": {"commit": "00"}}],
)
def test_a_text_that_is_no_manifest_is_refused(wrong: dict[str, Any]) -> None:
    """Whatever is wrong."""
    good = json.loads(Manifest(result(1)[0]).to_json())
    with pytest.raises(InvalidRequest):
        Manifest.from_json(json.dumps(good | wrong))
    good["objects"][0]["id"] = "00" * 32
    with pytest.raises(InvalidRequest, match="no manifest"):
        Manifest.from_json(json.dumps(good))


@pytest.mark.parametrize("url", ["s3://bucket/a", "file://host/a", "/a", "file:a", ""])
def test_a_folder_has_a_url(url: str) -> None:
    """Of the scheme file, on this machine."""
    with pytest.raises(InvalidRequest):
        FileRemote(url)


@pytest.mark.parametrize("name", ["", "..", "n" * 256])
def test_a_name_is_a_file(remote: FileRemote, name: str) -> None:
    """It cannot leave the folder."""
    with pytest.raises(InvalidRequest):
        remote.ref(name)


def race(url: str, number: int, out: Any) -> None:
    """Move one name as often as possible, and count the moves that were accepted."""
    remote, moved = FileRemote(url), 0
    for turn in range(30):
        now = remote.ref("main")
        assert now is not None
        try:
            pushed(remote, "main", f"{number}-{turn}", now.commit, version=now.version)
            moved += 1
        except Conflict:
            pass
    out.put(moved)


def test_processes_move_one_name(remote: FileRemote, tmp_path: Path) -> None:
    """Each move that was accepted is in the history, and no other one."""
    pushed(remote, "main", "first")
    spawn = multiprocessing.get_context("fork")
    out = spawn.Queue()
    workers = [spawn.Process(target=race, args=(f"file://{tmp_path}/remote", n, out)) for n in range(3)]
    for worker in workers:
        worker.start()
    moved = sum(out.get() for _ in workers)
    for worker in workers:
        worker.join()
    found = remote.ref("main")
    assert found is not None and found.version == 1 + moved and moved > 0
    history, commit = 0, found.commit
    objects = {each.id: each for each in remote.fetch([commit]).objects}
    while objects[commit].scalar != bytes(4):
        history, commit = history + 1, objects[commit].refs[1]
    assert history == moved


def test_a_database_is_a_remote(dsn: str, direct: str, remote: FileRemote) -> None:
    """A snapshot goes into a folder, a result comes back, and the orchestrator's exec is pinned nowhere."""

    async def play(conn: Connection) -> None:
        async with Client(dsn) as client:
            database = DatabaseRemote(client._transport)
            ask(conn, ("select durable.scope_open('s')", ()))
            (name,) = ask(conn, ("select ref from durable.snapshot_create('s')", ()))
            snapshot = await database.ref(name)
            assert snapshot is not None and await database.ref("nowhere") is None
            fetched = await database.fetch([snapshot.commit])
            remote.push(Manifest(fetched.objects, RefMove(name=name, commit=snapshot.commit, version=0)))
            uri = NewObject("datum", "uri", b"dml+exec://local/x")
            call = NewObject("node", "call", None, (uri.id,))
            objects, _ = result("done")
            done = NewObject("exec", "ok", None, (call.id, objects[2].id))
            more, commit = result("done", snapshot.commit, execs=(call.id, done.id, NO_OBJECT))
            remote.push(Manifest((uri, call, done, *more), RefMove(name=name, commit=commit, version=1)))
            news = remote.fetch([commit], known=[snapshot.commit])
            with pytest.raises(Conflict):
                await database.push(Manifest(news.objects, RefMove(name=name, commit=commit, version=7)))
            assert ask(conn, ("select count(*) from durable._objects where kind = 'exec'", ())) == (0,)
            await database.push(Manifest(news.objects, RefMove(name=name, commit=commit, version=1)))
            assert await database.ref(name) == (commit, 2)
            assert ask(conn, ("select count(*) from durable._pins", ())) == (0,)
            (value,) = ask(conn, ("select durable.dag_value(%s)", (objects[2].id,)))
            assert value == {"string": "done"}
            with pytest.raises(NotFound):
                await database.fetch([bytes(31) + b"\1"])

    with psycopg.connect(direct, autocommit=True) as conn:
        asyncio.run(play(conn))
