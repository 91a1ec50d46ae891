"""The retry policy answers one question: in how many milliseconds, if at all."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest

from pyengine.core.definitions.retry import (
    NO_RETRY,
    Retry,
    optional_duration,
    parse_duration,
    policy_text,
    recorded_policy,
    time_left,
    waiting_time,
)
from pyengine.errors import InvalidRequest


class Fixed:
    """Randomness that always gives the same number."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value

    def getrandbits(self, k: int, /) -> int:
        return 0


@pytest.mark.parametrize(
    ("duration", "ms"),
    [
        ("250ms", 250),
        ("30s", 30_000),
        ("5m", 300_000),
        ("1h", 3_600_000),
        ("2d", 172_800_000),
        ("1w", 604_800_000),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        (" 1 H 30 M ", 5_400_000),
        ("0s", 0),
        (0.25, 250),
        (3, 3_000),
        (0, 0),
        (0.1, 100),
        (1e-9, 1),
        (0.0001, 1),
        (timedelta(seconds=1.5), 1_500),
        (timedelta(microseconds=1), 1),
    ],
)
def test_durations(duration: Any, ms: int) -> None:
    """Texts with units, seconds and timedeltas; a fraction of a millisecond counts as one."""
    assert parse_duration(duration) == ms


@pytest.mark.parametrize(
    "duration",
    [
        "",
        "5",
        "abc",
        "5 minutes",
        "-1s",
        "1s 2",
        -1,
        float("nan"),
        float("inf"),
        None,
        True,
        [],
        timedelta(-1),
    ],
)
def test_wrong_durations(duration: Any) -> None:
    """What is no duration is refused, with what it was for and how to write it."""
    with pytest.raises(InvalidRequest, match="step x, timeout") as caught:
        parse_duration(duration, what="step x, timeout")
    assert caught.value.hint is not None and '"30s"' in caught.value.hint


def test_optional_duration() -> None:
    """None means no limit."""
    assert optional_duration(None) is None and optional_duration("1s") == 1000


@pytest.mark.parametrize("past", [-1, -0.005, float("-inf"), timedelta(milliseconds=-5), 0, timedelta()])
def test_computed_durations(past: Any) -> None:
    """A computed time that is over is zero, and a limit that is over ends at once; texts are as they were."""
    assert waiting_time(past, what="x") == 0 and time_left(past, what="x") == 1
    assert waiting_time(2, what="x") == time_left("2s", what="x") == 2000
    assert waiting_time(None, what="x") is time_left(None, what="x") is None
    for wrong in ("-5s", float("nan"), float("inf")):
        with pytest.raises(InvalidRequest):
            waiting_time(wrong, what="x")
    for wrong, says in ((-1, "is below 0"), (1e300, "is too long"), (float("nan"), "is no number")):
        with pytest.raises(InvalidRequest, match=says):
            parse_duration(wrong)


def test_delays_grow_to_the_ceiling() -> None:
    """Delays grow by the factor and stop at the ceiling, also after a million failures."""
    policy = Retry(max_attempts=None, initial="1s", backoff=2, max_delay="10s", jitter=0)
    delays = [policy.delay_ms(n, ValueError(), Fixed(0)) for n in (1, 2, 3, 4, 5, 6, 1_000_000)]
    assert delays == [1000, 2000, 4000, 8000, 10_000, 10_000, 10_000]
    steady = Retry(max_attempts=None, initial="1s", backoff=1, jitter=0)
    assert steady.delay_ms(1_000_000, ValueError(), Fixed(0)) == 1000
    assert Retry(initial=0, jitter=0).delay_ms(3, ValueError(), Fixed(0)) == 0


def test_jitter_only_shortens() -> None:
    """Jitter cuts off at most its share, so a ceiling stays one."""
    policy = Retry(initial="10s", jitter=0.5)
    rng = random.Random(1)
    delays = [policy.delay_ms(1, ValueError(), rng) for _ in range(200)]
    assert all(delay is not None and 5_000 <= delay <= 10_000 for delay in delays)
    assert len(set(delays)) > 100


def test_attempts_are_counted() -> None:
    """max_attempts counts the first one; a step without a policy is tried once."""
    policy = Retry(max_attempts=3)
    assert policy.delay_ms(2, ValueError(), Fixed(0)) is not None
    assert policy.delay_ms(3, ValueError(), Fixed(0)) is None
    assert NO_RETRY.delay_ms(1, ValueError(), Fixed(0)) is None


def test_a_policy_that_pauses() -> None:
    """After each round of attempts there is none before a resume, which begins another round with its
    delays; an error that is not worth it ends the step in any case."""
    policy = Retry(max_attempts=3, initial="1s", jitter=0, unless=(KeyError,), on_exhausted="pause")
    text = policy_text(policy)
    assert text is not None
    for each in (policy, recorded_policy(text)):
        delays = [each.delay_ms(n, ValueError(), Fixed(0)) for n in range(1, 8)]
        assert delays == [1000, 2000, None, 1000, 2000, None, 1000]
        assert [n for n in range(1, 8) if each.pauses(n)] == [3, 6]
        assert each.delay_ms(1, KeyError(), Fixed(0)) is None
    assert not Retry(max_attempts=None, on_exhausted="pause").pauses(5)
    assert not Retry(max_attempts=5).pauses(5)
    once = policy_text(Retry(max_attempts=1, on_exhausted="pause"))
    assert once is not None and recorded_policy(once).pauses(1)


