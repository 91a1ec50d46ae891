"""Law: many runs started by one call are what so many starts in their order would be, all or none; the work
grows with their number, the statements do not."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.support.clock import Clock
from tests.support.verbs import Connection, ask, begin_run, create, refusal, start

START_MANY = "select id, created from durable.start_many('w', %s::jsonb[], ids => %s, keys => %s)"
ROWS = {
    "_promises": "id, target, timeout_at, created_at, param_data, tags::text, tenant",
    "_tasks": "id, queue, priority, workflow, workflow_version, state, deadline, retry_at",
    "_executions": "id, workflow, workflow_version, key, tenant, next_seq, status",
    "_journal": "(select h.id from durable._executions h where h.execution = t.execution), seq, type::text",
}
Element = tuple[str, str | None, str | None]
Way = Callable[..., list[tuple[Any, ...]]]


def many(conn: Connection, *elements: Element) -> list[tuple[Any, ...]]:
    """Start runs with these arguments, ids and keys in one call."""
    args, ids, keys = (list(each) for each in zip(*elements, strict=True))
    return conn.execute(START_MANY, (args, ids, keys)).fetchall()


def one_by_one(conn: Connection, *elements: Element) -> list[tuple[Any, ...]]:
    """The same with a call for each."""
    call = (
        "select id, created "
        "from durable.start_v1('w', %s, %s, %s, 'default', '1', null, null, 0, '{}', '', true)"
    )
    return [ask(conn, (call, element)) for element in elements]


def stored(conn: Connection) -> dict[str, list[tuple[Any, ...]]]:
    """What starts have left, without the numbers and instants that every start draws anew."""
    return {
        table: sorted(conn.execute(f"select {what} from durable.{table} t".encode()).fetchall(), key=str)
        for table, what in ROWS.items()
    }


def test_by_name_and_by_position(conn: Connection) -> None:
    """An object is arguments by name, an array arguments by position; ids and made names come in order."""
    rows = many(conn, ('{"a": 1}', "x", None), ("[2]", None, None), ("[]", "y", None))
    assert [row[1] for row in rows] == [True, True, True]
    assert (rows[0][0], rows[2][0], len(rows[1][0])) == ("x", "y", 32)
    told = conn.execute("select id, param_data from durable._promises order by created_at, head").fetchall()
    assert dict(told) == {"x": '{"a": 1}', rows[1][0]: "[2]", "y": "[]"}


def test_rows_of_a_table(conn: Connection) -> None:
    """The rows of an outbox become runs in one statement, and again they are the same runs."""
    conn.execute("create temp table outbox (id int, address text)")
    conn.execute("insert into outbox select n, 'a' || n from generate_series(1, 5) n")
    relay = (
        "select durable.start_many('mail.send', array_agg(to_jsonb(m)), keys => array_agg(m.id::text)) "
        "from outbox m"
    )
    first, again = conn.execute(relay).fetchall(), conn.execute(relay).fetchall()
    assert [(row[0][0], row[0][1]) for row in again] == [(row[0][0], "f") for row in first]
    args = conn.execute("select args from durable.runs order by args ->> 'id'").fetchall()
    assert args == [({"id": n, "address": f"a{n}"},) for n in range(1, 6)]
    conn.execute("delete from outbox")
    assert conn.execute(relay).fetchall() == []
    assert conn.execute("select * from durable.start_many('w', '{}')").fetchall() == []


def test_options_are_those_of_start(conn: Connection, clock: Clock) -> None:
    """Queue, version, delay, timeout, priority, tags and tenant are meant for each of the runs."""
    options = (
        "queue => 'q', version => '2', delay => '1 min', timeout => '1 hour', priority => 3, "
        "tags => '{\"a\": \"b\"}', tenant => 't'"
    )
    ask(conn, (f"select durable.start('w', '[1]', id => 'x', key => 'k', {options})", ()))
    before = stored(conn)
    conn.execute("delete from durable._tasks; delete from durable._promises")
    conn.execute("delete from durable._journal; delete from durable._executions")
    ask(conn, (f"select durable.start_many('w', array['[1]'::jsonb], '{{x}}', '{{k}}', {options})", ()))
    assert stored(conn) == before
    retry_at, deadline = ask(conn, ("select retry_at, deadline from durable._tasks", ()))
    assert (retry_at - clock.now_ms, deadline - clock.now_ms) == (60_000, 3_600_000)


def test_the_same_id_or_key_is_the_same_run(conn: Connection) -> None:
    """What came first wins, whether it came before or in this call."""
    begin_run(conn, "old", key="k0")
    assert many(
        conn,
        ("[]", "old", None),
        ("[]", None, "k0"),
        ("[1]", "a", "k1"),
        ("[1]", None, "k1"),
        ("[1]", "a", None),
        ("[2]", None, "k2"),
        ("[2]", None, "k2"),
        ("[2]", "b", None),
        ("[2]", "b", None),
    ) == [
        ("old", False),
        ("old", False),
        ("a", True),
        ("a", False),
        ("a", False),
        (ask(conn, ("select id from durable.runs where key = 'k2'", ()))[0], True),
        (ask(conn, ("select id from durable.runs where key = 'k2'", ()))[0], False),
        ("b", True),
        ("b", False),
    ]


def outcome(conn: Connection, way: Way, elements: list[Element], key: str | None) -> Any:
    """What a way of starting answers or which error it ends with, and what it leaves; then it is undone."""
    with conn.transaction(force_rollback=True):
        begin_run(conn, "a", key=key)
        ask(conn, create("p"))
        try:
            with conn.transaction():
                answer: Any = way(conn, *elements)
        except psycopg.Error as error:
            answer = error.sqlstate
        return answer, stored(conn)


@pytest.mark.parametrize("count", [60, pytest.param(600, marks=pytest.mark.full)])
def test_as_so_many_starts(conn: Connection, clock: Clock, seed: int, count: int) -> None:
    """Random elements, few ids and keys: one call answers and leaves what single calls do, or fails with the
    error of the first that fails, and then leaves nothing."""
    rng, refused = random.Random(seed), 0
    for _ in range(count):
        elements: list[Element] = []
        for _ in range(rng.randrange(1, 5)):
            id_, key = rng.choice((None, "a", "b", "p")), rng.choice((None, None, "k", "l"))
            # a name that is made up differs from call to call
            elements.append((rng.choice(("[1]", "[1]", "[]")), id_, key if id_ or key else "m"))
        known = rng.choice((None, "k"))
        expected = outcome(conn, one_by_one, elements, known)
        assert outcome(conn, many, elements, known) == expected, (seed, elements)
        refused += isinstance(expected[0], str)
    # four fifths are: with sixty, one seed in twenty thousand has fewer than two that are not
    assert count // 60 < refused < count - count // 60, seed


@pytest.mark.parametrize(
    ("elements", "code", "words"),
    [
        ((("[]", None, None), ("7", None, None)), "WF004", "Element 2: Arguments are a JSON array"),
        ((("[]", "", None),), "WF004", "Element 1: A run id has 1 to 512 bytes"),
        ((("[]", "x" * 513, None),), "WF004", "Element 1: A run id"),
        ((("[]", "a", None), ("[]", "b", "")), "WF004", "Element 2: An idempotency key"),
        ((("[]", "a", None), ("[]", "old.7", None)), "WF004", "Element 2: Id 'old.7' is reserved"),
        ((("[]", "a", None), ("[]", "new", None)), "WF004", "Element 2: Promises with ids 'new.<n>' exist"),
        ((("[]", "a.1.2", None), ("[]", "b", None), ("[]", "a", None)), "WF004", "Element 1: id 'a.1.2'"),
        ((("[]", "a", None), ("[3]", "a", None)), "WF009", "another input than element 2 has"),
        ((("[3]", "old", None),), "WF009", "another input than element 1 has"),
        ((("[]", "a", None), ("[]", "a", "k")), "WF009", "another idempotency key than element 2 has"),
        ((("[]", "a", "k0"),), "WF009", "Run 'old' exists with another id for this key than element 1 has"),
        ((("[]", "a", None), ("[]", "p", None)), "WF003", "Element 2: Id 'p' belongs to a promise"),
        (
            (("[]", "a", None), ('["' + "x" * 2000 + '"]', None, None)),
            "WF008",
            "Element 2: Input of a run of w",
        ),
    ],
)
def test_a_bad_element_is_named(
    conn: Connection, elements: tuple[Element, ...], code: str, words: str
) -> None:
    """An error says which element is meant, counted from 1, and nothing is started."""
    begin_run(conn, "old", key="k0")
    ask(conn, create("p"))
    ask(conn, create("new.4"))
    ask(conn, ("select durable.set_setting('payload_max_bytes', '1500')", ()))
    before = stored(conn)
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        many(conn, *elements)
    assert caught.value.sqlstate == code
    assert words in (caught.value.diag.message_primary or "")
    assert stored(conn) == before


@pytest.mark.parametrize(
    "call",
    [
        "durable.start_many('', array['[]'::jsonb])",
        "durable.start_many(null, array['[]'::jsonb])",
        "durable.start_many('w', array[null::jsonb])",
        "durable.start_many('w', array['[]'::jsonb], ids => '{a,b}')",
        "durable.start_many('w', array['[]'::jsonb, '[]'], keys => '{a}')",
        "durable.start_many('w', array['[]'::jsonb], queue => 'a/b')",
        "durable.start_many('w', array['[]'::jsonb], version => '')",
        "durable.start_many('w', array['[]'::jsonb], delay => '2 s', timeout => '1 s')",
        "durable.start_many('w', array['[]'::jsonb], priority => 100000)",
        "durable.start_many('w', array['[]'::jsonb], tags => '[]')",
        "durable.start_many('w', array['[]'::jsonb], tenant => null)",
    ],
)
def test_shared_options_are_checked(conn: Connection, call: str) -> None:
    """Malformed options are WF004, as they are for one start."""
    assert refusal(conn, (f"select {call}", ())) == "WF004"
    assert stored(conn)["_promises"] == []


def test_a_strange_workflow_is_refused(conn: Connection) -> None:
    """A name that no worker registered is WF001, unless the caller insists."""
    ask(conn, ("select durable.worker_hello_v1('W', '{q}', '{known}', '{1}', '{}')", ()))
    call = "select durable.start_many('strange', array['[]'::jsonb]%s)"
    assert refusal(conn, (call % "", ())) == "WF001"
    assert refusal(conn, (call % ", any_workflow => true", ())) == ""


def calls_of_functions(conn: Connection, count: int) -> dict[str, int]:
    """How often each function of the schema was called to start so many runs; but for constants, which the
    planner asks for, as often as it happens to plan."""
    query = (
        "select p.proname::text, coalesce(pg_stat_get_xact_function_calls(p.oid), 0) from pg_proc p "
        "where p.pronamespace = 'durable'::regnamespace and not (p.provolatile = 'i' and p.pronargs = 0)"
    )
    conn.execute("set track_functions = 'all'")
    before = dict(conn.execute(query).fetchall())
    ids, keys = [f"{count}-{n}" for n in range(count)], [f"{count}-{n}" for n in range(count)]
    rows = many(conn, *[("[]", id_, None) for id_ in ids], *[("[]", None, key) for key in keys])
    assert all(created for _, created in rows)
    after = dict(conn.execute(query).fetchall())
    return {name: after[name] - before[name] for name in after if after[name] != before[name]}


def test_the_statements_do_not_grow(conn: Connection) -> None:
    """Ten runs or a thousand: every function that holds statements runs as often; only what names a run or
    its ancestors from its own text is asked for each."""
    few, lots = calls_of_functions(conn, 10), calls_of_functions(conn, 400)
    grown = {name for name in lots if lots[name] != few.get(name)}
    assert grown <= {"_root_id", "_ancestors", "_next_execution", "_key_name", "_later", "_target_of"}
    assert "_insert_runs" in lots


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.full)])
def test_very_many_at_once(conn: Connection, count: int) -> None:
    """Thousands with ids, with keys and with neither are one call each, and again nothing new."""
    numbers = f"(select array_agg(to_jsonb(array[n]) order by n) from generate_series(1, {count}) n)"
    names = f"(select array_agg(n::text order by n) from generate_series(1, {count}) n)"
    counts = (
        "select count(*), count(*) filter (where created), count(distinct id) from durable.start_many('w', "
    )
    for more, again in ((f"ids => {names}", 0), (f"keys => {names}", 0), ("queue => 'q'", count)):
        call = f"{counts}{numbers}, {more})"
        assert ask(conn, (call, ())) == (count, count, count)
        assert ask(conn, (call, ())) == (count, again, count)
    assert ask(conn, ("select count(*) from durable._tasks", ())) == (4 * count,)
    assert ask(conn, start("one"))[0] == "one"


def test_one_hint_for_all(dsn: str, direct: str) -> None:
    """One notification for a call that started something, none for one that did not."""
    with psycopg.connect(dsn, autocommit=True) as own, psycopg.connect(direct, autocommit=True) as ears:
        own.execute("select durable.set_setting('hints', 'commit')")
        ears.execute("listen durable_ready")
        for _ in range(2):
            own.execute("select durable.start_many('w', '{\"[]\",\"[]\",\"[]\"}', ids => '{a,b,c}')")
        own.execute("select pg_notify('durable_ready', 'end')")
        heard = []
        for note in ears.notifies(timeout=30):
            heard.append(note.payload)
            if note.payload == "end":
                break
        assert heard == ["", "end"]
