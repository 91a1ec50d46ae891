"""Law: nothing that a worker or a gateway calls by itself waits for a lock that a user may hold. By the
sources: no function below such a door takes a row lock without SKIP LOCKED, or an advisory lock without
trying.

What may wait is named here, with its reason.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

LOGIC = Path(__file__).parent.parent.parent / "sql" / "logic"
DOORS = (
    *(
        "worker_turn_v1",
        "worker_heartbeat_v1",
        "worker_newest_v1",
        "worker_release_unknown_v1",
        "worker_bye_v1",
        "worker_idle_v1",
    ),
    *(
        "worker_present_v1",
        "worker_hello_v1",
        "worker_journal_v1",
        "worker_watch_v1",
        "worker_blocked_v1",
        "tick_v1",
    ),
    *("task_offer_many", "task_offer_defer_many", "addresses_due", "unblock_claim_many"),
    *("unblock_claim_each", "unblock_defer_many", "unblock_acknowledge_each", "unblock_expire"),
)
MAY_WAIT = {
    "_await_engine_xact": "for an older turn of the engine, up to 100 ms",
}
ROW_LOCK = re.compile(r"\bfor (?:no key )?(?:update|share)\b|\bfor key share\b")
SKIPS = re.compile(r"(?:\s+of \w+)?\s+skip locked")
ADVISORY = re.compile(r"\bpg_advisory_xact_lock(?:_shared)?\(")


def bodies() -> dict[str, str]:
    """Bodies of all functions of the sources, by name; overloads together."""
    found: dict[str, str] = {}
    for file in sorted(LOGIC.rglob("*.sql")):
        for name, body in re.findall(
            r"create or replace (?:function|procedure) durable\.(\w+)\(.*?\nas (\$\w*\$.*?\$\w*\$)",
            file.read_text(),
            re.S,
        ):
            code = re.sub(r"'(?:[^']|'')*'", "''", re.sub(r"--[^\n]*", "", body))
            found[name] = found.get(name, "") + code
    return found


def below(door: str, of: dict[str, str]) -> set[str]:
    """The functions that a call of this one may come to."""
    seen, left = {door}, [door]
    while left:
        for name in re.findall(r"durable\.(\w+)\(", of[left.pop()]):
            if name in of and name not in seen:
                seen.add(name)
                left.append(name)
    return seen


def waits(body: str) -> bool:
    """Whether a body takes a lock that it would wait for."""
    if ADVISORY.search(body):
        return True
    return any(not SKIPS.match(body, found.end()) for found in ROW_LOCK.finditer(body))


@pytest.mark.parametrize("door", DOORS)
def test_nothing_waits_below(door: str) -> None:
    """Every lock below the door is tried or skipped."""
    of = bodies()
    assert len(below(door, of)) > 0 and door in of
    assert sorted(name for name in below(door, of) if waits(of[name]) and name not in MAY_WAIT) == []


def test_a_lock_that_waits_is_found() -> None:
    """The verbs of people wait, and are found."""
    of = bodies()
    assert {"_lock_promises", "_lock_tasks", "_lock_heads"} <= {
        n for n in below("signal_v1", of) | below("cancel", of) if waits(of[n])
    }
    assert all(waits(of[name]) for name in MAY_WAIT)


def test_the_header_of_the_locks_names_each_function_with_the_order() -> None:
    """A function that locks promises, tasks and heads repeats the order, and the header lists it."""
    header = (LOGIC / "core" / "10_base" / "30_locks.sql").read_text().partition("\ncreate ")[0]
    order = [rf"\b_(?:try_)?lock_{rows}\(" for rows in ("promises", "tasks(?:_to_revoke)?", "heads")]
    repeats = {name for name, body in bodies().items() if all(re.search(rows, body) for rows in order)}
    assert {"_lock_settlement", "_try_lock_reports", "task_suspend"} <= repeats
    assert sorted(name for name in repeats if not re.search(rf"\b{name}\b", header)) == []
