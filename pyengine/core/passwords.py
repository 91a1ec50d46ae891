"""Passwords of database URLs, removed from messages.

Lives here: `hidden`, which removes the password of a URL from a text, and `is_unescaped`. May not: a driver,
a log. Design: drivers do not agree on the end of a password that has @ / ? # or : in it. Their errors
show different parts of it as host, port or database. So each part is removed that one of them could mistake
for something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

ESCAPE = "write p%40ss for p@ss: urllib.parse.quote(password, safe='') does that"
"""The way out for a user or password that is not escaped."""

_STARS = "***"
_MARKS = re.compile(r"[@/?#:,&\[\]]")
_NAMED = re.compile(r"[?&]password=([^&]*(?:&[^=&]+(?=&|$))*)")


def hidden(text: str, url: str) -> str:
    """Return a text without the password of a URL, or any part of it.

    Args:
        text: a message.
        url: a URL whose password may be in it.
    """
    passwords = _passwords(url)
    for tail in _longest(f"{each}@" for password in passwords for each in _tails(password)):
        text = text.replace(tail, "")
    for password in _longest(passwords):
        # one or two letters occur in every sentence: only a whole word can be such a password
        whole = len(password) < 3
        text = re.sub(_whole_word(password), _STARS, text) if whole else text.replace(password, _STARS)
    for piece in _longest(each for password in passwords for each in _MARKS.split(password)):
        text = re.sub(_whole_word(piece), _STARS, text)
    return text


def is_unescaped(url: str) -> bool:
    """Return whether user or password of a URL have characters as they are that end or begin parts of it.

    Drivers end the host at different ones, and say that a part of the password is no host.
    """
    rest = url.partition("://")[2]
    authority = re.split(r"[/?]", rest, maxsplit=1)[0]
    user, at, _ = authority.rpartition("@")
    if at or "@" not in rest:
        return "@" in user or "#" in user
    # the @ stands behind a slash or question mark: user:pa/ss@host has no port before it
    _, colon, port = authority.rpartition(":")
    if not colon or authority.startswith("["):
        return False
    return port != "" and not port.partition(",")[0].isdecimal()


def _passwords(url: str) -> set[str]:
    """Return the possible passwords of a URL, quoted and unquoted."""
    tail = url.partition("://")[2]
    found = set(_NAMED.findall(url))
    # the password ends at the last @ of the authority, or of the whole URL
    for part in (re.split(r"[/?#]", tail, maxsplit=1)[0], tail):
        found.add(part.rpartition("@")[0].partition(":")[2])
    return {each for password in found for each in (password, unquote(password)) if each}


def _tails(password: str) -> list[str]:
    """Return the part after each @ of a password, which drivers that end it there read as the host."""
    return [password[match.end() :] for match in re.finditer("@", password) if password[match.end() :]]


def _longest(texts: Iterable[str]) -> list[str]:
    return sorted({text for text in texts if text}, key=len, reverse=True)


def _whole_word(text: str) -> str:
    return rf"(?<![^\W_]){re.escape(text)}(?![^\W_])"
