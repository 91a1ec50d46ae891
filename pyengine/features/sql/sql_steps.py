"""Database functions as steps: `ctx.sql`.

Lives here: the definition of such a step. May not: a connection; the worker calls the function
(sql/sql_step_runner.py); the form of its arguments (definitions/services.py).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

from pyengine.core.definitions.definition import StepDef
from pyengine.core.definitions.retry import NO_RETRY, Retry, not_a_retry
from pyengine.core.definitions.services import FUNCTION, body_of
from pyengine.core.definitions.signatures import Signature
from pyengine.core.values.texts import is_text
from pyengine.errors import InvalidRequest


class SqlStep(StepDef):
    """A step whose body is the database function of its name.

    Attributes:
        is_engines: the function is the engine's own, and so are its errors.
    """

    __slots__ = ()
    records_itself: ClassVar[bool] = True
    is_engines: ClassVar[bool] = False

    def sent_arguments(self, param: str, key: str) -> str:
        """Return the arguments to call the function with.

        Args:
            param: the recorded ones, JSON text.
            key: id of the call: run id, dot, child number.
        """
        return param


def sql_step(function: str, retry: Retry | None, timeout_ms: int | None, annotation: Any) -> SqlStep:
    """Return the step that calls a function.

    Args:
        function: schema.function, with argument types if several have that name: billing.close(date).
        retry: when a failed attempt is made again; None means never.
        timeout_ms: limit of one attempt, milliseconds; None means no limit.
        annotation: type of the result.

    Raises:
        InvalidRequest: one of them is wrong.
    """
    name: object = function
    if not is_text(name, 256) or not FUNCTION.fullmatch(name.strip()):
        raise InvalidRequest(
            f"ctx.sql: {function!r} is no name of a function",
            hint='with its schema: ctx.sql("billing.close_month", ...)',
        )
    if retry is not None and not isinstance(retry, Retry):
        raise not_a_retry("ctx.sql", retry)
    try:
        return _cached_step(function.strip(), retry or NO_RETRY, timeout_ms, annotation)
    except TypeError:
        # the annotation cannot be hashed
        return _make_step(function.strip(), retry or NO_RETRY, timeout_ms, annotation)


def _make_step(name: str, retry: Retry, timeout_ms: int | None, annotation: Any) -> SqlStep:
    call = body_of(name, annotation)
    return SqlStep(
        fn=call,
        name=name,
        retry=retry,
        timeout_ms=timeout_ms,
        signature=Signature(call, f"function {name}"),
        key=name.encode() + b"\0",
    )


_cached_step = lru_cache(maxsize=1024)(_make_step)