def test_only_and_unless() -> None:
    """`only` limits what is worth another attempt, `unless` wins over it, and so does the error itself."""
    policy = Retry(only=(LookupError,), unless=(KeyError,))
    assert policy.delay_ms(1, IndexError(), Fixed(0)) is not None
    assert policy.delay_ms(1, KeyError(), Fixed(0)) is None
    assert policy.delay_ms(1, ValueError(), Fixed(0)) is None
    final = IndexError()
    final.retryable = False  # type: ignore[attr-defined]
    assert policy.delay_ms(1, final, Fixed(0)) is None
    assert Retry(unless=KeyError).unless == (KeyError,)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("after", "ms"),
    [
        (7, 7000),
        (0.5, 500),
        (timedelta(minutes=1), 60_000),
        (-3, 0),
        (timedelta(-1), 0),
        ("2s", 2000),
        ("23h", 82_800_000),
        ("25h", 86_400_000),
        (10**9, 86_400_000),
        (timedelta(days=400), 86_400_000),
        ("soon", 800),
        (None, 800),
    ],
)
def test_retry_after(after: Any, ms: int) -> None:
    """An error may set its own delay, up to a day or the policy's longest; what cannot be read is ignored."""
    error = ValueError()
    error.retry_after = after  # type: ignore[attr-defined]
    assert Retry(initial="1s").delay_ms(1, error, Fixed(1)) == ms
    assert Retry(initial="1s", max_delay="2d").delay_ms(1, error, Fixed(1)) in (ms, 90_000_000, 172_800_000)
    assert Retry(max_attempts=1).delay_ms(1, error, Fixed(1)) is None


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"backoff": 0.5},
        {"backoff": float("nan")},
        {"jitter": 1.5},
        {"jitter": -0.1},
        {"initial": "soon"},
        {"max_delay": -1},
        {"only": ("ValueError",)},
        {"unless": (5,)},
        {"on_exhausted": "stop"},
    ],
)
def test_wrong_policies(options: dict[str, Any]) -> None:
    """A policy that makes no sense is refused where it is written."""
    with pytest.raises(InvalidRequest, match=r"Retry|duration|initial|max_delay"):
        Retry(**options)


POLICIES = [
    Retry(),
    Retry(max_attempts=None, initial=timedelta(milliseconds=5), backoff=1, jitter=0),
    Retry(max_attempts=3, initial="1ms", max_delay="1h", only=(OSError,)),
    Retry(only=(OSError, LookupError), unless=(KeyError, ConnectionResetError)),
    Retry(max_attempts=3, unless=(KeyError,), on_exhausted="pause"),
]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("error", [OSError(), ConnectionResetError(), KeyError(), IndexError(), ValueError()])
def test_a_recorded_policy_decides_as_the_one_it_was(policy: Retry, error: Exception) -> None:
    """What is read back from the journal gives the same delay for every error and count, derived classes
    included, and is recorded again as the same text.
    """
    text = policy_text(policy)
    assert text is not None
    back = recorded_policy(text)
    for failures in (1, 2, 3, 4, 5, 60):
        assert back.delay_ms(failures, error, Fixed(0.5)) == policy.delay_ms(failures, error, Fixed(0.5))
    assert policy_text(back) == text


def test_a_recorded_policy_obeys_the_error() -> None:
    """What an error says of itself counts under a recorded policy too."""
    text = policy_text(Retry(initial="1s", jitter=0))
    assert text is not None

    class FinalError(Exception):
        retryable = False

    class LaterError(Exception):
        retry_after = 7

    assert recorded_policy(text).delay_ms(1, FinalError(), Fixed(0)) is None
    assert recorded_policy(text).delay_ms(1, LaterError(), Fixed(0)) == 7000


def test_a_policy_that_tries_once_is_not_recorded() -> None:
    """No retry is no text; and a text that nobody can read means no retry."""
    assert policy_text(NO_RETRY) is None
    assert policy_text(Retry(max_attempts=1, initial="5s")) is None
    for text in ("null", "7", "{", '{"max_attempts": 3}', '{"max_attempts": 0, "initial_ms": 1}'):
        assert recorded_policy(text) == NO_RETRY


class Final(ValueError):
    retryable = False


@pytest.mark.parametrize(
    ("members", "policy", "worth"),
    [
        ([OSError(), Final()], Retry(), False),
        ([OSError(), KeyError()], Retry(unless=(KeyError,)), False),
        ([ExceptionGroup("g", [KeyError()])], Retry(unless=(LookupError,)), False),
        ([OSError(), TimeoutError()], Retry(only=(OSError,)), True),
        ([OSError(), KeyError()], Retry(only=(OSError,)), False),
        ([OSError(), KeyError()], Retry(only=(ExceptionGroup,)), True),
    ],
)
def test_a_group_is_worth_what_its_members_are(members: list[Exception], policy: Retry, worth: bool) -> None:
    """A TaskGroup hides no error from a policy; neither does the recorded form of the policy."""
    group = ExceptionGroup("tasks", members)
    text = policy_text(policy)
    assert text is not None
    assert policy.retries(group) is worth
    assert recorded_policy(text).retries(group) is worth
