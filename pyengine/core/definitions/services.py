"""Services: functions of the database that are started as runs, `sql://schema.function`.

Lives here: a service as a workflow to start, and the conversion of Python values to arguments of a database
function. May not: a connection, serving (features/sql/service_runner.py). The theory: the recorded input is
the JSON with which the function is called, an array by position or an object by name, and Postgres converts
each value to the declared type of its parameter. So every type that Postgres reads from a text is written as
that text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping
from functools import lru_cache
from typing import Any, Final, NoReturn

import msgspec

from pyengine.core.definitions.definition import WorkflowDef
from pyengine.core.definitions.signatures import Signature
from pyengine.core.values.pydantic_models import write_unknown
from pyengine.core.values.texts import is_text
from pyengine.errors import EncodeError, InvalidRequest

SERVICE: Final = "sql://"
"""The prefix of the name of a service."""

FUNCTION: Final = re.compile(r"[^()]+\.[^()]+(\(.*\))?", re.DOTALL)
"""The name of a database function, with its schema."""

_BYTES = (bytes, bytearray, memoryview)


def body_of(name: str, annotation: Any) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return what stands for the body of a database function, with the type of its result."""

    async def call(*positional__: Any, **named__: Any) -> NoReturn:
        raise InvalidRequest(f"{name} is called by the database")

    call.__annotations__ = {"positional__": Any, "named__": Any, "return": annotation}
    return call


def sql_arguments(
    function: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments as plain JSON values, in the form that Postgres reads.

    Args:
        function: for errors.
        args: by position.
        kwargs: by name.

    Raises:
        InvalidRequest: there are arguments of both kinds.
        EncodeError: a value has no JSON form.
    """
    if args and kwargs:
        raise InvalidRequest(
            f"{function} is called with arguments by position and by name",
            hint="give all by position or all by name",
        )
    plain = tuple(_plain(value, f"argument {place} of {function}") for place, value in enumerate(args, 1))
    return plain, {name: _plain(value, f"argument {name!r} of {function}") for name, value in kwargs.items()}


def _plain(value: Any, where: str) -> Any:
    try:
        return _hex(msgspec.to_builtins(value, builtin_types=_BYTES, str_keys=True, enc_hook=write_unknown))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise EncodeError(f"{where} has no form in JSON: {error}", where=where) from error


def _hex(value: Any) -> Any:
    """Return a value with bytes written in the input format of bytea."""
    if isinstance(value, _BYTES):
        return "\\x" + bytes(value).hex()
    if isinstance(value, dict):
        return {name: _hex(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_hex(one) for one in value]
    return value


def service_call(
    service: str, queue: str | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[WorkflowDef, tuple[Any, ...], dict[str, Any]]:
    """Return a service as a workflow to start, and its arguments as `sql_arguments` does.

    Args:
        service: sql://schema.function.
        queue: must be None; a service is its own queue.
        args: by position.
        kwargs: by name.

    Raises:
        InvalidRequest: it is no service, a queue is given, or arguments of both kinds are.
        EncodeError: an argument has no JSON form.
    """
    function = service[len(SERVICE) :]
    if (
        not service.lower().startswith(SERVICE)
        or "(" in function
        or not is_text(service, 256)
        or not FUNCTION.fullmatch(function)
    ):
        raise InvalidRequest(
            f"{service!r} is no service", hint="a workflow by itself, or a text like sql://schema.function"
        )
    if queue is not None:
        raise InvalidRequest(f"{service} is its own queue", hint="leave queue out")
    return _service(SERVICE + function), *sql_arguments(function, args, kwargs)


@lru_cache(maxsize=1024)
def _service(name: str) -> WorkflowDef:
    call = body_of(name, Any)
    return WorkflowDef(fn=call, name=name, signature=Signature(call, f"service {name}"))
