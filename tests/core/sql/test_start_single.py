"""Law: a single start, by a statement for ordinary ones or by the single-row path, leaves what the batch
path would have left, and answers the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.verbs import Connection, ask, begin_run, create, dump

TABLES = (
    "_promises",
    "_executions",
    "_journal",
    "_tasks",
    "_inboxes",
    "_callbacks",
    "_resumes",
    "_workflows",
)
REQUEST = (
    "row(%s, %s::text::jsonb, %s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb, %s, %s)::durable._start_request"
)
SINGLE = f"select id, true from durable._start_single({REQUEST})"
ORDINARY = "select durable._start_ordinary(%s, %s::text::jsonb, %s, %s, %s, %s), true"
OF_ORDINARY = ("workflow", "args", "args", "queue", "version", "any_workflow")
RESENDABLE = "select durable._start_resendable(%s, %s::text::jsonb, %s, %s, %s, %s, %s), true"
OF_RESENDABLE = ("workflow", "args", "args", "id", "queue", "version", "any_workflow")
BATCH = f"select id, created from durable._start_batch_of_one({REQUEST})"
CHOSEN = "select id, created from durable.start_v1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb, %s, %s)"
# the usual value first, then values at and beyond the borders of what is allowed
OPTIONS: dict[str, tuple[Any, ...]] = {
    "workflow": ("known", "strange", "", None, "sql://shop.f", "SQL://x", "w" * 256, "w" * 257, "a:b"),
    "args": (
        *("[1]", '{"a": 1}', "1", '"x"', "null", None),
        *(f'["{"x" * size}"]' for size in (996, 997, 1996, 1997)),
    ),
    "id": (
        *(None, "new", "run", "p", "q", "run.5", "run.1.2", "new.x", "7", "", "i" * 512, "i" * 513),
        *("0f" * 16, "0F" * 16, "0e" * 16),
    ),
    "key": (None, "other", "known", "", "k" * 512, "k" * 513),
    "queue": (
        "default",
        "a/b",
        "",
        "ü",
        "q" * 256,
        "q" * 257,
        "a b",
        "q@x",
        None,
        "-q",
        ".q",
        "sql://shop.f",
    ),
    "version": ("1", "2", "", None),
    "delay": (None, 0, 5, -1),
    "timeout": (None, 10, 5, 0, -1, 2**60),
    "priority": (0, -32768, -32769, 32767, 32768, None),
    "tags": (
        *(
            "{}",
            '{"a": "b", "c": ""}',
            '{"a": 1}',
            '{"a": null}',
            '{"a": ["b"]}',
            "[]",
            '["a"]',
            '"a"',
            "null",
        ),
        *(None, '{"resonate:a": "b"}', '{"resonat": "resonate:"}'),
    ),
    "tenant": ("", "t", "t" * 256, "t" * 257, None),
    "any_workflow": (True, False, None),
}


def rows(conn: Connection, run: str | None) -> dict[str, list[dict[str, Any]]]:
    """All columns of all rows; the new run's name and number, which a start makes up, by what they are."""
    found = dump(conn, TABLES)
    heads = {row["head"] for row in found["_promises"] if row["id"] == run}
    for row in (row for table in found.values() for row in table):
        for column, value in row.items():
            if column in ("head", "execution") and value in heads:
                row[column] = "the new head"
            elif column == "id" and value == run:
                row[column] = "the new run"
    return {table: sorted(all_of_them, key=str) for table, all_of_them in found.items()}


def choices(rng: random.Random, count: int) -> Iterator[dict[str, Any]]:
    """Every value of an option beside usual ones, those of a resendable start beside a random id too,
    every delay with every timeout, every id with every key, every workflow known or not, and so many random
    ones."""
    usual = {name: values[0] for name, values in OPTIONS.items()}
    for name, values in OPTIONS.items():
        yield from ({**usual, name: value} for value in values)
    # the ids that a client draws at random
    fresh = {**usual, "id": "0f" * 16}
    yield from ({**fresh, name: value} for name in dict.fromkeys(OF_RESENDABLE) for value in OPTIONS[name])
    for one, other in (("delay", "timeout"), ("id", "key"), ("workflow", "any_workflow")):
        yield from ({**usual, one: a, other: b} for a in OPTIONS[one] for b in OPTIONS[other])
    for _ in range(count):
        share = rng.choice((0.6, 0.9))
        yield {
            name: values[0] if rng.random() < share else rng.choice(values)
            for name, values in OPTIONS.items()
        }


def outcome(conn: Connection, call: str, words: tuple[Any, ...]) -> tuple[Any, Any]:
    """What a call answers or how it is refused, and what it leaves; then it is undone."""
    with conn.transaction(force_rollback=True):
        try:
            with conn.transaction():
                id_, created = ask(conn, (call, words))
        except psycopg.Error as error:
            return (error.sqlstate, error.diag.message_primary, error.diag.message_hint), rows(conn, None)
        made_up = created and id_ is not None and len(id_) == 32
        return ("a made-up id" if made_up else id_, created), rows(conn, id_ if created else None)


