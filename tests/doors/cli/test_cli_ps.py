"""Law: a list of runs can be narrowed, paged and read by programs, and ids are found by their parts."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from pyengine.core.values.codec import input_hash
from pyengine.doors.admin import conditions, queries_runs
from pyengine.doors.cli.display.columns import Column, widths
from pyengine.doors.cli.display.ids import ELLIPSIS, cut, cut_all
from pyengine.doors.cli.output import rough_span
from pyengine.errors import InvalidRequest
from tests.support.clock import Clock

Connection = psycopg.Connection[Any]
COLUMNS = {
    "id": "text",
    "state": "text",
    "workflow": "text",
    "age": "interval",
    "args": "jsonb",
    "tags": "jsonb",
}


@pytest.fixture
def orders(conn: Connection, player: Any) -> list[str]:
    """Ten orders, of which one has failed, one is done and two are paused, and a letter."""
    ids = [f"order-{n}" for n in range(10)]
    for id in ids:
        text = "select durable.start('checkout', %s, id => %s, tags => %s)"
        conn.execute(text, (json.dumps([id]), id, json.dumps({"region": "eu" if id < "order-5" else "us"})))
    conn.execute("select durable.start('mail', id => 'letter', any_workflow => true)")
    conn.execute("select durable._settle_promise('order-0', 'resolved', '1', null)")
    conn.execute("select durable._settle_promise('order-1', 'rejected', '{\"type\": \"Oops\"}', null)")
    conn.execute("select durable.pause(id) from unnest('{order-2,order-3}'::text[]) id")
    return ids


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> None:
    """The input is that of a terminal."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)


def listed(at_database: Any, *words: str) -> list[str]:
    """The ids that a list has."""
    answer = at_database("ps", *words, "--json")
    assert answer.code == 0, answer.out
    return [run["id"] for run in answer.document]


def test_ages_and_durations(conn: Connection, at_database: Any, clock: Clock) -> None:
    """The age counts from the start, also of a run that has ended; how long that took stands beside it. There
    is no such column if none has ended."""
    conn.execute("select durable.start('checkout', id => 'ended')")
    clock.advance(95_000)
    conn.execute("select durable._settle_promise('ended', 'resolved', '1', null)")
    conn.execute("select durable.start('checkout', id => 'live')")
    clock.advance(3 * 86_400_000)
    header, *lines = at_database("ps").out.splitlines()
    assert header.split()[3:5] == ["AGE", "TOOK"]
    assert [line.split()[:6] for line in lines] == [
        ["live", "checkout", "queued", "3d", "queue", "default"],
        ["ended", "checkout", "completed", "3d", "1m", "35s"],
    ]
    assert "TOOK" not in at_database("ps", "--state", "queued").out


def test_rough_spans() -> None:
    """In the greatest unit, rounded down; two days are still hours."""
    spans = {-1: "0s", 59.9: "59s", 60: "1m", 3599: "59m", 3600: "1h", 172_799: "47h", 172_800: "2d"}
    assert {s: rough_span(timedelta(seconds=s)) for s in spans} == spans


# -- conditions

SELECTS: dict[str, list[str]] = {
    "state=paused": ["order-3", "order-2"],
    "state = 'paused' and id != order-2": ["order-3"],
    "state=failed or state=completed": ["order-1", "order-0"],
    "workflow~check% and worker!=null": [],
    "id ~ 'order-_' and (tags.region=us or state=paused) and id<=order-6": [
        *("order-6", "order-5", "order-3", "order-2"),
    ],
    "workflow!~check%": ["letter"],
    "tags.region=null": ["letter"],
    "tags.region!=us and state=queued": ["letter", "order-4"],
    "args='[\"order-7\"]'": ["order-7"],
    "args~%order-8%": ["order-8"],
    "parent=null and workflow=mail and age<1h and created_at>yesterday and execution>0": ["letter"],
    "error~%Oops%": ["order-1"],
    "STATE=paused AND Id=order-3": ["order-3"],
    'id="x\' or true --"': [],
    "id='it''s'": [],
}


@pytest.mark.usefixtures("orders")
def test_conditions_select_runs(at_database: Any) -> None:
    """Conditions compare columns and tags, and select what they say."""
    found = {}
    for text, expected in SELECTS.items():
        if (ids := listed(at_database, "--where", text)) != expected:
            found[text] = ids
    assert not found


