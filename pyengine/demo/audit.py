"""The audit as a durable job: one run for the environment, a child run for each distribution, bounded steps.

Lives here: the workflows and steps of ``pyengine demo``. May not: read files itself (``records.py``). A run
survives the death of any worker, because each step's result is in the journal before the next step begins.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cache

from pyengine import App, clock, ctx
from pyengine.demo import records
from pyengine.demo.effects import Writer
from pyengine.demo.records import Distribution, Limits, Problem, Slice, Verdict

__all__ = ["WORKER", "Audit", "Plan", "Report", "app", "audit_distribution", "audit_environment", "writer"]

WORKER = "PYENGINE_DEMO_WORKER"

app = App()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The steps in which a distribution is verified."""

    slices: list[Slice]
    skipped: int
    absent: bool
    problem: Problem | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The result for one distribution; `absent`: it has no RECORD, so nothing could be verified."""

    name: str
    files: int = 0
    bytes: int = 0
    skipped: int = 0
    absent: bool = False
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result for an environment."""

    audits: list[Audit]


@app.step
def list_distributions(places: list[str]) -> list[Distribution]:
    """Return the distributions that are installed in some folders."""
    found = records.find(places)
    _done("list_distributions")
    return found


@app.step
def read_record(distribution: Distribution, limits: Limits) -> Plan:
    """Read RECORD and cut it into steps of bounded size."""
    record = records.entries(distribution)
    plan = Plan(
        slices=records.slices(distribution, limits),
        skipped=record.skipped,
        absent=record.absent,
        problem=record.problem,
    )
    _done("read_record")
    return plan


@app.step
def verify_files(distribution: Distribution, part: Slice, pause_ms: int) -> Verdict:
    """Read some files and compare them with RECORD."""
    clock.pause(pause_ms / 1000)
    verdict = records.verify(distribution, part)
    _done("verify_files", verdict.files)
    return verdict


@app.workflow
async def audit_distribution(distribution: Distribution, limits: Limits) -> Audit:
    """Verify one distribution."""
    plan = await read_record(distribution, limits)
    total = Verdict(skipped=plan.skipped, problems=[plan.problem] if plan.problem else [])
    for part in plan.slices:
        total.add(await verify_files(distribution, part, limits.pause_ms))
    return Audit(
        name=distribution.name,
        files=total.files,
        bytes=total.bytes,
        skipped=total.skipped,
        absent=plan.absent,
        problems=total.problems,
    )


@app.workflow
async def audit_environment(places: list[str], limits: Limits) -> Report:
    """Verify everything that is installed in some folders, each distribution in a run of its own."""
    distributions = await list_distributions(places)
    audits = [ctx.start(audit_distribution, one, limits) for one in distributions]
    return Report(audits=list(await ctx.gather(*audits)))


@cache
def writer() -> Writer:
    """Return the writer of this process's effects, outside the engine."""
    return Writer(os.environ["PYENGINE_DATABASE_URL"], os.environ.get(WORKER, "a worker"))


def _done(step: str, files: int = 0) -> None:
    """Record that this body ran to its end."""
    info = ctx.step
    writer().write(info.run_id, info.child, step, files)
