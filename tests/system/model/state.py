"""What the model knows: promises, tasks, callbacks, listeners and unblock rows, as values.

What lives here: the records of the reference model, the state that holds them, and what a record looks like
on the wire. No operation, no rule about who may do what.

A state is never changed: an operation works on a `Draft` (machine.py) and freezes it into the next state.
Records are frozen and hashable, so copying a state means copying five small containers, and `key()` gives a
canonical, hashable image for a checker that must know a state again.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.system.model.addresses import canonical

Json = dict[str, Any]
Pairs = tuple[tuple[str, str], ...]


def pairs(mapping: Mapping[str, str]) -> Pairs:
    """A mapping of strings as a hashable value."""
    return tuple(sorted(mapping.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """Headers and data of a parameter or of a result; None: not given."""

    headers: Pairs | None = None
    data: str | None = None

    def wire(self) -> Json:
        """As the protocol answers it: what was not given is left out."""
        given: Json = {}
        if self.headers is not None:
            given["headers"] = dict(self.headers)
        if self.data is not None:
            given["data"] = self.data
        return given


NOTHING = Value()


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A stored promise. `external` may rise while it is pending (compatible profile), all other fields of
    its birth stay."""

    id: str
    state: str
    timeout_at: int
    created_at: int
    settled_at: int | None = None
    param: Value = NOTHING
    value: Value = NOTHING
    tags: Pairs = ()
    external: bool = False

    def tag(self, name: str) -> str | None:
        """A reserved tag, named without its prefix."""
        return dict(self.tags).get(f"resonate:{name}")

    @property
    def target(self) -> str | None:
        """Canonical address of the task; None: it has none."""
        return canonical(self.tag("target"))

    @property
    def timer(self) -> bool:
        """Its deadline resolves it."""
        return self.tag("timer") == "true"

    def wire(self) -> Json:
        """As the protocol answers it."""
        record: Json = {
            "id": self.id,
            "state": self.state,
            "param": self.param.wire(),
            "value": self.value.wire(),
            "tags": dict(self.tags),
            "timeoutAt": self.timeout_at,
            "createdAt": self.created_at,
        }
        return record if self.settled_at is None else {**record, "settledAt": self.settled_at}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A stored task; `resumes` are the wake reasons that no worker has been given yet, `releases` how often
    it was given back in a row."""

    id: str
    state: str
    version: int
    pid: str | None = None
    ttl: int | None = None
    expires_at: int | None = None
    retry_at: int | None = None
    resumes: frozenset[str] = frozenset()
    releases: int = 0
    released_until: int | None = None
    acquired_at: int | None = None

    def wire(self) -> Json:
        """As the protocol answers it: no instant, and the number of wake reasons only."""
        record: Json = {
            "id": self.id,
            "state": self.state,
            "version": self.version,
            "resumes": len(self.resumes),
        }
        if self.pid is not None and self.ttl is not None:
            record |= {"pid": self.pid, "ttl": self.ttl}
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class Unblock:
    """A message to an address that waits to be acknowledged."""

    created_at: int
    claimed_until: int = 0
    attempts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything. The containers are never changed in place."""

    profile: str = "compatible"
    retry_offer_ms: int = 5000
    promises: Mapping[str, Promise] = field(default_factory=dict)
    tasks: Mapping[str, Task] = field(default_factory=dict)
    callbacks: frozenset[tuple[str, str]] = frozenset()
    listeners: frozenset[tuple[str, str]] = frozenset()
    unblocks: Mapping[tuple[str, str], Unblock] = field(default_factory=dict)

    def key(self) -> Hashable:
        """A canonical image: two states are equal if and only if their keys are."""
        return (
            self.profile,
            self.retry_offer_ms,
            frozenset(self.promises.values()),
            frozenset(self.tasks.values()),
            self.callbacks,
            self.listeners,
            frozenset(self.unblocks.items()),
        )
