"""Retry policies of steps, and durations.

Lives here: `Retry`, its recorded form, and `parse_duration`. May not: sleeping, clocks, counting. A policy
gives the milliseconds until the next attempt from the number of failures so far; the journal counts them. An
attempt that was cut off (lease lost, run released) is not a failure and never reaches a policy. A step keeps
the policy with which its first attempt began: the journal holds it, and later code does not change it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec

from pyengine.core.process.backoff import backoff_pause
from pyengine.core.rules import PAST_TIMES_RULES, RULES
from pyengine.core.values.error_access import (
    asked,
    class_module,
    class_name,
    classes_of,
    is_a,
    is_retryable,
    leaves_of,
)
from pyengine.core.values.error_building import error_module
from pyengine.errors import InvalidRequest

Duration: TypeAlias = str | float | timedelta
"""A text such as "30s" or "1h30m", seconds as a number, or a timedelta."""

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)", re.IGNORECASE)
_MAX_MS = 2**53 - 1


class Randomness(Protocol):
    """The part of `random.Random` that the engine uses."""

    def random(self) -> float: ...

    def getrandbits(self, k: int, /) -> int: ...


def parse_duration(duration: Duration, *, what: str = "duration") -> int:
    """Return a duration in milliseconds.

    Args:
        duration: "250ms", "30s", "5m", "1h30m", "2d", "1w", or a number of seconds, or a timedelta.
        what: its purpose, for the error.

    Raises:
        InvalidRequest: the text cannot be read, or the duration is below 0, infinite or absurdly long.
    """
    if isinstance(duration, timedelta):
        ms = duration / timedelta(milliseconds=1)
    elif isinstance(duration, bool) or not isinstance(duration, int | float | str):
        raise InvalidRequest(f"{what}: {duration!r} is not a duration", hint=_HINT)
    elif isinstance(duration, str):
        ms = _parse_text(duration, what)
    else:
        ms = duration * 1000
    if not 0 <= ms <= _MAX_MS:
        wrong = "is below 0" if ms < 0 else "is no number" if math.isnan(ms) else "is too long"
        raise InvalidRequest(f"{what}: {duration!r} {wrong}", hint=_HINT)
    return math.ceil(round(ms, 6))


_RETRY_AFTER_MAX_MS = 86_400_000
_HINT = 'write "250ms", "30s", "5m", "1h30m", "2d", a number of seconds, or a timedelta'


def _parse_text(text: str, what: str) -> float:
    ms, at = 0.0, 0
    while match := _PART.match(text, at):
        ms += float(match[1]) * _UNIT_MS[match[2].lower()]
        at = match.end()
    if at == 0 or text[at:].strip():
        raise InvalidRequest(f"{what}: {text!r} is not a duration", hint=_HINT)
    return ms


def optional_duration(duration: Duration | None, *, what: str = "duration") -> int | None:
    """Return a duration in milliseconds, or None for None."""
    return None if duration is None else parse_duration(duration, what=what)


def waiting_time(duration: Duration | None, *, what: str, rules: int = RULES) -> int | None:
    """Return a time to wait in milliseconds, or None for None; a computed one below 0 is over already: 0.

    Args:
        duration: the time.
        what: its purpose, for the error.
        rules: those of the run that waits; an older one may have caught the refusal, and so must a replay.

    Raises:
        InvalidRequest: it is not valid.
    """
    if rules < PAST_TIMES_RULES:
        return optional_duration(duration, what=what)
    if isinstance(duration, timedelta):
        duration = max(duration, timedelta())
    elif isinstance(duration, int | float) and duration < 0:
        duration = 0
    return optional_duration(duration, what=what)


def time_left(duration: Duration | None, *, what: str, rules: int = RULES) -> int | None:
    """Return a time limit in milliseconds, or None for None; a computed one of 0 or less ends at once: 1.

    Args:
        duration: the limit.
        what: its purpose, for the error.
        rules: as for `waiting_time`.

    Raises:
        InvalidRequest: it is not valid.
    """
    if rules < PAST_TIMES_RULES:
        return optional_limit(duration, what=what)
    ms = waiting_time(duration, what=what)
    return None if ms is None else max(ms, 1)


def optional_limit(duration: Duration | None, *, what: str) -> int | None:
    """Return a limit in milliseconds, more than 0, or None for None.

    Raises:
        InvalidRequest: it is not valid, or 0.
    """
    ms = optional_duration(duration, what=what)
    if ms == 0:
        raise InvalidRequest(f"{what}: a timeout is more than 0", hint=_HINT)
    return ms


def _is_number(value: object, *, whole: bool = False) -> bool:
    return isinstance(value, int if whole else int | float) and not isinstance(value, bool)


def _exception_types(types: object, what: str) -> tuple[type[BaseException], ...]:
    listed = types if isinstance(types, tuple) else (types,)
    for cls in listed:
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            named = cls if isinstance(cls, str) else "ConnectionError"
            raise InvalidRequest(
                f"Retry({what}=...): {cls!r} is not an exception class", hint=f"the class: {what}=({named},)"
            )
    return listed


def not_a_retry(what: str, given: object) -> InvalidRequest:
    """Return the error for what was given as `retry` and is none; `what` has the option."""
    attempts = given if type(given) is int else 3
    return InvalidRequest(
        f"{what}: retry is a Retry(...), not {given!r}", hint=f"retry=Retry(max_attempts={attempts})"
    )


_LONGEST: Final = "5m"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often and when a failed step is tried again.

    A step without a policy is tried once, because only its author knows whether it may run twice. `Retry()`
    tries five times.

    Args:
        max_attempts: attempts in all, the first one included; None means no limit.
        initial: delay after the first failure.
        backoff: factor from one delay to the next, at least 1.
        max_delay: no computed delay is longer; at least `initial`, which stands for it if it is left out.
        jitter: up to this share of a delay (0 to 1) is cut off at random, to spread retries.
        only: errors worth trying again; empty means all.
        unless: errors not worth trying again; wins over `only`.
        on_exhausted: "pause" to set the run aside after the last attempt, until somebody resumes it; the step
            then has as many attempts again. "fail" raises the last error in the workflow. An error that is
            not worth trying again is raised in any case.

    An error whose attribute `retryable` is False is final. An error with an attribute `retry_after` (seconds
    or timedelta) sets its own delay in place of the computed one: at most a day, or `max_delay` if that is
    longer, since a server may ask for anything.
    """

    max_attempts: int | None = 5
    initial: Duration = "1s"
    backoff: float = 2.0
    max_delay: Duration = _LONGEST
    jitter: float = 0.2
    only: tuple[type[BaseException], ...] = ()
    unless: tuple[type[BaseException], ...] = ()
    on_exhausted: Literal["fail", "pause"] = "fail"

    def __post_init__(self) -> None:
        attempts = self.max_attempts
        if attempts is not None and not (_is_number(attempts, whole=True) and attempts >= 1):
            takes = "a whole number of at least 1, or None for no limit"
            raise InvalidRequest(f"Retry(max_attempts={attempts!r}): {takes}")
        if not (_is_number(self.backoff) and math.isfinite(self.backoff) and self.backoff >= 1):
            raise InvalidRequest(f"Retry(backoff={self.backoff!r}): a factor of at least 1")
        if not (_is_number(self.jitter) and 0 <= self.jitter <= 1):
            raise InvalidRequest(f"Retry(jitter={self.jitter!r}): a share between 0 and 1")
        if self.on_exhausted not in ("fail", "pause"):
            raise InvalidRequest(f'Retry(on_exhausted={self.on_exhausted!r}): "fail" or "pause"')
        object.__setattr__(self, "only", _exception_types(self.only, "only"))
        object.__setattr__(self, "unless", _exception_types(self.unless, "unless"))
        initial = parse_duration(self.initial, what="Retry(initial=...)")
        if parse_duration(self.max_delay, what="Retry(max_delay=...)") < initial:
            self._raise_ceiling()

    def _raise_ceiling(self) -> None:
        """Let the first delay be the longest one too: a shorter one would cut it without a word."""
        if self.max_delay == _LONGEST:
            object.__setattr__(self, "max_delay", self.initial)
            return
        raise InvalidRequest(
            f"Retry(initial={self.initial!r}): no delay is longer than max_delay, {self.max_delay!r}",
            hint=f"write max_delay={self.initial!r} too, or a longer one",
        )

    def retries(self, error: BaseException, *, asks: bool = True) -> bool:
        """Whether an error of this class is worth another attempt; without `asks` no code of it runs."""
        return _is_worth_it(
            error,
            lambda one: is_a(one, *self.only) if self.only else True,
            lambda one: is_a(one, *self.unless),
            asks=asks,
        )

    def delay_ms(
        self, failures: int, error: BaseException, randomness: Randomness, *, asks: bool = True
    ) -> int | None:
        """Return milliseconds until the next attempt, or None if there is none, or none before a resume.

        Args:
            failures: failed attempts so far, this one included.
            error: what the last attempt raised.
            randomness: source of the jitter.
            asks: whether the error may be asked for `retryable` and `retry_after`, which runs its code.
        """
        if self.max_attempts is not None:
            if self.on_exhausted == "pause":
                # each resume begins with as many attempts again
                failures = (failures - 1) % self.max_attempts + 1
            if failures >= self.max_attempts:
                return None
        if not self.retries(error, asks=asks):
            return None
        after = _retry_after_ms(error) if asks else None
        ceiling = parse_duration(self.max_delay)
        if after is not None:
            return min(after, max(ceiling, _RETRY_AFTER_MAX_MS))
        delay = backoff_pause(parse_duration(self.initial), ceiling, failures - 1, self.backoff)
        return round(delay * (1 - self.jitter * randomness.random()))

    def pauses(self, failures: int) -> bool:
        """Whether the run pauses after so many failures that were worth another attempt."""
        pauses = self.on_exhausted == "pause" and self.max_attempts is not None
        return pauses and failures % (self.max_attempts or 1) == 0


