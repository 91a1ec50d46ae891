"""Progress and named values of a run, on the wire.

Lives here: `ProgressReport`, the part of a run report that carries it. May not: what code may set
(progress/context.py), when it leaves the worker (worker/run_driver.py). The theory: only the last
value counts, and each has the position in the journal at which it was set. So values can be sent late,
together, or again after a replay, and the newest stays.
"""

from __future__ import annotations

import msgspec


class ProgressReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The progress and the named values that a run has set since its last report.

    Args:
        seq: the logical number up to which the journal had been read when the progress was set.
        done: how much is done; None means that only named values were set.
        total: how much there is to do; None means unknown.
        note: for people.
        named: by name: number of the run, logical number as `seq`, JSON text of the value.
    """

    seq: int | None = None
    done: float | None = None
    total: float | None = None
    note: str | None = None
    named: dict[str, tuple[int, int, str]] = {}

    def after(self, earlier: ProgressReport | None) -> ProgressReport:
        """Return both reports as one."""
        if earlier is None:
            return self
        counts = earlier if self.done is None else self
        return ProgressReport(
            seq=counts.seq,
            done=counts.done,
            total=counts.total,
            note=counts.note,
            named={**earlier.named, **self.named},
        )

    def at(self, seq: int) -> ProgressReport:
        """Return the report with this position for all that was set."""
        named = {name: (execution, seq, text) for name, (execution, _, text) in self.named.items()}
        position = None if self.done is None else seq
        return ProgressReport(seq=position, done=self.done, total=self.total, note=self.note, named=named)

    @property
    def weight(self) -> int:
        """The length of its texts, in characters."""
        return len(self.note or "") + sum([len(name) + len(one[2]) for name, one in self.named.items()])
