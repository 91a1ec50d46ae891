"""Law: a payload over the limit is refused by name and size before anything is written; any text can be
shown to people."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.support.verbs import (
    NEVER,
    Call,
    Connection,
    Held,
    ask,
    begin_run,
    broken,
    complete,
    create,
    done,
    fail,
    promise,
    refusal,
    report,
    run,
    take,
    turn,
)

BIG = '"' + "x" * 5_000 + '"'
DOORS: dict[str, Call] = {
    "start": ("select durable.start('w', %s::jsonb, id => 'r')", (f"[{BIG}]",)),
    "promise_create": ("select durable.promise_create('p', %s, %s)", (NEVER, BIG)),
    "promise_settle": ("select durable.promise_settle('x', 'resolved', %s)", (BIG,)),
    "task_fulfill": ("select durable.task_fulfill('t', 1, 'resolved', %s)", (BIG,)),
    "task_fence_settle": ("select durable.task_fence_settle('t', 1, 'x', 'resolved', %s)", (BIG,)),
    "task_fence_create": ("select durable.task_fence_create('t', 1, 'p', %s, %s)", (NEVER, BIG)),
}


@pytest.mark.parametrize("door", DOORS)
def test_entry_points_refuse_too_large_payloads(conn: Connection, door: str) -> None:
    """Every door that takes a payload refuses one over the limit, and takes it when the limit allows it."""
    ask(conn, create("x", external="true"))
    take(conn, "t")
    ask(conn, ("select durable.set_setting('payload_max_bytes', '4000')", ()))
    assert refusal(conn, DOORS[door]) == "WF008"
    ask(conn, ("select durable.set_setting('payload_max_bytes', '10000')", ()))
    assert refusal(conn, DOORS[door]) == ""


def test_the_refusal_names_object_and_size(conn: Connection) -> None:
    """The error says which payload, how many bytes, and the limit."""
    ask(conn, ("select durable.set_setting('payload_max_bytes', '4000')", ()))
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        conn.execute("select durable.promise_create('order-7', %s, %s)", (NEVER, BIG))
    assert (
        caught.value.diag.message_primary
        == "Parameter of promise 'order-7' has 5002 bytes, the limit is 4000."
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"a": 1}', {"a": 1}),
        ("not json", "not json"),
        ('"a\\u0000b"', '"a\\u0000b"'),
        ("", ""),
        (None, None),
        ("NaN", "NaN"),
    ],
)
def test_json_of_any_text(conn: Connection, text: str | None, shown: object) -> None:
    """Text that is JSON is shown as such, any other as a string, and nothing raises."""
    assert ask(conn, ("select durable._json(%s)", (text,))) == (shown,)


@pytest.mark.parametrize(
    ("state", "kind"),
    [("rejected_timedout", "Timeout"), ("rejected_canceled", "Cancelled"), ("rejected", "Rejected")],
)
def test_an_error_is_never_missing(conn: Connection, state: str, kind: str) -> None:
    """A rejected promise has an error that says why, also where nobody gave one."""
    assert ask(conn, ("select durable._error_of(%s, null)::jsonb ->> 'type'", (state,))) == (kind,)
    assert ask(conn, ("select durable._error_of(%s, '{}')", (state,))) == ("{}",)


def nested(levels: int, mark: str = "[") -> str:
    """JSON of so many levels."""
    if mark == "[":
        return "[" * levels + "]" * levels
    return '{"a":' * (levels - 1) + "{}" + "}" * (levels - 1)


DEEP_DOORS: dict[str, tuple[str, int]] = {
    "start": ("select durable.start('w', %s::jsonb)", 0),
    "start by id": ("select durable.start('w', %s::jsonb, id => 'new')", 0),
    "start by name": ("select durable.start('w', jsonb_build_object('a', %s::jsonb))", 1),
    "start_many": ("select durable.start_many('w', array['[1]', %s]::jsonb[])", 0),
    "start_v1": (
        "select durable.start_v1('w', %s, null, null, 'default', '1', null, null, 0, '{}', '', true)",
        0,
    ),
    "signal": ("select durable.signal('r', 'go', %s::jsonb)", 0),
    "signal_v1": ("select durable.signal_v1('r', 'go', %s, null)", 0),
    "signal_many": ("select durable.signal_many('{r}', 'go', %s::jsonb)", 0),
    "cancel": ("select durable.cancel('r', %s::jsonb)", 0),
    "cancel_many": ("select durable.cancel_many('{r}', %s::jsonb)", 0),
    "resolve": ("select durable.resolve('x', %s::jsonb)", 0),
    "reject": ("select durable.reject('x', %s::jsonb)", 0),
    "settle_many": ("select durable.settle_many('{x}', value => %s::jsonb)", 0),
    "promise_create": ("select durable.promise_create('p', 9007199254740991, %s)", 0),
    "promise_settle": ("select durable.promise_settle('x', 'resolved', %s)", 0),
    "promise_resolve_v0": ("select durable.promise_resolve_v0('x', 'k', %s, null, false)", 0),
    "schedule_create": ("select durable.schedule_create('s', '0 3 * * *', 's.{{.id}}', 9, %s)", 0),
    "task_fulfill": ("select durable.task_fulfill('t', 1, 'resolved', %s)", 0),
    "fork": ("select durable.fork('stepped', set_values => jsonb_build_object('step', %s::jsonb))", 0),
}


def furnished(conn: Connection) -> Held:
    """What the doors act on."""
    ask(conn, create("x", external="true"))
    take(conn, "t")
    stepped = begin_run(conn, "stepped")
    ask(conn, turn("W", report(stepped, outcomes=[done(0)])))
    return begin_run(conn, "r")


def test_text_that_the_server_itself_cannot_read(conn: Connection) -> None:
    """JSON that is deeper than the server's own stack is refused in the same words, as text."""
    furnished(conn)
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        conn.execute("select durable.promise_settle('x', 'resolved', %s)", ("[" * 500_000,))
    assert caught.value.sqlstate == "WF004"
    assert (
        caught.value.diag.message_primary
        == "Value of promise 'x' is JSON that is nested deeper than 500 levels."
    )


