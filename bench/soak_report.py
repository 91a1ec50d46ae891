"""The results of a soak: minutes, checks, and both as Markdown and JSON. Measures nothing.

Theory: tables of unfinished work (HOT_TABLES) must not grow with finished runs; the others store history and
grow with it. Speed is judged over a fifth of the time, because a minute is at the mercy of what else the
machine does. So is a machine's speed; but what a run costs the worker does not depend on the tables, so what
it costs the session is judged in proportion to that, too.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.report import number

HOT_TABLES = (
    *("_tasks", "_callbacks", "_listeners", "_resumes", "_workers", "_workflows", "_hints", "_unblocks"),
    *("_row_waits", "_row_events", "_schedules"),
)
SPEED = 0.9
COST = 1.1
FULL_WARM_UP = 3
"""Minutes after which autovacuum has run; sizes before that do not show growth."""
GROWTH = 1.5
RENEWALS = 0.95
_SMALL = 1 << 20
"""Bytes up to which a table's growth is not judged: a page more is half as much again of two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Minute:
    """One minute of a soak.

    Args:
        at: when it ended, seconds of a clock that only goes on.
        ended: runs that have ended since the beginning.
        rows: journal rows since the beginning.
        runs_per_s: runs that ended in this minute.
        rows_per_s: journal rows of this minute.
        probe: median of the single-row commits a second that one connection reached meanwhile.
        renewed: renewals of the protocol client since the beginning; of them `hot` were HOT.
        processor_us: time on a processor of the worker and of its session for turns since they began; None
            if the server runs elsewhere.
        tables: by name: bytes of `table` and `indexes`, `dead` rows, `updates` and `hot` ones, `vacuums` and
            `analyzes` by autovacuum.
    """

    at: float
    ended: int
    rows: int
    runs_per_s: float
    rows_per_s: float
    probe: float
    renewed: int
    hot: int
    processor_us: tuple[float, float] | None
    tables: dict[str, dict[str, int]]

    def size(self, table: str) -> int:
        """Bytes of a table with its indexes."""
        found = self.tables[table]
        return found["table"] + found["indexes"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A line of the judged table."""

    what: str
    target: str
    measured: str
    met: bool | None


@dataclass(slots=True, kw_only=True)
class Soak:
    """All results of one soak.

    Args:
        about: settings, versions, command.
        warm_up: minutes that do not count for speed, and after which tables have their size.
        broken: rows of durable.check() at the end.
        is_over: all minutes have passed; otherwise the report is of what there is so far.
    """

    about: dict[str, Any]
    warm_up: int
    minutes: list[Minute] = field(default_factory=list)
    steps_per_s: list[float] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    is_over: bool = False

    def tell_steps(self, counts: Iterable[tuple[int, int]]) -> None:
        """Steps by minute, counted in the journal afterwards."""
        found = dict(counts)
        self.steps_per_s = [found.get(minute, 0) / 60 for minute in range(len(self.minutes))]

    def verdicts(self) -> list[Verdict]:
        """The judgement."""
        return [*self._speed(), *self._growth(), *self._laws()]

    def _speed(self) -> list[Verdict]:
        counted = self.minutes[self.warm_up :]
        fifth = max(len(counted) // 5, 1)
        if len(counted) < 2 * fifth:
            return [Verdict("speed, last fifth to first", f">= {SPEED}", "", None)]
        first, last = counted[:fifth], counted[-fifth:]
        ratio = _mean(last, "runs_per_s") / _mean(first, "runs_per_s")
        return [
            Verdict("speed, last fifth to first", f">= {SPEED}", f"{ratio:.2f}", ratio >= SPEED),
            *self._cost(fifth),
        ]

    def _cost(self, fifth: int) -> Iterable[Verdict]:
        costs = [cost for cost in self.costs()[self.warm_up :] if cost is not None]
        if len(costs) >= 2 * fifth:
            first, last = (statistics.fmean(map(sum, some)) for some in (costs[:fifth], costs[-fifth:]))
            told = f"{first:,.0f} to {last:,.0f} us, {last / first:.2f}x"
            yield Verdict(
                "processor time of a run, worker and session", f"<= {COST}x", told, last <= COST * first
            )
            first, last = (_in_proportion(some) for some in (costs[:fifth], costs[-fifth:]))
            told = f"{first:.2f} to {last:.2f}, {last / first:.2f}x"
            yield Verdict(
                "processor time of the session in that of the worker",
                f"<= {COST}x",
                told,
                last <= COST * first,
            )

    def costs(self) -> list[tuple[float, float] | None]:
        """Microseconds of the worker and of its session for a run that ended, by minute."""
        found: list[tuple[float, float] | None] = []
        for place, one in enumerate(self.minutes):
            last = self.minutes[place - 1] if place else None
            if last is None or last.processor_us is None or one.processor_us is None:
                found.append(None)
            else:
                runs = max(one.ended - last.ended, 1)
                worker, session = (
                    (now - then) / runs for now, then in zip(one.processor_us, last.processor_us, strict=True)
                )
                found.append((worker, session))
        return found

    def _growth(self) -> Iterable[Verdict]:
        if len(self.minutes) <= self.warm_up:
            return
        before, after = self.minutes[self.warm_up - 1], self.minutes[-1]
        for table in HOT_TABLES:
            now, then = after.size(table), before.size(table)
            grown = now / max(then, 1)
            if now > _SMALL:
                told = f"{_mb(then)} to {_mb(now)} MB, {grown:.2f}x"
                yield Verdict(
                    f"{table} after minute {self.warm_up} and at the end",
                    f"<= {GROWTH}x",
                    told,
                    grown <= GROWTH if self.warm_up >= FULL_WARM_UP else None,
                )
        small = [table for table in HOT_TABLES if after.size(table) <= _SMALL]
        yield Verdict(f"at most 1 MB at the end: {', '.join(small)}", "<= 1 MB", "yes", True)

    def _laws(self) -> Iterable[Verdict]:
        last = self.minutes[-1]
        share = last.hot / max(last.renewed, 1)
        yield Verdict(
            f"HOT among {last.renewed:,} renewals of held tasks",
            f"> {RENEWALS:.0%}",
            f"{share:.1%}",
            share > RENEWALS,
        )
        told = "; ".join(self.broken[:5]) or "nothing"
        yield Verdict("durable.check()", "nothing", told if self.is_over else "not yet", not self.broken)

    def markdown(self) -> str:
        """The report."""
        machine, postgres = self.about["machine"], self.about["postgres"]
        told = ", ".join(
            value if name == "version" else f"{name} {value}" for name, value in postgres.items()
        )
        is_over = ".\n" if self.is_over else " so far.\n"
        met = {None: "too short to tell", True: "yes", False: "**no**"}
        judged = [[one.what, one.target, one.measured, met[one.met]] for one in self.verdicts()]
        return "\n".join(
            [
                "# A steady load\n",
                f"{self.about['at'][:10]}, commit {self.about['commit'][:12] or 'unknown'}, "
                f"{machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}, "
                f"Python {machine['python']}, one worker process with its defaults.\nPostgreSQL {told}.\n"
                f"Repeat with `{self.about['command']}`. {len(self.minutes)} minutes{is_over}",
                _rows(["what", "target", "measured", "met"], judged),
                "## By minute\n",
                self._by_minute(),
                "## Tables at the end\n",
                self._tables(),
            ]
        )

    def _by_minute(self) -> str:
        hot = [table for table in HOT_TABLES if self.minutes[-1].size(table) > _SMALL]
        rows, costs = [], self.costs()
        for place, one in enumerate(self.minutes):
            steps = number(self.steps_per_s[place]) if self.steps_per_s else ""
            sizes = [_mb(one.size(table)) for table in hot]
            dead = f"{sum(one.tables[table]['dead'] for table in HOT_TABLES):,}"
            told = [number(one.runs_per_s), steps, number(one.rows_per_s), number(one.probe)]
            told += [number(part) for part in costs[place] or ()] or ["", ""]
            rows.append([str(place + 1), *told, dead, *sizes])
        head = ["minute", "runs/s", "steps/s", "journal rows/s", "probe, commits/s"]
        head += ["worker, us/run", "session, us/run", "dead rows of hot tables"]
        return _rows([*head, *(f"{table}, MB" for table in hot)], rows)

    def _tables(self) -> str:
        rows = []
        for name, found in sorted(self.minutes[-1].tables.items()):
            if found["updates"] or found["table"] + found["indexes"] > _SMALL:
                share = f"{found['hot'] / found['updates']:.1%}" if found["updates"] else ""
                sizes = [_mb(found["table"]), _mb(found["indexes"])]
                counts = [f"{found[what]:,}" for what in ("dead", "updates")]
                vacuums = [str(found["vacuums"]), str(found["analyzes"])]
                kind = "hot" if name in HOT_TABLES else "keeps history"
                rows.append([name, kind, *sizes, *counts, share, *vacuums])
        head = [
            "table",
            "kind",
            "MB",
            "indexes, MB",
            "dead rows",
            "updates",
            "HOT",
            "autovacuums",
            "autoanalyzes",
        ]
        return _rows(head, rows)

    def write(self, out: Path | None) -> None:
        """Write Markdown and JSON, after each minute, so that an interrupted soak has a report."""
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(self.markdown(), encoding="utf-8")
            judged = [asdict(one) for one in self.verdicts()]
            data = json.dumps({**asdict(self), "verdicts": judged}, indent=1)
            out.with_suffix(".json").write_text(data + "\n", encoding="utf-8")


def line(place: int, of: int, one: Minute) -> str:
    """Progress, one line a minute."""
    hot = sum(one.size(table) for table in HOT_TABLES)
    share = one.hot / max(one.renewed, 1)
    return (
        f"minute {place} of {of}: {one.runs_per_s:,.0f} runs/s, {one.rows_per_s:,.0f} journal rows/s, "
        f"probe {one.probe:,.0f}/s, hot tables {_mb(hot)} MB, renewals {share:.1%} HOT"
    )


def _in_proportion(costs: list[tuple[float, float]]) -> float:
    return sum(session for _, session in costs) / sum(worker for worker, _ in costs)


def _mean(minutes: list[Minute], what: str) -> float:
    return statistics.fmean(getattr(one, what) for one in minutes)


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f}"


def _rows(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(each) + " |" for each in lines) + "\n"
