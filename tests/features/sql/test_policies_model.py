"""Law: what becomes of the instants of a schedule is what a small model in Python says.

The model has no SQL and no rows of ranges: it says of each instant by itself what became of it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.features.sql.test_policies import EIGHT, MINUTE, end, sweep
from tests.features.sql.test_scheduled_runs import HOUR, plan
from tests.support.clock import Clock
from tests.support.verbs import Connection, ask, refusal

STEP = 20 * MINUTE
OVERLAPS = ("allow", "skip", "buffer_one", "buffer_all", "cancel")


@dataclass(kw_only=True)
class Model:
    """A schedule of an instant every 20 minutes, whose runs never begin."""

    overlap: str
    window: int | None
    deadline: int | None
    most: int | None = None
    left: int | None = None
    now: int = EIGHT
    begin: int = EIGHT
    last: int = EIGHT
    latest: int = 0
    paused: bool = False
    until: int | None = None
    told: dict[int, str] = field(default_factory=dict)
    pending: dict[int, int] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether its limit is reached."""
        return self.left == 0

    @property
    def buffered(self) -> list[int]:
        """The instants that wait, in their order."""
        return sorted(at for at, what in self.told.items() if what == "buffered")

    def busy(self) -> bool:
        """Whether the run that it started last goes on, or that of its last instant."""
        return any(self.pending.get(at, 0) > self.now for at in (self.latest, self.last))

    def instants(self, after: int, upto: int) -> list[int]:
        """Those of its expression."""
        return list(range((after // STEP + 1) * STEP, upto + 1, STEP))

    def start(self, at: int) -> None:
        """A run begins."""
        self.told[at], self.latest = "run", at
        self.left = None if self.left is None else self.left - 1
        self.pending[at] = 1 << 60 if self.deadline is None else self.now + self.deadline

    def start_buffered(self) -> None:
        """The first that waits begins, if nothing is in its way."""
        if self.over:
            self.told |= dict.fromkeys(self.buffered, "skipped")
        elif self.buffered and not self.paused and not self.busy():
            self.start(self.buffered[0])
        elif (
            self.buffered and not self.paused and self.overlap == "cancel" and self.buffered[-1] >= self.last
        ):
            self.cancel()

    def cancel(self) -> None:
        """Runs that have not begun end at once."""
        for at in (self.latest, self.last):
            self.pending.pop(at, None)

    def fire(self, at: int, overlap: str) -> None:
        """An instant comes."""
        if self.told.get(at) == "run":
            return
        if overlap == "allow" or not (self.busy() or self.buffered):
            self.start(at)
        elif overlap == "skip" or (overlap == "buffer_one" and self.buffered):
            self.told.setdefault(at, "skipped")
        else:
            if overlap == "cancel":
                self.told |= dict.fromkeys(self.buffered, "skipped")
                self.cancel()
            self.told.setdefault(at, "buffered")

    def leave(self, upto: int, why: str) -> None:
        """Instants pass without a run."""
        for at in self.instants(max(self.begin, self.last), upto):
            self.told.setdefault(at, why)
        self.begin = max(self.begin, upto)

    def resume(self, at: int) -> None:
        """A pause ends."""
        if self.paused:
            self.leave(at, "paused")
        self.paused, self.until = False, None

    def sweep(self) -> None:
        """A tick. What is over is never due again, unless something waits."""
        if self.over and not self.buffered:
            return
        until = self.until
        if until is not None and until <= self.now and (self.buffered or self.instants(until, self.now)):
            self.resume(until)
        if self.paused:
            return
        if self.busy() and self.pending.get(self.latest, 0) <= self.now:
            self.latest = self.last
        self.start_buffered()
        if self.over:
            return
        if self.window is not None:
            self.leave(self.now - self.window - 1, "missed")
        for at in self.instants(max(self.begin, self.last), self.now):
            if self.over:
                break
            self.fire(at, self.overlap)
            self.last = at

    def limit(self, most: int | None) -> None:
        """It counts from the first limit on; what an older one left out is over."""
        if most == self.most:
            return
        due = self.instants(max(self.begin, self.last, self.until or 0), self.now)
        if self.over or not due or (self.paused and self.until is None):
            if self.paused:
                self.leave(min(self.now, self.until or self.now), "paused")
            self.begin = max(self.begin, self.now)
        ran = 0 if self.most is None or self.left is None else self.most - self.left
        self.most, self.left = most, None if most is None else max(most - ran, 0)

    def backfill(self, since: int, upto: int, overlap: str) -> None:
        """Runs of a time that is over."""
        found = [at for at in self.instants(since - 1, upto) if self.told.get(at) != "run"]
        found = found[: self.left]
        before, was_busy = self.latest, self.busy()
        if overlap == "buffer_all":
            self.told |= dict.fromkeys(found, "buffered")
            self.start_buffered()
            return
        for at in found:
            self.start(at)
        self.latest = before if was_busy else self.latest


def id_of(conn: Connection, at: int) -> str:
    """The id of the run of an instant."""
    return str(ask(conn, ("select durable._occurrence_id(s, %s) from durable._schedules s", (at,)))[0])


def found(conn: Connection, model: Model) -> dict[int, str]:
    """What the database says of each instant; an instant that is told of twice is "twice"."""
    runs = "select (extract(epoch from substr(id, 3)::timestamptz) * 1000)::bigint from durable.runs"
    told = {int(at): "run" for (at,) in conn.execute(runs.encode()).fetchall()}
    rows = conn.execute(
        "select at, upto, outcome from durable._schedule_instants order by upto > at"
    ).fetchall()
    ranges: dict[int, str] = {}
    for at, upto, outcome in rows:
        if at == upto:
            told[at] = "twice" if at in told else outcome
        for each in model.instants(at - 1, upto) if at < upto else ():
            ranges[each] = "twice" if each in ranges else outcome
    return ranges | told


def act(conn: Connection, clock: Clock, model: Model, dice: random.Random) -> str:
    """Do something to both; answers what."""
    what = dice.choice(["sweep"] * 8 + ["pause", "resume", "trigger", "backfill", "change", "limit"])
    if what == "sweep":
        sweep(conn)
        model.sweep()
    elif what == "pause":
        until = dice.choice([None, model.now + 2 * HOUR])
        ask(conn, ("select durable.pause_schedule('s', until => durable._at(%s::bigint))", (until,)))
        model.paused, model.until = True, until
    elif what == "resume":
        ask(conn, ("select durable.resume_schedule('s')", ()))
        model.resume(model.now)
    elif what == "trigger":
        overlap = dice.choice([None, *OVERLAPS])
        call = ("select count(*) from durable.trigger_schedule('s', %s)", (overlap,))
        assert refusal(conn, call) == ("WF003" if model.over else "")
        if not model.over:
            model.fire(model.now // 1000 * 1000, overlap or model.overlap)
    elif what == "backfill":
        span, overlap = (model.now - 5 * HOUR, model.now - HOUR), dice.choice(["allow", "buffer_all"])
        text = "durable.backfill_schedule('s', durable._at(%s), durable._at(%s), %s, false)"
        ask(conn, (f"select count(*) from {text}", (*span, overlap)))
        model.backfill(*span, overlap)
    elif what == "change":
        model.overlap, model.window = dice.choice(OVERLAPS), dice.choice([None, HOUR, 3 * HOUR])
        text = "update durable.schedules set overlap = %s, catch_up = %s * interval '1 ms' returning 1"
        ask(conn, (text, (model.overlap, model.window)))
        what += f" to {model.overlap}, {model.window}"
    else:
        model.limit(dice.choice([None, 1, 5, (model.most or 0) + 3]))
        ask(conn, ("update durable.schedules set max_runs = %s returning 1", (model.most,)))
        what += f" {model.most}"
    return f"{what}  {model.begin, model.last, model.paused, model.until, model.left}"


def play(conn: Connection, clock: Clock, seed: str, moves: int) -> None:
    """One random life of a schedule."""
    dice = random.Random(seed)
    model = Model(
        overlap=dice.choice(OVERLAPS),
        window=dice.choice([None, 3 * HOUR]),
        deadline=dice.choice([None, HOUR]),
    )
    options: dict[str, Any] = {"overlap": model.overlap}
    if model.window is not None:
        options["catch_up"] = "3 hours"
    if model.deadline is not None:
        options["deadline"] = "1 hour"
    ask(conn, plan(cron="*/20 * * * *", **options))
    story = [f"seed {seed}", str(model)]
    for _ in range(moves):
        model.now = clock.advance(dice.choice([5, 20, 20, 60, 60, 540]) * MINUTE)
        story.append(f"{(model.now - EIGHT) / HOUR:.2f} h: {act(conn, clock, model, dice)}")
        told = found(conn, model)
        odd = {
            (at - EIGHT) / HOUR: (told.get(at), model.told.get(at)) for at in told.keys() | model.told.keys()
        }
        odd = {at: each for at, each in sorted(odd.items()) if each[0] != each[1]}
        assert odd == {}, "\n".join([*story, str(model.begin), str(odd)])
        for at in [at for at, over in model.pending.items() if over > model.now and dice.random() < 0.3]:
            end(conn, id_of(conn, at))
            story.append(f"    the run of {(at - EIGHT) / HOUR:.2f} h ends")
            model.pending.pop(at)


@pytest.mark.parametrize("number", range(2))
def test_lives_of_schedules(
    conn: Connection, clock: Clock, seed: int, number: int, request: pytest.FixtureRequest
) -> None:
    """Through outages, pauses, triggers, backfills and changes of policy, whatever ends when."""
    play(conn, clock, f"{seed}-{number}", 400 if request.config.getoption("--full") else 40)
