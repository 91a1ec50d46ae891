"""How code leaves its run to be continued as new.

Lives here: the exception that `ctx.continue_as_new` raises. May not: a decision; what becomes of the run is
the machine's.
"""

from __future__ import annotations


class ContinueAsNewRequest(BaseException):
    """Leaves the workflow that asked to be continued as new; `except Exception` does not catch it.

    Attributes:
        param: JSON text of the new arguments.
        version: the version that goes on, if it is another one.
    """

    def __init__(self, param: str, version: str | None) -> None:
        super().__init__("the workflow continues as new")
        self.param, self.version = param, version
