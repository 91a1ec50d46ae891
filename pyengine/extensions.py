"""The features of an app, as its workers get them.

Lives here: the one list of them. May not: a feature.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyengine.database.declarations import ScheduleDeclarations
from pyengine.definitions.dependencies import Dependencies, current_dependencies
from pyengine.definitions.registry import Registry
from pyengine.definitions.schedules import ScheduleDef
from pyengine.features.sql.service_runner import Server
from pyengine.replay.unawaited import UNAWAITED
from pyengine.worker.extensions import Extensions
from pyengine.worker.sql_step_runner import SqlStepRunner
from pyengine.worker.transaction_runner import TransactionRunner

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
    )
