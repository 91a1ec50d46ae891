"""Passwords of database URLs, and how they stay out of what is said.

What lives here: `hidden`, a text without the password of a URL. What may not: a driver, a log, a decision
about a URL. The theory: drivers do not agree where a password ends that has @ / ? # or : in it. Each tells a
different rest of it as host, port or database. So not only the password is hidden but each piece of it that
one of them could take for something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

__all__ = ["hidden"]

_STARS = "***"
_MARKS = re.compile(r"[@/?#:,&\[\]]")
_NAMED = re.compile(r"[?&]password=([^&]*(?:&[^=&]+(?=&|$))*)")


def hidden(text: str, url: str) -> str:
    """Return a text without the password of a URL, or any piece of it.

    Args:
        text: what is to be said.
        url: a URL whose password may be in it.
    """
    passwords = _passwords(url)
    for tail in _longest(f"{each}@" for password in passwords for each in _tails(password)):
        text = text.replace(tail, "")
    for password in _longest(passwords):
        # one or two letters are in every sentence: there only a word of its own can be the password
        text = re.sub(_word(password), _STARS, text) if len(password) < 3 else text.replace(password, _STARS)
    for piece in _longest(each for password in passwords for each in _MARKS.split(password)):
        text = re.sub(_word(piece), _STARS, text)
    return text


def _passwords(url: str) -> set[str]:
    """Return what may be the password of a URL, as it is written and as it is meant."""
    rest = url.partition("://")[2]
    found = set(_NAMED.findall(url))
    # up to the last @ of the authority, and of all: one of them is where the password ends
    for part in (re.split(r"[/?#]", rest, maxsplit=1)[0], rest):
        found.add(part.rpartition("@")[0].partition(":")[2])
    return {each for password in found for each in (password, unquote(password)) if each}


def _tails(password: str) -> list[str]:
    """Return what follows each @ of a password: drivers that end it there take that for the host."""
    return [password[match.end() :] for match in re.finditer("@", password) if password[match.end() :]]


def _longest(texts: Iterable[str]) -> list[str]:
    return sorted({text for text in texts if text}, key=len, reverse=True)


def _word(text: str) -> str:
    return rf"(?<![^\W_]){re.escape(text)}(?![^\W_])"
