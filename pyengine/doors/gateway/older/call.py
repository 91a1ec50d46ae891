"""One request of the older API.

Lives here: `Call`: what its path, its headers and its token say. May not: the fields of a body (fields.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from pyengine.doors.gateway.older.fields import Body
from pyengine.doors.gateway.permissions import check
from pyengine.doors.gateway.tokens import Claims


@dataclass(frozen=True, slots=True)
class Call:
    """A request whose body has been read.

    Args:
        request: the request.
        body: its body; empty if its method has none.
        claims: what its token says, or None if none is needed.
    """

    request: Request
    body: Body
    claims: Claims | None

    @property
    def path_id(self) -> str:
        """The id in its path."""
        return str(self.request.path_params["id"])

    @property
    def idempotency_key(self) -> str | None:
        """Its key, or None."""
        return self.request.headers.get("idempotency-key") or None

    @property
    def is_strict(self) -> bool:
        """Whether a repetition counts only if the promise is in the wanted state."""
        return self.request.headers.get("strict", "").lower() == "true"

    def check_token(self, kind: str, **data: Any) -> None:
        """Return if the token allows the request of the protocol that does the same.

        Args:
            kind: the kind of that request.
            data: its data.

        Raises:
            Forbidden: it does not.
        """
        if self.claims is not None:
            check(self.claims, kind, data)
