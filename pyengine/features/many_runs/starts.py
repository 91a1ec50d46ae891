"""Starting many runs of a workflow in one statement.

Lives here: `ManyStarts`, with `start_many`. May not: SQL text, a decision; SQL starts all of them or none.
Design: as with one start, each run has an id or a key before the request is sent, so after a lost connection
it is sent again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from pyengine.core.client.arguments import Target, input_of, new_id, tags_text, target_of
from pyengine.core.client.recorded_starts import as_recorded, start_or_find
from pyengine.core.client.run import Run, RunControl, result_codec
from pyengine.core.definitions.bound_workflow import BoundWorkflow
from pyengine.core.definitions.registry import Workflow
from pyengine.core.definitions.retry import Duration, waiting_time
from pyengine.core.definitions.services import SERVICE, sql_arguments
from pyengine.errors import InvalidRequest
from pyengine.features.many_runs.statements import START_MANY

if TYPE_CHECKING:
    # as in client/run.py
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")


class ManyStarts(RunControl):
    """`start_many`, as a mixin; the client has the transport."""

    async def start_many(
        self,
        /,
        workflow: Workflow[..., T] | str,
        args: Iterable[tuple[Any, ...] | Mapping[str, Any] | BoundWorkflow[T]],
        *,
        ids: Iterable[str | None] | None = None,
        keys: Iterable[str | None] | None = None,
        queue: str | None = None,
        version: str | None = None,
        delay: Duration | None = None,
        timeout: Duration | None = None,
        priority: int = 0,
        tags: Mapping[str, str] | None = None,
        conn: Any = None,
    ) -> list[Run[T]]:
        """Start many runs of a workflow in one statement, all or none; `durable.start_many` in SQL.

        Args:
            workflow: as for `start`.
            args: for each run a tuple of arguments by position, a mapping of arguments by name, or the
                workflow with its arguments, `checkout.bind(order)`, which type checkers check.
            ids: for each run its id; None for one that has none.
            keys: for each run its idempotency key; None for one that has none.
            queue, version, delay, timeout, priority, tags, conn: as for `start`, the same for all.

        Returns:
            The runs, in the order of `args`; a run that existed before has `created` false.

        Raises:
            InvalidRequest, RunConflict: as `start`; the message names the element.
            NotFound: no worker has registered this workflow, while others are known.
            Unavailable: the database cannot be reached.
        """
        target = target_of(self._registry, workflow, queue=queue, version=version, timeout=timeout)
        inputs = [
            input_of(self._codec, self._registry, target, *_arguments_of(one, n, target.name))
            for n, one in enumerate(args, 1)
        ]
        # with an id of its own each run is the same one if this is sent again
        named, keyed = _names_of(ids, keys, len(inputs))
        if not inputs:
            return []
        options = (
            target.queue,
            target.version,
            waiting_time(delay, what="delay"),
            target.timeout_ms,
            priority,
            tags_text(tags),
            target.definition is not None,
        )
        is_named = not (ids is None and keys is None)
        row = await self._start_all(conn, target, inputs, (named, keyed), *options, is_named=is_named)
        codec = result_codec(target.definition)
        return [Run(self, id, codec, created=created) for id, created in msgspec.json.decode(row["runs"])]

    async def _start_all(
        self,
        conn: Any,
        target: Target,
        inputs: list[str],
        names: tuple[list[str], list[str] | None],
        *options: Any,
        is_named: bool,
    ) -> Any:
        """Start the runs, or find those of the same calls, and return the row of `START_MANY`."""

        async def start(inputs: list[str]) -> Any:
            return await self._transport.first_row(conn, START_MANY, target.name, inputs, *names, *options)

        ids, keys = names
        given = ids, keys or [""] * len(inputs)
        if conn is None:
            return await start_or_find(start, self._transport, target, inputs, given)
        # an error would end the transaction of the caller
        same = await as_recorded(self._transport, conn, target, inputs, given) if is_named else None
        return await start(same or inputs)


def _arguments_of(one: object, number: int, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of one of many runs, by position and by name.

    Args:
        one: a tuple, a mapping, or the workflow with its arguments.
        number: its number among them, from 1.
        name: the workflow, for the error.

    Raises:
        InvalidRequest: it is none of these, or another workflow.
    """
    if isinstance(one, BoundWorkflow) and one.name == name:
        arguments: tuple[tuple[Any, ...], dict[str, Any]] = (one.args, one.kwargs)
    elif isinstance(one, tuple):
        arguments = (one, {})
    elif isinstance(one, Mapping):
        arguments = ((), dict(one))
    else:
        raise InvalidRequest(
            f"start_many of {name}: element {number} of args is {one!r}",
            hint=f"a tuple for each run, [(1,), (2,)], or [{name}.bind(1), {name}.bind(2)]",
        )
    if name.startswith(SERVICE):
        return sql_arguments(name, *arguments)
    return arguments


def _names_of(
    ids: Iterable[str | None] | None, keys: Iterable[str | None] | None, count: int
) -> tuple[list[str], list[str] | None]:
    """Return the ids and the keys of many runs, "" where there is none; a run without both gets a new id.

    Raises:
        InvalidRequest: there is not one for each run, or one is empty.
    """
    named = [None] * count if ids is None else list(ids)
    keyed = [None] * count if keys is None else list(keys)
    if not len(named) == len(keyed) == count:
        raise InvalidRequest(
            f"start_many: there are {count} runs, {len(named)} ids and {len(keyed)} keys",
            hint="one for each run, None for none",
        )
    if "" in named or "" in keyed:
        raise InvalidRequest("start_many: an id or a key has 1 to 512 bytes", hint="None for none")
    filled = [id or (new_id() if key is None else "") for id, key in zip(named, keyed, strict=True)]
    return filled, None if keys is None else [key or "" for key in keyed]
