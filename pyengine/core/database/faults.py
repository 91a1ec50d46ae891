"""The table of faults: who has to do something about an error of a statement.

Lives here: `FAULTS`, the table of all SQLSTATEs, and `fault_of`, which asks it. May not: what is done about
a fault; its callers know what they sent (worker/turn_sender.py, sql/transaction_runner.py). Design: a
class of two characters stands for all its codes that have no line of their own. The table is about the
engine's own statements: what a statement of a user raises is the user's answer, unless it is the session's or
the server's fault. No text of the server is read, because texts are translated and change. Docs:
reference/faults.md.
"""

from __future__ import annotations

import enum

import asyncpg


class Fault(enum.Enum):
    """Somebody whose fault an error is; that decides what helps."""

    RUN = "run"
    """The run, by its report or its rows: it is set aside with the error as its problem."""

    REPORT = "report"
    """The moment at which the report came: it is sent again later, or its run is replayed."""

    SESSION = "session"
    """The caches of the session or the driver: a new session, and again."""

    SERVER = "server"
    """The state of the server: wait, and again."""

    OPERATOR = "operator"
    """A person who has set something up: say so, wait, and again; all other work goes on."""


TOO_LARGE = "54000"
"""SQLSTATE of a value, or of a queue of notifications, that is larger than the server can have."""

FAULTS: dict[str, Fault] = {
    # data: a number out of range, a NUL in a text, a byte that is no character
    "22": Fault.RUN,
    # a character that the encoding of the database does not have
    "22P05": Fault.RUN,
    # a constraint or a law of a domain
    "23": Fault.RUN,
    # a value or an answer that is larger than a gigabyte
    TOO_LARGE: Fault.RUN,
    # rows of the run that cannot be read any more
    "XX001": Fault.RUN,
    "XX002": Fault.RUN,
    # of the engine: an argument, a journal or a wait that is not lawful
    "WF": Fault.RUN,
    "WF001": Fault.REPORT,
    "WF002": Fault.REPORT,
    "WF003": Fault.REPORT,
    # serialization, a deadlock; a lock that somebody has
    "40": Fault.REPORT,
    "55P03": Fault.REPORT,
    # a plan whose result has another type by now, a statement or cursor that the session does not know
    "0A": Fault.SESSION,
    "24": Fault.SESSION,
    "26": Fault.SESSION,
    "34": Fault.SESSION,
    "03": Fault.SESSION,
    "0B": Fault.SESSION,
    "0F": Fault.SESSION,
    "0Z": Fault.SESSION,
    "2D": Fault.SESSION,
    "3B": Fault.SESSION,
    "42P05": Fault.SESSION,
    "25": Fault.SESSION,
    "25P03": Fault.SERVER,
    "25P04": Fault.SERVER,
    # of the catalogue while it changes: cache lookup failed
    "XX": Fault.SESSION,
    # the connection, resources, a shutdown, a statement that was cancelled, the disk
    "08": Fault.SERVER,
    "53": Fault.SERVER,
    "57": Fault.SERVER,
    "58": Fault.SERVER,
    "72": Fault.SERVER,
    # a limit that is configured; a file that is not there
    "53400": Fault.OPERATOR,
    "58P01": Fault.OPERATOR,
    # max_stack_depth, and other limits of a server that is set up otherwise
    "54": Fault.OPERATOR,
    # a server that only reads, and where nothing else was found
    "25006": Fault.OPERATOR,
    # a trigger or a function of somebody, an extension, a foreign table
    "P0": Fault.OPERATOR,
    "10": Fault.OPERATOR,
    "20": Fault.OPERATOR,
    "21": Fault.OPERATOR,
    "27": Fault.OPERATOR,
    "44": Fault.OPERATOR,
    "09": Fault.OPERATOR,
    "2F": Fault.OPERATOR,
    "38": Fault.OPERATOR,
    "39": Fault.OPERATOR,
    "HV": Fault.OPERATOR,
    # rights, and what does not exist: the schema, a function
    "0L": Fault.OPERATOR,
    "0P": Fault.OPERATOR,
    "2B": Fault.OPERATOR,
    "28": Fault.OPERATOR,
    "3D": Fault.OPERATOR,
    "3F": Fault.OPERATOR,
    "42": Fault.OPERATOR,
    "F0": Fault.OPERATOR,
    "WF007": Fault.OPERATOR,
    "WF011": Fault.OPERATOR,
    "WF016": Fault.OPERATOR,
}
"""By SQLSTATE or class; all others are the operator's."""


def sqlstate_of(error: BaseException | None) -> str:
    """Return the SQLSTATE of a driver's error, or of the one that an error of the engine was raised from."""
    for one in (error, getattr(error, "__cause__", None)):
        # an error of the engine has the code of its class only
        code: str | None = one.sqlstate if isinstance(one, asyncpg.PostgresError) else None
        if code:
            return code
    return ""


def fault_of(error: BaseException) -> Fault:
    """Return whose fault it is that a statement failed.

    Args:
        error: of the driver or the system, or one of the engine that was raised from such an error.
    """
    if code := sqlstate_of(error):
        return FAULTS.get(code) or FAULTS.get(code[:2]) or Fault.OPERATOR
    cause = error.__cause__ or error
    if isinstance(cause, OSError):
        # a timeout of ours is one too
        return Fault.SERVER
    if isinstance(cause, (asyncpg.InterfaceError, asyncpg.InternalClientError)):
        # a closed connection, an answer that fits no cached type; bad arguments have a ValueError too
        return Fault.RUN if isinstance(cause, ValueError) else Fault.SESSION
    if isinstance(cause, (ValueError, OverflowError)):
        # the driver's decoders and encoders
        return Fault.RUN
    return Fault.OPERATOR
