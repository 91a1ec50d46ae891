"""Progress and named values that workflow code sets.

Lives here: `ProgressSetter`. May not: the journal; these values are not recorded. The theory: an advance is
deterministic, so a replay sets the same values at the same positions. It reports only the last of them, once
it is done, and the database keeps a value that was set later by somebody else.
"""

from __future__ import annotations

from typing import Any

from pyengine.core.protocol.progress import ProgressReport
from pyengine.core.replay.call_sequence import CallSequence
from pyengine.core.values.codec import Codec
from pyengine.errors import InvalidRequest

_NAMES_MAX = 1000


class ProgressSetter:
    """Collects what the code of a run sets between two advances.

    Args:
        sequence: tells where in the journal the code is.
        codec: writes values and bounds their size.
    """

    def __init__(self, sequence: CallSequence, codec: Codec) -> None:
        self._sequence = sequence
        self._codec = codec
        self._names: set[str] = set()
        self._report: ProgressReport | None = None

    def set_progress(self, done: float, total: float | None, note: str | None) -> None:
        """Set the progress."""
        self._add(ProgressReport(seq=self._seq, done=done, total=total, note=note))

    def set_value(self, name: str, value: Any) -> None:
        """Set a named value.

        Raises:
            EncodeError: it cannot be written as JSON.
            PayloadTooLarge: it is too large.
            InvalidRequest: the run has set too many names.
        """
        run = self._sequence.run
        text = self._codec.write_only(value, f"the value {name} of run {run.id}", exact=run.exact)
        self._names.add(name)
        if len(self._names) > _NAMES_MAX:
            raise InvalidRequest(
                f"run {run.id} sets more than {_NAMES_MAX} named values",
                hint="set one value that holds them, or write rows of your own",
            )
        self._add(ProgressReport(named={name: (run.execution, self._seq, text)}))

    def take(self) -> ProgressReport | None:
        """Return what was set since the last time."""
        report, self._report = self._report, None
        return report

    @property
    def _seq(self) -> int:
        return self._sequence.at_seq + 1

    def _add(self, report: ProgressReport) -> None:
        if not self._sequence.dead:
            self._report = report.after(self._report)
