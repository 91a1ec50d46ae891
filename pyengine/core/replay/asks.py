"""Requests of workflow code that its worker answers at once, between two rows of the journal.

Lives here: `Ask`, and the forms in which machine and worker know the code that asks. May not: a meaning of a
request, which is a feature's (sql/transaction_log.py). Design: from the moment at which code asks until it is
done, no other row advances the coroutine, live and in replay alike. The answers go into one row.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal, Protocol, TypeAlias

AskKind: TypeAlias = Literal["begin", "execute", "executemany", "fetch", "fetchval", "commit", "rollback"]

Outcome: TypeAlias = tuple[Literal["value", "database", "engine"], Any]
"""How an ask ended, as JSON: its value, the fields of a database error, or the JSON text of another error."""


class Ask:
    """A request of code that waits for its answer.

    Attributes:
        kind: begin, a statement, commit or rollback.
        query: text of the statement.
        args: its arguments; of `executemany` one list of them.
        future: completed with the value or the error.
    """

    __slots__ = ("args", "future", "kind", "query")

    def __init__(self, kind: AskKind, query: str, args: tuple[Any, ...], future: asyncio.Future[Any]) -> None:
        self.kind = kind
        self.query = query
        self.args = args
        self.future = future


class Asking(Protocol):
    """A block of code that asks.

    Attributes:
        ask: the request that it waits for now.
    """

    ask: Ask | None

    @property
    def live(self) -> bool:
        """Whether the journal holds no row of it yet."""
        ...


class Asks(Protocol):
    """The blocks of a run that ask, or wait to begin, in their order."""

    @property
    def front(self) -> Asking | None:
        """The one that is open, or begins next."""
        ...

    @property
    def live(self) -> bool:
        """Whether the coroutine is not advanced until a worker has answered."""
        ...

    @property
    def stuck(self) -> bool:
        """Whether the code of the open one waits for something else, which cannot happen."""
        ...

    def answer_recorded(self) -> bool:
        """Answer the code from the journal; false if it waits for nothing that is recorded."""
        ...

    def answer(self, ask: Ask, outcome: Outcome) -> bool:
        """Deliver the outcome that a worker found; false if the code does not wait for it any more."""
        ...
