"""Durable execution that is a PostgreSQL schema: plain Python functions that survive crashes.

    from pyengine import App

    app = App()

    @app.step
    async def greet(name: str) -> str:
        return f"hello {name}"

    @app.workflow
    async def hello(name: str) -> str:
        return await greet(name)

    print(app.run(hello, "world"))

Names are imported when they are first used: a command that starts no worker does not wait for its modules.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyengine.app import App
    from pyengine.client import Client, Run
    from pyengine.context import ctx
    from pyengine.errors import (
        AwaitCycle,
        Conflict,
        DecodeError,
        EmbeddedPostgresError,
        EncodeError,
        EngineError,
        Forbidden,
        ForbiddenInWorkflow,
        InvalidRequest,
        LeaseLost,
        NondeterminismError,
        NotAwaitable,
        NotFound,
        NotTargeted,
        PayloadTooLarge,
        RemoteError,
        RunCancelled,
        RunConflict,
        RunFailed,
        RunTimedOut,
        SchemaMismatch,
        StepInterrupted,
        StepTimeout,
        Unavailable,
    )
    from pyengine.http_records import (
        HttpConnectionError,
        HttpError,
        HttpResponse,
        HttpStatusError,
        Secret,
    )
    from pyengine.join_sets import JoinSet
    from pyengine.promise_records import PromiseConflict, PromiseRecord
    from pyengine.promises import Opaque
    from pyengine.registry import Step, Workflow
    from pyengine.results import RunMoment, RunStatus
    from pyengine.retry import Retry
    from pyengine.signals import Signal
    from pyengine.sources import VERSION as __version__
    from pyengine.sql_errors import SqlError
    from pyengine.steering_many import RunFilter, Steered
    from pyengine.transaction import Transaction
    from pyengine.transaction_values import Record
    from pyengine.worker import Worker

__all__ = [
    "App",
    "AwaitCycle",
    "Client",
    "Conflict",
    "DecodeError",
    "EmbeddedPostgresError",
    "EncodeError",
    "EngineError",
    "Forbidden",
    "ForbiddenInWorkflow",
    "HttpConnectionError",
    "HttpError",
    "HttpResponse",
    "HttpStatusError",
    "InvalidRequest",
    "JoinSet",
    "LeaseLost",
    "NondeterminismError",
    "NotAwaitable",
    "NotFound",
    "NotTargeted",
    "Opaque",
    "PayloadTooLarge",
    "PromiseConflict",
    "PromiseRecord",
    "Record",
    "RemoteError",
    "Retry",
    "Run",
    "RunCancelled",
    "RunConflict",
    "RunFailed",
    "RunFilter",
    "RunMoment",
    "RunStatus",
    "RunTimedOut",
    "SchemaMismatch",
    "Secret",
    "Signal",
    "SqlError",
    "Steered",
    "Step",
    "StepInterrupted",
    "StepTimeout",
    "Transaction",
    "Unavailable",
    "Worker",
    "Workflow",
    "__version__",
    "ctx",
]

_HOMES = {
    "App": "app",
    "Client": "client",
    "HttpConnectionError": "http_records",
    "HttpError": "http_records",
    "HttpResponse": "http_records",
    "HttpStatusError": "http_records",
    "JoinSet": "join_sets",
    "Run": "client",
    "RunFilter": "steering_many",
    "RunMoment": "results",
    "RunStatus": "results",
    "Secret": "http_records",
    "Signal": "signals",
    "SqlError": "sql_errors",
    "Steered": "steering_many",
    "Transaction": "transaction",
    "Record": "transaction_values",
    "Opaque": "promises",
    "PromiseConflict": "promise_records",
    "PromiseRecord": "promise_records",
    "Retry": "retry",
    "Step": "registry",
    "Worker": "worker",
    "Workflow": "registry",
    "ctx": "context",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = importlib.import_module("pyengine.sources").VERSION
    elif name in __all__:
        value = getattr(importlib.import_module(f"pyengine.{_HOMES.get(name, 'errors')}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