WRONG = (
    ("stat=running", "did you mean state"),
    ("state", "expected = !="),
    ("state=", "expected a value"),
    ("state=running and", "expected a column"),
    ("state=running workflow=x", "expected and, or, or the end"),
    ("(state=running", "expected )"),
    ("state='running", "not closed"),
    ("=running", "expected a column"),
    ("state<null", "null is compared"),
    ("args<3", "args is compared"),
    ("r.state=running", "no column is named"),
    ("state=running;drop table x", "expected and, or, or the end"),
    ("1=1", "no column is named"),
    ("pg_sleep(1)=1", "no column is named"),
    ("", "expected a column"),
    ("(" * 30 + "state=x" + ")" * 30, "brackets"),
    ("id=" + "x" * 5000, "characters"),
)


def test_wrong_conditions_are_explained() -> None:
    """A text that is no condition is refused with the place and an example."""
    for text, explained in WRONG:
        with pytest.raises(InvalidRequest) as refused:
            conditions.parse(text, COLUMNS)
        assert explained in str(refused.value), text[:80]
        assert refused.value.hint or len(text) > conditions.LONGEST


def test_values_of_wrong_types_are_refused(at_database: Any) -> None:
    """The database refuses a value that its column cannot have."""
    for text in ("age>soon", "created_at<tomorrowish", "execution=x"):
        answer = at_database("ps", "--where", text)
        assert (text, answer.code, "does not take" in answer.err) == (text, 2, True)


def test_no_text_becomes_sql() -> None:
    """The SQL of a condition has columns of the view and names of parameters, whatever was typed."""
    values: dict[str, Any] = {}
    hostile = "x') or true; drop table t; --"
    text = f'id="{hostile}" and tags.{"a;b"}=1 or workflow~"{hostile}"'
    written = conditions.sql(conditions.parse(text, COLUMNS), values)
    assert "drop" not in written
    first = "(r.id = %(where_0)s and (r.tags ->> %(where_1)s) = %(where_2)s)"
    assert written == f"({first} or r.workflow::text like %(where_3)s)"
    assert list(values.values()) == [hostile, "a;b", "1", hostile]


NAMES = ["state", "age", "tags.a", "x", "null", "and", "or"]
SIGNS = ["(", ")", "=", "!=", "<", "~", "!~", "'", "''", '"', ";", "%"]
PLACE = r"(r\.[a-z_]+(::text)?|\(r\.tags ->> %\(where_\d+\)s\))"
VALUE = r"%\(where_\d+\)s"
COMPARED = rf"{PLACE} (is (not )?null|(=|<|is distinct from) {VALUE})|{PLACE}::text like {VALUE}"
TYPED = st.sampled_from([*NAMES, *SIGNS]) | st.text(max_size=3)
COMPARISONS = st.tuples(st.sampled_from(["state", "args", "tags.a;b"]), st.sampled_from(["=", "!~"]), TYPED)
TEXTS = st.lists(COMPARISONS.map(" ".join), min_size=1).map(" or ".join) | st.lists(TYPED).map(" ".join)


@given(TEXTS)
@settings(max_examples=150, deadline=None)
def test_any_text_is_refused_or_harmless(text: str) -> None:
    """Whatever is typed, the SQL has comparisons of columns with parameters, and, or, and brackets."""
    try:
        condition = conditions.parse(text, COLUMNS)
    except InvalidRequest:
        return
    written = conditions.sql(condition, {})
    compared = rf"({COMPARED}|\({PLACE}::text like {VALUE}\) is not true)"
    assert re.fullmatch(r"(\(|\)|C| and | or )+", re.sub(compared, "C", written)), written


def test_a_condition_chooses_its_view() -> None:
    """The states that a condition allows are known, so a list of live runs reads only those."""
    allowed = {}
    for text in ("state=running", "state=failed or state=timed_out", "state!=completed", "id=x", "age>1h"):
        allowed[text] = queries_runs.Filter(where=conditions.parse(text, COLUMNS)).states
    assert allowed["state=running"] == {"running"}
    assert allowed["state=failed or state=timed_out"] == {"failed", "timed_out"}
    assert "completed" not in allowed["state!=completed"]
    assert allowed["id=x"] == allowed["age>1h"] >= {"completed", "running"}


# -- pages and forms


