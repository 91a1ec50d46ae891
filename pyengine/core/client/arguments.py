"""The parts that a start, of one run or of many, and a schedule have in common.

Lives here: `Target`, the workflow with the options that it has a default for, the JSON texts of arguments and
tags, and the id of a new run. May not: a request.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from pyengine.core.definitions.bound_workflow import BoundWorkflow
from pyengine.core.definitions.current_run import refuse_in_workflow
from pyengine.core.definitions.definition import WorkflowDef
from pyengine.core.definitions.queues import check_queue
from pyengine.core.definitions.refusals import not_a_workflow
from pyengine.core.definitions.registry import Registry, Workflow
from pyengine.core.definitions.retry import Duration, time_left
from pyengine.core.definitions.services import SERVICE
from pyengine.core.values.codec import Codec
from pyengine.errors import EncodeError, InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A workflow, and the options for which it has defaults.

    Args:
        definition: its definition; None if it is not known here.
        by_name: whether it was given as a name, so that nothing checks what types its arguments have in code.
        name: its name, or the address of a service.
        queue: queue of the runs; None for the one that the workflow declares, which the database knows.
        version: version of the workflow.
        timeout_ms: milliseconds until a run times out; None means never.
    """

    definition: WorkflowDef | None
    by_name: bool
    name: str
    queue: str | None
    version: str
    timeout_ms: int | None


def target_of(
    registry: Registry,
    workflow: Workflow[..., Any] | BoundWorkflow[Any] | str,
    *,
    queue: str | None,
    version: str | None,
    timeout: Duration | None,
) -> Target:
    """Return the target of a start; None means the default of the workflow.

    Raises:
        InvalidRequest: it is no workflow, or an option is wrong.
    """
    refuse_in_workflow("client.start()", "ctx.start(workflow, ...), or await workflow(...) for its result")
    if version == "":
        raise InvalidRequest("a version is not empty", hint="leave it out for the default")
    if queue is not None:
        check_queue(queue, what="start")
    definition = definition_of(registry, workflow, version)
    timeout_ms = time_left(timeout, what="timeout")
    if definition is not None:
        queue = definition.queue if queue is None else queue
        version = definition.version if version is None else version
        timeout_ms = definition.deadline_ms if timeout is None else timeout_ms
    return Target(
        definition=definition,
        by_name=isinstance(workflow, str),
        name=workflow if isinstance(workflow, str) else workflow.name,
        queue=queue if definition is None else queue or "default",
        version=version or "1",
        timeout_ms=timeout_ms,
    )


def definition_of(
    registry: Registry, workflow: Workflow[..., Any] | BoundWorkflow[Any] | str, version: str | None
) -> WorkflowDef | None:
    """Return the definition of a workflow; None for a name that is not known here.

    Raises:
        InvalidRequest: it is neither a workflow nor a name, or a namesake from another app.
    """
    if isinstance(workflow, Workflow | BoundWorkflow):
        workflow.definition.refuse_namesake(registry)
        return workflow.definition
    if not isinstance(workflow, str):
        raise not_a_workflow(workflow, "start")
    return registry.find(workflow, version)


def input_of(
    codec: Codec, registry: Registry, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str:
    """Return the JSON text of the arguments of a run.

    Raises:
        InvalidRequest: they do not fit the workflow.
        EncodeError: an argument cannot be recorded.
        NotFound: nor is the workflow among those that are known here.
    """
    if target.definition is not None:
        signature = target.definition.signature
        return signature.encode_json(args, kwargs) if target.by_name else signature.encode(args, kwargs)
    if any(registry.workflows()) and not target.name.startswith(SERVICE):
        try:
            return codec.encode(_form(args, kwargs), where="the arguments", exact=False)
        except EncodeError:
            # objects of classes are arguments of workflows that are known here: the name may be mistyped
            registry.workflow(target.name, target.version)
    return named_input(codec, args, kwargs)


def named_input(codec: Codec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the JSON text of the arguments of a workflow that is known by name only.

    Raises:
        InvalidRequest: some are by position and some by name.
        EncodeError: an argument cannot be recorded.
    """
    form = _form(args, kwargs)
    try:
        return codec.encode(form, where="the arguments", exact=False)
    except EncodeError:
        if isinstance(form, dict):
            each = {name: msgspec.Raw(_argument(codec, one).encode()) for name, one in form.items()}
            text = msgspec.json.encode(each).decode()
        else:
            text = f"[{','.join(_argument(codec, one) for one in form)}]"
    codec.check_size(len(text.encode()), "the arguments")
    return text


def _argument(codec: Codec, value: Any) -> str:
    return codec.encode_undeclared(value, where="an argument")


def _form(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | dict[str, Any]:
    """Return arguments by position, or by name.

    Raises:
        InvalidRequest: some are by position and some by name.
    """
    if args and kwargs:
        raise InvalidRequest(
            "arguments of a workflow that is known by name only are all by position, or all by name"
        )
    return list(args) if args or not kwargs else kwargs


def check_instant(name: str, instant: datetime | None) -> None:
    """Refuse an instant without a time zone.

    Args:
        name: names it in the error.
        instant: the instant; None means there is none.

    Raises:
        InvalidRequest: it has no time zone.
    """
    if instant is not None and instant.tzinfo is None:
        raise InvalidRequest(
            f"{name} is an instant, so it has a time zone", hint="datetime.now(timezone.utc)"
        )


def tags_text(tags: Mapping[str, str] | None) -> str:
    """Return tags as JSON text.

    Raises:
        InvalidRequest: they are no texts by name.
    """
    if not tags:
        return "{}"
    given: object = tags
    items = given.items() if isinstance(given, Mapping) else [(given, None)]
    if not all(isinstance(part, str) for item in items for part in item):
        raise InvalidRequest(f"tags are texts by name, not {given!r}", hint='tags={"customer": "7"}')
    return msgspec.json.encode(dict(tags)).decode()


def new_id() -> str:
    """Return a new random run id that grows with time; `durable._fresh_id`."""
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"


def replaced_results(codec: Codec, registry: Registry, given: Mapping[str | int, Any] | None) -> str:
    """Return the results that a fork replaces as JSON text, each of its step's type if that is known here.

    Args:
        codec: encodes them.
        registry: the code known here.
        given: results by name or child number of a call, or payloads by "signal:<name>:<number>".

    Raises:
        EncodeError: one does not fit the type of its step.
    """
    steps = {one.name: one.signature.result.annotation for one in registry.steps()}
    values = {
        str(key): msgspec.Raw(
            codec.encode(value, steps.get(str(key), Any), where=f"the value for {key}").encode()
        )
        for key, value in (given or {}).items()
    }
    return msgspec.json.encode(values).decode()
