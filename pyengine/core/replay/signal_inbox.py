"""Receiving signals.

Lives here: `SignalInboxes`, the receives of a run by signal name. May not: sending, buffering; the database
keeps signals and delivers them in the order of sending. The theory: a receive takes its number at the call,
and the database writes the next signal of that name under it, now or later, exactly one. A cancelled receive
keeps its number: the next receive of that name takes the number over, and with it the signal, even if the
signal came in between. So no signal is lost or reordered. One receive of a name may wait at a time: with two,
the order of their signals would be ambiguous.
"""

from __future__ import annotations

from pyengine.core.loop.awaitables import Call, ReceiveCall, TimedReceive
from pyengine.core.loop.futures import cancelled_now
from pyengine.core.protocol.commands import Receive
from pyengine.core.protocol.journal import Row, RowType
from pyengine.core.replay.call_sequence import CallSequence
from pyengine.core.replay.history import describe_call
from pyengine.core.rules import LOSERS_RULES
from pyengine.core.values.codec import TypeCodec
from pyengine.errors import InvalidRequest


class _Inbox:
    """One name: the receive that has its number, and the signal that came after its cancellation."""

    __slots__ = ("buffered", "call")

    def __init__(self, call: ReceiveCall) -> None:
        self.call = call
        self.buffered: Row | None = None


class SignalInboxes:
    """The receives of a run, by name.

    Args:
        sequence: numbers and commands of the run.
    """

    def __init__(self, sequence: CallSequence) -> None:
        self._sequence = sequence
        self._inboxes: dict[str, _Inbox] = {}

    def receive(self, name: str, codec: TypeCodec) -> tuple[Call, Row | None]:
        """Return the call of a receive, and the signal if it is there already.

        Raises:
            InvalidRequest: another receive of that name waits.
            asyncio.CancelledError: the run is being cancelled: even in a shield it receives nothing more,
                except a buffered signal.
        """
        sequence = self._sequence
        if sequence.restricted and (dead := sequence.admit("receive", name)) is not None:
            return dead, None
        inbox = self._inboxes.get(name)
        if sequence.cancellation.applied and (inbox is None or inbox.buffered is None):
            raise cancelled_now(f"run {sequence.run.id} is being cancelled; signal {name!r} never comes")
        if inbox is not None and not inbox.call.consumed:
            return self._take_over(inbox, name, codec)
        row, child = sequence.row(), sequence.next_child
        if row is not None and (row.type, row.name) != (RowType.SIGNAL_RECEIVED, name):
            return sequence.disagree(describe_call("signal", name), row, "receive", name), None
        if row is None and not self._is_registered(child) and not sequence.cancellation.requested:
            sequence.commands.append(Receive(child=child, name=name))
        call = self._new_call(name, codec, child)
        if row is None:
            call.set_place(4)
        sequence.calls[child] = call
        sequence.next_child = child + 1
        self._inboxes[name] = _Inbox(call)
        return call, None

    def _new_call(self, name: str, codec: TypeCodec, child: int) -> ReceiveCall:
        call = self._sequence.make_call(ReceiveCall, "receive", name, codec, child)
        call.consumed = call.left = False
        return call

    def _is_registered(self, child: int) -> bool:
        """Whether the journal proves that the database knows the receive: the code went on in a later turn.

        Otherwise the command is sent again, which has no effect the second time.
        """
        history = self._sequence.history
        return child <= history.max_child or history.suspend_seq > self._sequence.at_seq

    def _take_over(self, inbox: _Inbox, name: str, codec: TypeCodec) -> tuple[Call, Row | None]:
        sequence, old = self._sequence, inbox.call
        limit = getattr(old, "collector", None)
        lost = old.left and sequence.run.rules >= LOSERS_RULES
        if isinstance(limit, TimedReceive) and lost and not (limit.waiting or old.done()):
            # its limit is not that of the next one
            limit.cancel()
        if lost and old.codec is codec and not (old.cancelled() or old.awaited):
            # it lost to another one and is asked again
            return old, None
        if not old.cancelled():
            raise InvalidRequest(
                f"run {sequence.run.id} receives signal {name!r} already (child {old.child})",
                hint="await that receive, or cancel it: it keeps its place and the next one takes it over",
            )
        call = self._new_call(name, codec, old.child)
        inbox.call = call
        buffered, inbox.buffered = inbox.buffered, None
        if buffered is None:
            sequence.calls[old.child] = call
        return call, buffered

    def deliver(self, call: Call, row: Row) -> bool:
        """Return whether the receive still waits for its signal; the signal is buffered if it does not."""
        if not call.done():
            return True
        inbox = self._inboxes.get(call.name)
        if inbox is not None and inbox.call is call:
            inbox.buffered = row
        return False

    def unread(self) -> list[tuple[int, str]]:
        """Return number and name of each receive whose signal came and was not read by the code."""
        return [
            (inbox.call.child, inbox.call.name)
            for inbox in self._inboxes.values()
            if inbox.buffered is not None
            or (inbox.call.done() and not inbox.call.cancelled() and not inbox.call.consumed)
        ]