@pytest.mark.usefixtures("orders")
def test_pages_follow_each_other(at_database: Any) -> None:
    """The printed command shows the next page; all pages together are the list."""
    words, found = ["ps", "--limit", "4", "--where", "state!=failed"], []
    while words:
        answer = at_database(*words)
        found += [line.split()[0] for line in answer.out.splitlines()[1:]]
        words = shlex.split(answer.err.removeprefix("more: pyengine "))
    assert found == ["letter", *(f"order-{n}" for n in (9, 8, 7, 6, 5, 4, 3, 2, 0))]
    missing = at_database("ps", "--after", "nowhere")
    assert (missing.code, "no run 'nowhere'" in missing.err) == (3, True)


@pytest.mark.usefixtures("orders")
def test_a_run_that_starts_meanwhile_moves_no_page(at_database: Any, conn: Connection) -> None:
    """Pages are found by a run, not by its position."""
    first = listed(at_database, "--limit", "3")
    conn.execute("select durable.start('checkout', id => 'new')")
    second = listed(at_database, "--limit", "3", "--after", first[-1])
    assert (first, second) == (["letter", "order-9", "order-8"], ["order-7", "order-6", "order-5"])


@pytest.mark.usefixtures("orders")
def test_forms_of_the_answer(at_database: Any) -> None:
    """json is --json; csv has every column of it; wide cuts nothing and has more columns."""
    assert [run["id"] for run in at_database("ps", "-o", "json").document] == listed(at_database)
    written = at_database("ps", "--output", "csv", "--where", "id=order-1 or id=order-2").out
    paused, failed = csv.DictReader(io.StringIO(written))
    assert (paused["id"], paused["state"], json.loads(paused["args"])) == ("order-2", "paused", ["order-2"])
    assert (failed["state"], json.loads(failed["error"])["type"]) == ("failed", "Oops")
    assert list(paused) == list(at_database("ps", "--json").document[0])
    wide = at_database("ps", "-o", "wide").out
    assert {"VERSION", "QUEUE", "CREATED"} <= set(wide.splitlines()[0].split())
    journal = list(csv.DictReader(io.StringIO(at_database("show", "order-1", "-o", "csv").out)))
    assert [row["event"] for row in journal] == ["ExecutionStarted", "ExecutionFailed"]
    assert '["order-1"]' in at_database("show", "order-1", "-o", "wide").out
    for words in (("ps", "--json", "-o", "csv"), ("ps", "--watch"), ("ps", "--watch", "-o", "json")):
        assert at_database(*words).code == 2
    error = at_database("show", "nowhere", "-o", "json")
    assert (error.code, error.document["error"]["type"]) == (3, "NotFound")


def test_values_that_are_nested_deeply_are_shown_as_text(at_database: Any, conn: Connection) -> None:
    """Named values of a run are shown, however deep they are."""
    conn.execute("select durable.start('mail', id => 'a', any_workflow => true)")
    conn.execute("select durable.set_value('a', 'deep', %s::jsonb)", ("[" * 300 + "]" * 300,))
    for words in (("ps",), ("show", "a"), ("show", "a", "--json")):
        answer = at_database(*words)
        assert (words, answer.code, "deep" in answer.out) == (words, 0, words != ("ps",))


# -- ids


@pytest.mark.usefixtures("orders", "person")
def test_a_beginning_finds_its_run(at_database: Any, conn: Connection) -> None:
    """The only id that begins so is found, by commands that change it too; an id is itself first."""
    conn.execute("select durable.start('checkout', id => n) from unnest('{order-44,a,ab}'::text[]) n")
    assert at_database("show", "lett", "--json").document["run"]["id"] == "letter"
    assert at_database("show", "order-4", "--json").document["run"]["id"] == "order-4"
    assert at_database("show", "a", "--json").document["run"]["id"] == "a"
    paused = at_database("pause", "lett")
    assert (paused.code, "letter  paused" in paused.out, paused.err) == (
        *(0, True),
        "lett stands for letter\nit continues with: pyengine resume letter\n",
    )
    many = at_database("resume", "lett", "order-2")
    assert (many.code, "2 done" in many.out) == (0, True)
    assert at_database("check", "lett").code == 0


@pytest.mark.usefixtures("orders", "person")
def test_an_ambiguous_beginning_lists_candidates(at_database: Any, conn: Connection) -> None:
    """Several runs are listed, a few of them; nothing is done."""
    for words in (
        ("show", "order"),
        ("cancel", "order"),
        ("ps", "--after", "ord…"),
        ("pause", "order", "letter"),
    ):
        answer = at_database(*words)
        assert (words, answer.code, answer.out) == (words, 2, "")
        assert answer.err.splitlines()[1:4] == ["  order-0", "  order-1", "  order-2"]
        assert "type more" in answer.err
    assert len(at_database("show", "order").err.splitlines()) == 11
    assert {state for (state,) in conn.execute("select state from durable.live")} == {"queued", "paused"}


