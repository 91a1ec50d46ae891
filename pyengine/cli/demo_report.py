"""The report of ``pyengine demo``, as text and as a document.

Lives here: the findings about the files, and the account of the engine's work. May not: decide either.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from pyengine.admin import queries, queries_check
from pyengine.cli.display import timeline
from pyengine.cli.output import listed, printable, span, table
from pyengine.demo import effects
from pyengine.demo.records import Problem

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from pyengine.cli.database import Database
    from pyengine.demo.job import Job
    from pyengine.demo.run import Outcome

__all__ = ["Account", "collect", "document", "show"]

TABLE_ROWS = 12
PROBLEM_ROWS = 20
JOURNAL_ROWS = 14
SHORT_JOURNAL = 20
_QUERIES = (
    "select id, state, age, result from durable.runs",
    "select * from pyengine_demo.effects order by at",
)


class _Audit(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    files: int
    bytes: int
    skipped: int
    absent: bool
    problems: list[Problem]


class _Report(msgspec.Struct, frozen=True, kw_only=True):
    audits: list[_Audit]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The facts about an audit that has ended, from the database.

    Args:
        audits: the result of each distribution.
        repeated: bodies of steps that ran more than once.
        takeovers: interrupted attempts.
        child: a child run to be shown.
        journal: its journal.
        of_parent: the events about it in its parent's journal.
        broken_laws: rows of ``durable.check()``.
        command: the command for psql.
    """

    audits: list[_Audit]
    repeated: effects.Repeated
    takeovers: list[effects.Takeover]
    child: str | None
    journal: list[queries.Event]
    of_parent: list[queries.Event]
    broken_laws: list[dict[str, Any]]
    command: str

    @property
    def problems(self) -> list[Problem]:
        """The files that do not match RECORD."""
        return [problem for audit in self.audits for problem in audit.problems]


def collect(db: Database, outcome: Outcome, command: str) -> Account:
    """Read the facts about an audit from the database.

    Args:
        db: the database.
        outcome: the outcome of the audit.
        command: the command for psql.
    """
    found = msgspec.convert(outcome.value, _Report).audits if outcome.state == "completed" else []
    takeovers = effects.takeovers(db.conn, outcome.run_id)
    child = _example_child(db, outcome.run_id, takeovers)
    return Account(
        audits=found,
        repeated=effects.repeated(db.conn, outcome.run_id),
        takeovers=takeovers,
        child=child,
        journal=queries.events(db.conn, child) if child else [],
        of_parent=_about(db, outcome.run_id, child) if child else [],
        broken_laws=queries_check.broken_laws(db.conn),
        command=command,
    )


def _example_child(db: Database, root: str, takeovers: list[effects.Takeover]) -> str | None:
    """Return the child run to be shown: an interrupted one with a short journal, but not too short."""
    runs = queries.family(db.conn, root)
    interrupted = {one.run_id for one in takeovers}
    wanted = [run for run in runs if run.id in interrupted] or runs
    if not wanted:
        return None
    return min(wanted, key=lambda run: (run.events < SHORT_JOURNAL, run.events)).id


def _about(db: Database, root: str, child: str) -> list[queries.Event]:
    number = int(child.rpartition(".")[2])
    return [one for one in queries.events(db.conn, root) if one.child == number]


def document(job: Job, outcome: Outcome, account: Account) -> dict[str, Any]:
    """Return everything as one document."""
    return {
        "run_id": outcome.run_id,
        "found_finished": outcome.found_finished,
        "state": outcome.state,
        "error": outcome.error,
        "ok": outcome.state == "completed" and not account.problems,
        "seconds": round(outcome.seconds, 3),
        "places": job.places,
        "pause_ms": job.limits.pause_ms,
        "totals": _totals(account.audits),
        "distributions": [msgspec.to_builtins(audit) for audit in account.audits],
        "problems": [asdict(problem) for problem in account.problems],
        "kills": [asdict(kill) for kill in outcome.kills],
        "interrupted_attempts": [asdict(one) for one in account.takeovers],
        "bodies_run": account.repeated.bodies,
        "repeated_after_recorded": account.repeated.after_recorded,
        "repeated_before_recorded": account.repeated.before_recorded,
        "journal": {"run_id": account.child, "events": account.journal, "in_parent": account.of_parent},
        "check": account.broken_laws,
        "psql": account.command,
    }


def _totals(audits: list[_Audit]) -> dict[str, int]:
    kinds = Counter(problem.kind for audit in audits for problem in audit.problems)
    return {
        "distributions": len(audits),
        "without_record": sum(audit.absent for audit in audits),
        "files": sum(audit.files for audit in audits),
        "bytes": sum(audit.bytes for audit in audits),
        "skipped": sum(audit.skipped for audit in audits),
        **{kind: kinds[kind] for kind in ("mismatch", "missing", "unreadable")},
    }


