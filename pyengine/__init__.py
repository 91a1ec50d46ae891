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
    from pyengine.client.many_runs import RunFilter, Steered
    from pyengine.client.promise_records import PromiseConflict, PromiseRecord
    from pyengine.client.promises import Opaque
    from pyengine.client.run import Run
    from pyengine.client.run_status import ChildCounts, Progress, RunMoment, RunStatus
    from pyengine.client.schedules import Schedule
    from pyengine.clients import Client
    from pyengine.context import ctx
    from pyengine.definitions.bound_workflow import BoundWorkflow
    from pyengine.definitions.registry import Step, Workflow
    from pyengine.definitions.retry import Retry
    from pyengine.definitions.signals import Signal
    from pyengine.definitions.sql_errors import SqlError
    from pyengine.errors import (
        AwaitCycle,
        CallAborted,
        CallFailed,
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
    from pyengine.features.checks.warning import DeterminismWarning
    from pyengine.protocol.causes import Cause, CauseGroup
    from pyengine.replay.compensation import CompensationFailed
    from pyengine.replay.join_sets import JoinSet
    from pyengine.replay.transaction import Transaction
    from pyengine.sources import VERSION as __version__
    from pyengine.values.sql_values import Record
    from pyengine.worker.worker import Worker
    from pyengine.workflow.http_records import (
        HttpConnectionError,
        HttpError,
        HttpResponse,
        HttpStatusError,
        Secret,
    )

__all__ = [
    "App",
    "AwaitCycle",
    "BoundWorkflow",
    "CallAborted",
    "CallFailed",
    "Cause",
    "CauseGroup",
    "ChildCounts",
    "Client",
    "CompensationFailed",
    "Conflict",
    "DecodeError",
    "DeterminismWarning",
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
    "Progress",
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
    "Schedule",
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
    "BoundWorkflow": "definitions.bound_workflow",
    "Cause": "protocol.causes",
    "CauseGroup": "protocol.causes",
    "ChildCounts": "client.run_status",
    "Client": "clients",
    "CompensationFailed": "replay.compensation",
    "DeterminismWarning": "features.checks.warning",
    "HttpConnectionError": "workflow.http_records",
    "HttpError": "workflow.http_records",
    "HttpResponse": "workflow.http_records",
    "HttpStatusError": "workflow.http_records",
    "JoinSet": "replay.join_sets",
    "Progress": "client.run_status",
    "Run": "client.run",
    "RunFilter": "client.many_runs",
    "RunMoment": "client.run_status",
    "RunStatus": "client.run_status",
    "Schedule": "client.schedules",
    "Secret": "workflow.http_records",
    "Signal": "definitions.signals",
    "SqlError": "definitions.sql_errors",
    "Steered": "client.many_runs",
    "Transaction": "replay.transaction",
    "Record": "values.sql_values",
    "Opaque": "client.promises",
    "PromiseConflict": "client.promise_records",
    "PromiseRecord": "client.promise_records",
    "Retry": "definitions.retry",
    "Step": "definitions.registry",
    "Worker": "worker.worker",
    "Workflow": "definitions.registry",
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
