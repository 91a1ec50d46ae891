"""Permissions: which requests a token allows.

Lives here: the ids and addresses that a request names, the group of an address as clients write it, and the
comparison with the claims of its token. May not: the check of a token (tokens.py), more forms of an address
than the canonicaliser of the schema takes (sql/logic/core/10_base/50_addresses.sql). Design: a request is
allowed if everything that it names is, the requests inside it too. A form that is not known here has no
group, so a token that is limited to groups does not reach it. A field that is not a text is left to the
database, which refuses the request before it looks anything up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pyengine.doors.gateway.tokens import Claims

_FORMS = (
    re.compile(r"poll://(?:any|uni)@([^/@]+)(?:/[^/]+)?", re.IGNORECASE),
    re.compile(r"poll://([^/@:]+)(?:/[^/]+)?", re.IGNORECASE),
    re.compile(r"poll://([^/@:]+):[^/@:]+", re.IGNORECASE),
    re.compile(r"([^/@:]+)"),
)

_BY_ID = frozenset(
    {
        *("promise.get", "promise.create", "promise.settle"),
        *("task.get", "task.acquire", "task.release", "task.halt", "task.continue"),
        *("task.suspend", "task.fulfill", "task.fence"),
        *("schedule.get", "schedule.delete"),
    }
)
_REGISTRATIONS = frozenset({"promise.register_callback", "promise.register_listener"})


class Forbidden(Exception):
    """The token does not allow the request; the text is for the client."""


def check(claims: Claims, kind: str, data: dict[str, Any]) -> None:
    """Return if the token allows the request.

    Args:
        claims: what the token says.
        kind: the kind of the request.
        data: its data.

    Raises:
        Forbidden: it names something that the token does not cover.
    """
    if claims.is_admin:
        return
    if claims.prefix is None:
        raise Forbidden("the token has neither the role admin nor a prefix")
    if claims.prefix:
        ids = _ids(kind, data)
        if ids is None:
            raise Forbidden(f"{kind} is not for tokens with a prefix")
        if not all(_covers(claims, one) for one in ids):
            raise Forbidden("the request names an id without the prefix of the token")
    if claims.groups is not None:
        for address in _addresses(kind, data):
            if group_of(address) not in claims.groups:
                raise Forbidden("the request names an address outside the groups of the token")


def narrow(claims: Claims, kind: str, data: dict[str, Any]) -> None:
    """Keep a request that may leave ids out to those that the token covers.

    A heartbeat without tasks means all tasks of its process, and a process is named by whoever knows it.

    Args:
        claims: what the token says.
        kind: the kind of the request.
        data: its data.
    """
    if kind == "task.heartbeat" and prefix_of(claims):
        data["prefix"] = prefix_of(claims)


def prefix_of(claims: Claims | None) -> str:
    """Return the beginning of all ids that the token covers; empty if these are all ids."""
    return "" if claims is None or claims.is_admin else claims.prefix or ""


def withhold(claims: Claims, data: Any) -> None:
    """Take out of an answer what its request did not name and the token does not cover.

    That is a part of its preload, which has the other promises of the task's branch.

    Args:
        claims: what the token says.
        data: the data of the answer.
    """
    if isinstance(data, dict) and "preload" in data:
        data["preload"] = [one for one in data["preload"] if _covers(claims, one["id"])]


def check_stream(claims: Claims, group: str) -> None:
    """Return if the token allows to poll a group.

    Raises:
        Forbidden: it does not.
    """
    if not claims.is_admin and claims.groups is not None and group not in claims.groups:
        raise Forbidden("the token is not for this group")


def _covers(claims: Claims, id: str) -> bool:
    return claims.is_admin or (claims.prefix is not None and id.startswith(claims.prefix))


def _ids(kind: str, data: dict[str, Any]) -> list[str] | None:
    """Return the ids that a request names; None if it is about ids that it does not name."""
    if _named(kind, data) is None:
        return None
    found = [id for part in _parts(kind, data) for id in _named(*part) or ()]
    return [one for one in found if isinstance(one, str)]


def _named(kind: str, data: dict[str, Any]) -> list[Any] | None:
    """Return the same for one part of a request, as they stand there."""
    if kind in _REGISTRATIONS:
        return [data.get("awaited"), data.get("awaiter")]
    if kind == "schedule.create":
        return [data.get("id"), _expanded(data)]
    if kind == "task.heartbeat":
        tasks = data.get("tasks")
        return [one.get("id") for one in (tasks if isinstance(tasks, list) else []) if isinstance(one, dict)]
    if kind == "task.create":
        return []
    return [data.get("id")] if kind in _BY_ID else None


def _expanded(data: dict[str, Any]) -> Any:
    """Return the template of a schedule's promises with the schedule's own id in it."""
    template, id = data.get("promiseId"), data.get("id")
    if isinstance(template, str) and isinstance(id, str):
        return template.replace("{{.id}}", id)
    return template


def _addresses(kind: str, data: dict[str, Any]) -> Iterator[str]:
    """Give the addresses to which a request may lead messages."""
    for inner_kind, inner in _parts(kind, data):
        for tags in (inner.get("tags"), inner.get("promiseTags")):
            if isinstance(tags, dict) and "resonate:target" in tags:
                yield str(tags["resonate:target"])
        # a callback of the older API has a receiver of its own
        if inner_kind in _REGISTRATIONS and "address" in inner:
            yield str(inner["address"])


def _parts(kind: str, data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give a request and the requests inside it, which have none inside themselves."""
    yield kind, data
    actions = data.get("actions")
    for one in [data.get("action"), *(actions if isinstance(actions, list) else [])]:
        if isinstance(one, dict) and isinstance(one.get("data"), dict):
            yield str(one.get("kind")), one["data"]


def group_of(address: str) -> str | None:
    """Return the group of an address of members, in any form; None for another address."""
    for form in _FORMS:
        if found := form.fullmatch(address):
            return found[1]
    return None
