"""The transition table of the older API, written twice: as the rules that it is made of, and as a compressed
print of its 324 rows.

What lives here: states, requests and what is answered, for tests to compare with the engine. What may not: a
database. The theory: a state is a name and the two keys that were given on the way to it; a request is a
verb, a key and whether it is strict. A key that only the other kind of request knows must not count, so
wherever a strange key is sent it is that one, if there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["CREATE", "STATES", "VERBS", "Answer", "Cell", "State", "by_rules", "by_table", "cells", "rows_of"]

CREATE = "create"
# verb -> the state that it asks for
VERBS = {CREATE: "PENDING", "resolve": "RESOLVED", "reject": "REJECTED", "cancel": "REJECTED_CANCELED"}
WORDS = {
    "PENDING": "already pending",
    "RESOLVED": "already resolved",
    "REJECTED": "already rejected",
    "REJECTED_CANCELED": "already canceled",
    "REJECTED_TIMEDOUT": "already timedout",
}
NONE, TIMEDOUT = "NONE", "REJECTED_TIMEDOUT"
COMPLETED = ("RESOLVED", "REJECTED", "REJECTED_CANCELED")


@dataclass(frozen=True, kw_only=True)
class State:
    """A promise as the table sees it: its state, the key of its creation, the key of its completion."""

    name: str
    ikc: str | None = None
    iku: str | None = None

    def __str__(self) -> str:
        return f"{self.name.lower()}({self.ikc or '-'},{self.iku or '-'})"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A row of the table up to its arrow: a state and a request."""

    before: State
    verb: str
    key: str | None
    strict: bool

    def __str__(self) -> str:
        return f"{self.before} {self.verb}({self.key or '-'}{', strict' if self.strict else ''})"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The rest of the row: status, word, state afterwards."""

    status: int
    word: str
    after: State


STATES = (
    State(name=NONE),
    State(name="PENDING"),
    State(name="PENDING", ikc="ikc"),
    *(
        State(name=name, ikc=ikc, iku=iku)
        for name in COMPLETED
        for ikc, iku in ((None, None), (None, "iku"), ("ikc", None), ("ikc", "iku"))
    ),
    State(name=TIMEDOUT),
    State(name=TIMEDOUT, ikc="ikc"),
)


def rows_of(before: State) -> Iterator[Cell]:
    """All rows of a state: every verb without a key, with the right one, with another one; strict or not."""
    for verb in VERBS:
        known, strange = (before.ikc, before.iku) if verb == CREATE else (before.iku, before.ikc)
        keys = [None, known or strange or "some"] + ([strange or "other"] if known else [])
        for key in keys:
            for strict in (False, True):
                yield Cell(before=before, verb=verb, key=key, strict=strict)


def cells() -> Iterator[Cell]:
    """All rows of the table."""
    for before in STATES:
        yield from rows_of(before)


def by_rules(cell: Cell) -> Answer:
    """The answer by the rules, first match wins."""
    before, verb, key, strict = cell.before, cell.verb, cell.key, cell.strict
    same = key is not None and key == (before.ikc if verb == CREATE else before.iku)
    if before.name == NONE:
        if verb == CREATE:
            return Answer(status=201, word="OK", after=State(name="PENDING", ikc=key))
        return Answer(status=404, word="not found", after=before)
    deduplicated = Answer(status=200, word="deduplicated", after=before)
    if verb == CREATE:
        if same and (before.name == "PENDING" or not strict):
            return deduplicated
        return Answer(status=409, word=WORDS[before.name], after=before)
    if before.name == "PENDING":
        return Answer(status=201, word="OK", after=State(name=VERBS[verb], ikc=before.ikc, iku=key))
    if before.name == TIMEDOUT and not strict:
        return deduplicated
    if same and (not strict or before.name == VERBS[verb]):
        return deduplicated
    return Answer(status=403, word=WORDS[before.name], after=before)


# Six letters for each kind of request: without a key, with the right one (some key, where none is stored),
# with another one; each first not strict, then strict. + done, D deduplicated, K refused, 0 not found,
# - no such row. X is resolved, rejected or canceled; "its verb" is the one that leads there.
TABLE = """
state              create   its verb   other verbs
none               ++++--   ------     0000--
pending            KKKK--   ------     ++++--
pending ikc        KKDDKK   ------     ++++--
X                  KKKK--   KKKK--     KKKK--
X iku              KKKK--   KKDDKK     KKDKKK
X ikc              KKDKKK   KKKK--     KKKK--
X ikc iku          KKDKKK   KKDDKK     KKDKKK
timedout           KKKK--   ------     DKDK--
timedout ikc       KKDKKK   ------     DKDK--
"""


def by_table(cell: Cell) -> Answer:
    """The answer by the compressed table."""
    before = cell.before
    name = {NONE: "none", "PENDING": "pending", TIMEDOUT: "timedout"}.get(before.name, "X")
    label = " ".join([name, *(kind for kind in ("ikc", "iku") if getattr(before, kind))])
    row = next(line for line in TABLE.splitlines() if line[:19].rstrip() == label)
    create, own, others = row[19:].split()
    letters = create if cell.verb == CREATE else own if VERBS[cell.verb] == before.name else others
    known = before.ikc if cell.verb == CREATE else before.iku
    column = 0 if cell.key is None else 2 if known is None or cell.key == known else 4
    letter = letters[column + cell.strict]
    if letter == "+":
        create_key = cell.key if cell.verb == CREATE else before.ikc
        complete_key = None if cell.verb == CREATE else cell.key
        after = State(name=VERBS[cell.verb], ikc=create_key, iku=complete_key)
        return Answer(status=201, word="OK", after=after)
    refused = (409 if cell.verb == CREATE else 403, WORDS.get(before.name, ""))
    status, word = {"D": (200, "deduplicated"), "0": (404, "not found"), "K": refused}[letter]
    return Answer(status=status, word=word, after=before)
