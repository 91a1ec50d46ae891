"""Names of queues: which texts are valid.

Lives here: the one check, used by every function that takes a queue name. May not: queues themselves, which
are rows. The theory: a queue is part of an address (`poll://any@<queue>`), so its name has no slash, no @ and
no invisible character; the schema repeats the check.
"""

from __future__ import annotations

import re

from pyengine.errors import InvalidRequest

_BYTES_MAX = 256
# blanks as the schema defines them (durable._has_blank), NUL, and lone surrogates
_FORBIDDEN = re.compile(
    r"[/@\x00-\x20\x7f\x85\xa0\u1680\u2000-\u200b\u2028\u2029\u202f\u205f\u2060\u3000\ufeff\ud800-\udfff]"
)


def check_queue(queue: object, *, what: str) -> str:
    """Return the name of a queue.

    Args:
        queue: the name to check.
        what: the caller, for the error.

    Raises:
        InvalidRequest: it is not valid.
    """
    if not isinstance(queue, str) or _FORBIDDEN.search(queue) or not 1 <= len(queue.encode()) <= _BYTES_MAX:
        shown = f"{queue[:60]!r}" if isinstance(queue, str) else repr(queue)
        raise InvalidRequest(
            f"{what}: {shown} is not a queue name",
            hint=f"1 to {_BYTES_MAX} bytes without blanks, / and @; leave it out for the default",
        )
    return queue
