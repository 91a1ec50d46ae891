"""``pyengine call``: content-addressed calls, their results and attempts.

Lives here: its options and output. May not: contain SQL (``admin/queries_calls.py``), or decide. A call is
named by the id of its node, or the first digits of it. Every failure names the next command.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyengine.doors.cli.command import command
from pyengine.doors.cli.database import Database, Invocation, asked
from pyengine.doors.cli.display.columns import Column, print_columns
from pyengine.doors.cli.output import clip, compact, listed, printable, read_json, redact, span
from pyengine.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from rich.console import Console

_SHORT = 12
_FEWEST = 4
_PLANNED = {
    "pinned_hit": "hit",
    "shared_hit": "hit",
    "step_hit": "hit",
    "joined": "join",
    "started": "run",
    "excised": "failure",
}
Node = Annotated[str, typer.Argument(metavar="CALL", help="Id of the call node, or its first digits.")]
Scope = Annotated[
    str | None, typer.Option("--scope", "-s", help="The index, or the run; else the only one with this call.")
]

app = typer.Typer(
    help="Content-addressed calls: list, show, explain, run again.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@command(app)
def ls(
    at: Invocation,
    scope: Annotated[
        str | None, typer.Option("--scope", "-s", help="Only calls of this index or run.")
    ] = None,
    function: Annotated[
        str | None, typer.Option("--function", "-f", help="Only functions whose URI begins so.")
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Only attempts that go on.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most so many.")] = 20,
) -> None:
    """List attempts of calls, newest first."""
    from pyengine.doors.admin import queries_calls

    with asked(at, "call", "ls") as db:
        rows = queries_calls.attempts(db.conn, scope, function, limit, live=live)

    def show(console: Console) -> None:
        if not rows:
            console.print("no attempts of calls", soft_wrap=True)
            return
        states = [f"{row['state']} ({row['code']})" if row["code"] else row["state"] for row in rows]
        names, functions, scopes = (
            [clip(printable(row[key] or ""), 60) for row in rows] for key in ("name", "function", "scope")
        )
        columns = [
            Column(title="CALL", cells=[row["node"][:_SHORT] for row in rows], rank=0),
            Column(title="NAME", cells=names, rank=4, least=8, enough=16),
            Column(title="FUNCTION", cells=functions, rank=2, least=12, enough=24),
            Column(title="STATE", cells=states, rank=1, least=9),
            Column(title="GEN", cells=[str(row["generation"]) for row in rows], rank=5, right=True),
            Column(title="SCOPE", cells=scopes, rank=3, least=8, enough=16),
        ]
        print_columns(console, columns, at.out.width())

    at.out.answer(rows, show)


@command(app)
def show(at: Invocation, call: Node) -> None:
    """Show a call: its function, inputs, results by scope, and attempts."""
    from pyengine.doors.admin import queries_calls

    with asked(at, "call", "ls") as db:
        document = _call(at, db, call)
        document["pins"] = queries_calls.pins(db.conn, document["node"])
        document["attempts"] = queries_calls.history(db.conn, document["node"])
        document["unserved"] = queries_calls.unserved(db.conn, document["node"])
        for pin in document["pins"]:
            pin["value"], pin["problem"] = queries_calls.value(db.conn, pin["dag"], pin["scope"])
    at.out.answer(document, lambda console: _print_call(console, document))


@command(app, "why")
def explain_miss(at: Invocation, call: Node, scope: Scope = None) -> None:
    """Explain what a call would find in a scope: its result, or why it would run and what differs."""
    from pyengine.doors.admin import queries_calls

    with asked(at, "call", "ls") as db:
        node = _call(at, db, call)["node"]
        document = queries_calls.explain(db.conn, _scope(at, db, node, scope), node)
        document["attempts"] = queries_calls.history(db.conn, node)
        document["unserved"] = queries_calls.unserved(db.conn, node)

    def show(console: Console) -> None:
        texts = [f"{_PLANNED.get(document['at'], document['at'])}: {document['at'].replace('_', ' ')}"]
        texts += [f"  because {document['reason']}"] if document.get("reason") else []
        for one in (document.get("nearest") or {}).get("differences", []):
            place = f"{one['what']}{one.get('path') or ''}"
            texts.append(
                f"  {place}: {_plain(one['recorded'])} was recorded, {_plain(one['asked'])} is asked"
            )
        last = document["attempts"][-1] if document["attempts"] else None
        if last and last["message"]:
            texts.append(f"  its last attempt: {last['code']}: {last['message']}")
        texts += _waiting(document)
        for text in texts:
            console.print(printable(text), soft_wrap=True)

    at.out.answer(document, show)


@command(app)
def retry(at: Invocation, call: Node, scope: Scope = None) -> None:
    """Run a call again; its result replaces the pin of the scope."""
    from pyengine.doors.admin import queries_calls

    with asked(at, "call", "ls") as db:
        node = _call(at, db, call)["node"]
        document = queries_calls.retry(db.conn, _scope(at, db, node, scope), node)
    text = f"{node[:_SHORT]}  {document['at']}, attempt {document['generation']}"
    at.out.answer(document, lambda console: console.print(text))


@command(app)
def cancel(at: Invocation, call: Node, scope: Scope = None) -> None:
    """Give a call up in a scope; its attempt ends if nothing else waits for it."""
    from pyengine.doors.admin import queries_calls

    with asked(at, "call", "ls") as db:
        node = _call(at, db, call)["node"]
        name = _scope(at, db, node, scope)
        state = queries_calls.cancel(db.conn, name, node)
    text = f"{node[:_SHORT]}  {state.replace('_', ' ')}"
    at.out.answer({"node": node, "scope": name, "state": state}, lambda console: console.print(text))


@command(app)
def invalidate(
    at: Invocation, function: Annotated[str, typer.Argument(help="URI of the function, as ls shows it.")]
) -> None:
    """Share the results of a function no more; scopes keep what they have pinned."""
    from pyengine.doors.admin import queries_calls

    with asked(at, "call", "ls") as db:
        number = queries_calls.invalidate(db.conn, function)
    text = f"{number} call{'s' if number != 1 else ''} of {function} will run again"
    at.out.answer(
        {"function": function, "calls": number},
        lambda console: console.print(printable(text), soft_wrap=True),
    )


@command(app)
def plan(
    at: Invocation,
    scope: Annotated[str, typer.Argument(help="The index in which they would be made.")],
    calls: Annotated[
        str,
        typer.Argument(metavar="FILE", help='JSON: [{"function": URI, "args": [...]}, ...]; - is stdin.'),
    ] = "-",
) -> None:
    """Tell which calls would be answered, join an attempt, or run; nothing is started or stored."""
    from pyengine.doors.admin import queries_calls

    wanted = _read_calls(calls)
    with asked(at, "call", "ls") as db, db.conn.transaction(force_rollback=True):
        rows = queries_calls.plan(db.conn, scope, wanted)
    counts = Counter(_PLANNED.get(row["at"], row["at"]) for row in rows)
    summary = ", ".join(
        f"{counts[kind]} {kind}{'' if counts[kind] == 1 else plural}"
        for kind, plural in (("hit", "s"), ("join", "s"), ("run", "s"), ("failure", "s"))
        if counts[kind] or kind != "failure"
    )

    def show(console: Console) -> None:
        for row, one in zip(rows, wanted, strict=True):
            reason = f"  ({row['reason']})" if row["reason"] else ""
            line = f"{row['node'][:_SHORT]}  {row['at']:10}  {one['function']}{reason}"
            console.print(printable(line), soft_wrap=True)
        console.print(summary)

    at.out.answer({"summary": summary, "calls": rows}, show)


Head = Annotated[str, typer.Argument(metavar="HEAD", help="Name of the head.")]
Url = Annotated[
    str, typer.Argument(metavar="REMOTE", help="file:///a/folder, or postgresql://... of another database.")
]


@command(app)
def push(at: Invocation, head: Head, remote: Url) -> None:
    """Send a head, with all results that it pins, to a remote."""
    _exchange(at, head, remote, "push")


@command(app)
def pull(at: Invocation, head: Head, remote: Url) -> None:
    """Get a head, with all results that it pins, from a remote; an index on it has these results."""
    _exchange(at, head, remote, "pull")


def _exchange(at: Invocation, head: str, url: str, verb: str) -> None:
    import asyncio

    from pyengine.app import App

    async def moved(database_url: str) -> dict[str, Any]:
        async with App(database_url).remote(url) as remote:
            ref = await (remote.push(head) if verb == "push" else remote.pull(head))
        return {"head": head, "commit": ref.commit.hex(), "version": ref.version}

    with at.database() as db:
        document = asyncio.run(moved(db.url))
    where = redact(url) if verb == "push" else "here"
    text = f"{head} is {document['commit'][:_SHORT]}, version {document['version']}, {where}"
    at.out.answer(document, lambda console: console.print(printable(text), soft_wrap=True))


def _read_calls(path: str) -> list[dict[str, Any]]:
    example = (
        """echo '[{"function": "dml+exec://local/sort", "args": [[2, 1]]}]' | pyengine call plan exp-7"""
    )
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        found = read_json(text)
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"the calls cannot be read: {error}", hint=example) from None
    if not isinstance(found, list) or not all(
        isinstance(one, dict)
        and isinstance(one.get("function"), str)
        and isinstance(one.get("args", one.get("inputs")), list)
        for one in found
    ):
        raise InvalidRequest("calls are a list of objects with function and args", hint=example)
    return found


def _call(at: Invocation, db: Database, call: str) -> dict[str, Any]:
    """Return the one call that an id, or its beginning, names."""
    from pyengine.doors.admin import queries_calls

    digits = call.lower()
    if len(digits) < _FEWEST or set(digits) - set("0123456789abcdef"):
        raise InvalidRequest(
            f"{clip(call, 80)!r} is no id of a call: 64 hexadecimal digits, or the first {_FEWEST} and more",
            hint=at.line("call", "ls"),
        )
    found = queries_calls.nodes_like(db.conn, digits)
    if len(found) > 1:
        raise InvalidRequest(
            f"several calls begin with {digits}: {listed(found)}", hint=at.line("call", "show", found[0])
        )
    document = queries_calls.node(db.conn, found[0]) if found else None
    if document is None:
        raise NotFound(f"there is no call {clip(call, 80)!r}", hint=at.line("call", "ls"))
    return document


def _scope(at: Invocation, db: Database, node: str, scope: str | None) -> str:
    """Return the scope that is named, or the only one in which the call is known."""
    from pyengine.doors.admin import queries_calls

    if scope is not None:
        return scope
    known = {row["scope"] for row in queries_calls.pins(db.conn, node)}
    known |= {name for row in queries_calls.history(db.conn, node) for name in row["scopes"]}
    if len(known) == 1:
        return str(known.pop())
    raise InvalidRequest(
        f"call {node[:_SHORT]} is known in {len(known)} scopes: {listed(sorted(known))}",
        hint=f"add --scope; {at.line('call', 'show', node[:_SHORT])} lists them",
    )


def _print_call(console: Console, document: dict[str, Any]) -> None:
    console.print(printable(f"{document['node']}  {document['function']}"), style="bold", soft_wrap=True)
    for place, one in enumerate(document["inputs"], 1):
        text = f"call {one['node'][:_SHORT]}" if one["kind"] != "literal" else _plain(one["value"])
        console.print(printable(f"  input {place}: {text}"), soft_wrap=True)
    for pin in document["pins"]:
        stale = ", computed from an input that was pinned before" if pin["stale"] else ""
        found = _plain(pin["value"]) if pin["problem"] is None else f"no value: {pin['problem']}"
        text = f"  {pin['status']} in {pin['scope']}{stale}: {found}"
        console.print(printable(text), soft_wrap=True)
    for one in document["attempts"]:
        took = span(one["ended_at"] - one["started_at"]) if one["ended_at"] else "goes on"
        error = f": {one['code']}: {one['message']}" if one["code"] else ""
        polls = f"{one['polls']} poll{'' if one['polls'] == 1 else 's'}"
        text = f"  attempt {one['generation']}: {one['state']}, {polls}, {took}{error}"
        console.print(printable(text), soft_wrap=True)
    for text in _waiting(document):
        console.print(printable(text), soft_wrap=True)


def _waiting(document: dict[str, Any]) -> list[str]:
    """Return the line that says for which worker a call waits, if there is none."""
    name = document["unserved"]
    if name is None:
        return []
    verb = "worker MODULE:APP" if name.startswith("python.") else f"adapter worker --adapter {name}"
    return [f"  it waits: no worker serves {name}; pyengine {verb}"]


def _plain(tagged: Any) -> str:
    """Return a value with types as people read it, one line."""
    return "nothing" if tagged is None else clip(compact(_untagged(tagged)), 100)


def _untagged(tagged: Any) -> Any:
    if not isinstance(tagged, dict) or len(tagged) != 1:
        return tagged
    ((kind, content),) = tagged.items()
    if kind in ("list", "set"):
        return [_untagged(one) for one in content]
    if kind == "map":
        return {_key(_untagged(key)): _untagged(one) for key, one in content}
    return content


def _key(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
