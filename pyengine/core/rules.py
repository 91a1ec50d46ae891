"""The rules of replay that this code knows.

Lives here: `RULES`, and what each number changed. May not: the rules of one run, which are in its `RunInfo`.
Design: a change of what a replay does (events, their order, ids, child numbers) holds only for journals that
begin after it, so it has a number. A journal begins with the newest rules that the schema knows, and the
worker which announced its workflow last; it keeps them, and a worker gets no run whose rules it does not
know. `durable._rules()` is the same number in the schema. Code for older rules stays as long as a journal may
have them.

| rules | what they changed |
|---|---|
| 1 | version 0.1.0 |
| 2 | ids of detached runs do not grow without end (protocol/child_ids.py) |
| 3 | failures are counted by numbers, not rows, because old rows are removed (replay/history.py) |
| 4 | a call's input hash has that of its text without defaults before it (replay/call_hashes.py) |
|   | errors have their second form, in which more of them come back as themselves (values/exceptions.py) |
|   | a step of `ctx.http` is named after its request, not "http" (features/http/context.py) |
|   | async generators that code leaves open are closed before the run ends (loop/generators.py) |
|   | what would come back as something else that is equal is refused (values/likeness.py) |
|   | `asyncio.wait_for` awaits in place on 3.11 too (loop/wait_for.py) |
|   | the defaults with which a run begins are its first recorded value (replay/begun_defaults.py) |
|   | a time below zero is over, and a receive that lost may be asked for again (replay/signal_inbox.py) |
|   | steps, workflows, memos and errors that workflow code defines are refused (definitions/one_name.py) |
|   | child runs end with the await that is cancelled, and with their parent (replay/child_runs.py) |
|   | what cleans up waits for the steps that it gave up (worker/attempts.py) |
"""

from __future__ import annotations

RULES = 4
"""The newest rules of replay that this code knows."""

SHORT_IDS_RULES = 2
"""The first rules by which ids of detached runs do not grow without end."""

SECOND_FORM_RULES = 4
"""The first rules by which errors have their second form."""

TWO_HASHES_RULES = 4
"""The first rules by which a call has a second hash, of its text without defaults."""

EXACT_VALUES_RULES = 4
"""The first rules by which what would come back as something else that is equal is refused."""

CHILDREN_RULES = 4
"""The first rules by which a child run ends with the await that is cancelled, and with its parent."""

DEFINITIONS_RULES = 4
"""The first rules by which workflow code may not define steps and workflows."""

HTTP_NAMES_RULES = 4
"""The first rules by which a step of `ctx.http` has the name of its request."""

DEFAULTS_RULES = 4
"""The first rules by which a run keeps the defaults with which it began."""

GENERATORS_RULES = 4
"""The first rules by which async generators that code leaves open are closed before the run ends."""

PAST_TIMES_RULES = 4
"""The first rules by which computed times below zero are over; they were refused."""

LOSERS_RULES = 4
"""The first rules by which a receive that code has given up may be asked for again; it was refused."""

WAIT_FOR_RULES = 4
"""The first rules by which `asyncio.wait_for` has one order on every Python."""


def is_exact(rules: int | None) -> bool:
    """Whether values are refused that would come back as something else that is equal.

    Args:
        rules: those of the run; None for what belongs to none.
    """
    return rules is None or rules >= EXACT_VALUES_RULES
