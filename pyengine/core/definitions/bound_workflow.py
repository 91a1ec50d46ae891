"""A workflow with its arguments, as one typed value, and the type of a workflow by the arguments it takes.

Lives here: `BoundWorkflow`, which `Workflow.bind` returns and every start takes, and `Accepts`. May not:
starting anything. The theory: Python's types cannot name the parameters of a workflow and the options of a
start in one signature. So `client.start(checkout.bind(order, express=True), id="order-42")` checks both
exactly; the shorter call has overloads (client/starts.py), which check all that a signature can name.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from pyengine.core.definitions.definition import WorkflowDef
from pyengine.errors import InvalidRequest

# of the arguments by position: every module with overloads for them uses these
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class BoundWorkflow(Generic[R_co]):
    """A workflow with its arguments: the result of `checkout.bind(order)`.

    Args:
        definition: the workflow.
        args: its arguments by position.
        kwargs: its arguments by name.
    """

    definition: WorkflowDef
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of the workflow."""
        return self.definition.name

    def arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return its arguments, by position and by name.

        Args:
            args: further arguments that a start was given.
            kwargs: likewise, by name.

        Raises:
            InvalidRequest: there are further ones.
        """
        if args or kwargs:
            raise InvalidRequest(
                f"workflow {self.name} has its arguments from bind, and was given more",
                hint=f"give all of them to {self.name}.bind(...)",
                takes=self.definition.signature.parameters,
            )
        return self.args, self.kwargs

    def __repr__(self) -> str:
        given = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"<workflow {self.name}({', '.join(given)})>"


class Accepts(Protocol[P, R_co]):
    """The type of a workflow that can be called with these arguments: `Accepts[[int, str], R]`.

    A workflow with further, optional parameters has this type too, which `Workflow[[int, str], R]` does not
    allow.
    """

    @property
    def definition(self) -> WorkflowDef: ...

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[None, None, R_co]: ...