@pytest.mark.parametrize("count", [30, pytest.param(300, marks=pytest.mark.full)])
def test_the_single_row_path_equals_the_batch_path(
    conn: Connection, clock: Clock, seed: int, count: int
) -> None:
    """Options one by one and at random, at the borders of what is allowed: the single-row path and the
    statements for ordinary starts either leave everything as it is, or answer and write what the batch path
    does, all columns of all tables, or are refused like that; a start is one of the three."""
    begin_run(conn, "run", key="known")
    ask(conn, create("p"))
    ask(conn, create("0e" * 16))
    ask(conn, ("select durable._adopt_idle_copy()", ()))
    ask(conn, create("q.1"))
    hello = "select durable.worker_hello_v1('W', '{default}', '{known}', '{1}', null, '{ab}', null, '{own}')"
    ask(conn, (hello, ()))
    ask(conn, ("select durable.set_setting('payload_max_bytes', '2000')", ()))
    untouched = rows(conn, None)
    usual = {name: values[0] for name, values in OPTIONS.items()}
    by_one_statement = {ORDINARY: 0, RESENDABLE: 0}
    short = refused = 0
    for options in choices(random.Random(seed), count):
        words = tuple(options.values())
        doubled = (*words[:2], *words[1:])
        plain, general = outcome(conn, SINGLE, doubled), outcome(conn, BATCH, doubled)
        if plain[0][0] is None:
            assert plain[1] == untouched, (seed, options)
        else:
            assert plain == general, (seed, options)
            short += len(plain[0]) == 2
        assert outcome(conn, CHOSEN, words) == general, (seed, options)
        for call, read in ((ORDINARY, OF_ORDINARY), (RESENDABLE, OF_RESENDABLE)):
            if all(value == usual[name] for name, value in options.items() if name not in read):
                plain = outcome(conn, call, tuple(options[name] for name in read))
                assert plain == ((None, True), untouched) or plain == general, (seed, options)
                by_one_statement[call] += plain == general
        refused += len(general[0]) == 3
    assert by_one_statement[ORDINARY] > 10, seed
    assert by_one_statement[RESENDABLE] > 10, seed
    assert short > 80, seed
    assert refused > 80, seed


def test_an_ordinary_start_takes_the_shortest_path(conn: Connection) -> None:
    """New runs, with and without id and key, by either verb, known workflow or any: none goes through the
    statements for many, and what exists does. Without options a run is one statement."""
    conn.execute("set track_functions = 'all'")
    called = (
        "select coalesce(pg_stat_get_xact_function_calls(p.oid), 0) from pg_proc p"
        " where p.oid::regproc::text = 'durable.' || %s"
    )

    def long_ways(call: str, way: str = "_start_batch") -> int:
        (before,) = ask(conn, (called, (way,)))
        ask(conn, (call, ()))
        return int(ask(conn, (called, (way,)))[0] - before)

    ask(conn, ("select durable.worker_hello_v1('W', '{default}', '{w}', '{1}', '{}')", ()))
    big = f'["{"x" * 5000}"]'
    for call in (
        "select durable.start('w')",
        "select durable.start('w', any_workflow => true)",
        "select durable.start('w', '{\"a\": 1}', id => 'x', tags => '{\"a\": \"b\"}', timeout => '1 hour')",
        "select durable.start('w', key => 'k', queue => 'q.1', delay => '1 s', priority => 5)",
        f"select durable.start('w', '{big}', id => 'y', key => 'l', tenant => 't')",
        "select durable.start_many('w', array['[1]'::jsonb], keys => array['m'])",
        "select durable.start_many('w', '[5:5]={[]}'::jsonb[], ids => '[-1:-1]={z}'::text[])",
    ):
        assert long_ways(call) == 0, call
    assert ask(conn, ("select args from durable.runs where id = 'z'", ())) == ([],)
    assert long_ways("select durable.start('w', '{\"a\": 1}', id => 'x')") == 1
    fresh = "select durable.start_v1('w', '[]', '<id>', null, null, '1', null, null, 0, '{}', '', false, true"
    for call in (
        "select durable.start('w')",
        "select durable.start('x', '{}', queue => 'q', version => '2', any_workflow => true)",
        fresh.replace("<id>", "0a" * 16) + ")",
        fresh.replace("<id>", "0b" * 16) + ", true, 'durable_to_x')",
    ):
        conn.execute("reset durable.site")  # as in the first start of a session
        assert long_ways(call, "_start_single") == 0, call
    assert long_ways("select durable.start('w', key => 'l')", "_start_single") == 1


def test_a_randomly_generated_id_takes_no_name_lock(conn: Connection, clock: Clock) -> None:
    """A start with an id drawn by lot leaves what a start with a chosen one does, without a lock on a name;
    sent twice it is the same run, and another run's id is refused."""
    usual = {name: values[0] for name, values in OPTIONS.items()} | {"id": "0f" * 16, "any_workflow": True}
    words = tuple(usual.values())
    fresh = CHOSEN.removesuffix(")") + ", true)"
    assert outcome(conn, fresh, words) == outcome(conn, CHOSEN, words)
    ask(conn, ("select durable._adopt_idle_copy()", ()))  # the first use of a copy takes a lock
    locks = ("select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()", ())
    (before,) = ask(conn, locks)
    assert ask(conn, (fresh, words)) == ("0f" * 16, True)
    assert ask(conn, locks) == (before,)
    assert ask(conn, (fresh, words)) == ("0f" * 16, False)
    with pytest.raises(psycopg.Error) as refused, conn.transaction():
        ask(conn, (fresh, (words[0], "[2]", *words[2:])))
    assert refused.value.sqlstate == "WF009"
