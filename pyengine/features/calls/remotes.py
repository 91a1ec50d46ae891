"""Remotes: where objects and names of commits are exchanged with orchestrators and other repositories.

Lives here: the manifest, in which objects travel, and two remotes: a database, and a folder (``file://``).
May not: decide what is pinned; an exec that comes in a manifest is an object like any other.

A manifest is applied whole or not at all. Every id in it is computed again, all that its objects refer to is
there or comes with it, and its ref moves forward only: to a commit that was made from the one that it names
now, at the version that the sender has read.

A folder has ``objects/<2 digits>/<62 digits>``, one JSON document each, and ``refs/<name>/<version>``.
Objects are written first. A version of a ref is a file that is made once, by a hard link. So the second of
two senders is refused, and readers see a ref only when all that it reaches is there.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from pyengine.core.client.transport import Transport
from pyengine.errors import Conflict, InvalidRequest, NotFound
from pyengine.features.calls.identity import NO_OBJECT, NewObject
from pyengine.features.calls.statements.objects import OBJECTS_EXPORT, OBJECTS_IMPORT, REF_READ

_HEX = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"[1-9][0-9]{0,9}")
# a remote is written by others: no link out of it, and no pipe that never ends (not all systems have these)
_OWN_FILE = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class Ref(NamedTuple):
    """The commit that a name stands for, and the version of the name."""

    commit: bytes
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefMove:
    """A name that moves to a commit.

    Args:
        name: of a head or snapshot.
        commit: the new commit.
        version: the version that the sender has read; 0 makes a new name, in a folder only.
    """

    name: str
    commit: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """Objects, and the move of a name, as they travel."""

    objects: tuple[NewObject, ...]
    ref: RefMove | None = None

    def to_json(self) -> str:
        """Return the manifest as ``durable.objects_import`` takes it."""
        found: dict[str, Any] = {"v": 1, "objects": [_to_json(each) for each in self.objects]}
        if self.ref is not None:
            found["ref"] = {
                "name": self.ref.name,
                "commit": self.ref.commit.hex(),
                "version": self.ref.version,
            }
        return json.dumps(found)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Return the manifest of a text.

        Raises:
            InvalidRequest: it is none, or an id is not that of its content.
        """
        try:
            found = json.loads(text)
            objects = tuple(_from_json(each) for each in found["objects"])
            move = found.get("ref")
            ref = move and RefMove(
                name=str(move["name"]), commit=_id(move["commit"]), version=int(move["version"])
            )
            if found["v"] != 1:
                raise ValueError("unknown version")
        except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
            raise InvalidRequest("this is no manifest of objects", detail=str(error)) from None
        return cls(objects, ref)


def _to_json(each: NewObject) -> dict[str, Any]:
    scalar = None if each.scalar is None else base64.b64encode(each.scalar).decode()
    refs = [ref.hex() for ref in each.refs]
    return {
        "id": each.id.hex(),
        "kind": each.kind,
        "sub": each.sub,
        "scalar": scalar,
        "refs": refs,
        "names": list(each.names),
    }


def _from_json(found: Mapping[str, Any]) -> NewObject:
    scalar = None if found["scalar"] is None else base64.b64decode(found["scalar"], validate=True)
    made = NewObject(
        str(found["kind"]),
        str(found["sub"]),
        scalar,
        tuple(_id(ref) for ref in found["refs"]),
        tuple(map(str, found["names"])),
    )
    if made.id != _id(found["id"]):
        raise ValueError(f"{found['id']} is not the id of its content, which is {made.id.hex()}")
    return made


def _id(text: str) -> bytes:
    if _HEX.fullmatch(text) is None:
        raise ValueError(f"{text!r:.80} is no id")
    return bytes.fromhex(text)


