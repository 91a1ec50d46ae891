"""Starts of runs that exist already, whose input is written in another way.

Lives here: `start_or_find`, and `start_within` for the transaction of a caller. May not: decide whether a run
is the same, as SQL does. Design: SQL compares texts, so it takes the same call for another one where a class
has a new field with a default, where a default is given or left out, or where SQL gave by name what Python
gives by position. Only then, after its RunConflict, the recorded inputs are read, and the start is sent again
with those that are the same call by the types of today. So an ordinary start costs nothing more. In the
transaction of a caller, which an error would end, the statement reads the input before it starts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pyengine.core.client.arguments import Target
from pyengine.core.client.transport import Transport
from pyengine.core.database.statements.procedures import (
    RECORDED_INPUTS,
    START_NAMED_WITHIN,
    START_WITHIN,
    StartRequest,
)
from pyengine.errors import RunConflict


async def start_or_find(
    start: Callable[[list[str]], Awaitable[Any]],
    transport: Transport,
    target: Target,
    inputs: list[str],
    names: tuple[Sequence[str], Sequence[str]],
) -> Any:
    """Return the row of a start of new runs, or of those of the same calls.

    Args:
        start: starts them with these inputs, in a transaction of its own.
        transport: the way to the database.
        target: the workflow.
        inputs: JSON texts of arguments.
        names: ids and keys of the runs, "" for none.

    Raises:
        RunConflict: a run with one of the ids or keys is of another call.
    """
    try:
        return await start(inputs)
    except RunConflict:
        same = await as_recorded(transport, None, target, inputs, names)
        if same is None:
            raise
    return await start(same)


async def start_within(transport: Transport, conn: Any, target: Target, request: StartRequest) -> Any:
    """Return the row of a start in the transaction of a caller, of a new run or of that of the same call.

    Args:
        transport: the way to the database.
        conn: has the transaction.
        target: the workflow.
        request: the start.

    Raises:
        RunConflict: a run with the id or key is of another call.
    """
    if request.fresh or target.definition is None:
        return await transport.first_row(conn, START_WITHIN, *request)
    row = await transport.first_row(conn, START_NAMED_WITHIN, *request)
    if row["id"] is not None:
        return row
    if target.definition.signature.is_same_call(request.args, row["recorded"]):
        request = request._replace(args=row["recorded"])
    return await transport.first_row(conn, START_WITHIN, *request)


async def as_recorded(
    transport: Transport,
    conn: Any,
    target: Target,
    inputs: list[str],
    names: tuple[Sequence[str], Sequence[str]],
) -> list[str] | None:
    """Return the inputs, each as its run has it if it is the same call; None if that changes none of them."""
    if target.definition is None:
        return None
    row = await transport.first_row(conn, RECORDED_INPUTS, target.name, *map(list, names))
    is_same = target.definition.signature.is_same_call
    found = [
        then if then is not None and then != text and is_same(text, then) else text
        for text, then in zip(inputs, row["inputs"], strict=True)
    ]
    return None if found == inputs else found
