"""The identity of objects and of calls: what is hashed, and in which encoding.

Lives here: the encoding, the ids of objects, the two keys of a call, and the normal form of URIs. May not:
know Python values (datums.py), connect, or store. The database computes the same ids and trusts no other
(``durable._object_id``); tests/features/calls/vectors.json has examples that both must agree with.

An id is the SHA-256 of ``durable/1/<kind>/<sub>``, a zero byte, and three parts, each with its length or
number in 4 bytes, big endian: the scalar, the refs of 32 bytes, the names in UTF-8. A change of this encoding
is a new version in the tag, never a silent re-hash.
"""

from __future__ import annotations

import hashlib
import re
import string
import struct
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from pyengine.errors import EncodeError

NO_OBJECT = bytes(32)
"""The place of a ref that a commit does not have."""
MAX_NAME_BYTES = 255
_VERSION = "durable/1"
# durable._is_uri has the same three patterns
_URI = re.compile(r"[a-z][a-z0-9+.-]*:(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-F]{2})*", re.ASCII)
_NEEDLESS_ESCAPE = re.compile(r"%(?:2D|2E|5F|7E|3[0-9]|[46][1-9A-F]|[57][0-9A])")
_DOT_SEGMENT = re.compile(r"[^:/?#]+:(?:[^?#]*/)?[.]{1,2}(?:[/?#]|\Z)")
_HOST = re.compile(r"[^:]+://(?:[^/?#@]*@)?([^/?#@]*)")
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
_UNRESERVED = {*string.ascii_letters, *string.digits, *"-._~"}
_ALLOWED = _UNRESERVED | {*":/?#[]@!$&'()*+,;=%"}


def object_id(
    kind: str, sub: str, scalar: bytes | None = None, refs: Sequence[bytes] = (), names: Sequence[str] = ()
) -> bytes:
    """Return the id of an object with this content; an absent part counts as an empty one."""
    encoded = [name.encode() for name in names]
    parts = [f"{_VERSION}/{kind}/{sub}".encode(), b"\0", _number(len(scalar or b"")), scalar or b""]
    parts += [_number(len(refs)), *refs, _number(len(encoded))]
    for name in encoded:
        parts += [_number(len(name)), name]
    return hashlib.sha256(b"".join(parts)).digest()


def _number(value: int) -> bytes:
    return struct.pack(">I", value)


@dataclass(frozen=True, slots=True)
class NewObject:
    """An object as it is put: its content, from which its id follows.

    Args:
        kind: datum, node, dag, tree, commit, exec or request.
        sub: the kind within the kind, or empty.
        scalar: bytes of a datum that has no parts.
        refs: ids of other objects.
        names: names of the refs of a dag or tree.
    """

    kind: str
    sub: str
    scalar: bytes | None = None
    refs: tuple[bytes, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def id(self) -> bytes:
        """The hash of the content."""
        return object_id(self.kind, self.sub, self.scalar, self.refs, self.names)


def value_key(salt: str, function: bytes, inputs: Sequence[bytes], scope: str | None = None) -> bytes:
    """Return the key under which the results of a call are shared.

    Args:
        salt: the cache namespace; results of two salts are never shared between scopes.
        function: id of the datum of the function's URI.
        inputs: ids of the datums that the inputs have as values.
        scope: of a call that is not shared; None for any other.
    """
    namespace = salt.encode() if scope is None else salt.encode() + b"\0" + scope.encode()
    return object_id("key", "value", namespace, [function, *inputs])


def execution_key(value_key: bytes, generation: int) -> bytes:
    """Return the key of one attempt: the idempotency key that backends get."""
    return object_id("key", "exec", _number(generation), [value_key])


def check_name(name: str) -> str:
    """Return a name of a dag or tree in Unicode form NFC.

    Raises:
        EncodeError: it has a NUL or a lone surrogate, or more than 255 bytes.
    """
    normal = unicodedata.normalize("NFC", name)
    try:
        size = len(normal.encode())
    except UnicodeEncodeError:
        raise EncodeError("a name has a lone surrogate", where=repr(name)) from None
    if size > MAX_NAME_BYTES or "\0" in name:
        raise EncodeError(
            f"a name has at most {MAX_NAME_BYTES} bytes of UTF-8 and no NUL", where=repr(name[:80])
        )
    return normal


def is_normal_uri(text: str) -> bool:
    """Return whether a URI is in the normal form of RFC 3986, section 6.2.2."""
    host = _HOST.match(text)
    return (
        _URI.fullmatch(text) is not None
        and _NEEDLESS_ESCAPE.search(text) is None
        and _DOT_SEGMENT.match(text) is None
        and (host is None or (bare := _ESCAPE.sub("", host[1])) == bare.lower())
    )


def normalized_uri(text: str) -> str:
    """Return a URI in normal form: case of scheme, host and escapes, needless escapes, dot segments.

    Raises:
        EncodeError: it is no URI, or has a control character.
    """
    parts = re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]*):(//[^/?#]*)?([^?#]*)(\?[^#]*)?(#.*)?", text, re.S)
    if parts is None or any(unicodedata.category(char) in ("Cc", "Cs") for char in text):
        raise EncodeError("a URI begins with its scheme and has no control characters", where=repr(text[:80]))
    scheme, authority, path, query, fragment = (part or "" for part in parts.groups())
    user, at, host = _escaped(authority).rpartition("@")
    host = re.sub(r"%[0-9A-F]{2}|[^%]+", lambda m: m[0] if m[0][0] == "%" else m[0].lower(), host)
    path = _without_dot_segments(_escaped(path))
    if not authority and path.startswith("//"):
        raise EncodeError("a path without a host begins with one slash", where=repr(text[:80]))
    return f"{scheme.lower()}:{user}{at}{host}{path}{_escaped(query)}{_escaped(fragment)}"


def _escaped(part: str) -> str:
    """A part with escapes where they are needed, and only there."""

    def one(escape: re.Match[str]) -> str:
        char = chr(int(escape[0][1:], 16))
        return char if char in _UNRESERVED else escape[0].upper()

    text = re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", unicodedata.normalize("NFC", part))
    bare = "".join(
        char if char in _ALLOWED else "".join(f"%{byte:02X}" for byte in char.encode()) for char in text
    )
    return _ESCAPE.sub(one, bare)


def _without_dot_segments(path: str) -> str:
    """A path as RFC 3986, section 5.2.4, reads it."""
    done: list[str] = []
    segments = path.split("/")
    for place, segment in enumerate(segments):
        last = place == len(segments) - 1
        if segment not in (".", ".."):
            done.append(segment)
            continue
        if segment == ".." and (len(done) > 1 or (done and done[0])):
            done.pop()
        if last:
            done.append("")
    return "/".join(done)
