"""Tokens of clients: signed, dated, and limited.

Lives here: the token of a request, keys from a file, and the check of one against the others. May not: what
a token allows a request to do (permissions.py). Design: the key decides which algorithms are possible, never
the token. Without a key there are no tokens at all: an unsigned one is never taken. The file is read again
when it changes, so keys can be exchanged while the gateway serves.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from pyengine.errors import InvalidRequest

logger = logging.getLogger("pyengine.gateway")

_LEEWAY_S = 30
# a longer one costs more to refuse than a request is worth
_LONGEST = 16_384
_MISSING = 0
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES = {"secp256r1": ("ES256",), "secp384r1": ("ES384",)}
_RSA_BITS_MIN = 2048


class TokenRefused(Exception):
    """The token is missing, or is not valid; the text is for the client."""


def bearer(headers: Mapping[str, str]) -> str | None:
    """Return the token in the headers of a request, or None.

    Clients of the older API know Basic authorization only: there the token is the password.

    Args:
        headers: the headers, by lower-case names.
    """
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            token = base64.b64decode(token.strip(), validate=True).decode().partition(":")[2]
        except ValueError:
            return None
    elif scheme.lower() != "bearer":
        return None
    return token.strip() or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The claims of a token about its bearer.

    Args:
        is_admin: everything is allowed.
        prefix: the beginning of all ids that it may name; None allows none.
        groups: the groups that it may poll and send to; None means all.
    """

    is_admin: bool
    prefix: str | None
    groups: frozenset[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    id: str | None
    algorithms: tuple[str, ...]
    public: Any


class Verifier:
    """Checks tokens.

    Args:
        path: file with a public key in PEM, or a JWKS with several.
        issuer: the issuer that tokens must name, or None.
        audience: the audience that tokens must name, or None.

    Raises:
        InvalidRequest: the file cannot be read, or has a key that is not supported.
    """

    def __init__(self, path: Path, *, issuer: str | None = None, audience: str | None = None) -> None:
        self._path = path
        self._issuer = issuer
        self._audience = audience
        self._changed_at = _MISSING
        self._keys: tuple[_Key, ...] = ()
        self._read()

    def verify(self, token: str | None) -> Claims:
        """Return what a token says.

        Raises:
            TokenRefused: it is missing or not valid.
        """
        if not token:
            raise TokenRefused("a token is needed: head.auth, or the header Authorization: Bearer")
        if len(token) > _LONGEST:
            raise TokenRefused(f"a token has at most {_LONGEST} characters")
        self._read_again()
        try:
            head = jwt.get_unverified_header(token)
            return _claims(self._payload(token, head))
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise TokenRefused(_reason(error)) from None

    def _payload(self, token: str, head: dict[str, Any]) -> dict[str, Any]:
        keys = [
            key
            for key in self._keys
            if head.get("alg") in key.algorithms and (key.id is None or head.get("kid") in (None, key.id))
        ]
        failure: jwt.PyJWTError = jwt.InvalidKeyError("no key fits its algorithm and kid")
        for key in keys:
            try:
                payload: dict[str, Any] = jwt.decode(
                    token,
                    key.public,
                    algorithms=list(key.algorithms),
                    issuer=self._issuer,
                    audience=self._audience,
                    leeway=_LEEWAY_S,
                    options={"require": ["exp"], "verify_aud": self._audience is not None},
                )
            except jwt.InvalidSignatureError as error:
                failure = error
            else:
                return payload
        raise failure

    def _read_again(self) -> None:
        try:
            changed_at = self._path.stat().st_mtime_ns
        except OSError:
            changed_at = _MISSING
        if changed_at == self._changed_at:
            return
        self._changed_at = changed_at
        try:
            self._read()
        except InvalidRequest as error:
            # it is being replaced, or was replaced by a wrong one
            logger.warning("%s; the keys that were read before stay valid", error)

    def _read(self) -> None:
        try:
            self._changed_at = self._path.stat().st_mtime_ns
            text = self._path.read_bytes()
        except OSError as error:
            raise InvalidRequest(f"the key file {self._path} cannot be read: {error.strerror}") from None
        try:
            keys = tuple(_jwks(json.loads(text)) if text.lstrip().startswith(b"{") else [_pem(text)])
        except (ValueError, TypeError, KeyError, AttributeError, jwt.PyJWTError) as error:
            raise InvalidRequest(
                f"the key file {self._path} is neither a public key in PEM nor a JWKS: {error}",
                hint="RSA of 2048 bits or more, EC P-256 or P-384, or Ed25519",
            ) from None
        self._keys = keys


def _pem(text: bytes) -> _Key:
    return _key(None, load_pem_public_key(text))


def _jwks(document: dict[str, Any]) -> Iterator[_Key]:
    keys = document["keys"]
    if not keys:
        raise ValueError("it has no key")
    for one in keys:
        if one.get("use", "sig") != "sig":
            continue
        if one.get("kty") not in ("RSA", "EC", "OKP") or "d" in one:
            raise ValueError(f"key {one.get('kid')!r} is no public key")
        key = _key(one.get("kid"), jwt.PyJWK(one, _algorithm(one)).key)
        yield key if "alg" not in one else _only(key, one["alg"])


def _algorithm(one: dict[str, Any]) -> str | None:
    """Return the algorithm by which PyJWT reads a key; it guesses all but the variants of RSA."""
    return "RS256" if one["kty"] == "RSA" else None


def _only(key: _Key, algorithm: str) -> _Key:
    if algorithm not in key.algorithms:
        raise ValueError(f"key {key.id!r} cannot be used for {algorithm}")
    return _Key(id=key.id, algorithms=(algorithm,), public=key.public)


def _key(id: str | None, public: Any) -> _Key:
    algorithms: tuple[str, ...]
    if isinstance(public, RSAPublicKey) and public.key_size >= _RSA_BITS_MIN:
        algorithms = _RSA
    elif isinstance(public, EllipticCurvePublicKey) and public.curve.name in _CURVES:
        algorithms = _CURVES[public.curve.name]
    elif isinstance(public, Ed25519PublicKey):
        algorithms = ("EdDSA",)
    else:
        raise ValueError(f"a key of type {type(public).__name__} is not supported")
    return _Key(id=id, algorithms=algorithms, public=public)


def _claims(payload: dict[str, Any]) -> Claims:
    role, prefix, groups = payload.get("role"), payload.get("prefix"), payload.get("groups")
    if groups is not None and not isinstance(groups, list):
        raise ValueError("its groups are no list")
    return Claims(
        is_admin=isinstance(role, str) and role.lower() == "admin",
        prefix=prefix if isinstance(prefix, str) else None,
        groups=None if groups is None else frozenset(one for one in groups if isinstance(one, str)),
    )


def _reason(error: Exception) -> str:
    """Return why a token is not valid, without any part of it."""
    if isinstance(error, jwt.ExpiredSignatureError):
        return "the token has expired"
    if isinstance(error, jwt.ImmatureSignatureError):
        return "the token is not valid yet"
    if isinstance(error, jwt.MissingRequiredClaimError):
        return f"the token has no {error.claim}"
    if isinstance(error, jwt.InvalidAudienceError | jwt.InvalidIssuerError):
        return "the token is for another audience, or of another issuer"
    return "the token is not valid"
