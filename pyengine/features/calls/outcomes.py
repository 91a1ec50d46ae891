"""The end of a call, as SQL answers it, as a record and as an error.

Lives here: `read_outcome` and `call_error`. May not: raising it, and the value of a result, which may be read
later.
"""

from __future__ import annotations

from typing import Any

from pyengine.core.definitions.callees import CallOutcome
from pyengine.errors import CallAborted, CallFailed, EngineError
from pyengine.features.calls.datums import from_tagged, value_of


def read_outcome(found: dict[str, Any]) -> CallOutcome:
    """Return how a call ended, without its value.

    Args:
        found: the answer of `durable.call_v1`, with that of `durable.call_result_v1` if it had to wait.
    """
    error = value_of(from_tagged(found["failure"])) if "failure" in found else found.get("error")
    return CallOutcome(
        status=found["status"],
        error=error if error is None or isinstance(error, dict) else {"message": str(error)},
        exec_id=found.get("exec"),
        dag=found.get("dag"),
        execution_key=found.get("execution_key"),
        at=found.get("at"),
    )


def call_error(outcome: CallOutcome, function: str, node: str | None) -> EngineError:
    """Return the error (not raised) of a call that did not end well.

    Args:
        outcome: how it ended.
        function: URI of the function.
        node: id of the call node.
    """
    error = outcome.error or {}
    message = str(error.get("message") or error.get("type") or "no message")
    if outcome.status == "error":
        return CallFailed(
            f"{function} failed: {message}",
            function=function,
            node=node,
            exec_id=outcome.exec_id,
            dag=outcome.dag,
            error=error,
            hint=f"pyengine call show {node}",
        )
    code = str(error.get("code") or "aborted")
    return CallAborted(
        f"{function} was given up ({code}): {message}",
        code=code,
        function=function,
        node=node,
        execution_key=outcome.execution_key,
        error=error,
        hint=f"pyengine call why {node}",
    )