@pytest.mark.usefixtures("orders")
def test_programs_write_whole_ids(at_database: Any, conn: Connection) -> None:
    """Without a terminal a beginning changes no run; an ellipsis says that the id is not whole."""
    refused = at_database("cancel", "lett")
    assert (refused.code, "letter" in refused.err) == (3, True)
    assert at_database("cancel", "lett", "none", "--json").document[0]["outcome"] == "not_found"
    assert at_database("show", "lett").code == 0
    for text in ("lett…", "le...r", "l…er"):
        assert (text, at_database("pause", text).code) == (text, 0)
    assert conn.execute("select state from durable.runs where id = 'letter'").fetchone() == ("paused",)


def test_child_runs_are_found_below_their_run(at_database: Any, conn: Connection, player: Any) -> None:
    """A beginning of a run's id is no beginning of its children's; theirs begin behind its point."""
    conn.execute("select durable.start('parent', '[1]', id => 'family')")
    (task,) = player.claim("parent")
    made = {"do": "run", "name": "child", "version": "1", "hash": input_hash("child", "[2]"), "param": "[2]"}
    commands = [made | {"child": n} for n in (0, 1)]
    player.report(task, commands=commands, end={"do": "suspend", "on": [0, 1], "kind": "all"})
    shown = {text: at_database("show", text, "--json") for text in ("fam", "family.1", "fam…y.0", "f…y")}
    assert [answer.document["run"]["id"] for answer in shown.values()] == [
        *("family", "family.1", "family.0", "family"),
    ]
    assert at_database("show", "family.").code == 2


@pytest.mark.usefixtures("person")
def test_promises_are_settled_by_their_beginning(at_database: Any, conn: Connection) -> None:
    """A promise that is no run is found too where promises are meant."""
    conn.execute("select durable.create_promise('invoice-77')")
    assert at_database("show", "inv").code == 3
    assert "1 done" in at_database("settle", "inv", "--value", "1").out


# -- widths


@given(st.lists(st.text(min_size=1, max_size=60), min_size=1, max_size=5), st.integers(3, 40))
@settings(max_examples=150, deadline=None)
def test_cut_ids_fit_and_lead_back(ids: list[str], width: int) -> None:
    """A cut id has its width at most, and the beginning and the end of the id."""
    for id, shorter in zip(ids, cut_all(ids, width), strict=True):
        assert cell_len(shorter) <= width
        head, _, tail = shorter.partition(ELLIPSIS)
        assert shorter == id or (id.startswith(head) and id.endswith(tail))


def test_cut_ids_are_different() -> None:
    """Ids are cut in their middle, at another place if they would be equal there."""
    assert cut("order-2027-000417", 11) == "order…00417"
    assert cut("short", 11) == "short"
    assert cut("日本語日本語", 8) == "日本…語"
    alike = [f"customer-{n:04}-of-the-january-import" for n in range(3)]
    assert len(set(cut_all(alike, 20))) == 3
    assert {len(id) for id in cut_all(alike, 20)} == {20}


def test_columns_give_way_by_rank() -> None:
    """A column is cut to its least width before the least important one is left out."""
    texts = {"a": 30, "b": 5, "c": 50}
    columns = [
        Column(title=name, cells=["x" * size], rank=rank, least=10)
        for rank, (name, size) in enumerate(texts.items())
    ]
    assert widths(columns, None) == {0: 30, 1: 5, 2: 50}
    assert widths(columns, 60) == {0: 30, 1: 5, 2: 21}
    assert widths(columns, 29) == {0: 10, 1: 5, 2: 10}
    assert widths(columns, 28) == {0: 21, 1: 5}
    assert widths(columns, 8) == {0: 8}
    spare = [*columns, Column(title="n", cells=["1"], rank=3, spare=True)]
    assert (widths(spare, 92)[3], 3 in widths(spare, 91)) == (1, False)
    patient = [replace(columns[0], enough=12), *columns[1:]]
    assert widths(patient, 60) == {0: 12, 1: 5, 2: 39}
    assert widths(patient, 80) == {0: 21, 1: 5, 2: 50}
