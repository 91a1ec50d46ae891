"""Law: an object is named by the hash of what it is, and a content has one encoding."""

from __future__ import annotations

import hashlib
import struct

import pytest

from tests.support.objects import dag, flaw, i64, literal, put
from tests.support.verbs import Connection, ask

HASH = bytes(range(32))


def test_an_id_is_the_hash_of_the_encoding(conn: Connection) -> None:
    """Tag, scalar, refs and names, each counted in 4 bytes, big endian."""
    text = (
        b"durable/1/tree/\0"
        + bytes(4)
        + b"\0\0\0\2"
        + HASH
        + HASH
        + b"\0\0\0\2"
        + b"\0\0\0\1a"
        + b"\0\0\0\2\xc3\xa9"
    )
    got = ask(
        conn,
        (
            "select durable._object_id('tree', '', null, array[%s, %s]::bytea[], array['a', 'é'])",
            (HASH, HASH),
        ),
    )
    assert got == (hashlib.sha256(text).digest(),)


def test_null_and_empty_are_alike(conn: Connection) -> None:
    """Missing parts count as empty ones; the sub tells them apart."""
    one = ask(conn, ("select durable._object_id('datum', 'null', null, null, null)", ()))
    assert one == ask(conn, ("select durable._object_id('datum', 'null', '', '{}', '{}')", ()))
    assert one != ask(conn, ("select durable._object_id('datum', 'bytes', '', '{}', '{}')", ()))


@pytest.mark.parametrize(
    ("sub", "scalar", "words"),
    [
        ("bool", b"\2", "a bool is the byte 00 or 01"),
        ("bool", b"", "objects_scalar_has_the_length_of_its_kind"),
        ("bool", None, "objects_scalar_has_the_length_of_its_kind"),
        ("i64", bytes(7), "objects_scalar_has_the_length_of_its_kind"),
        ("null", b"", "objects_scalar_has_the_length_of_its_kind"),
        ("uri", b"", "objects_scalar_has_the_length_of_its_kind"),
        ("bytes", bytes(1048577), "objects_scalar_has_the_length_of_its_kind"),
        ("list", b"", "objects_scalar_has_the_length_of_its_kind"),
        ("decimal", None, "objects_kind_is_known"),
        ("f64", struct.pack(">d", -0.0), "zero has no sign"),
        ("f64", bytes.fromhex("fff8000000000000"), "NaN is 7ff8000000000000"),
        ("f64", bytes.fromhex("7ff0000000000001"), "NaN is 7ff8000000000000"),
        ("string", b"\xff", "a text is UTF-8 without NUL"),
        ("string", b"a\0b", "a text is UTF-8 without NUL"),
        ("string", b"\xed\xa0\x80", "a text is UTF-8 without NUL"),
        ("string", "e\u0301".encode(), "a text is in Unicode form NFC"),
        ("uri", b"http://Host/", "a URI is in the normal form of RFC 3986"),
        ("uri", b"http://host/%7e", "a URI is in the normal form of RFC 3986"),
        ("uri", b"http://host/%c3", "a URI is in the normal form of RFC 3986"),
        ("uri", b"http://host/a/../b", "a URI is in the normal form of RFC 3986"),
        ("uri", b"http://host/\x01", "a URI is in the normal form of RFC 3986"),
        ("uri", "http://host/é".encode(), "a URI is in the normal form of RFC 3986"),
    ],
)
def test_a_scalar_has_one_form(conn: Connection, sub: str, scalar: bytes | None, words: str) -> None:
    """Each other form is refused, and the refusal says which law it breaks."""
    assert (found := flaw(conn, "datum", sub, scalar)).startswith("WF004") and words in found


@pytest.mark.parametrize(
    "scalar", ["7ff0000000000000", "fff0000000000000", "7ff8000000000000", "8000000000000001"]
)
def test_numbers_at_the_edge_are_numbers(conn: Connection, scalar: str) -> None:
    """Infinities, the one NaN, the smallest number below zero."""
    assert flaw(conn, "datum", "f64", bytes.fromhex(scalar)) == ""


def test_sets_and_maps_are_sorted(conn: Connection) -> None:
    """By the ids of members and keys, none twice; values of maps are in any order."""
    one, two = sorted([i64(conn, 1), i64(conn, 2)])
    assert flaw(conn, "datum", "set", None, [one, two]) == ""
    assert flaw(conn, "datum", "map", None, [one, two, two, one]) == ""
    assert flaw(conn, "datum", "list", None, [two, one, two]) == ""
    for refs in ([two, one], [one, one]):
        assert "members of a set are sorted" in flaw(conn, "datum", "set", None, refs)
    for refs in ([two, one, one, two], [one, one, one, two]):
        assert "entries of a map are sorted" in flaw(conn, "datum", "map", None, refs)
    assert "objects_refs_are_as_many" in flaw(conn, "datum", "map", None, [one])


@pytest.mark.parametrize("names", [["", "b", "a"], ["", "a", "a"], ["x", "a", "b"], ["", "", "a"]])
def test_names_of_a_dag_are_sorted(conn: Connection, names: list[str]) -> None:
    """By their bytes, the root first and without a name."""
    node = literal(conn, 1)
    assert "names of a DAG are sorted" in flaw(conn, "dag", "", None, [node] * 3, names=names)


def test_names_are_sorted_by_bytes(conn: Connection) -> None:
    """And not by any language."""
    node = literal(conn, 1)
    assert flaw(conn, "dag", "", None, [node] * 5, names=["", "B", "Z", "a", "é"]) == ""


def test_a_name_has_at_most_255_bytes(conn: Connection) -> None:
    """Of UTF-8, in form NFC."""
    node = literal(conn, 1)
    assert flaw(conn, "dag", "", None, [node] * 2, names=["", "n" * 255]) == ""
    assert "object_name_is_at_most_255_bytes" in flaw(
        conn, "dag", "", None, [node] * 2, names=["", "é" * 128]
    )
    assert "object_name_is_normalized" in flaw(conn, "dag", "", None, [node] * 2, names=["", "e\u0301"])
    assert "objects_names_match_refs" in flaw(conn, "dag", "", None, [node] * 2, names=[""])


def test_names_of_a_tree_are_not_empty(conn: Connection) -> None:
    """A tree may be empty, its names may not."""
    one = dag(conn, literal(conn, 1))
    assert flaw(conn, "tree") == ""
    assert flaw(conn, "tree", "", None, [one], names=["main"]) == ""
    assert "names of a tree are sorted" in flaw(conn, "tree", "", None, [one], names=[""])


def test_a_commit_counts_its_parents(conn: Connection) -> None:
    """Its refs are a tree, its parents and three for each exec."""
    tree = put(conn, "tree")
    first = put(conn, "commit", "", bytes(4), [tree])
    assert flaw(conn, "commit", "", b"\0\0\0\1", [tree, first]) == ""
    for scalar in (b"\0\0\0\2", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4)):
        assert "a commit has its tree" in flaw(conn, "commit", "", scalar, [tree, first])
