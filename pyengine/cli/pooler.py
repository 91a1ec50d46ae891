"""What stands between a command and its database: perhaps a pooler, and perhaps a way past it.

Lives here: finding out both, and saying what follows for hints and presence. May not: contain SQL
(``admin/queries.py``). A way past it that does not work is told and not raised: whoever asks wants to know.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from pyengine.cli.database import Database, connect, where
from pyengine.errors import EngineError

__all__ = ["Between", "look"]

_HOW = "set PYENGINE_LISTEN_URL to a URL past it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """What stands between.

    Args:
        pooled: whether a pooler does.
        direct: the way past it, without its password; None if none is known.
        problem: what is wrong with that way, or None.
    """

    pooled: bool
    direct: str | None = None
    problem: str | None = None

    @property
    def hints(self) -> bool:
        """Whether hints are heard and presence is held by a worker that is told the same."""
        return not self.pooled if self.direct is None or self.problem else True

    def document(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "pooled": self.pooled,
            "direct": self.direct,
            "problem": self.problem,
            "hints": self.hints,
        }

    def words(self) -> str:
        """For people: nothing if there is nothing to say."""
        if self.problem:
            told = f"the direct URL {self.direct} is of no use: {self.problem}"
        elif self.direct:
            told = f"hints and presence go past it, to {self.direct}"
        elif self.pooled:
            told = f"polling does all, a little later than hints would; {_HOW}"
        else:
            return ""
        return f"{'yes' if self.pooled else 'none'}; {told}"


def look(db: Database, listen_url: str | None) -> Between:
    """Find out what stands before a database.

    Args:
        db: the database.
        listen_url: ``--listen-url``, or None.

    Raises:
        EmbeddedPostgresError: the direct URL that is set is no URL.
    """
    from pyengine.admin import queries
    from pyengine.embedded import server

    url = None if db.target.embedded else server.listen_url(listen_url)
    pooled = queries.pooled(db.conn)
    if url is None:
        return Between(pooled=pooled)
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
    return Between(pooled=pooled, direct=where(url), problem=problem)
