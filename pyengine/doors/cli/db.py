"""Commands about the database: ``pyengine db init|migrate|adopt|status|set|purge|psql``, and the facade.

Lives here: their options and their output. May not: contain SQL (``admin/queries.py``, ``doors.admin``).
"""

from __future__ import annotations

import difflib
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyengine.doors.cli.command import ListenUrl, command
from pyengine.doors.cli.database import Database, Invocation
from pyengine.doors.cli.output import clip, listed, printable, redact, table
from pyengine.doors.cli.runs import checked_age
from pyengine.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from rich.console import Console

    from pyengine.doors.admin.migrate import Report
    from pyengine.doors.admin.queries import Waiting

OLDEST_SERVER = 150000
_REASONS = {
    "row": "a row of a table of yours refers to them by a foreign key",
    "journal": "the journal of another run reads their result",
    "awaited": "a run waits for them, or was woken and has not read them yet",
    "undelivered": "a listener has not been notified of their end",
    "busy": "not all of their children have ended that long ago, or they are locked just now",
}

app = typer.Typer(
    help="The database: install the schema, look at it, change settings.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@command(app)
def init(
    at: Invocation,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", help="Also debug operations, which set the clock and empty the database: for tests."
        ),
    ] = False,
) -> None:
    """Install the schema, or migrate it to this version; repeating that changes nothing.

    Without --debug, an init or a migrate removes the debug operations of an earlier init --debug.
    """
    from pyengine.doors.admin import migrate

    with at.database(create=True, schema=False) as db:
        _refuse_old_server(db)
        _report(at, db, migrate.install(db.url, debug=debug))


@command(app, "migrate")
def migrate_schema(
    at: Invocation,
    sql: Annotated[
        bool,
        typer.Option("--sql", help="Print the migration as a script for psql; the database is not changed."),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show what would be applied, and the table locks it takes. It disturbs like the migration, "
            "for 2 s at most: it takes the locks, gives up one that is not free in 0.1 s, and rolls back.",
        ),
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            help="How many seconds each part is tried again while others hold its locks.", min=0, max=604800
        ),
    ] = 60,
    block: Annotated[
        float,
        typer.Option(
            help="How many seconds others may wait behind one try: choose more than your transactions last.",
            min=0.01,
            max=60,
        ),
    ] = 0.25,
) -> None:
    """Migrate an installed schema to this version of pyengine, while workers of both versions run.

    A migration that ends half way leaves a database for both; migrate again, and it goes on from there. A
    step that contracts is left for later while a worker of an older version is connected.
    """
    from pyengine.doors.admin import migrate, rehearsal
    from pyengine.doors.admin.migration_locks import Limits

    if sql and dry_run:
        raise InvalidRequest("--sql and --dry-run are two questions", hint="leave one of them out")
    with at.database(schema=False) as db:
        if not migrate.status(db.url).installed:
            raise NotFound("this database has no schema durable", hint=at.line("db", "init"))
        if sql:
            text = migrate.as_script(db.url)
            at.out.answer({"sql": text}, lambda _: typer.echo(text, nl=False))
        elif dry_run:
            document = asdict(rehearsal.rehearse(db.url))
            at.out.answer(document, lambda console: _show_rehearsal(console, document))
        else:
            limits = Limits(wait_s=wait, block_s=block)
            told = migrate.migrate(db.url, limits=limits, tell=lambda waiting: at.out.remark(str(waiting)))
            _report(at, db, told)


@command(app, "install-facade")
def install_facade(at: Invocation) -> None:
    """Install the schema resonate: SDKs of Resonate then use this database without a gateway.

    An upgrade keeps it up to date. The role resonate_worker may call it.
    """
    _set_facade(at, True)


@command(app, "uninstall-facade")
def uninstall_facade(at: Invocation) -> None:
    """Remove the schema resonate; promises and tasks of SDKs stay."""
    _set_facade(at, False)


def _set_facade(at: Invocation, wanted: bool) -> None:
    from pyengine.doors.admin import migrate

    with at.database() as db:
        changed = migrate.set_facade(db.url, wanted).changed
        document = {"place": redact(db.place), "facade": wanted, "changed": changed}
    done = "installed" if wanted else "not there"
    at.out.answer(
        document,
        lambda console: console.print(
            f"the schema resonate is {done} in the {document['place']}", soft_wrap=True
        ),
    )


