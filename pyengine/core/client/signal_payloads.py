"""The payload of a signal as text, checked by the type that the signal has.

Lives here: `signal_payload`. May not: sending it. The theory: a `Signal` has a type, by which its payload is
checked whole. A signal that is only named has the types of the workflows that are known here and receive it;
its payload is an object of one, or JSON that fits one. SQL checks it again, by the workflow of the run.
"""

from __future__ import annotations

from typing import Any

from pyengine.core.definitions.registry import Registry
from pyengine.core.definitions.signals import Signal
from pyengine.core.values.codec import Codec
from pyengine.errors import DecodeError, EncodeError


def signal_payload(
    codec: Codec, registry: Registry, signal: Signal[Any] | str, payload: Any, *, to: str
) -> tuple[str, str]:
    """Return the name of a signal and the JSON text of its payload.

    Args:
        codec: writes the payload.
        registry: the workflows that are known here.
        signal: the signal, or its name.
        payload: its payload.
        to: the receivers, for errors: "run order-42".

    Raises:
        EncodeError: the payload does not fit the signal's type.
        InvalidRequest: the name is invalid.
    """
    sent = signal if isinstance(signal, Signal) else Signal(signal)
    where = f"the payload of signal {sent.name} to {to}"
    if isinstance(signal, Signal):
        return sent.name, codec.encode(payload, sent.annotation, where=where)
    text = codec.encode_undeclared(payload, where=where)
    types = registry.signal_types(sent.name)
    problem: DecodeError | None = None
    for annotation in types:
        try:
            codec.decode(text, annotation, where=where)
        except DecodeError as error:
            problem = error
        else:
            return sent.name, text
    if problem is not None:
        raise EncodeError(problem.message, where=where, hint="send the Signal itself, which has a type")
    return sent.name, text
