"""The steps that a call inside a workflow is made of.

Lives here: `CallStep`, a step in SQL of the engine's own, and its three kinds: begin a call, read how it
ended, read its value. May not: what a call is for workflow code (handles.py). The theory: the recorded input
of such a step has neither the run's id nor the switch of the process in it, so that a fork and a worker with
another switch replay it; both are added when the statement is sent.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

import msgspec

from pyengine.core.definitions.retry import NO_RETRY
from pyengine.core.definitions.signatures import Signature
from pyengine.errors import InvalidRequest
from pyengine.features.sql.sql_steps import SqlStep

_SWITCH = "PYENGINE_CALL_CACHE"


class CallStep(SqlStep):
    """A step in SQL of the engine's own: its errors are the engine's, and a busy lock is tried again."""

    __slots__ = ()
    is_engines: ClassVar[bool] = True


class BeginStep(CallStep):
    """The step that begins a call."""

    __slots__ = ()

    def sent_arguments(self, param: str, key: str) -> str:
        """Return the arguments to send: the recorded ones, the step's own id, and the switch."""
        recorded = msgspec.json.decode(param)
        return msgspec.json.encode([*recorded, key, cache_switch()]).decode()


class LeaveStep(CallStep):
    """The step that ends the wait of an earlier one, which began a call."""

    __slots__ = ()

    def sent_arguments(self, param: str, key: str) -> str:
        """Return the arguments to send. A fork has a copy of the record: it ends no wait of the first run."""
        scope, node, begun = msgspec.json.decode(param)
        run_id, number = key.rpartition(".")[0], begun.rpartition(".")[2]
        return msgspec.json.encode([scope, node, f"{run_id}.{number}"]).decode()


def cache_switch() -> str:
    """Return what PYENGINE_CALL_CACHE says: on, off (no result is read), refresh (none of other scopes).

    Raises:
        InvalidRequest: it says something else.
    """
    text = os.environ.get(_SWITCH, "").strip().lower() or "on"
    if text not in ("on", "off", "refresh"):
        raise InvalidRequest(f"{_SWITCH} is on, off or refresh, not {text!r}")
    return text


def _step(function: str, kind: type[CallStep] = CallStep) -> CallStep:
    async def call(*positional__: Any) -> Any:
        raise InvalidRequest(f"{function} is called by the database")

    return kind(
        fn=call,
        name=function,
        retry=NO_RETRY,
        timeout_ms=None,
        signature=Signature(call, f"function {function}"),
        key=function.encode() + b"\0",
    )


BEGIN = _step("durable.call_v1", BeginStep)
RESULT = _step("durable.call_result_v1")
VALUE = _step("durable.call_value_v1")
CANCEL = _step("durable.call_leave_v1", LeaveStep)
