"""Tables of users that runs wait for rows of, and what tests say to them.

What lives here: a table of orders with a watch, a command that waits for one of its rows, and the round of
housekeeping that ends such waits. May not: assert.
"""

from __future__ import annotations

import json
import time
from typing import Any

from tests.support.verbs import HASH, Connection, Held, ask, begin_run, report, suspend, take_turn, tick

ORDERS = "create table orders (id bigint primary key, status text not null, total numeric)"
WATCH = "select durable.watch('orders', 'paid', key => '{id}', condition => $$status = 'paid'$$)"


def shop(conn: Connection) -> None:
    """A table of orders, of which runs may wait for those that are paid."""
    conn.execute(ORDERS)
    conn.execute(WATCH)


def until(child: int, key: object = None, *, name: str = "orders.paid", **more: Any) -> dict[str, Any]:
    """A command: wait for a row; of order 1 unless told otherwise."""
    text = json.dumps({"id": 1} if key is None else key)
    return {"do": "until", "child": child, "name": name, "hash": HASH, "param": text, **more}


def wait_for(conn: Connection, id_: str, key: object = None, *, worker: str = "W", **more: Any) -> Held:
    """A run that has suspended over a wait for a row; its promise is <id>.0."""
    held = begin_run(conn, id_, worker)
    take_turn(conn, worker, report(held, commands=[until(0, key, **more)], end=suspend(0), seen=held.next))
    return held


def waits(conn: Connection) -> list[tuple[Any, ...]]:
    """Promise and whether the triggers have it, of every wait."""
    return conn.execute(
        "select promise_id, test_at is null from durable._row_waits order by promise_id"
    ).fetchall()


def events(conn: Connection) -> int:
    """How many news lie there."""
    return int(ask(conn, ("select count(*) from durable._row_events", ()))[0])


def settle_rows(conn: Connection, rounds: int = 20) -> int:
    """Housekeeping until it has nothing more to do at once; answers how many promises it settled."""
    settled = 0
    for _ in range(rounds):
        answer = tick(conn)
        settled += int(answer["promises"])
        if not answer["more"] and (answer["next_due_ms"] is None or answer["next_due_ms"] >= 0):
            break
    return settled


def arm(conn: Connection) -> None:
    """Housekeeping until all waits are left to the triggers: when whoever writes on this server at the
    moment, in any database, has ended."""
    ends_s = time.monotonic() + 600
    while settle_rows(conn) or not all(armed for _, armed in waits(conn)):
        if time.monotonic() > ends_s:
            raise TimeoutError(f"not armed: {waits(conn)}")
        conn.execute("update durable._row_waits set test_at = 1 where test_at is not null")
        time.sleep(0.01)