def show(console: Console, outcome: Outcome, account: Account) -> None:
    """Print everything as text."""
    _show_table(console, account.audits)
    _show_verdict(console, account)
    _show_recovery(console, outcome, account)
    if account.child:
        console.print(f"\njournal of {account.child}, with the events of its parent about it", style="bold")
        timeline.show(console, _merged(account), mark="parent")
    console.print()
    if account.broken_laws:
        for row in account.broken_laws:
            console.print(f"durable.check(): {row['law']}  {row['id']}  {row['detail']}", style="bold red")
    else:
        console.print("durable.check(): no law is broken", style="green")
    console.print(f"look around: {account.command}", soft_wrap=True)
    for query in _QUERIES:
        console.print(f"  {account.command} -c '{query}'", style="dim", soft_wrap=True)


def _show_table(console: Console, audits: list[_Audit]) -> None:
    right = ("FILES", "BYTES", "NO HASH", "MISMATCH", "MISSING")
    shown = table("DISTRIBUTION", *right, right=right)
    order = sorted(audits, key=lambda audit: (not audit.problems, -audit.files, audit.name))
    groups = [[audit] for audit in order[:TABLE_ROWS]]
    if others := order[TABLE_ROWS:]:
        groups.append(others)
    for group in groups:
        _add_row(shown, group[0].name if len(group) == 1 else f"{len(group)} others", group)
    _add_row(shown, "all", audits, style="bold")
    console.print()
    console.print(shown)


def _add_row(shown: Table, name: str, audits: list[_Audit], style: str = "") -> None:
    totals = _totals(audits)
    bad = totals["mismatch"] + totals["unreadable"]
    shown.add_row(
        printable(name) + (" (no RECORD)" if len(audits) == 1 and audits[0].absent else ""),
        f"{totals['files']:,}",
        f"{totals['bytes']:,}",
        f"{totals['skipped']:,}",
        str(bad) if bad else "",
        str(totals["missing"]) if totals["missing"] else "",
        style="bold red" if bad or totals["missing"] else style,
    )


def _show_verdict(console: Console, account: Account) -> None:
    totals, problems = _totals(account.audits), account.problems
    console.print()
    if not problems:
        console.print(f"All {totals['files']:,} files are what RECORD says they are.", style="bold green")
    for problem in problems[:PROBLEM_ROWS]:
        line = f"{problem.kind}: {printable(problem.path)} ({printable(problem.detail)})"
        console.print(line, style="bold red", soft_wrap=True)
    if len(problems) > PROBLEM_ROWS:
        console.print(f"and {len(problems) - PROBLEM_ROWS} more: --json names them all", style="bold red")
    if totals["without_record"]:
        console.print(
            f"{totals['without_record']} distributions have no RECORD; their files are not verified."
        )


def _show_recovery(console: Console, outcome: Outcome, account: Account) -> None:
    repeated, takeovers = account.repeated, account.takeovers
    console.print()
    if takeovers:
        runs = {one.run_id for one in takeovers}
        by = Counter(one.worker for one in takeovers if one.worker)
        workers = listed([f"{worker} took over {number}" for worker, number in sorted(by.items())])
        others = len(takeovers) - by.total()
        none_left = f"; {others} had no step left to run" if others else ""
        console.print(
            f"Recovered: {len(takeovers)} attempts of {len(runs)} runs were interrupted; "
            f"{workers or 'none was taken over'}{none_left}. {_delays(outcome, takeovers)}"
        )
    elif not outcome.kills:
        console.print("No attempt was interrupted.")
    console.print(
        f"Steps that ran again after they were recorded: {repeated.after_recorded} "
        f"(of {repeated.bodies:,} bodies that ran, as they recorded in pyengine_demo.effects).",
        style="bold red" if repeated.after_recorded else "bold",
    )
    if repeated.before_recorded:
        console.print(
            f"{repeated.before_recorded} bodies ran a second time because their worker died before it could "
            "record them.",
        )


def _delays(outcome: Outcome, takeovers: list[effects.Takeover]) -> str:
    """Return the shortest time from a kill until another worker continued a run."""
    waited = [
        (one.resumed_at - kill.at).total_seconds()
        for kill in outcome.kills
        for one in takeovers
        if one.resumed_at and one.run_id in kill.held and one.resumed_at > kill.at
    ]
    return f"The first of them continued {span(min(waited))} after the kill." if waited else ""


def _merged(account: Account) -> list[timeline.Line]:
    """Return the lines of the child and of its parent about it, by time; a long middle is left out."""
    of_parent = [
        replace(line, seq=-1, text=line.text.replace("child run audit_distribution ", "run "))
        for line in timeline.lines(account.of_parent)
    ]
    both = sorted([*of_parent, *timeline.lines(account.journal)], key=lambda line: (line.at, line.seq >= 0))
    if len(both) <= JOURNAL_ROWS:
        return both
    important = _important(both)
    shown: list[timeline.Line] = []
    for number, line in enumerate(both):
        if number in important:
            shown.append(line)
        elif shown and shown[-1].text != "...":
            shown.append(timeline.Line(at=line.at, seq=line.seq, text="...", style="dim"))
    return shown


def _important(both: list[timeline.Line]) -> set[int]:
    """Return the numbers of the lines at the beginning, at the end, and around an interruption."""
    interruptions = [number for number, line in enumerate(both) if line.style in ("yellow", "bold red")]
    numbers = {0, 1, 2, 3, len(both) - 2, len(both) - 1}
    for number in interruptions[:3]:
        numbers |= {number - 1, number, number + 1, number + 2}
    return numbers
