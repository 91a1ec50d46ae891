"""Members of groups and their open streams.

Lives here: `Members`, which knows the streams that are open here, and `Stream`, the messages on their way to
one of them. May not: HTTP, the database. Design: a member is a process of a client, known by group and id.
The newest stream of a member replaces the one before, which may hang on a connection that is gone. A member
gets a bounded number of tasks that it has not acquired, because clients queue what they are offered. A task
that is offered again is not sent again on the same stream, unless the member wanted it and this gateway could
not serve it. It shows that the member stalls: then no tasks are asked for it for a while, longer each time,
until it acquires one. The bytes of its messages are counted from their way onto a stream until the operating
system has them; a message that finds no room comes again later.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, TypeAlias

from pyengine.doors.gateway.memory import Memory, Share

_ADDRESS_BYTES_MAX = 1024
_MEMBER = re.compile(r"[^/@\s\x00-\x20\x7f]+/[^/\s\x00-\x20\x7f]+")
_QUEUE_MAX = 256
_STALLED_S, _STALLED_MAX_S = 1.0, 30.0


class Full(Exception):
    """There are as many streams as there may be, or the gateway stops."""


class Member(NamedTuple):
    """A process of a client."""

    group: str
    pid: str

    @property
    def address(self) -> str:
        """The address of this process alone."""
        return f"poll://uni@{self.group}/{self.pid}"


@dataclass(slots=True, eq=False)
class Message:
    """A message on its way.

    Args:
        frame: its bytes.
        sent: called once the operating system has taken them, if that matters.

    Attributes:
        stream: the stream that it is on; it moves to the next one of its member with what is not written yet.
    """

    frame: bytes
    sent: Callable[[], None] | None = None
    stream: Stream | None = field(default=None, init=False)


Task: TypeAlias = tuple[str, int]


class Stream:
    """An open stream of a member.

    Args:
        member: whose it is.
        ends_s: the time at which it ends.
        full_s: the time from which on it takes nothing new.
        offered: the last stream on which each task was offered, for all streams of the gateway.
        share: the bytes of its messages.
        max_bytes: the largest number of them, unless a single message has more.

    Attributes:
        share: the bytes of its messages.
        wake: set when there is something to send, or the stream has ended.
        ended: why it has ended, or None.
    """

    def __init__(
        self,
        member: Member,
        ends_s: float,
        full_s: float,
        offered: dict[Task, Stream],
        *,
        share: Share,
        max_bytes: int,
    ) -> None:
        self.member = member
        self.ends_s = ends_s
        self._full_s = full_s
        self.wake = asyncio.Event()
        self.ended: str | None = None
        self._queue: deque[Message] = deque()
        self._until_s: dict[Task, float] = {}
        self._refused: set[Task] = set()
        self._offered = offered
        self.share = share
        self._max_bytes = max_bytes
        self._asks_at_s = 0.0
        self._pause_s = _STALLED_S

    def takes_messages(self, now_s: float) -> bool:
        """Return whether new messages may be put on this stream."""
        has_room = len(self._queue) < _QUEUE_MAX and self.share.held < self._max_bytes
        return self.ended is None and now_s < self._full_s and has_room

    def asks_for_tasks(self, now_s: float) -> bool:
        """Return whether its member takes tasks, as far as is known."""
        return now_s >= self._asks_at_s

    def stalled(self, now_s: float) -> None:
        """Record that its member was offered tasks again that it had not acquired."""
        # nothing is offered meanwhile, so a missing offer means nothing
        self._until_s = {task: until_s + self._pause_s for task, until_s in self._until_s.items()}
        self._asks_at_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, _STALLED_MAX_S)

    def unacquired(self, now_s: float) -> int:
        """Return how many tasks it was offered lately that nobody is known to have acquired."""
        return sum(until_s > now_s for until_s in self._until_s.values())

    def offer(self, task: Task, until_s: float) -> bool:
        """Record an offer; return false if the same one was sent on this stream, and not refused since.

        Args:
            task: id and version of the task.
            until_s: it comes again before then, unless somebody has acquired the task.
        """
        is_new = task not in self._until_s or task in self._refused
        self._refused.discard(task)
        self._until_s[task] = until_s
        self._offered[task] = self
        return is_new

    def was_not_sent(self, task: Task) -> None:
        """Take the record of an offer back."""
        self._forget(task)

    def acquired(self, task: Task) -> None:
        """Record that its member, or another one, has acquired a task."""
        self._asks_at_s, self._pause_s = 0.0, _STALLED_S
        self._forget(task)

    def refused(self, task: Task) -> None:
        """Record that somebody wanted a task and this gateway could not serve it: its offer is sent again.

        It counts as unacquired until then: a gateway under load must not ask for another one in its place.
        """
        self._asks_at_s, self._pause_s = 0.0, _STALLED_S
        if task in self._until_s:
            self._refused.add(task)

    def missed(self, asked_s: float) -> None:
        """Forget tasks that should have come again by then: the database was asked, and gave all it has."""
        for task in [task for task, until_s in self._until_s.items() if until_s <= asked_s]:
            self._forget(task)

    def _forget(self, task: Task) -> None:
        self._refused.discard(task)
        self._until_s.pop(task, None)
        if self._offered.get(task) is self:
            del self._offered[task]

    def send(self, message: Message) -> bool:
        """Put a message on its way; return false if there is no room for it now."""
        size = len(message.frame)
        if (self.share.held and self.share.held + size > self._max_bytes) or not self.share.add(size):
            return False
        message.stream = self
        self._queue.append(message)
        self.wake.set()
        return True

    def take(self) -> list[Message]:
        """Return the messages that are to be written now."""
        messages, self._queue = list(self._queue), deque()
        return messages

    def was_taken(self, message: Message) -> None:
        """Record that the operating system has a message."""
        self.share.remove(len(message.frame))
        if message.sent is not None:
            message.sent()

    def hand_over(self, newer: Stream) -> None:
        """Give the messages that are not being written to a newer stream."""
        for message in self.take():
            self.share.remove(len(message.frame))
            newer.send(message)

    def end(self, reason: str) -> None:
        """End the stream after what is on its way."""
        self.ended = self.ended or reason
        self.wake.set()


class Members:
    """The open streams of a gateway.

    Args:
        max_streams: the largest number of them.
        memory: the bytes of all messages.
        max_bytes: the bytes of the messages of one stream.

    Attributes:
        joined: called when a stream is new.
    """

    def __init__(self, max_streams: int, memory: Memory, max_bytes: int) -> None:
        self._max_streams = max_streams
        self._memory = memory
        self._max_bytes = max_bytes
        self._streams: dict[Member, Stream] = {}
        self._groups: dict[str, dict[Member, Stream]] = {}
        self._open: set[Stream] = set()
        self._offered: dict[Task, Stream] = {}
        self._closed = False
        self.joined: list[Callable[[], None]] = []

    def __len__(self) -> int:
        """Return the number of open streams."""
        return len(self._open)

    def join(self, member: Member, ends_s: float, full_s: float) -> Stream:
        """Return a new stream, which replaces the one before it of the same member.

        Args:
            member: whose it is.
            ends_s: the time at which it ends.
            full_s: the time from which on it takes nothing new.

        Raises:
            Full: there may be no further one.
        """
        if self._closed or len(self._open) >= self._max_streams:
            raise Full
        older = self._streams.get(member)
        share = Share(self._memory)
        stream = Stream(member, ends_s, full_s, self._offered, share=share, max_bytes=self._max_bytes)
        if older is not None:
            older.hand_over(stream)
            older.end("replaced")
        self._open.add(stream)
        self._streams[member] = self._groups.setdefault(member.group, {})[member] = stream
        for call in self.joined:
            call()
        return stream

    def leave(self, stream: Stream) -> None:
        """Forget a stream that has ended."""
        stream.end("closed")
        stream.take()
        stream.share.give_back()
        stream.missed(inf)
        self._open.discard(stream)
        if self._streams.get(stream.member) is stream:
            del self._streams[stream.member]
            group = self._groups[stream.member.group]
            del group[stream.member]
            if not group:
                del self._groups[stream.member.group]

    def is_on_its_way(self, message: Message) -> bool:
        """Return whether a message may still be sent: the stream that it is on is open."""
        return message.stream in self._open

    def find(self, member: Member) -> Stream | None:
        """Return the stream of a member."""
        return self._streams.get(member)

    def of_group(self, group: str) -> list[Stream]:
        """Return the streams of a group."""
        return list(self._groups.get(group, {}).values())

    def taking(self, now_s: float) -> list[Stream]:
        """Return the streams on which new messages may be put."""
        return [stream for stream in self._streams.values() if stream.takes_messages(now_s)]

    def acquired(self, id: str, version: int) -> None:
        """Record that somebody has acquired a task at this version."""
        stream = self._offered.get((id, version))
        if stream is not None:
            stream.acquired((id, version))

    def refused(self, id: str, version: int) -> None:
        """Record that the gateway could not serve who wanted a task at this version."""
        stream = self._offered.get((id, version))
        if stream is not None:
            stream.refused((id, version))

    def close(self) -> None:
        """End all streams, and take no further ones."""
        self._closed = True
        for stream in tuple(self._open):
            stream.end("stopping")


def is_routable(group: str, pid: str) -> bool:
    """Return whether messages can be addressed to this member."""
    place = f"{group}/{pid}"
    longest = _ADDRESS_BYTES_MAX - len("poll://uni@")
    return _MEMBER.fullmatch(place) is not None and len(place.encode()) <= longest
