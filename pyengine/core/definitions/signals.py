"""Signals: typed messages to a run, by name.

Lives here: `Signal`, a name with the type of its payload, and the record of those that a workflow receives.
May not: sending (client/client.py), receiving (replay/signal_inbox.py). The theory: a signal is declared once
and used by both sides, so that type checkers see the type of the payload on both. It is a name, not a
channel: it holds no messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, cast, get_args

from pyengine.core.definitions.json_schema import json_schema
from pyengine.core.values.codec import TypeCodec, type_codec
from pyengine.core.values.texts import is_text
from pyengine.errors import InvalidRequest

if TYPE_CHECKING:
    # the payload of a signal that is only named is Any, not unknown
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
    T_co = TypeVar("T_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")
    T_co = TypeVar("T_co", covariant=True)

_NAME_BYTES_MAX = 256


def check_signal_name(name: object) -> str:
    """Return the name of a signal.

    Raises:
        InvalidRequest: it is not valid.
    """
    if not isinstance(name, str):
        hint = 'a signal has a name: Signal[bool]("approve")'
        raise InvalidRequest(f"the name of a signal is a text, not {name!r}", hint=hint)
    if not is_text(name, _NAME_BYTES_MAX):
        raise InvalidRequest(
            f"{name[:60]!r} is no name for a signal", hint=f"1 to {_NAME_BYTES_MAX} bytes, without NUL"
        )
    return name


class Receivable(Generic[T_co]):
    """A signal as its receiver sees it: who may receive a bool may receive an object, so that
    `print(await ctx.receive(approve))` has its type. A sender may not: a `Signal` has one type."""

    __slots__ = ()


class Signal(Receivable[T]):
    """A signal: `approve = Signal[Decision]("approve")`, or `Signal("approve", Decision)`.

    Args:
        name: the name by which it is sent and received.
        type: type of the payload; plain JSON if neither this nor the subscript is given.

    Raises:
        InvalidRequest: the name is empty or longer than 256 bytes.
    """

    __slots__ = ("__orig_class__", "_type", "name")

    def __init__(self, name: str, type: type[T] | None = None) -> None:
        self.name = check_signal_name(name)
        self._type = type

    @property
    def annotation(self) -> Any:
        """Type of the payload; `Any` if it was not declared."""
        if self._type is not None:
            return self._type
        declared = get_args(getattr(self, "__orig_class__", None))
        return declared[0] if declared and not isinstance(declared[0], TypeVar) else Any

    @property
    def codec(self) -> TypeCodec:
        """Encodes and decodes the payload.

        Raises:
            DecodeError: values of its type can never be read back.
        """
        return type_codec(self.annotation)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Signal):
            return NotImplemented
        return (self.name, self.annotation) == (other.name, cast("Any", other.annotation))

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        shown = getattr(self.annotation, "__qualname__", self.annotation)
        return f"Signal[{shown}]({self.name!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedSignals:
    """The signals that a workflow receives.

    Args:
        types: the type of the payload, by name.
        any: whether it may receive other names too.
    """

    types: dict[str, Any] = field(default_factory=dict)
    any: bool = False

    def registration(self) -> dict[str, Any]:
        """Return them as a worker registers them: with JSON schemas instead of types."""
        return {"types": {name: json_schema(one) for name, one in self.types.items()}, "any": self.any}
