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
"""

from __future__ import annotations

from pyengine.app import App
from pyengine.client import Client, Run, RunStatus
from pyengine.context import ctx
from pyengine.errors import (
    Conflict,
    DecodeError,
    EmbeddedPostgresError,
    EncodeError,
    EngineError,
    ForbiddenInWorkflow,
    InvalidRequest,
    LeaseLost,
    NondeterminismError,
    NotAwaitable,
    NotFound,
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
from pyengine.registry import Step, Workflow
from pyengine.retry import Retry
from pyengine.sources import VERSION as __version__
from pyengine.worker import Worker

__all__ = [
    "App",
    "Client",
    "Conflict",
    "DecodeError",
    "EmbeddedPostgresError",
    "EncodeError",
    "EngineError",
    "ForbiddenInWorkflow",
    "InvalidRequest",
    "LeaseLost",
    "NondeterminismError",
    "NotAwaitable",
    "NotFound",
    "PayloadTooLarge",
    "RemoteError",
    "Retry",
    "Run",
    "RunCancelled",
    "RunConflict",
    "RunFailed",
    "RunStatus",
    "RunTimedOut",
    "SchemaMismatch",
    "Step",
    "StepInterrupted",
    "StepTimeout",
    "Unavailable",
    "Worker",
    "Workflow",
    "__version__",
    "ctx",
]
