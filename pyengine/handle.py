"""`Run`: the handle of one run.

What lives here: the verbs of a client with the run's id filled in, and the type of its result. What may not:
the verbs themselves (client.py, steering.py). The theory: a handle holds an id and no state, so any number
of them may stand for one run, in any process.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from pyengine.codec import TypeCodec
from pyengine.results import RunMoment, RunStatus
from pyengine.retry import Duration

if TYPE_CHECKING:
    from pyengine.client import Verbs
    from pyengine.signals import Signal

__all__ = ["Run"]

T = TypeVar("T")
V = TypeVar("V")


class Run(Generic[T]):
    """A handle of one run; awaiting it is `result()`.

    Attributes:
        id: run id.
        created: whether this start made it; None if the handle was made for a run that exists.
    """

    def __init__(
        self,
        client: Verbs,
        id: str,
        codec: TypeCodec,
        *,
        created: bool | None = None,
        since: int | None = None,
    ) -> None:
        self._client = client
        self._since = since
        self._codec = codec
        self.id = id
        self.created = created

    async def result(self, *, timeout: Duration | None = None) -> T:
        """Wait for the end of the run and return what its workflow returned.

        Args:
            timeout: how long to wait; the run goes on when the wait is over.

        Raises:
            RunFailed: it failed; its error is the cause. RunTimedOut, RunCancelled: it ended so.
            TimeoutError: it has not ended yet.
            NotFound: there is no such run.
            DecodeError: its result does not fit the annotation.
        """
        return cast("T", await self._client._result(self.id, self._codec, timeout, self._since))

    async def get(self) -> RunStatus:
        """Return the run as it is now.

        Raises:
            NotFound: there is no such run.
        """
        return await self._client.get(self.id)

    async def signal(
        self, signal: Signal[V] | str, payload: V | Any = None, *, dedup: str | None = None, conn: Any = None
    ) -> int:
        """Send it a signal and return its number; as `Client.signal`."""
        return await self._client.signal(self.id, signal, payload, dedup=dedup, conn=conn)

    async def cancel(
        self, reason: Any = None, *, grace: Duration | None = None, force: bool = False, conn: Any = None
    ) -> str:
        """Cancel it and its child runs; as `Client.cancel`."""
        return await self._client.cancel(self.id, reason, grace=grace, force=force, conn=conn)

    async def pause(self, *, conn: Any = None) -> None:
        """Set it aside until `resume`; as `Client.pause`."""
        await self._client.pause(self.id, conn=conn)

    async def resume(self, *, conn: Any = None) -> None:
        """Let it go on after a pause or a halt; as `Client.resume`."""
        await self._client.resume(self.id, conn=conn)

    async def redrive(self, *, conn: Any = None) -> None:
        """Revive it from the dead; as `Client.redrive`."""
        await self._client.redrive(self.id, conn=conn)

    async def fork(
        self,
        *,
        seq: int | None = None,
        step: str | None = None,
        set: Mapping[str | int, Any] | None = None,
        id: str | None = None,
        queue: str | None = None,
        version: str | None = None,
        conn: Any = None,
    ) -> Run[T]:
        """Begin a new run that takes over what this one did up to a position; as `Client.fork`."""
        made = await self._client.fork(
            self.id, seq=seq, step=step, set=set, id=id, queue=queue, version=version, conn=conn
        )
        return Run(self._client, made.id, self._codec)

    async def as_of(
        self, *, seq: int | None = None, at: datetime | None = None, generation: int | None = None
    ) -> RunMoment:
        """Return what was known of it at an earlier moment; as `Client.as_of`."""
        return await self._client.as_of(self.id, seq=seq, at=at, generation=generation)

    def __await__(self) -> Generator[Any, None, T]:
        return self.result().__await__()

    def __repr__(self) -> str:
        return f"<run {self.id}>"
