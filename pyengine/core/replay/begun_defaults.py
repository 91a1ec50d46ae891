"""The defaults with which a run began.

Lives here: `begun_arguments`, the arguments of the code of a run. May not: their text, which is in the run
(definitions/signatures.py); other values that are taken once (recorded_values.py). Design: who starts a run
leaves defaults out, so that a start is the same with and without them. The defaults of the code that begins a
run are its first recorded value; a later deploy that changes one changes it for younger runs only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pyengine.core.definitions.signatures import Signature
from pyengine.core.protocol.commands import Captured
from pyengine.core.protocol.journal import RowType
from pyengine.core.replay.call_sequence import CallSequence
from pyengine.core.rules import DEFAULTS_RULES

_NAME = "defaults"
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def begun_arguments(signature: Signature, sequence: CallSequence) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a run: those that it was given, and its defaults, taken once.

    A default that has no JSON form of its type is that of the code, and so is that of a younger parameter.

    Args:
        signature: of its code.
        sequence: its calls, before the first one.

    Raises:
        InvalidRequest: they do not fit the signature.
    """
    args, kwargs = signature.decode(sequence.run.param)
    if sequence.run.rules < DEFAULTS_RULES:
        return args, kwargs
    if not (signature.defaults or sequence.history.allocated):
        return args, kwargs
    row = sequence.row()
    if row is not None and (row.type, row.name) == (RowType.RANDOM_GENERATED, _NAME):
        sequence.next_child += 1
        return _complete(signature, args, kwargs, _decode(row.data or "{}"))
    if not signature.defaults or row is not None or not sequence.at_frontier():
        return args, kwargs
    given = signature.bind(args, kwargs).arguments
    if left := {name: text for name, text in signature.defaults.items() if name not in given}:
        value = msgspec.json.encode(left).decode()
        sequence.commands.append(Captured(child=sequence.next_child, kind="random", name=_NAME, value=value))
        sequence.next_child += 1
    return _complete(signature, args, kwargs, left)


def _complete(
    signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any], texts: Mapping[str, msgspec.Raw]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments with others, given as JSON texts; names that the code does not take are left out."""
    if not texts:
        return args, kwargs
    bound = signature.bind(args, kwargs)
    for name, text in texts.items():
        if name in bound.signature.parameters and name not in bound.arguments:
            bound.arguments[name] = signature.read(name, signature.codecs[name], text)
    # one that was left out may stand before one that is by position only
    bound.apply_defaults()
    return bound.args, bound.kwargs
