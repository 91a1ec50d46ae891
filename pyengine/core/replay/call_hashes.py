"""The hashes of a call: of the text of its arguments, and of that text without defaults.

Lives here: `HashedCall`, the hash that is recorded and what agrees with it. May not: a row, a command; the
order of calls (call_matcher.py). Design: a row has the hash of the text of the arguments. Since rules 4 the
hash of the text without defaults (values/defaults.py) stands before it, if that is another text. A call is
the recorded one if one of its hashes is one of the row's. So a replay of the same code compares one hash.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, NamedTuple

from pyengine.core.definitions.signatures import Signature
from pyengine.core.rules import TWO_HASHES_RULES

_DIGITS = 16


class HashedCall(NamedTuple):
    """A call.

    Args:
        key: the bytes before the text that is hashed.
        signature: of the function that it calls.
        args: positional arguments.
        kwargs: keyword arguments.
        packed: the text of both.
    """

    key: bytes
    signature: Signature
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    packed: bytes

    def to_record(self, digest: str, rules: int) -> str:
        """Return the hash to record.

        Args:
            digest: the hash of its text.
            rules: those of the run.
        """
        if rules < TWO_HASHES_RULES or (text := self._without_defaults()) == self.packed:
            return digest
        return self._hash(text) + digest

    def agrees(self, digest: str, recorded: str | None) -> bool:
        """Return whether it is the recorded call, though its text is another one.

        It is if the texts differ in defaults only: a field has one since, or has another one, or one of the
        two writes what the other leaves out.
        """
        if recorded is None:
            return False
        reduced = self._hash(self._without_defaults())
        return not {digest, reduced}.isdisjoint({recorded[:_DIGITS], recorded[-_DIGITS:]})

    def _without_defaults(self) -> bytes:
        return self.signature.pack_reduced(self.args, self.kwargs, self.packed)

    def _hash(self, text: bytes) -> str:
        return sha256(self.key + text).hexdigest()[:_DIGITS]


def hashed(
    name: str, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any], packed: bytes
) -> HashedCall:
    """Return the call of a child run, as `input_hash` hashes it."""
    return HashedCall(name.encode() + b"\0", signature, args, kwargs, packed)
