"""Canonical addresses, as the protocol reads them: a table of forms, apart from the engine's own regular
expressions."""

from __future__ import annotations


def canonical(address: object, *, listener: bool = False) -> str | None:
    """The one spelling of an address; None if nothing can be routed there. The older form poll://group:id
    means any member for a task, that member alone for a listener."""
    if not isinstance(address, str) or not address or any(each.isspace() for each in address):
        return None
    spelled = _spelled(address, listener)
    return None if spelled is None or len(spelled.encode()) > 1024 else spelled


def whole(address: str) -> bool:
    """Whether the specification takes it, which completes nothing: with its scheme, a poll with an @."""
    scheme, _, rest = address.partition("://")
    return scheme in ("http", "https") or (scheme == "poll" and "@" in rest)


def _spelled(address: str, listener: bool) -> str | None:
    scheme, found, rest = address.partition("://")
    if not found:
        # a bare group; anything with a colon, a slash or an at sign is a mistyped address
        return None if set(address) & set(":/@") else f"poll://any@{address}"
    if scheme in ("http", "https"):
        return address if rest else None
    return _poll(rest, listener) if scheme == "poll" else None


def _poll(rest: str, listener: bool) -> str | None:
    cast, found, place = rest.partition("@")
    if not found:
        # older forms: group, group/id, group:id
        first = next((each for each in rest if each in ":/"), "/")
        group, slash, name = rest.partition(first)
        cast = "uni" if listener and first == ":" else "any"
        place = f"{group}/{name}" if slash else group
    group, slash, name = place.partition("/")
    if not group or "/" in name or (slash and not name):
        return None
    if cast == "any" or (cast == "uni" and name):
        return f"poll://{cast}@{place}"
    return None


def queue(target: str) -> str:
    """Where a task with this canonical target is offered: the group of an anycast, else the address."""
    anycast = target.startswith("poll://any@")
    return target.removeprefix("poll://any@").partition("/")[0] if anycast else target
