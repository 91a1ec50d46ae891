"""`ctx`: the interface of the engine for workflow code.

Lives here: the object that people import, put together from the core of `ctx` and from what each feature adds
to it. May not: a method of its own. Workflow code takes time, randomness, ids and waits only from here,
because a replay must find them again.
"""

from __future__ import annotations

from pyengine.workflow.context import CoreContext
from pyengine.workflow.context_calls import ContextCalls
from pyengine.workflow.context_dependencies import ContextDependencies
from pyengine.workflow.context_failures import ContextFailures
from pyengine.workflow.context_http import ContextHttp
from pyengine.workflow.context_progress import ContextProgress
from pyengine.workflow.context_rpc import ContextRpc
from pyengine.workflow.context_sql import ContextSql

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
