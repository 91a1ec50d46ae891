"""Receiving signals.

What lives here: `SignalInboxes`, what the run waits for by name. What may not: sending, buffering; the
database keeps what was sent and gives it out in the order of sending. The theory: a receive takes its number
at the call and the database writes the next signal of that name under it, now or later, exactly one. A
receive that was given up keeps its number: whoever receives that name next takes the number over, and with it
the signal, even if that came when nobody waited. So nothing is lost, nothing is overtaken, and one receive of
a name is enough; two at a time could not tell whose signal it is.
"""

from __future__ import annotations

import asyncio

from pyengine.errors import InvalidRequest
from pyengine.loop.awaitables import Call, ReceiveCall
from pyengine.protocol.commands import Receive
from pyengine.protocol.journal import Row
from pyengine.replay.call_sequence import CallSequence
from pyengine.replay.history import described
from pyengine.values.codec import TypeCodec

__all__ = ["SignalInboxes"]


class _Inbox:
    """One name for which a number is out: the call that holds it, and the signal that came when it was given
    up.
    """

    __slots__ = ("call", "kept")

    def __init__(self, call: ReceiveCall) -> None:
        self.call = call
        self.kept: Row | None = None


class SignalInboxes:
    """The receives of a run, by name.

    Args:
        ledger: numbers of the run.
    """

    def __init__(self, ledger: CallSequence) -> None:
        self._ledger = ledger
        self._inboxes: dict[str, _Inbox] = {}

    def receive(self, name: str, codec: TypeCodec) -> tuple[Call, Row | None]:
        """Return the call of a receive, and the signal if it is there already.

        Raises:
            InvalidRequest: another receive of that name waits.
            asyncio.CancelledError: the run is being cancelled: it receives nothing any more, in a shield or
                not, but what came before and was not looked at.
        """
        ledger = self._ledger
        if ledger.barred and (dead := ledger.bar("receive", name)) is not None:
            return dead, None
        inbox = self._inboxes.get(name)
        if ledger.cancelling and (inbox is None or inbox.kept is None):
            raise asyncio.CancelledError(
                f"run {ledger.run.id} is being cancelled; signal {name!r} never comes"
            )
        if inbox is not None and not inbox.call.looked:
            return self._take_over(inbox, name, codec)
        row, child = ledger.row(), ledger.next_child
        if row is not None and (row.type, row.name) != ("v", name):
            return ledger.disagree(described("signal", name, None), row, "receive", name), None
        if row is None and not self._is_registered(child) and ledger.history.cancel_seq is None:
            ledger.commands.append(Receive(child=child, name=name))
        call = self._new_call(name, codec, child)
        ledger.calls[child] = call
        ledger.next_child = child + 1
        self._inboxes[name] = _Inbox(call)
        return call, None

    def _new_call(self, name: str, codec: TypeCodec, child: int) -> ReceiveCall:
        call = self._ledger.make_call(ReceiveCall, "receive", name, codec, child)
        call.looked = False
        return call

    def _is_registered(self, child: int) -> bool:
        """Whether the database is known to know the receive: the code did more in a later turn, or waited.

        Otherwise it is told again, which changes nothing if it did know.
        """
        history = self._ledger.history
        return child <= history.max_child or history.await_seq > self._ledger.at_seq

    def _take_over(self, inbox: _Inbox, name: str, codec: TypeCodec) -> tuple[Call, Row | None]:
        ledger, old = self._ledger, inbox.call
        if not old.cancelled():
            raise InvalidRequest(
                f"run {ledger.run.id} receives signal {name!r} already (child {old.child})",
                hint="await that receive, or cancel it: it keeps its place and the next one takes it over",
            )
        call = self._new_call(name, codec, old.child)
        inbox.call = call
        kept, inbox.kept = inbox.kept, None
        if kept is None:
            ledger.calls[old.child] = call
        return call, kept

    def arrive(self, call: Call, row: Row) -> bool:
        """Note that the signal of a receive came; false if nobody waits for it, and it is kept."""
        if not call.done():
            return True
        inbox = self._inboxes.get(call.name)
        if inbox is not None and inbox.call is call:
            inbox.kept = row
        return False

    def unread(self) -> list[int]:
        """Return the numbers of receives whose signals came and that nobody has looked at."""
        return [
            inbox.call.child
            for inbox in self._inboxes.values()
            if inbox.kept is not None
            or (inbox.call.done() and not inbox.call.cancelled() and not inbox.call.looked)
        ]