class DatabaseRemote:
    """A database as a remote: by default the one in which calls run, where a result is there once it is put.

    Args:
        transport: the calls by which a client reaches it.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def push(self, manifest: Manifest) -> None:
        """Apply a manifest.

        Raises:
            InvalidRequest: an id is not that of its content, or an object breaks a law.
            NotFound: an object refers to one that is nowhere.
            Conflict: the ref has another version, or the commit was not made from it.
        """
        await self._transport.rows(OBJECTS_IMPORT, manifest.to_json())

    async def fetch(self, tops: Sequence[bytes], known: Sequence[bytes] = ()) -> Manifest:
        """Return objects with all that they reach, without what the known ones reach.

        Raises:
            NotFound: one of them is nowhere.
            Excised: one of them was excised.
        """
        given = [each.hex() for each in tops], [each.hex() for each in known]
        (row,) = await self._transport.rows(OBJECTS_EXPORT, *given)
        return Manifest.from_json(row["manifest"])

    async def ref(self, name: str) -> Ref | None:
        """Return the commit and version of a name."""
        rows = await self._transport.rows(REF_READ, name)
        return Ref(bytes.fromhex(rows[0]["commit"]), rows[0]["version"]) if rows else None


class FileRemote:
    """A folder as a remote, for programs that share a file system.

    Args:
        url: ``file:///a/folder``; it is made when something is pushed.

    Raises:
        InvalidRequest: the URL is not of this form.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise InvalidRequest(
                f"{url!r} is no folder; a remote is file:///a/folder, or postgresql://host/name"
            )
        self._folder = Path(unquote(parts.path))

    def push(self, manifest: Manifest) -> None:
        """Apply a manifest: its objects, then its ref.

        Raises:
            NotFound: an object refers to one that is nowhere.
            Conflict: the ref has another version, or the commit was not made from it.
        """
        coming = {each.id: each for each in manifest.objects}
        for each in manifest.objects:
            for ref in each.refs:
                if ref != NO_OBJECT and ref not in coming and not self._path(ref).exists():
                    raise NotFound(f"object {each.id.hex()} refers to {ref.hex()}, which is nowhere")
        if manifest.ref is not None:
            self._check_move(manifest.ref, coming)
        for each in manifest.objects:
            self._write(each)
        if manifest.ref is not None:
            self._move(manifest.ref)

    def fetch(self, tops: Sequence[bytes], known: Sequence[bytes] = ()) -> Manifest:
        """Return objects with all that they reach, without what the known ones reach.

        Raises:
            NotFound: one of them is nowhere.
            InvalidRequest: a file is damaged.
        """
        left_out = self._reached(known, {}, missing_ok=True)
        found = self._reached(tops, left_out, missing_ok=False)
        return Manifest(tuple(each for each in found.values() if each is not None))

    def ref(self, name: str) -> Ref | None:
        """Return the commit and version of a name."""
        versions = self._versions(name)
        if not versions:
            return None
        path = self._ref_folder(name) / str(max(versions))
        text = (_read_file(path) or "").strip()
        if _HEX.fullmatch(text) is None:
            raise InvalidRequest(f"{path} is damaged", detail="a ref is the id of a commit")
        return Ref(bytes.fromhex(text), max(versions))

    def drop(self, name: str) -> None:
        """Drop a name: snapshots are ephemeral. Its objects stay."""
        for version in sorted(self._versions(name)):
            (self._ref_folder(name) / str(version)).unlink(missing_ok=True)

    def _reached(
        self, tops: Iterable[bytes], without: Mapping[bytes, object], *, missing_ok: bool
    ) -> dict[bytes, NewObject | None]:
        found: dict[bytes, NewObject | None] = {}
        left = list(tops)
        while left:
            id_ = left.pop()
            if id_ in found or id_ in without or id_ == NO_OBJECT:
                continue
            found[id_] = each = self._read(id_)
            if each is not None:
                left.extend(each.refs)
            elif not missing_ok:
                raise NotFound(f"there is no object {id_.hex()} in {self._folder}")
        return found

    def _check_move(self, move: RefMove, coming: Mapping[bytes, NewObject]) -> None:
        now = self.ref(move.name)
        if (now.version if now else 0) != move.version:
            raise Conflict(f"{move.name!r} has version {now.version if now else 0}, not {move.version}")
        commit = coming.get(move.commit) or self._read(move.commit)
        if commit is None or commit.kind != "commit":
            raise NotFound(f"there is no commit {move.commit.hex()}")
        if now is not None and not self._is_ancestor(now.commit, move.commit, coming):
            raise Conflict(
                f"commit {move.commit.hex()} does not come after that of {move.name!r}",
                hint="commit on top of it as it is now",
            )

    def _is_ancestor(self, old: bytes, new: bytes, coming: Mapping[bytes, NewObject]) -> bool:
        seen: set[bytes] = set()
        left = [new]
        while left:
            id_ = left.pop()
            if id_ == old:
                return True
            commit = coming.get(id_) or self._read(id_)
            if id_ not in seen and commit is not None:
                seen.add(id_)
                left.extend(commit.refs[1 : 1 + int.from_bytes(commit.scalar or b"")])
        return False

    def _path(self, id_: bytes) -> Path:
        digits = id_.hex()
        return self._folder / "objects" / digits[:2] / digits[2:]

    def _read(self, id_: bytes) -> NewObject | None:
        text = _read_file(self._path(id_))
        if text is None:
            return None
        try:
            found = _from_json(json.loads(text))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"{self._path(id_)} is damaged", detail=str(error)) from None
        if found.id != id_:
            raise InvalidRequest(f"{self._path(id_)} has the content of {found.id.hex()}")
        return found

    def _write(self, each: NewObject) -> None:
        path = self._path(each.id)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(_draft_of(path, json.dumps(_to_json(each))), path)

    def _move(self, move: RefMove) -> None:
        folder = self._ref_folder(move.name)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / str(move.version + 1)
        draft = _draft_of(path, move.commit.hex() + "\n")
        try:
            os.link(draft, path)
        except FileExistsError:
            raise Conflict(f"{move.name!r} has moved meanwhile", hint="read it again") from None
        finally:
            draft.unlink()

    def _ref_folder(self, name: str) -> Path:
        escaped = quote(name, safe="")
        if not name or len(escaped) > 255 or escaped in (".", ".."):
            raise InvalidRequest(f"{name!r:.80} is no name of a ref in a folder")
        return self._folder / "refs" / escaped

    def _versions(self, name: str) -> list[int]:
        folder = self._ref_folder(name)
        return [int(path.name) for path in folder.glob("*") if _VERSION.fullmatch(path.name)]


def _read_file(path: Path) -> str | None:
    """Return the text of a file of the folder itself, which links to nothing outside; None: it is not there.

    Raises:
        InvalidRequest: it is no such file, or cannot be read.
    """
    try:
        file = os.open(path, _OWN_FILE)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read", detail=error.strerror) from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise InvalidRequest(f"{path} is no file")
    with open(file, "rb") as opened:
        try:
            return opened.read().decode()
        except UnicodeDecodeError:
            raise InvalidRequest(f"{path} is damaged", detail="it is no UTF-8") from None


def _draft_of(path: Path, text: str) -> Path:
    """A new file in the same folder with this text, which is on the disk."""
    draft = path.with_name(f".{secrets.token_hex(8)}")
    with draft.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return draft
