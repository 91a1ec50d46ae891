"""Exchange of results with a remote: one head at a time, forward only.

Lives here: `Remote`, what `app.remote(url)` opens. May not: how objects travel (remotes.py), or which results
are used: that is what an index with this head as its base decides. The theory: a head names a commit, and a
commit reaches all results that it pins. So both directions are one: read the name here and there, send what
the other side does not have, and move its name at the version that was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pyengine.core.process.own_threads import in_a_thread
from pyengine.errors import InvalidRequest, NotFound
from pyengine.features.calls.remotes import DatabaseRemote, FileRemote, Manifest, Ref, RefMove
from pyengine.features.calls.statements.objects import OPEN_HEAD, REF_READ

_KINDS = {"index": "it is an index, as a scope has it", "exec": "it is the snapshot of a call"}


class Place(Protocol):
    """One side of an exchange."""

    async def ref(self, name: str) -> Ref | None:
        """Return the commit and version of a name."""

    async def fetch(self, tops: Sequence[bytes], known: Sequence[bytes]) -> Manifest:
        """Return objects with all that they reach, without what the known ones reach."""

    async def new_version(self, name: str) -> int:
        """Return the version at which a name that is not there begins."""

    async def push(self, manifest: Manifest) -> None:
        """Apply a manifest, whole or not at all."""


class DatabasePlace(DatabaseRemote):
    """A database, in which every head begins with the same empty commit."""

    async def ref(self, name: str) -> Ref | None:
        """Return the commit and version of a head.

        Raises:
            InvalidRequest: the name is one of an index or a snapshot.
        """
        rows = await self._transport.rows(REF_READ, name)
        if rows and rows[0]["kind"] != "head":
            raise InvalidRequest(
                f"{name!r} is no head: {_KINDS[rows[0]['kind']]}",
                hint="results go from head to head: open the scope on a head, and commit it there first",
            )
        return await super().ref(name)

    async def new_version(self, name: str) -> int:
        """Make the head, and return its version."""
        (row,) = await self._transport.rows(OPEN_HEAD, name)
        return int(row["version"])


class FolderPlace:
    """A folder, which is read and written in threads.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: FileRemote) -> None:
        self._folder = folder

    async def ref(self, name: str) -> Ref | None:
        """Return the commit and version of a name."""
        return await in_a_thread(self._folder.ref, name)

    async def fetch(self, tops: Sequence[bytes], known: Sequence[bytes]) -> Manifest:
        """Return objects with all that they reach, without what the known ones reach."""
        return await in_a_thread(self._folder.fetch, tops, known)

    async def new_version(self, name: str) -> int:
        """Return 0: the name is made when it moves."""
        return 0

    async def push(self, manifest: Manifest) -> None:
        """Apply a manifest, whole or not at all."""
        await in_a_thread(self._folder.push, manifest)


class Remote:
    """Another place that has heads: a folder, or a database.

    Args:
        here: the database of the app.
        there: the remote.
    """

    def __init__(self, here: Place, there: Place) -> None:
        self._here = here
        self._there = there

    async def push(self, head: str) -> Ref:
        """Send a head with all results that it pins, and move it there; return its commit and version there.

        Raises:
            NotFound: there is no such head here.
            InvalidRequest: the name is one of an index.
            Conflict: it has moved there; pull it, and commit on top of it.
            Excised: a result was removed on purpose.
        """
        return await _moved(self._here, self._there, head, "here")

    async def pull(self, head: str) -> Ref:
        """Get a head with all results that it pins, and move it here; return its commit and version here.

        An index that is opened with this head as its base has these results.

        Raises:
            NotFound: there is no such head there.
            Conflict: it has commits here that are not there.
        """
        return await _moved(self._there, self._here, head, "there")


async def _moved(source: Place, target: Place, head: str, where: str) -> Ref:
    wanted = await source.ref(head)
    if wanted is None:
        makes = f"durable.scope_open({head!r}, kind => 'head') makes one"
        hint = makes if where == "here" else f"pyengine call push {head} ... puts it there"
        raise NotFound(f"there is no head {head!r} {where}", hint=hint)
    known = await target.ref(head)
    if known is not None and known.commit == wanted.commit:
        return known
    manifest = await source.fetch([wanted.commit], [] if known is None else [known.commit])
    version = known.version if known is not None else await target.new_version(head)
    await target.push(Manifest(manifest.objects, RefMove(name=head, commit=wanted.commit, version=version)))
    return Ref(wanted.commit, version + 1)
