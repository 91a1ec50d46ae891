"""``pyengine adapter worker|check``: run a worker that polls adapters, and check an adapter.

Lives here: their options and their output. May not: polls and checks (``pyengine.features.calls``).
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyengine.doors.cli.command import ListenUrl, command
from pyengine.doors.cli.database import Invocation
from pyengine.doors.cli.display.logs import LogOptions
from pyengine.doors.cli.output import listed, printable, redact, table
from pyengine.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from rich.console import Console

    from pyengine.app_calls import Programs
    from pyengine.features.calls.adapter_process import Adapter, Limits

app = typer.Typer(
    help="Adapters: the programs that execute calls.", no_args_is_help=True, rich_markup_mode=None
)


@dataclass(frozen=True, kw_only=True)
class Polls:
    """The options that a worker and a check have in common."""

    time_limit: Annotated[
        float, typer.Option("--time-limit", metavar="SECONDS", min=0.1, help="Of one poll.")
    ] = 60.0
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME", help="Variable that adapters get too; may be repeated."),
    ] = None

    @property
    def limits(self) -> Limits:
        """The limits of a poll."""
        from pyengine.features.calls.adapter_process import Limits

        return Limits(time_s=self.time_limit)


@dataclass(frozen=True, kw_only=True)
class Serving(Polls):
    """The options of all workers that serve adapters."""

    max_procs: Annotated[
        int, typer.Option("--max-procs", min=1, help="Adapter processes, and memo functions, at a time.")
    ] = 16
    inline_inputs: Annotated[
        bool, typer.Option("--inline-inputs", help="Pass values to adapters, not only their ids.")
    ] = False

    def programs(self, names: list[str]) -> Programs:
        """Return the adapters with these options."""
        from pyengine.app_calls import Programs

        return Programs(
            adapters=names,
            time_limit_s=self.time_limit,
            env=self.env or (),
            max_procs=self.max_procs,
            inline_inputs=self.inline_inputs,
        )


AdapterNames = typer.Option(
    "--adapter",
    "-a",
    metavar="NAME[=PATH]",
    help="Adapter to serve: a program on the PATH, or the one at PATH; may be repeated.",
)


@command(app)
def worker(
    at: Invocation,
    polls: Serving,
    log: LogOptions,
    adapter: Annotated[list[str], AdapterNames],
    grace: Annotated[
        float, typer.Option("--grace", metavar="SECONDS", min=0.0, help="For polls that run at the end.")
    ] = 10.0,
    listen_url: ListenUrl = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="End at once, with 4, if the database cannot be reached.")
    ] = False,
) -> None:
    """Poll adapters for the attempts of calls until Ctrl-C or SIGTERM; then release their leases.

    The worker runs the programs that are named here and no others.
    """
    from pyengine.core.database.connection import Database
    from pyengine.doors.program.foreground import ServingProcess, serve
    from pyengine.features.calls.adapter_worker import AdapterWorker
    from pyengine.features.calls.program_executor import ProgramExecutor

    served = served_adapters(adapter)
    listen_url = listen_url or os.environ.get("PYENGINE_LISTEN_URL")
    # an embedded server runs as long as the worker
    with ServingProcess() as process, at.database(create=True, wait=not no_wait) as db:
        db.conn.close()
        log.configure()
        names = [one.name for one in served]
        about = {"process": os.getpid(), "adapters": names, "database": redact(db.place)}
        programs_of = f"the adapter{'s' * (len(names) > 1)} {listed(names)}"
        at.out.answer(
            about,
            lambda console: console.print(
                f"worker {about['process']} serves {programs_of} in the {about['database']}; Ctrl-C stops it",
                soft_wrap=True,
            ),
        )
        database = Database(db.url, listen_url=listen_url, start_server=db.start_server)
        programs = ProgramExecutor(served, limits=polls.limits, passed=polls.env or ())
        made = AdapterWorker(
            [programs],
            database,
            max_polls=polls.max_procs,
            inline_inputs=polls.inline_inputs,
            grace_s=grace,
        )
        process.run(serve(lambda: made, wait=not no_wait, grace_s=grace))
    at.out.remark("worker stopped")


@command(app)
def check(
    at: Invocation,
    polls: Polls,
    adapter: Annotated[str, typer.Argument(metavar="NAME[=PATH]", help="The adapter.")],
    function: Annotated[
        str | None,
        typer.Option("--function", metavar="URI", help="A function that it executes; else .../check."),
    ] = None,
    value: Annotated[
        list[str] | None,
        typer.Option("--value", metavar="JSON", help="An input, as a tagged value; may be repeated."),
    ] = None,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0.0, help="For the end of the job.")
    ] = 60.0,
) -> None:
    """Poll an adapter as a worker does, and name the rule of the contract that it breaks; then exit 1.

    The function is executed. No database is needed.
    """
    import msgspec

    from pyengine.features.calls import adapter_check
    from pyengine.features.calls.adapter_process import Adapter

    findings = asyncio.run(
        adapter_check.check(
            Adapter.parse(adapter),
            function=function,
            values=[_value(one) for one in value or ()],
            limits=polls.limits,
            wait_s=wait,
            passed=polls.env or (),
        )
    )
    is_good = all(one.ok for one in findings)

    def render(console: Console) -> None:
        shown = table("", "CHECK", "RULE", "DETAIL")
        for one in findings:
            state = "ok" if one.ok else "BROKEN" if one.tested else "not tested"
            shown.add_row(state, one.check, one.rule or "", printable(one.detail))
        console.print(shown)

    rows = [msgspec.structs.asdict(one) for one in findings]
    at.out.answer({"adapter": adapter, "ok": is_good, "findings": rows}, render)
    if not is_good:
        worst = next((one for one in findings if not one.ok and one.tested), None)
        at.out.remark(
            "it could not be tested now: the adapter asks to be polled later; try again"
            if worst is None
            else f"the contract is broken: {worst.rule}; see docs/reference/adapter-contract.md"
        )
        raise typer.Exit(1)


def served_adapters(names: list[str]) -> list[Adapter]:
    """Return the adapters of the options; each program must be there at the start.

    Raises:
        InvalidRequest: one is no name, or its path is not absolute.
        NotFound: there is no such program.
    """
    from pyengine.features.calls.adapter_process import Adapter
    from pyengine.features.calls.contract import CannotRun

    served = [Adapter.parse(one) for one in names]
    for one in served:
        try:
            one.command()
        except CannotRun as error:
            raise NotFound(error.message, hint=f"--adapter {one.name}=/path/to/program") from error
    return served


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"--value {text!r} is no JSON: {error}") from error
