"""The pooler before a database, if there is one, and the direct URL past it.

Lives here: detecting both, and the consequences for hints and presence. May not: contain SQL
(``admin/queries.py``). A direct URL that does not work is reported, not raised.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from pyengine.doors.cli.database import Database, connect, where
from pyengine.errors import EngineError

_ADVICE = "set PYENGINE_LISTEN_URL to a URL past it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooler:
    """The pooler and the direct URL.

    Args:
        pooled: whether there is a pooler.
        direct: the direct URL, without its password; None if there is none.
        problem: the problem of the direct URL, or None.
    """

    pooled: bool
    direct: str | None = None
    problem: str | None = None

    @property
    def hints(self) -> bool:
        """Whether hints and presence work for a worker with these URLs."""
        return not self.pooled if self.direct is None or self.problem else True

    def document(self) -> dict[str, Any]:
        """Return the document for ``--json``."""
        return {
            "pooled": self.pooled,
            "direct": self.direct,
            "problem": self.problem,
            "hints": self.hints,
        }

    def text(self) -> str:
        """Return the text for ``db status``; empty if there is neither a pooler nor a direct URL."""
        if self.problem:
            text = f"the direct URL {self.direct} is of no use: {self.problem}"
        elif self.direct:
            text = f"hints and presence go past it, to {self.direct}"
        elif self.pooled:
            text = f"polling does all, a little later than hints would; {_ADVICE}"
        else:
            return ""
        return f"{'yes' if self.pooled else 'none'}; {text}"


def detect(db: Database, listen_url: str | None) -> Pooler:
    """Detect a pooler before a database, and check the direct URL.

    Args:
        db: the database.
        listen_url: ``--listen-url``, or None.

    Raises:
        EmbeddedPostgresError: the direct URL is not a URL.
    """
    from pyengine.doors.admin import queries
    from pyengine.doors.embedded import server

    url = None if db.target.embedded else server.listen_url(listen_url)
    pooled = queries.pooled(db.conn)
    if url is None:
        return Pooler(pooled=pooled)
    problem = None
    try:
        source = "PYENGINE_LISTEN_URL" if listen_url is None else "--listen-url"
        with connect(url, replace(db.target, url=url, source=source)) as conn:
            if queries.pooled(conn):
                problem = "it has a pooler before it too"
            elif not queries.same_database(db.conn, conn, random.getrandbits(31)):
                problem = "it leads to another database"
    except EngineError as error:
        problem = error.message
    return Pooler(pooled=pooled, direct=where(url), problem=problem)
