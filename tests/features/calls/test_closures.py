"""Law: a closure is whole unless something in it was excised, and it is walked once for each excision."""

from __future__ import annotations

from tests.support.objects import closure, dag, i64, literal
from tests.support.verbs import Connection

EXCISE = """update durable._objects
  set excised_at = created_at, reason = 'r', scalar = null, refs = '{}', names = '{}',
  excision = 1 + coalesce((select max(o.excision) from durable._objects o), 0) where id = %s"""
WALKED = "select excision, is_whole from durable._closures where id = %s"


def test_a_closure_is_missing_or_ok(conn: Connection) -> None:
    """Until something is excised nothing is walked."""
    made = dag(conn, literal(conn, 1))
    assert closure(conn, made) == "ok" and closure(conn, bytes(32)) == "missing"
    assert conn.execute(WALKED.encode(), (made,)).fetchone() is None


def test_an_excised_part_breaks_what_reaches_it(conn: Connection) -> None:
    """And nothing else; each top is walked once for each excision, and a broken one never again."""
    broken, whole = dag(conn, literal(conn, 1)), dag(conn, literal(conn, 2))
    conn.execute(EXCISE, (i64(conn, 1),))
    for _ in range(2):
        assert closure(conn, broken) == "excised" and closure(conn, whole) == "ok"
    assert conn.execute(WALKED.encode(), (broken,)).fetchone() == (1, False)
    assert conn.execute(WALKED.encode(), (whole,)).fetchone() == (1, True)
    conn.execute(EXCISE, (i64(conn, 3),))
    assert closure(conn, broken) == "excised" and closure(conn, whole) == "ok"
    assert conn.execute(WALKED.encode(), (broken,)).fetchone() == (1, False)
    assert conn.execute(WALKED.encode(), (whole,)).fetchone() == (2, True)
    conn.execute(EXCISE, (i64(conn, 2),))
    assert closure(conn, whole) == "excised"
