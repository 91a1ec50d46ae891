"""A promise whose run declares a type, and what each way to settle it must refuse."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.verbs import Connection, ask, begin_run, promise, report, suspend, take_turn

TYPED = '{"type": "object", "required": ["by", "ok"]}'
FAULTS = {
    "7": "is of type number, not object",
    '{"by": 1}': "lacks 'ok'",
    "null": "is of type null, not object",
}


def is_held_to_its_type(conn: Connection, settle: str, *, tells: bool = False) -> None:
    """A promise takes no other JSON type and no object that lacks a key; it stays pending, an answer that
    fits settles it, a rejection needs no type, and the same again is answered as before.

    Args:
        settle: statement of an id and a value.
        tells: whether it answers `refused` instead of failing.
    """
    held = begin_run(conn, "r")
    commands = [promise(0) | {"param": TYPED}, promise(1) | {"param": TYPED}]
    take_turn(conn, "W", report(held, commands=commands, end=suspend(0, 1), seen=held.next))
    for value, fault in FAULTS.items():
        if tells:
            assert ask(conn, (settle, ("r.0", value))) == ("refused",)
            continue
        with pytest.raises(psycopg.Error) as caught, conn.transaction():
            ask(conn, (settle, ("r.0", value)))
        assert caught.value.sqlstate == "WF004"
        assert caught.value.diag.message_primary == f"The answer to promise 'r.0' {fault}."
    assert ask(conn, ("select state from durable._promises where id = 'r.0'", ())) == ("pending",)
    for _ in range(2):
        ask(conn, (settle, ("r.0", '{"by": "Ada", "ok": true}')))
    assert ask(conn, ("select state from durable._promises where id = 'r.0'", ())) == ("resolved",)
    ask(conn, ("select durable.reject('r.1', '7')", ()))
