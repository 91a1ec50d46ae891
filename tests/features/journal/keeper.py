"""A client that keeps a journal: what it says to durable.journal_append, and what it reads back.

Entries are told in the form of the published catalogue, {seq, ts, type, payload}, with promise ids and
attempts inside the payload. Nothing here decides or asserts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from tests.support.verbs import Connection

Json = dict[str, Any]
TABLES = (
    "_promises",
    "_tasks",
    "_executions",
    "_journal",
    "_callbacks",
    "_resumes",
    "_inboxes",
    "_signals",
    "_join_sets",
    "_members",
    "_listeners",
    "_unblocks",
)
# what stands in columns of the view and belongs to the payload in the catalogue
_WITH_ATTEMPT = ("InvokeStarted", "InvokeCompleted")
_OF_A_SET = ("JoinSetCreated", "JoinSetSubmitted", "JoinSetAwaited")
_ENTRIES = """
select j.seq, (extract(epoch from j.at) * 1000)::bigint, j.event, j.payload, j.promise_id, j.attempt
from durable.journal_events j where j.id = %s and j.seq >= %s order by j.seq
"""
_STATE = """
select h.status, h.next_child, h.next_seq, coalesce(j.payload, 'null')
from durable._executions h
left join durable.journal_events j on h.status = 'blocked' and j.id = h.id and j.event = 'ExecutionAwaiting'
where h.id = %s order by j.seq desc limit 1
"""
_EVERYTHING = (
    b"select md5(concat("
    + b", ".join(
        f"(select string_agg(x::text, '|' order by x::text) from durable.{table} x)".encode()
        for table in TABLES
    )
    + b"))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an append answers: number of the event, status of the run, number of its next child."""

    seq: int
    status: str
    next_child: int


def say(conn: Connection, run: str | None, version: int | None, event: str | None, payload: Any) -> Answer:
    """The call as it stands, whatever it says."""
    row = conn.execute(
        "select * from durable.journal_append(%s, %s, %s, %s)",
        (run, version, event, None if payload is None else Jsonb(payload)),
    ).fetchone()
    assert row is not None
    return Answer(seq=row[0], status=row[1], next_child=row[2])


def append(
    conn: Connection, run: str, event: str, payload: Json | None = None, *, version: int = 1
) -> Answer:
    """Append one event; an ExecutionStarted names no version."""
    return say(conn, run, None if event == "ExecutionStarted" else version, event, payload or {})


def begin(conn: Connection, run: str = "j", **payload: Any) -> Answer:
    """Start a run with a digest and an input of no account."""
    return append(conn, run, "ExecutionStarted", {"component_digest": "d", "input": "in", **payload})


def unsaid(conn: Connection, run: str | None, version: int | None, event: str | None, payload: Any) -> str:
    """SQLSTATE and detail of a call that fails; empty if it does not."""
    try:
        with conn.transaction():
            say(conn, run, version, event, payload)
    except psycopg.Error as error:
        return f"{error.sqlstate} {error.diag.message_primary}"
    return ""


def refused(conn: Connection, run: str, event: str, payload: Json | None = None, *, version: int = 1) -> str:
    """SQLSTATE and detail of an append that fails; empty if it does not."""
    return unsaid(conn, run, None if event == "ExecutionStarted" else version, event, payload or {})


def entries(conn: Connection, run: str, since: int = 0) -> list[Json]:
    """The journal from a sequence number on."""
    told = []
    for seq, ts, event, payload, promise_id, attempt in conn.execute(_ENTRIES, (run, since)).fetchall():
        whole = dict(payload or {})
        if promise_id is not None and event not in _OF_A_SET:
            whole["promise_id"] = promise_id
        if event in _WITH_ATTEMPT:
            whole["attempt"] = attempt
        told.append({"seq": seq, "ts": ts, "type": event, "payload": whole})
    return told


def state(conn: Connection, run: str) -> tuple[Json, int, int] | None:
    """Status with its wait, next child and length of the journal; None where there is no such run."""
    row = conn.execute(_STATE, (run,)).fetchone()
    if row is None:
        return None
    status, next_child, length, wait = row
    return {"tag": status.capitalize(), **(wait or {})}, next_child, length


def everything(conn: Connection) -> str:
    """A mark of all that is stored: equal before and after means that nothing changed."""
    row = conn.execute(_EVERYTHING).fetchone()
    assert row is not None
    return str(row[0])


def types(conn: Connection, run: str) -> list[str]:
    """The events of a journal by name."""
    return [entry["type"] for entry in entries(conn, run)]
