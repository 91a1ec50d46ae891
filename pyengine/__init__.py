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
    from pyengine.clients import Client
    from pyengine.context import ctx
    from pyengine.core.client.run import Run
    from pyengine.core.client.run_status import ChildCounts, Progress, RunMoment, RunStatus
    from pyengine.core.definitions.bound_workflow import BoundWorkflow
    from pyengine.core.definitions.registry import Step, Workflow
    from pyengine.core.definitions.retry import Retry
    from pyengine.core.definitions.signals import Signal
    from pyengine.core.protocol.causes import Cause, CauseGroup
    from pyengine.core.replay.join_sets import JoinSet
    from pyengine.core.sources import VERSION as __version__
    from pyengine.core.worker.worker import Worker
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
    from pyengine.features.compensation.compensation import CompensationFailed
    from pyengine.features.http.records import (
        HttpConnectionError,
        HttpError,
        HttpResponse,
        HttpStatusError,
        Secret,
    )
    from pyengine.features.many_runs.client import Steered
    from pyengine.features.many_runs.filters import RunFilter
    from pyengine.features.promises.client import Opaque
    from pyengine.features.promises.records import PromiseConflict, PromiseRecord
    from pyengine.features.schedules.client import Schedule, ScheduleBackfill, ScheduleInstant
    from pyengine.features.schedules.policy import SchedulePolicy
    from pyengine.features.sql.sql_errors import SqlError
    from pyengine.features.sql.sql_values import Record
    from pyengine.features.sql.transaction import Transaction

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
    "ScheduleBackfill",
    "ScheduleInstant",
    "SchedulePolicy",
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
    "BoundWorkflow": "core.definitions.bound_workflow",
    "Cause": "core.protocol.causes",
    "CauseGroup": "core.protocol.causes",
    "ChildCounts": "core.client.run_status",
    "Client": "clients",
    "CompensationFailed": "features.compensation.compensation",
    "DeterminismWarning": "features.checks.warning",
    "HttpConnectionError": "features.http.records",
    "HttpError": "features.http.records",
    "HttpResponse": "features.http.records",
    "HttpStatusError": "features.http.records",
    "JoinSet": "core.replay.join_sets",
    "Progress": "core.client.run_status",
    "Run": "core.client.run",
    "RunFilter": "features.many_runs.filters",
    "RunMoment": "core.client.run_status",
    "RunStatus": "core.client.run_status",
    "Schedule": "features.schedules.client",
    "ScheduleBackfill": "features.schedules.client",
    "ScheduleInstant": "features.schedules.client",
    "SchedulePolicy": "features.schedules.policy",
    "Secret": "features.http.records",
    "Signal": "core.definitions.signals",
    "SqlError": "features.sql.sql_errors",
    "Steered": "features.many_runs.client",
    "Transaction": "features.sql.transaction",
    "Record": "features.sql.sql_values",
    "Opaque": "features.promises.client",
    "PromiseConflict": "features.promises.records",
    "PromiseRecord": "features.promises.records",
    "Retry": "core.definitions.retry",
    "Step": "core.definitions.registry",
    "Worker": "core.worker.worker",
    "Workflow": "core.definitions.registry",
    "ctx": "context",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = importlib.import_module("pyengine.core.sources").VERSION
    elif name in __all__:
        value = getattr(importlib.import_module(f"pyengine.{_HOMES.get(name, 'errors')}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