def _retry_after_ms(error: BaseException) -> int | None:
    return asked(lambda: _asked_for_ms(getattr(error, "retry_after", None)), None)


def _asked_for_ms(after: Any) -> int | None:
    if after is None:
        return None
    if isinstance(after, int | float) and not isinstance(after, bool):
        after = max(0, after)
    elif isinstance(after, timedelta):
        after = max(timedelta(0), after)
    return parse_duration(after)


NO_RETRY = Retry(max_attempts=1)
"""The policy of a step without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRetry(Retry):
    """A policy read back from the journal, with error classes by name only.

    Args:
        only_names: full names of errors worth trying again; empty means all.
        unless_names: full names of errors not worth trying again.
    """

    only_names: tuple[str, ...] = ()
    unless_names: tuple[str, ...] = ()

    def _raise_ceiling(self) -> None:
        """Take what is in the journal: it was lawful when it was written, and `max_delay` holds."""

    def retries(self, error: BaseException, *, asks: bool = True) -> bool:
        """Whether an error of this class, or of one of its base classes, is worth another attempt."""
        return _is_worth_it(
            error,
            lambda one: not self.only_names or not _names(one).isdisjoint(self.only_names),
            lambda one: not _names(one).isdisjoint(self.unless_names),
            asks=asks,
        )


def _is_worth_it(
    error: BaseException,
    is_only: Callable[[BaseException], bool],
    is_unless: Callable[[BaseException], bool],
    *,
    asks: bool,
) -> bool:
    """Whether an error is worth another attempt; a group is if each of its members is, as those of a
    TaskGroup say what went wrong.
    """
    leaves = list(leaves_of(error))
    if any((asks and not is_retryable(one)) or is_unless(one) for one in (error, *leaves)):
        return False
    return is_only(error) or all(map(is_only, leaves))


def _names(error: BaseException) -> frozenset[str]:
    classes = classes_of(type(error))
    # before version 0.2 those of the main program had no other name
    old = (f"{class_module(cls)}.{class_name(cls)}" for cls in classes)
    return frozenset((*(asked(partial(_full_name, cls), "") for cls in classes), *old))


class _Policy(msgspec.Struct, omit_defaults=True):
    """A policy as the journal holds it; every number is written, since defaults may change."""

    max_attempts: int | None
    initial_ms: int
    backoff: float
    max_delay_ms: int
    jitter: float
    only: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    on_exhausted: Literal["fail", "pause"] = "fail"


@lru_cache(maxsize=1024)
def policy_text(policy: Retry) -> str | None:
    """Return the recorded form of a policy (JSON text); None for a policy that tries once, then fails."""
    if policy.max_attempts == 1 and policy.on_exhausted == "fail":
        return None
    only, unless = tuple(map(_full_name, policy.only)), tuple(map(_full_name, policy.unless))
    if isinstance(policy, RecordedRetry):
        only, unless = policy.only_names, policy.unless_names
    record = _Policy(
        max_attempts=policy.max_attempts,
        initial_ms=parse_duration(policy.initial),
        backoff=float(policy.backoff),
        max_delay_ms=parse_duration(policy.max_delay),
        jitter=float(policy.jitter),
        only=only,
        unless=unless,
        on_exhausted=policy.on_exhausted,
    )
    return msgspec.json.encode(record).decode()


@lru_cache(maxsize=1024)
def recorded_policy(text: str) -> Retry:
    """Return the policy of a recorded text; a text that cannot be read gives a policy that tries once."""
    try:
        record = msgspec.json.decode(text, type=_Policy)
        return RecordedRetry(
            max_attempts=record.max_attempts,
            initial=timedelta(milliseconds=record.initial_ms),
            backoff=record.backoff,
            max_delay=timedelta(milliseconds=record.max_delay_ms),
            jitter=record.jitter,
            only_names=record.only,
            unless_names=record.unless,
            on_exhausted=record.on_exhausted,
        )
    except (msgspec.ValidationError, msgspec.DecodeError, InvalidRequest, OverflowError):
        return NO_RETRY


def _full_name(cls: type[BaseException]) -> str:
    return f"{error_module(cls)}.{cls.__qualname__}"
