"""Commands: functions with an `Invocation`, the three common options, and groups of options.

Lives here: how a function becomes a command. May not: do the work of a command. The common options may come
before the command's name or after it. A parameter whose type is a dataclass is a group: each field is an
option, so commands share options without repeating them.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, get_type_hints

import typer

from pyengine.doors.cli.database import Invocation
from pyengine.doors.cli.output import Output

P = ParamSpec("P")

DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        show_default=False,
        help="Database; else PYENGINE_DATABASE_URL, DATABASE_URL, else the embedded Postgres. A password "
        "belongs into the environment: other users of the machine see options.",
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
    """Store the common options that came before the command's name."""
    ctx.obj = options


def command(
    app: typer.Typer, name: str | None = None, **settings: Any
) -> Callable[[Callable[Concatenate[Invocation, P], None]], Callable[..., None]]:
    """Make a command of a function whose first parameter is the `Invocation`.

    Args:
        app: the group of the command.
        name: the command's name; the function's name by default.
        settings: for `typer.Typer.command`.
    """

    def make(fn: Callable[Concatenate[Invocation, P], None]) -> Callable[..., None]:
        hints = get_type_hints(fn, include_extras=True)
        own = list(inspect.signature(fn).parameters.values())[1:]
        groups = {one.name: hints[one.name] for one in own if dataclasses.is_dataclass(hints[one.name])}

        @functools.wraps(fn)
        def run(ctx: typer.Context, **given: Any) -> None:
            before: dict[str, Any] = ctx.obj or {}
            common = {key: _first(given.pop(key), before.get(key)) for key, _, _ in _COMMON}
            for key, group in groups.items():
                given[key] = group(
                    **{field.name: given.pop(field.name) for field in dataclasses.fields(group)}
                )
            at = Invocation(
                out=Output(json=bool(common["as_json"])),
                database_url=common["database_url"],
                data_dir=common["data_dir"],
            )
            body: Callable[..., None] = fn
            body(at, **given)

        def parameters() -> Iterator[inspect.Parameter]:
            yield _parameter("ctx", typer.Context)
            for one in own:
                group = groups.get(one.name)
                if group is None:
                    yield _parameter(one.name, hints[one.name], one.default)
                    continue
                field_hints = get_type_hints(group, include_extras=True)
                for field in dataclasses.fields(group):
                    yield _parameter(field.name, field_hints[field.name], field.default)
            for key, annotation, default in _COMMON:
                yield _parameter(key, annotation, default)

        declared: Any = run
        del declared.__wrapped__
        declared.__signature__ = inspect.Signature(list(parameters()))
        declared.__annotations__ = {one.name: one.annotation for one in parameters()}
        app.command(name, **settings)(run)
        return run

    return make


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _first(after: Any, before: Any) -> Any:
    """Return the option from after the command's name, else from before; an empty URL counts as given."""
    return before if after is None or after is False else after
