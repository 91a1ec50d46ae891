"""Records of errors within the limit on their size.

Lives here: what is left out of a record that is too large. May not: the limit (exceptions.py).
"""

from __future__ import annotations

from typing import Any

import msgspec


def lightened(record: dict[str, Any], part_max: int) -> dict[str, Any]:
    """Return a record without the parts of an error that are larger; texts are shortened."""
    sizes = {name: len(msgspec.json.encode(one)) for name, one in record.get("data", {}).items()}
    large = [name for name, size in sizes.items() if size > part_max]
    args = record.get("args", [])
    return {
        **record,
        "message": _shortened(record["message"], part_max),
        "args": [_shortened_part(one, part_max) for one in args],
        "data": {name: one for name, one in record.get("data", {}).items() if name not in large},
        "lost": [*record.get("lost", ()), *large],
        "lossy": True,
    }


def _shortened_part(part: Any, max_bytes: int) -> Any:
    if isinstance(part, str):
        return _shortened(part, max_bytes)
    size = len(msgspec.json.encode(part))
    return part if size <= max_bytes else f"[cut: it had {size} bytes]"


def cut_short(record: dict[str, Any], max_bytes: int) -> dict[str, Any]:
    """Return a record within the limit; class names fit into the last quarter."""
    return {
        "type": record["type"],
        "module": record["module"],
        "message": _shortened(record["message"], max_bytes // 2),
        "kind": record["kind"],
        "traceback": _shortened(record["traceback"], max_bytes // 4, end=True),
        "retryable": record["retryable"],
        "lossy": True,
    }


def _shortened(text: str, max_bytes: int, *, end: bool = False) -> str:
    """Return the text if it fits, else its beginning (or its end) and its original length."""
    if len(msgspec.json.encode(text)) <= max_bytes:
        return text
    note = f"[cut: it had {len(text)} characters]"
    # a character takes one to six bytes, as an escape: shorten until it fits
    length = min(max_bytes, len(text))
    while True:
        short = f"{note} {text[len(text) - length :]}" if end else f"{text[:length]} {note}"
        if length == 0 or len(msgspec.json.encode(short)) <= max_bytes:
            return short
        length = length * 3 // 4
