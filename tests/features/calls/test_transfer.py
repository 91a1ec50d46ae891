"""Law: a manifest is applied whole or not at all, and every id in it is computed again."""

from __future__ import annotations

import base64
import json
from typing import Any

import psycopg
import pytest

from tests.support.objects import dag, i64, literal, put
from tests.support.verbs import Connection, ask

IMPORT = "select durable.objects_import(%s::jsonb)"


def export(conn: Connection, *tops: bytes, known: tuple[bytes, ...] = ()) -> dict[str, Any]:
    """A manifest."""
    found: dict[str, Any] = ask(
        conn, ("select durable.objects_export(%s::bytea[], %s::bytea[])", (list(tops), list(known)))
    )[0]
    return found


def emptied(conn: Connection) -> None:
    """Nothing is stored any more."""
    conn.execute("delete from durable._refs")
    conn.execute("delete from durable._objects")


def refused(conn: Connection, manifest: object) -> str:
    """SQLSTATE with which a manifest is refused; nothing of it is stored."""
    before = ask(conn, ("select count(*) from durable._objects", ()))
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        ask(conn, (IMPORT, (json.dumps(manifest),)))
    assert ask(conn, ("select count(*) from durable._objects", ())) == before
    return str(caught.value.sqlstate)


def test_a_manifest_is_enough(conn: Connection) -> None:
    """All that an object reaches comes with it, in any order, and twice is once."""
    made = dag(
        conn,
        literal(conn, 1),
        a=literal(conn, 2),
        b=put(conn, "node", "literal", None, [put(conn, "datum", "bytes", b"\0")]),
    )
    manifest = export(conn, made)
    emptied(conn)
    assert ask(conn, (IMPORT, (json.dumps(manifest),))) == (len(manifest["objects"]),) == (7,)
    manifest["objects"].reverse()
    assert (
        ask(conn, (IMPORT, (json.dumps(manifest),))) == (7,)
        and export(conn, made)["objects"] == manifest["objects"][::-1]
    )


def test_known_objects_are_left_out(conn: Connection) -> None:
    """With all that they reach."""
    old = dag(conn, literal(conn, 1))
    new = dag(conn, literal(conn, 1), a=literal(conn, 2))
    kinds = [each["kind"] for each in export(conn, new, known=(old,))["objects"]]
    assert sorted(kinds) == ["dag", "datum", "node"]


def test_a_manifest_with_a_gap_is_refused(conn: Connection) -> None:
    """Whatever is missing."""
    manifest = export(conn, dag(conn, literal(conn, 1)))
    emptied(conn)
    for place in range(2):
        objects = [
            each
            for n, each in enumerate(sorted(manifest["objects"], key=lambda e: e["kind"]))
            if n != place + 1
        ]
        assert refused(conn, {"v": 1, "objects": objects}) == "WF001"


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "00" * 32},
        {"id": "zz"},
        {"scalar": "?"},
        {"scalar": 5},
        {"refs": "x"},
        {"names": {}},
        {"kind": None},
        {"kind": "blob"},
        {"sub": "bool"},
    ],
)
def test_a_wrong_object_takes_all_back(conn: Connection, wrong: dict[str, Any]) -> None:
    """An id that is not its own, a field that is none."""
    manifest = export(conn, i64(conn, 5))
    emptied(conn)
    good = {"kind": "datum", "sub": "bool", "scalar": base64.b64encode(b"\1").decode()}
    assert refused(conn, {"v": 1, "objects": [good, manifest["objects"][0] | wrong]}) == "WF004"


@pytest.mark.parametrize("manifest", [[], {}, {"v": 2, "objects": []}, {"v": 1}, {"v": 1, "objects": {}}])
def test_a_manifest_has_a_version(conn: Connection, manifest: object) -> None:
    """And a list of objects."""
    assert refused(conn, manifest) == "WF004"


def test_a_ref_moves_with_its_objects(conn: Connection) -> None:
    """Forward, or nothing is stored."""
    (first,) = ask(conn, ("select commit_id from durable.scope_open('main', 'head')", ()))
    tree = put(conn, "tree", "", None, [dag(conn, literal(conn, 1))], names=["a"])
    commit = put(conn, "commit", "", b"\0\0\0\1", [tree, first])
    manifest = export(conn, commit, known=(first,))
    conn.execute("delete from durable._objects where id <> %s and refs <> '{}' or kind = 'datum'", (first,))
    ref = {"name": "main", "commit": commit.hex(), "version": 2}
    assert refused(conn, {**manifest, "ref": ref}) == "WF003"
    assert refused(conn, {**manifest, "ref": {**ref, "name": "other", "version": 1}}) == "WF001"
    assert ask(conn, (IMPORT, (json.dumps({**manifest, "ref": {**ref, "version": 1}}),))) == (5,)
    assert ask(conn, ("select version, commit_id from durable._refs", ())) == (2, commit)


def test_what_was_excised_does_not_leave(conn: Connection) -> None:
    """Nor does what is not there."""
    datum = i64(conn, 5)
    node = literal(conn, 5)
    ask(conn, ("select durable.object_excise(%s, 'r')", (datum,)))
    for top, code in ((node, "WF015"), (bytes(31) + b"\1", "WF001")):
        with pytest.raises(psycopg.Error) as caught, conn.transaction():
            export(conn, top)
        assert caught.value.sqlstate == code
