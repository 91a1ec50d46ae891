"""Law: a payload over the limit is refused by name and size before anything is written; any text can be
shown to people."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.verbs import NEVER, Call, Connection, ask, create, refusal, take

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
def test_doors_refuse_what_is_too_large(conn: Connection, door: str) -> None:
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
        caught.value.diag.message_detail
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
