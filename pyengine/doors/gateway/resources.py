"""The parts of a gateway that its endpoints share.

Lives here: `Resources`: options, database, figures, tokens, bytes of clients. May not: an endpoint, or the
open streams, of which each API has its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyengine.doors.gateway.backend import Backend
from pyengine.doors.gateway.config import GatewayConfig
from pyengine.doors.gateway.housekeeping import Housekeeping
from pyengine.doors.gateway.memory import Memory
from pyengine.doors.gateway.metrics import Metrics
from pyengine.doors.gateway.outgoing import Outgoing
from pyengine.doors.gateway.tokens import Verifier


@dataclass(slots=True, kw_only=True)
class Resources:
    """The shared parts.

    Args:
        config: the gateway's options.
        backend: the database.
        metrics: its figures.
        verifier: the check of tokens, or None if none are needed.
        bodies: the bytes of the bodies of requests.
        outgoing: the bytes on their way to clients.
        housekeeping: learns of deadlines, once the gateway ticks.
    """

    config: GatewayConfig
    backend: Backend
    metrics: Metrics
    verifier: Verifier | None
    bodies: Memory
    outgoing: Outgoing
    housekeeping: Housekeeping | None = None