@command(app)
def adopt(
    at: Invocation,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Let a copy of a database run: a restored backup, or a database after pg_upgrade.

    Shows what would begin to run, and asks. Leases that came with the copy are given back.
    """
    from pyengine.doors.admin import queries

    with at.database() as db:
        site, waiting = queries.site(db.conn), queries.would_run(db.conn)
        adopted, leases = False, 0
        if site["state"] != "adopted":
            if waiting and not yes:
                _confirm_adoption(at, db, waiting)
            adopted, leases = queries.adopt(db.conn)
        document = {
            "place": redact(db.place),
            "adopted": adopted,
            "leases": leases,
            "would_run": [asdict(one) for one in waiting],
            "site": queries.site(db.conn),
        }
    done = f"adopted; {leases} leases were given back" if adopted else "no copy: nothing was done"
    at.out.answer(
        document, lambda console: console.print(f"the {document['place']} is {done}", soft_wrap=True)
    )


def _confirm_adoption(at: Invocation, db: Database, waiting: list[Waiting]) -> None:
    """Show what would begin to run, and ask.

    Raises:
        InvalidRequest: there is no terminal to ask on, or the answer is no.
    """
    for one in waiting:
        since = f", the oldest since {one.oldest_due:%Y-%m-%d %H:%M:%S %z}" if one.oldest_due else ""
        at.out.remark(f"{one.kind}: {one.waiting}, {one.due} of them due{since}")
    if at.out.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidRequest(
            f"work would begin in the {redact(db.place)}, and there is no terminal to confirm that on",
            hint="add --yes, if the original does not run any more, or both may run",
        )
    if not typer.confirm("All this begins to run here, also if the original still runs. Adopt?", err=True):
        raise InvalidRequest("nothing was adopted")


@command(app)
def status(at: Invocation, listen_url: ListenUrl = None) -> None:
    """Show server, pooler, schema, settings and counts; exit 5 if the schema is not up to date."""
    from pyengine.core.sources import VERSION
    from pyengine.doors.admin import migrate, queries
    from pyengine.doors.admin.queries_check import health
    from pyengine.doors.cli.display.health import print_problems
    from pyengine.doors.cli.pooler import detect

    with at.database(schema=False) as db:
        schema = migrate.status(db.url)
        server_version, size_bytes = queries.server(db.conn)
        pooler = detect(db, listen_url)
        document: dict[str, Any] = {
            "pyengine": VERSION,
            "database": {
                "place": redact(db.place),
                "embedded": db.target.embedded,
                "source": db.target.source,
                "url": redact(db.url),
                "server_version": server_version,
                "size_bytes": size_bytes,
                "psql": at.psql_line,
                "pooler": pooler.document(),
            },
            "schema": {**asdict(schema), "current": schema.current},
            "settings": [],
            "runs": {},
            "workers": [],
            "health": [],
            "site": None,
        }
        if schema.installed:
            document["settings"] = queries.settings(db.conn)
            if not schema.pending:  # the views of an older schema may not know these columns
                document["runs"] = queries.counts(db.conn)
                document["workers"] = queries.workers(db.conn)
            if schema.current:
                document["health"] = health(db.conn)
                document["site"] = queries.site(db.conn)
    at.out.answer(document, lambda console: _show_status(console, document, pooler.text()))
    print_problems(at.out, document["health"])
    if not schema.current:
        at.out.remark(
            f"the schema is not up to date; run: {at.line('db', 'migrate' if schema.installed else 'init')}"
        )
        raise typer.Exit(5)


@command(app, "set")
def change(
    at: Invocation,
    name: Annotated[str, typer.Argument(help="Name of the setting.")],
    value: Annotated[str, typer.Argument(help="Its new value.")],
) -> None:
    """Change a setting, from the next call on; settings of workers apply from their next start on."""
    from pyengine.doors.admin import queries

    if "\0" in value:
        raise InvalidRequest("a setting has no NUL character")
    with at.database() as db:
        known = [one.name for one in queries.settings(db.conn)]
        if name not in known:
            near = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
            ask = f"; did you mean {' or '.join(near)}?" if near else ""
            raise NotFound(
                f"there is no setting {clip(name, 60)!r}{ask}", hint="pyengine db status lists them"
            )
        old = queries.change_setting(db.conn, name, value)
    document = {"name": name, "old": old, "value": value}
    at.out.answer(document, lambda console: console.print(f"{name}: {old} -> {printable(value)}"))


@command(app)
def purge(
    at: Invocation,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="30d, 12h, 90m: how long ago they ended.")
    ],
) -> None:
    """Remove runs, promises and calls that ended that long ago, with all their data, unless needed."""
    from pyengine.doors.admin import queries

    span = checked_age(older_than)
    runs, promises, generations = 0, 0, 0
    kept: Counter[str] = Counter()
    with at.database() as db:
        part = queries.purge(db.conn, span, None)
        while True:  # each batch is a transaction, so that no lock lasts long
            runs, promises = runs + part["runs"], promises + part["promises"]
            generations += part["generations"]
            kept.update(part["kept"])
            if part["more"] is None:
                break
            part = queries.purge(db.conn, span, part["more"])
        part = queries.purge_calls(db.conn, span, None)
        calls = part["removed"]
        while part["more"] is not None:
            part = queries.purge_calls(db.conn, span, part["more"])
            calls += part["removed"]
    document = {
        "runs": runs,
        "promises": promises,
        "generations": generations,
        "kept": kept,
        "calls": calls,
    }

    def render(console: Console) -> None:
        console.print(f"removed {runs} runs, {promises} promises in all")
        if generations:
            console.print(f"removed {generations} earlier generations of runs that live")
        if calls:
            console.print(f"removed {calls} rows of calls")
        for why, count in kept.items():
            console.print(f"kept {count}: {_REASONS[why]}")

    at.out.answer(document, render)


@command(app, context_settings={"ignore_unknown_options": True})
def psql(
    at: Invocation,
    more: Annotated[
        list[str] | None, typer.Argument(metavar="[PSQL OPTIONS]...", help="Passed to psql.")
    ] = None,
) -> None:
    """Open the database in psql; the embedded server runs until psql ends."""
    with at.database(schema=False) as db:
        command_line = [*db.psql, *(more or [])]
        if at.out.json:
            at.out.answer({"command": command_line}, lambda _: None)
            return
        code = _run_psql(db, command_line)
    if code:
        raise typer.Exit(code)


def _run_psql(db: Database, command_line: list[str]) -> int:
    import psycopg

    password = psycopg.conninfo.conninfo_to_dict(db.url).get("password")
    environment = os.environ | ({"PGPASSWORD": str(password)} if password else {})
    interrupt = signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is psql's: it ends a query, not the server
    try:
        # the environment, not the command line, which every user of the machine can read
        running = subprocess.Popen(
            command_line, env=environment, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
        )
        return running.wait()
    except FileNotFoundError as error:
        raise NotFound(
            f"there is no program {command_line[0]} here",
            hint="install PostgreSQL's client (apt install postgresql-client), or: pyengine db psql --json",
        ) from error
    finally:
        signal.signal(signal.SIGINT, interrupt)


def _refuse_old_server(db: Database) -> None:
    if db.conn.info.server_version < OLDEST_SERVER:
        from pyengine.doors.admin import queries

        raise InvalidRequest(
            f"this server is PostgreSQL {queries.server(db.conn)[0]}, pyengine needs 15 or later",
            hint="name a newer one with --database-url, or unset it to use the embedded Postgres",
        )


def _report(at: Invocation, db: Database, report: Report) -> None:
    document = {"place": redact(db.place), **asdict(report), "changed": report.changed, "psql": at.psql_line}

    def render(console: Console) -> None:
        for step in report.applied:
            console.print(f"applied {step}")
        if report.logic:
            console.print("replaced functions and views")
        for name in report.dropped:
            console.print(f"dropped {printable(name)}")
        for step in report.left:
            console.print(f"left for later: {step}", soft_wrap=True)
        if report.left:
            older = listed([printable(worker) for worker in report.older])
            console.print(f"older workers are connected: {older}", soft_wrap=True)
            console.print(f"once they are gone: {at.line('db', 'migrate')}", soft_wrap=True)
        else:
            console.print(f"schema durable is up to date in the {redact(db.place)}", soft_wrap=True)
        console.print(f"look around: {at.psql_line}", style="dim", soft_wrap=True)

    at.out.answer(document, render)


def _show_rehearsal(console: Console, document: dict[str, Any]) -> None:
    for part in document["parts"]:
        took = "" if part["took_ms"] is None else f" ({part['took_ms']:.0f} ms)"
        steps = f" {listed(list(part['steps']))}" if part["steps"] else ""
        logic = ", functions and views" * part["logic"]
        console.print(f"{part['phase']}:{steps}{logic}{took}", soft_wrap=True)
        for lock in part["locks"]:
            line = f"  {lock['mode']} on {lock['relation']} for {lock['held_ms']:.0f} ms, {lock['taken_by']}"
            console.print(printable(line), soft_wrap=True)
        for name in part["dropped"]:
            console.print(f"  drops {printable(name)}", soft_wrap=True)
        if part["note"]:
            console.print(f"  {printable(part['note'])}", soft_wrap=True)
    for step in document["left"]:
        console.print(
            f"left for later: {step}, because of {listed([printable(one) for one in document['older']])}",
            soft_wrap=True,
        )
    if not document["parts"]:
        console.print("nothing to do")


def _show_status(console: Console, document: dict[str, Any], pooler: str) -> None:
    from rich.text import Text

    database, schema = document["database"], document["schema"]
    missing = "missing" if not schema["installed"] else "not up to date"
    facts = {
        "pyengine": document["pyengine"],
        "database": database["place"],
        "url": database["url"],
        "server": f"PostgreSQL {database['server_version']}, {database['size_bytes'] / 2**20:.1f} MiB",
        "pooler": pooler,
        "schema": ("up to date" if schema["current"] else missing)
        + (", with debug operations" * schema["debug"])
        + (", with the facade resonate" * schema["facade"]),
        "migrations": listed(list(schema["applied"])) or "none applied",
        "pending": listed(list(schema["pending"])),
        "psql": database["psql"],
        "runs": ", ".join(f"{number} {state}" for state, number in document["runs"].items()) or "none",
        "workers": listed([f"{one['id']} ({listed(one['workflows'])})" for one in document["workers"]])
        or "none",
    } | {one["subject"]: one["detail"] for one in document["health"]}
    for name, value in facts.items():
        if value:
            line = Text(f"{name:<19}", style="bold").append(printable(str(value)), style="not bold")
            console.print(line, soft_wrap=True)
    if document["settings"]:
        shown = table("SETTING", "VALUE", "")
        for one in document["settings"]:
            shown.add_row(one.name, printable(one.value), Text(printable(one.description), style="dim"))
        console.print()
        console.print(shown)