@pytest.mark.parametrize(
    "parts",
    [
        lambda text: {"outcomes": [done(0, text)]},
        lambda text: {"outcomes": [broken(0) | {"error": text}]},
        lambda text: {"commands": [promise(0) | {"param": text}]},
        lambda text: {"commands": [run(0, param=text)]},
        lambda text: {"end": complete(text)},
        lambda text: {"end": fail(text)},
    ],
)
def test_reports_are_not_too_deep(conn: Connection, parts: Callable[[str], dict[str, Any]]) -> None:
    """A worker's turn is refused for a payload that is too deep, and for no other."""
    held = furnished(conn)
    assert refusal(conn, turn("W", report(held, **parts(nested(501))))) == "WF004"
    assert refusal(conn, turn("W", report(held, **parts(nested(500))))) == ""


@pytest.mark.parametrize(
    "text",
    [
        '"' + "[" * 2_000 + '"',
        "[" * 2_000 + "x",
        "[" + "[]," * 2_000 + "[]]",
        "{" + ",".join(f'"{number}": [{{}}]' for number in range(600)) + "}",
        "x" * 2_000,
        "\\u0000[" * 700,
    ],
)
def test_brackets_are_not_levels(conn: Connection, text: str) -> None:
    """Many brackets side by side, in a text, or in what is no JSON, are not deep."""
    furnished(conn)
    assert ask(conn, ("select durable._is_deep(%s::text)", (text,))) == (False,)
    assert refusal(conn, ("select durable.promise_settle('x', 'resolved', %s)", (text,))) == ""


def tags(size: int) -> str:
    """Tags whose text has so many bytes."""
    return json.dumps({"t": "x" * (size - len('{"t": ""}'))})


TAG_DOORS = {
    "start": "select durable.start('w', id => 'new', tags => %s)",
    "start_many": "select durable.start_many('w', '{\"[]\",\"[]\"}', tags => %s)",
    "promise_create": "select durable.promise_create('p', 9007199254740991, p_tags => %s)",
    "schedule_create": (
        "select durable.schedule_create('s', '0 3 * * *', 's.{{.id}}', 9, p_promise_tags => %s)"
    ),
}
