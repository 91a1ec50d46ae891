"""The features of an app, as its workers get them.

Lives here: the one list of them. May not: a feature.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyengine.core.definitions.registry import Registry
from pyengine.core.worker.extensions import Extensions
from pyengine.features.checks.unawaited import UNAWAITED
from pyengine.features.dependencies.dependencies import Dependencies, current_dependencies
from pyengine.features.frameworks.connections import as_requests
from pyengine.features.schedules.declarations import ScheduleDeclarations
from pyengine.features.schedules.definition import ScheduleDef
from pyengine.features.sql.service_runner import Server
from pyengine.features.sql.sql_step_runner import SqlStepRunner
from pyengine.features.sql.transaction_runner import TransactionRunner

__all__ = ["extensions"]


def extensions(
    registry: Registry, schedules: Mapping[str, ScheduleDef], dependencies: Dependencies | None = None
) -> Extensions:
    """Return what the features of an app add to a worker.

    Args:
        registry: the workflows of the app.
        schedules: those that its code declares, by id.
        dependencies: what `ctx.deps` is in steps; they outlive the worker. None: it is not there.
    """
    return Extensions(
        declarations=lambda links: ScheduleDeclarations(links, registry, schedules.values()),
        services=Server,
        steps_in_sql=SqlStepRunner,
        requests=TransactionRunner,
        shared=((current_dependencies, dependencies),),
        unawaited=UNAWAITED,
        around=as_requests,
    )
