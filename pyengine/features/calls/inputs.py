"""Inputs of a call: Python values, and calls whose results are inputs.

Lives here: `Input`, the JSON form that `durable.call_v1` takes, made at the moment of the call, so that a
value changed afterwards does not matter. May not: the encoding of a value (datums.py). The theory: an input
is a value, another call, whose node it is, or a list, set or map that holds calls. Such a container is the
node of the builtin that constructs it, so what a result was made from can be followed.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Set
from typing import Any, Protocol, Self, TypeAlias

import msgspec

from pyengine.core.definitions.callees import CallOptions
from pyengine.errors import EncodeError
from pyengine.features.calls.datums import datum_of, from_tagged, to_tagged, value_of

_births = itertools.count()


class NodeSource(ABC):
    """A call whose result can be an input of another.

    Attributes:
        birth: its place in the order in which calls were made; a set of calls has no other order.
    """

    birth: int

    def __new__(cls, *_given: Any, **_named: Any) -> Self:
        """Number it."""
        made = super().__new__(cls)
        made.birth = next(_births)
        return made

    @property
    @abstractmethod
    def node(self) -> str | None:
        """Id of its call node; None until it is known."""

    @abstractmethod
    def done(self) -> bool:
        """Whether it has ended."""

    @abstractmethod
    async def settled(self) -> None:
        """Wait until it has a result, and raise if it has none."""


Input: TypeAlias = "dict[str, Any] | NodeSource"
"""A form with one key: datum, node, list, set or map; or a call that stands for its node."""


class ResultType(Protocol):
    """How the results of a function are read."""

    def decode(self, plain: Any, where: str) -> Any:
        """Return the value that plain data stands for."""


class BoundCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call with its arguments.

    Args:
        function: URI of the function.
        inputs: its inputs, in order.
        options: how it is called.
        result: how its result is read; None means as plain data.
    """

    function: str
    inputs: tuple[Input, ...]
    options: CallOptions
    result: ResultType | None = None

    def read(self, tagged: Any) -> Any:
        """Return the value of a result with its types.

        Raises:
            DecodeError: it does not fit the annotation of the function.
        """
        plain = value_of(from_tagged(tagged))
        return plain if self.result is None else self.result.decode(plain, f"the result of {self.function}")


def encode_value(value: Any, where: str) -> dict[str, Any]:
    """Return a value as JSON with its types.

    Args:
        value: plain data.
        where: which value it is, for errors.

    Raises:
        EncodeError: a part is no plain data; the message names its place.
        PayloadTooLarge: a text or bytes with more than 1 MiB.
    """
    try:
        return to_tagged(datum_of(value))
    except EncodeError as error:
        place = (error.where or "value").removeprefix("value")
        raise EncodeError(f"{where}{place}: {error.message}", where=error.where, hint=error.hint) from None


def encode_input(value: Any, where: str) -> Input:
    """Return the form of one input.

    Args:
        value: plain data, a call, or lists, tuples, sets and dicts of them.
        where: which input it is, for errors.

    Raises:
        EncodeError: it is no plain data, or a limit is exceeded; the message names the place in the value.
    """
    if isinstance(value, NodeSource):
        return value
    if holds_node(value):
        if isinstance(value, Mapping):
            entries = value.items()
            return {
                "map": [
                    [encode_value(key, where), encode_input(one, f"{where}[{key!r}]")] for key, one in entries
                ]
            }
        if isinstance(value, Set):
            return {"set": [encode_input(one, where) for one in _ordered(value)]}
        return {"list": [encode_input(one, f"{where}[{place}]") for place, one in enumerate(value)]}
    return {"datum": encode_value(value, where)}


def holds_node(value: Any, depth: int = 0) -> bool:
    """Return whether a container holds a call; a cycle is left to the encoding, which refuses it."""
    if isinstance(value, NodeSource):
        return True
    if depth > 100:
        return False
    if isinstance(value, Mapping):
        return any(holds_node(one, depth + 1) for one in value.values())
    return isinstance(value, list | tuple | Set) and any(holds_node(one, depth + 1) for one in value)


def _ordered(members: Set[Any]) -> list[Any]:
    """Return the members of a set in an order that a replay has too: values, then calls as they were made."""
    calls = [one for one in members if isinstance(one, NodeSource)]
    values = [one for one in members if not isinstance(one, NodeSource)]
    values.sort(key=lambda one: msgspec.json.encode(encode_value(one, "a member of a set")))
    return [*values, *sorted(calls, key=lambda one: one.birth)]


def pending_nodes(given: Input) -> Iterator[NodeSource]:
    """Return the calls in an input, in their order."""
    if not isinstance(given, dict):
        yield given
        return
    for one in (*given.get("list", ()), *given.get("set", ())):
        yield from pending_nodes(one)
    for _, one in given.get("map", ()):
        yield from pending_nodes(one)


def resolved_input(given: Input) -> dict[str, Any]:
    """Return an input in which every call is its node; all of them have ended."""
    if not isinstance(given, dict):
        return {"node": given.node}
    for kind in ("list", "set"):
        if kind in given:
            return {kind: [resolved_input(one) for one in given[kind]]}
    if "map" in given:
        return {"map": [[key, resolved_input(one)] for key, one in given["map"]]}
    return given
