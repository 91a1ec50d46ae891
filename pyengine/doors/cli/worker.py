"""``pyengine worker MODULE:APP``: serve the workflows of an application until it is stopped.

Lives here: finding the application, and the life of the process. May not: the work of a worker.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyengine.core.values.tracebacks import place_of
from pyengine.doors.cli.adapter import AdapterNames, Serving, served_adapters
from pyengine.doors.cli.command import ListenUrl, command
from pyengine.doors.cli.database import Invocation
from pyengine.doors.cli.display.logs import RunLogOptions
from pyengine.doors.cli.output import clip, listed, redact
from pyengine.errors import EngineError, InvalidRequest, NotFound

if TYPE_CHECKING:
    from pyengine.app import App

_GRACE = typer.Option(
    "--grace", metavar="SECONDS", min=0.0, help="At the end, for steps that must not be cut off."
)


def add_to(app: typer.Typer) -> None:
    """Make this function a command."""
    command(app)(worker)


def worker(
    at: Invocation,
    serving: Serving,
    log: RunLogOptions,
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the App is, such as hello:app.")],
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue", "-q", help="Queue to serve; may be repeated. Else those that workflows name."
        ),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", "-c", min=1, help="Runs at a time.")
    ] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Sync steps at a time.")] = 16,
    grace: Annotated[float, _GRACE] = 10.0,
    adapter: Annotated[list[str] | None, AdapterNames] = None,
    listen_url: ListenUrl = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="End at once, with 4, if the database cannot be reached.")
    ] = False,
    dev: Annotated[
        bool, typer.Option("--dev", help="Replay runs when they suspend or end, to find what cannot be.")
    ] = False,
) -> None:
    """Run a worker until Ctrl-C or SIGTERM; then it releases its leases, if the database is available.

    The worker waits for a database that cannot be reached, at its start and later.
    """
    found = load(app)
    set_database(found, at)
    if listen_url is not None:
        found._listen_url = listen_url
    from pyengine.doors.program.foreground import ServingProcess

    names = sorted({one.name for one in found.registry.workflows()})
    adapters = [one.name for one in served_adapters(adapter or [])]
    if not names and not found.memos and not adapters:
        raise NotFound(f"{app} has no workflow", hint="put @app.workflow on an async function")
    queues = queue or found.registry.queues()
    where = replace(at, database_url=found._database_url, data_dir=found._data_dir)
    # an embedded server runs as long as the worker
    with ServingProcess(), where.database(create=True, wait=not no_wait) as db:
        db.conn.close()
        log.configure()
        _introduce(at, found, queues, adapters, redact(db.place))
        found.serve(
            queues=queues,
            concurrency=concurrency,
            threads=threads,
            grace=grace,
            adapters=serving.programs(adapter or []),
            wait=not no_wait,
            dev=dev,
        )
    at.out.remark("worker stopped")


def _introduce(at: Invocation, found: App, queues: list[str], adapters: list[str], database: str) -> None:
    """Print what the worker serves."""
    names = sorted({one.name for one in found.registry.workflows()})
    about = {"process": os.getpid(), "workflows": names, "queues": queues, "database": database}
    about |= {"memos": sorted(one.name for one in found.memos.values()), "adapters": adapters}
    beside = f" and the adapter{'s' * (len(adapters) > 1)} {listed(adapters)}" if adapters else ""
    at.out.answer(
        about,
        lambda console: console.print(
            f"worker {about['process']} serves {listed(names)} from queue {listed(queues)}{beside} "
            f"in the {about['database']}; Ctrl-C stops it",
            soft_wrap=True,
        ),
    )


def set_database(found: App, at: Invocation) -> None:
    """Set the database of an app; the command line overrides the code."""
    if at.database_url is not None:
        found._database_url = at.database_url
        found._data_dir = found._listen_url = None
    elif at.data_dir is not None:
        found._data_dir = at.data_dir


def load(name: str, verb: str = "worker") -> App:
    """Import an application, relative to the working directory.

    Args:
        name: ``module:attribute``, or only the module if it has one App; ``hello.py`` is ``hello``.
        verb: the command, for hints.

    Raises:
        NotFound: there is no such module or attribute.
        InvalidRequest: it is not an App.
        EngineError: the module cannot be imported.
    """
    from pyengine.app import App

    module_name, _, attribute = name.partition(":")
    module_name = module_name.removesuffix(".py").replace("/", ".")
    module = _import(module_name, verb)
    if not attribute:
        apps = [one for one, value in vars(module).items() if isinstance(value, App)]
        if len(apps) != 1:
            raise InvalidRequest(
                f"module {module_name} has {len(apps)} Apps",
                hint=f"pyengine {verb} {module_name}:{apps[0] if apps else 'app'}",
            )
        attribute = apps[0]
    try:
        found: Any = module
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        apps = [one for one, value in vars(module).items() if isinstance(value, App)]
        raise NotFound(
            f"module {module_name} has no {clip(attribute, 60)!r}",
            hint=f"pyengine {verb} {module_name}:{apps[0]}" if apps else "write app = App() in it",
        ) from error
    if not isinstance(found, App):
        raise InvalidRequest(
            f"{module_name}:{attribute} is a {type(found).__name__}, not an App",
            hint="name the object that app = App() made",
        )
    return found


def _import(name: str, verb: str) -> Any:
    if not name or not all(part.isidentifier() for part in name.split(".")):
        raise InvalidRequest(f"{clip(name, 60)!r} is no module name", hint=f"pyengine {verb} hello:app")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise NotFound(
                f"there is no module {name} in {here} or among the installed ones",
                hint="go to the folder of its file, or install it",
            ) from error
        raise EngineError(f"module {name} imports {error.name}, which is not installed") from error
    except Exception as error:  # boundary to user code: its import failed; the place is reported
        message, hint = str(error), f"python -c 'import {name}' shows the whole traceback"
        if isinstance(error, EngineError):
            message, hint = error.message, error.hint or hint
        place = None if isinstance(error, SyntaxError) else place_of(error.__traceback__)
        where = "" if place is None else f" ({place[0]}, line {place[1]})"  # a SyntaxError says it itself
        raise EngineError(
            f"module {name} cannot be imported: {type(error).__name__}: {message}{where}",
            hint=hint,
        ) from error
