"""What all commands have in common: three options, and an `Invocation` as first argument.

Lives here: how a function becomes a command. May not: do anything a command does. The options may stand
before the command's name as well as after it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, get_type_hints

import typer

from pyengine.cli.database import Invocation
from pyengine.cli.output import Output

__all__ = ["AsJson", "DataDir", "DatabaseUrl", "ListenUrl", "command", "remember"]

P = ParamSpec("P")

DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        show_default=False,
        help="Database; else PYENGINE_DATABASE_URL, DATABASE_URL, else the embedded Postgres.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", show_default=False, help="Folder of the embedded Postgres; else PYENGINE_DATA_DIR."
    ),
]
ListenUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        show_default=False,
        help="The same database past its pooler, for hints and presence; else PYENGINE_LISTEN_URL.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Answer with one JSON document on stdout.")]

_COMMON = (("database_url", DatabaseUrl, None), ("data_dir", DataDir, None), ("as_json", AsJson, False))


def remember(ctx: typer.Context, options: dict[str, Any]) -> None:
    """Keep the common options that stood before the command's name."""
    ctx.obj = options


def command(
    app: typer.Typer, name: str | None = None, **settings: Any
) -> Callable[[Callable[Concatenate[Invocation, P], None]], Callable[..., None]]:
    """Make a command of a function whose first parameter is the `Invocation`.

    Args:
        app: group that it belongs to.
        name: what people type; the function's name by default.
        settings: for `typer.Typer.command`.
    """

    def make(fn: Callable[Concatenate[Invocation, P], None]) -> Callable[..., None]:
        @functools.wraps(fn)
        def run(ctx: typer.Context, **given: Any) -> None:
            before: dict[str, Any] = ctx.obj or {}
            common = {key: _first(given.pop(key), before.get(key)) for key, _, _ in _COMMON}
            at = Invocation(
                out=Output(json=bool(common["as_json"])),
                database_url=common["database_url"],
                data_dir=common["data_dir"],
            )
            body: Callable[..., None] = fn
            body(at, **given)

        _declare(run, fn)
        app.command(name, **settings)(run)
        return run

    return make


def _first(after: Any, before: Any) -> Any:
    """The option as it stood after the command's name, else before it; an empty URL is told, not ignored."""
    return before if after is None or after is False else after


def _declare(run: Any, fn: Callable[..., Any]) -> None:
    """Give the wrapper the parameters of the function, the common ones and typer's context."""
    hints = get_type_hints(fn, include_extras=True)
    own = list(inspect.signature(fn).parameters.values())[1:]
    parameters = [
        inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        *(one.replace(annotation=hints[one.name], kind=inspect.Parameter.KEYWORD_ONLY) for one in own),
        *(
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for key, annotation, default in _COMMON
        ),
    ]
    del run.__wrapped__
    run.__signature__ = inspect.Signature(parameters)
    run.__annotations__ = {one.name: one.annotation for one in parameters}
