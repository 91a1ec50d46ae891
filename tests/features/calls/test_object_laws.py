"""Law: durable.check() finds every violation of the laws of objects and names: for each there is a hand in
the tables that breaks it.
"""

from __future__ import annotations

import pytest

from tests.support.hands import FAR, Break, laws_in, laws_of, lay, reported
from tests.support.objects import call, dag, i64, literal, put
from tests.support.verbs import Connection, ask

LAWFUL = "_objects.objects_are_lawful"
HASH = "I1 object_id_is_the_hash_of_its_content"
HAND = "update durable._objects set {} where {}"
INTEGER = "sub = 'i64' and scalar = '\\x0000000000000001'"
"""The first of two integers."""
LAWS: dict[str, Break] = {
    HASH: Break(HAND.format("scalar = '\\x0000000000000009'", INTEGER)),
    "I23 object_is_canonical": Break(HAND.format("names = '{\"\", b, a}'", "kind = 'dag'"), also=HASH),
    "object_kind_is_known": Break(
        HAND.format("kind = 'blob'", "kind = 'tree'"), LAWFUL, also=f"{HASH}, object_refs_are_of_their_kind"
    ),
    "object_scalar_has_the_length_of_its_kind": Break(
        HAND.format("scalar = '\\x01'", INTEGER), LAWFUL, also=HASH
    ),
    "object_has_as_many_refs_as_its_kind": Break(
        HAND.format("refs = '{}'", "kind = 'exec'"), LAWFUL, also=HASH
    ),
    "object_names_match_its_refs": Break(HAND.format("names = '{\"\"}'", "kind = 'dag'"), LAWFUL, also=HASH),
    "object_excised_is_empty": Break(HAND.format("reason = 'r'", INTEGER), LAWFUL),
    "I24 object_refs_exist": Break(f"delete from durable._objects where {INTEGER}"),
    "object_refs_are_of_their_kind": Break(
        HAND.format("refs = array[(select id from durable._objects where kind = 'tree')]", "sub = 'literal'"),
        also=HASH,
    ),
    "exec_result_is_a_dag_or_a_datum": Break(
        HAND.format(
            "refs[2] = (select id from durable._objects where kind = 'datum' limit 1)", "kind = 'exec'"
        ),
        also=HASH,
    ),
    "exec_of_a_commit_is_of_its_node": Break(
        HAND.format("refs[1] = (select id from durable._objects where sub = 'builtin')", "kind = 'exec'"),
        also=f"{HASH}, exec_result_is_a_dag_or_a_datum",
    ),
    "ref_names_a_commit": Break(
        "update durable._refs set commit_id = (select id from durable._objects where kind = 'tree')"
    ),
    "ref_base_is_a_head": Break(
        "update durable._refs set kind = 'index', base = 'main'", "_refs.refs_only_an_index_has_a_base"
    ),
    "object_was_put_in_the_past": Break(f"update durable._objects set created_at = {FAR} where {INTEGER}"),
    "ref_was_made_in_the_past": Break(f"update durable._refs set created_at = {FAR}"),
    "ref_version_positive": Break("update durable._refs set version = 0", "_refs.refs_version_positive"),
    "ref_kind_is_known": Break("update durable._refs set kind = 'tag'", "_refs.refs_kind_is_known"),
    "closure_is_as_it_was_walked": Break(
        "select durable.object_excise(id, 'r') from durable._objects where sub = 'bool'; "
        "insert into durable._closures (excision, is_whole, id)"
        " select 1, true, id from durable._objects where sub = 'bool'"
    ),
    "excisions_are_numbered": Break(
        "select durable.object_excise(id, 'r') from durable._objects where sub = 'bool'; "
        "update durable._objects set excision = 7 where sub = 'bool'"
    ),
}


@pytest.fixture
def store(conn: Connection) -> Connection:
    """Objects of all kinds, and a name."""
    put(conn, "datum", "bool", b"\1")
    i64(conn, 2)
    node = call(conn, literal(conn, 1))
    builtin = put(conn, "node", "builtin", None, [put(conn, "datum", "uri", b"dml://list/construct")])
    result = dag(conn, literal(conn, 1), a=node, b=builtin)
    made = put(conn, "exec", "ok", None, [node, result])
    commit = put(conn, "commit", "", bytes(4), [put(conn, "tree"), node, made, bytes(32)])
    conn.execute(
        "insert into durable._refs (created_at, commit_id, name, kind) values (1, %s, 'main', 'head')",
        (commit,),
    )
    return conn


@pytest.mark.unlawful
@pytest.mark.parametrize("law", LAWS)
def test_a_broken_law_is_reported(store: Connection, law: str) -> None:
    """By its name, and no other one with it."""
    assert laws_of(store) == set()
    lay(store, LAWS[law])
    assert laws_of(store) == reported(LAWS[law], law)


def test_every_law_is_broken_once() -> None:
    """The laws above are those of the file."""
    assert laws_in("object_laws") == set(LAWS)


def test_objects_are_checked_in_portions(store: Connection) -> None:
    """Of 2000, after all promises."""
    ask(
        store,
        (
            "select durable.literal((select jsonb_agg(n) from generate_series(1, 4500) n))",
            (),
        ),
    )
    place, portions = '{"object": ""}', 0
    while place is not None:
        broken, more = ask(store, ("select broken, more from durable.check_portion(%s::jsonb)", (place,)))
        assert broken in ([], "{}")
        portions += 1
        place = f'{{"object": "{more["object"]}"}}' if "object" in (more or {}) else None
    assert portions == 3
