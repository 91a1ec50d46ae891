"""`ctx`: the interface of the engine for workflow code.

Lives here: the object that people import, put together from the core of `ctx` and from what each feature adds
to it. May not: a method of its own. Workflow code takes time, randomness, ids and waits only from here,
because a replay must find them again.
"""

from __future__ import annotations

from pyengine.core.workflow.context import CoreContext
from pyengine.features.calls.context import ContextCalls
from pyengine.features.compensation.context import ContextFailures
from pyengine.features.dependencies.context import ContextDependencies
from pyengine.features.http.context import ContextHttp
from pyengine.features.progress.context import ContextProgress
from pyengine.features.remote.context import ContextRpc
from pyengine.features.sql.context import ContextSql

__all__ = ["Context", "ctx"]


class Context(
    CoreContext,
    ContextCalls,
    ContextRpc,
    ContextSql,
    ContextHttp,
    ContextFailures,
    ContextProgress,
    ContextDependencies,
):
    """The interface of the engine for workflow code; use the module's `ctx`."""

    __slots__ = ()


ctx = Context()
"""The interface of the engine for workflow code."""
