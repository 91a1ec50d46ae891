"""Names of groups and members in addresses.

Lives here: which names a stream may have, and the group of an address as clients write it. May not: more
forms than the canonicaliser of the schema takes (sql/logic/10_base/50_addresses.sql); a form that is not
known here has no group, so a token that is limited to groups does not reach it.
"""

from __future__ import annotations

import re

__all__ = ["group_of", "is_routable"]

_BYTES_MAX = 1024
_NAME = r"[^/@\s\x00-\x20\x7f]+"
_MEMBER = re.compile(rf"{_NAME}/[^/\s\x00-\x20\x7f]+")
_FORMS = (
    re.compile(r"poll://(?:any|uni)@([^/@]+)(?:/[^/]+)?", re.IGNORECASE),
    re.compile(r"poll://([^/@:]+)(?:/[^/]+)?", re.IGNORECASE),
    re.compile(r"poll://([^/@:]+):[^/@:]+", re.IGNORECASE),
    re.compile(r"([^/@:]+)"),
)


def is_routable(group: str, pid: str) -> bool:
    """Return whether messages can be addressed to this member."""
    place = f"{group}/{pid}"
    return _MEMBER.fullmatch(place) is not None and len(place.encode()) <= _BYTES_MAX - len("poll://uni@")


def group_of(address: str) -> str | None:
    """Return the group of an address of members, in any form; None for another address."""
    for form in _FORMS:
        if found := form.fullmatch(address):
            return found[1]
    return None
