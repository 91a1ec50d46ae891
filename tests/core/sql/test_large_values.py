"""Law: a large value of a journal is stored once for its run, and is read as it was written."""

from __future__ import annotations

import json
import random
from typing import Any

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.verbs import (
    Connection,
    Held,
    ask,
    at_end,
    begin_run,
    done,
    journal,
    report,
    take_turn,
)

LIMIT = 1024
SUB = "\x1a"


@pytest.fixture(autouse=True)
def _small_limit(conn: Connection) -> None:
    """Values count as large from the smallest size that the setting allows, so that tests stay fast."""
    conn.execute("select durable.set_setting('large_value_bytes', %s)", (str(LIMIT),))


def compact(value: Any) -> str:
    """JSON as the package writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def message(number: int, size: int = 400) -> dict[str, Any]:
    """A message of a conversation."""
    return {"role": "user", "number": number, "text": random.Random(number).randbytes(size // 2).hex()}


def write(conn: Connection, held: Held, *texts: str, first: int = 0) -> Held:
    """Let steps return these texts, one in each turn."""
    for text in texts:
        child = held.next // 3 + first
        answer = take_turn(conn, "W", report(held, outcomes=[done(child, text)]))
        held = at_end(held, answer.next_of(held))
    return held


def values(conn: Connection, held: Held) -> list[tuple[bytes, bytes | None, str]]:
    """The stored values of a run: hash, prefix, data."""
    query = "select hash, prefix, data from durable._journal_values where execution = %s order by hash"
    return [tuple(row) for row in conn.execute(query, (held.execution,))]


def replayed(conn: Connection, held: Held) -> list[str | None]:
    """The results of steps, as a worker gets them for a replay."""
    answer = ask(conn, journal("W", held))[0]
    return [row[6] for row in answer["rows"] if row[1] == "step_completed"]


def test_a_small_value_stands_in_its_row(conn: Connection, clock: Clock) -> None:
    """Below the limit nothing is stored apart."""
    text = compact("x" * (LIMIT - 3))
    held = write(conn, begin_run(conn, "r"), text)
    assert values(conn, held) == []
    row = ask(conn, ("select data from durable._journal where execution = %s and seq = 1", (held.execution,)))
    assert row == (text,)


def test_a_value_that_is_returned_again_is_stored_once(conn: Connection, clock: Clock) -> None:
    """Three steps return the same map: the values of one are there, and the rows refer to them."""
    text = compact({"state": [message(n) for n in range(9)], "note": "n" * 300, "count": 9})
    held = write(conn, begin_run(conn, "r"), text)
    stored = values(conn, held)
    held = write(conn, held, text, text)
    assert values(conn, held) == stored
    assert replayed(conn, held) == [text] * 3


def test_a_list_that_grew_refers_to_its_prefix(conn: Connection, clock: Clock) -> None:
    """Each turn adds two messages, so it adds two values and one piece of the list, whatever came before."""
    held = begin_run(conn, "r")
    texts = [compact([message(n) for n in range(2 * turn)]) for turn in range(2, 30)]
    held = write(conn, held, texts[0])
    for text in texts[1:]:
        before = values(conn, held)
        held = write(conn, held, text)
        added = [row for row in values(conn, held) if row not in before]
        assert len(added) == 3
        (piece,) = [data for _, prefix, data in added if prefix is not None]
        assert len(piece) < 200
    assert replayed(conn, held) == texts


def test_a_list_of_small_elements_that_grew_refers_to_its_prefix(conn: Connection, clock: Clock) -> None:
    """Elements below 256 bytes stand in the pieces of the list."""
    held = begin_run(conn, "r")
    texts = [compact([f"{n:0100}" for n in range(10 * turn)]) for turn in range(2, 12)]
    held = write(conn, held, *texts)
    stored = values(conn, held)
    assert len(stored) == len(texts)
    assert sum(len(data) for _, _, data in stored) < 1.1 * len(texts[-1])
    assert replayed(conn, held) == texts


def test_a_list_within_maps_grows_likewise(conn: Connection, clock: Clock) -> None:
    """The list is found below other keys; what stands beside it is stored once."""
    held = begin_run(conn, "r")
    texts = [
        compact(
            {
                "model": "m",
                "tools": ["t" * 2000],
                "chat": {"log": [message(n) for n in range(turn)], "n": turn},
            }
        )
        for turn in range(4, 34)
    ]
    held = write(conn, held, *texts)
    # a message, a piece of the list, the inner map and the outer map for each turn
    assert len(values(conn, held)) <= 4 * len(texts) + 6
    assert replayed(conn, held) == texts


def random_value(rng: random.Random, depth: int = 0) -> Any:
    """A JSON value whose parts lie on both sides of the limits."""
    kind = rng.choice("sslmn" if depth < 4 else "sn")
    if kind == "s":
        alphabet = rng.choice(("ab", 'ä€𝄞"\\', "\n\t\x7f/", "\x1a\x01", "[{,:}]"))
        return "".join(rng.choice(alphabet) for _ in range(rng.choice((0, 3, 200, 256, 900, 1500))))
    if kind == "n":
        return rng.choice((None, True, 0, -1.5, 12345678901234567890, 1e300))
    if kind == "l":
        return [random_value(rng, depth + 1) for _ in range(rng.choice((0, 1, 2, 9)))]
    return {
        random_value(rng, 9) if rng.random() < 0.1 else f"k{n}": random_value(rng, depth + 1)
        for n in range(5)
    }


def as_key(value: Any) -> Any:
    """The value with keys that JSON allows."""
    if isinstance(value, dict):
        return {str(key): as_key(part) for key, part in value.items()}
    return [as_key(part) for part in value] if isinstance(value, list) else value


def test_random_values_are_read_as_they_were_written(conn: Connection, clock: Clock, seed: int) -> None:
    """Compact JSON comes back to the byte, whatever is large in it, and again after it was stored before."""
    rng = random.Random(seed)
    texts = [compact(as_key(random_value(rng))) for _ in range(60)]
    texts += rng.sample(texts, 20)
    held = write(conn, begin_run(conn, "r"), *texts)
    assert replayed(conn, held) == texts
    assert any(prefix for _, prefix, _ in values(conn, held))


@pytest.mark.parametrize(
    "text",
    [
        SUB,
        SUB + "f" + SUB + "00" * 32,
        SUB + "t" + "x" * 2000,
        # a worker of ours writes no such text
        pytest.param("x" + SUB * 3, marks=pytest.mark.unlawful),
        "not JSON " * 500,
        '{"broken": ' + "1" * 2000,
        "\x01\x1a" * 1000,
        "[" + " " * 2000 + "]",
        "{" + " " * 2000 + "}",
    ],
    ids=[
        *("mark", "like a reference", "like a plain text", "mark within", "text", "broken", "binary"),
        *("empty list", "empty map"),
    ],
)
def test_other_texts_are_read_as_they_were_written(conn: Connection, clock: Clock, text: str) -> None:
    """A payload of another codec may look like anything, even like a reference."""
    held = write(conn, begin_run(conn, "r"), text, text)
    assert replayed(conn, held) == [text, text]
    assert len(values(conn, held)) == (len(text) >= LIMIT)


def test_white_space_between_large_parts_is_not_kept(conn: Connection, clock: Clock) -> None:
    """JSON of other writers is read as the same value, with the same numbers and the same order of keys."""
    value = {"b": [message(n) for n in range(5)], "a": 1.50, "ä": "x" * 2000}
    written = json.dumps(value, indent=2)
    held = write(conn, begin_run(conn, "r"), written)
    (text,) = replayed(conn, held)
    assert text is not None
    assert json.loads(text) == value
    assert list(json.loads(text)) == ["b", "a", "ä"]


def test_a_value_of_many_levels_is_stored(conn: Connection, clock: Clock) -> None:
    """Below eight levels a part is stored whole, so no depth is a burden for the server's stack."""
    text = "[" * 400 + compact("x" * 3000) + "]" * 400
    held = write(conn, begin_run(conn, "r"), text)
    assert replayed(conn, held) == [text]
    assert len(values(conn, held)) == 9


MISSING = {
    "part": "delete from durable._journal_values where prefix is null",
    "prefix": "delete from durable._journal_values where prefix = durable._empty_list()",
}


@pytest.mark.parametrize("kind", MISSING)
def test_a_missing_value_is_an_error(conn: Connection, clock: Clock, kind: str) -> None:
    """A journal is never read without what it refers to."""
    held = begin_run(conn, "r")
    held = write(conn, held, *(compact([message(n) for n in range(count)]) for count in (6, 8)))
    with conn.transaction(force_rollback=True):
        conn.execute(MISSING[kind].encode())
        with pytest.raises(psycopg.errors.DataCorrupted, match="is not stored"), conn.transaction():
            replayed(conn, held)


@pytest.mark.parametrize("value", ["0", "1023"])
def test_the_limit_is_not_too_small(conn: Connection, clock: Clock, value: str) -> None:
    """References cost some bytes themselves."""
    with pytest.raises(psycopg.Error, match="invalid") as caught, conn.transaction():
        conn.execute("select durable.set_setting('large_value_bytes', %s)", (value,))
    assert caught.value.sqlstate == "WF004"
