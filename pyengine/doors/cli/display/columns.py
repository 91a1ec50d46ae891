"""Tables that fit their terminal: a row is a line, and nothing wraps.

Lives here: the widths of columns. May not: know what stands in them. Where the terminal is too narrow, cells
are cut first, each column down to its least width, and then the least important columns are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

GAP = 2


def cut_ends(texts: Sequence[str], width: int) -> list[str]:
    """Return texts of at most this width, showing where the end of one was cut off."""
    from rich.cells import cell_len, set_cell_size

    return [
        text if cell_len(text) <= width else f"{set_cell_size(text, max(width - 1, 0)).rstrip()}…"
        for text in texts
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table.

    Args:
        title: its title.
        cells: printable texts, from the top.
        rank: how important it is; 0 is the most important one.
        least: the width to which it can be cut; None: it is never cut.
        enough: the width that it gets before a less important column gets more than its least.
        most: the width from which on it is cut in any case.
        spare: it is left out before another column gets less than enough.
        right: align it to the right.
        cut: cuts texts to a width.
        style: the style of a cell.
    """

    title: str
    cells: Sequence[str]
    rank: int
    least: int | None = None
    enough: int | None = None
    most: int | None = None
    spare: bool = False
    right: bool = False
    cut: Callable[[Sequence[str], int], list[str]] = cut_ends
    style: Callable[[str], str] = lambda _: ""

    def natural(self) -> int:
        """Return the width that it has where there is room."""
        from rich.cells import cell_len

        widest = max(map(cell_len, (self.title, *self.cells)))
        return widest if self.most is None else min(widest, max(self.most, cell_len(self.title)))

    def smallest(self) -> int:
        """Return the width below which it is left out."""
        natural = self.natural()
        return natural if self.least is None else min(natural, self.least)

    def sufficient(self) -> int:
        """Return the width that it gets first."""
        natural = self.natural()
        return natural if self.enough is None else min(natural, self.enough)


def widths(columns: Sequence[Column], width: int | None) -> dict[int, int]:
    """Return the widths of the columns that are shown, by their positions.

    Args:
        columns: the columns, from the left.
        width: the width of the terminal; None: there is room for everything.
    """
    natural = [column.natural() for column in columns]
    if width is None:
        return dict(enumerate(natural))
    ranked = sorted(range(len(columns)), key=lambda n: columns[n].rank)
    if _total([columns[n].sufficient() for n in ranked]) > width:
        ranked = [n for n in ranked if not columns[n].spare] or ranked[:1]
    while len(ranked) > 1 and _total([columns[n].smallest() for n in ranked]) > width:
        ranked.pop()
    given = {n: min(columns[n].smallest(), width) for n in ranked}
    for wanted in ([column.sufficient() for column in columns], natural):
        for n in ranked:
            given[n] += max(min(wanted[n] - given[n], width - _total(list(given.values()))), 0)
    return dict(sorted(given.items()))


def print_columns(console: Console, columns: Sequence[Column], width: int | None) -> None:
    """Print a table.

    Args:
        console: the console.
        columns: the columns, from the left.
        width: the width of the terminal; None: nothing is cut.
    """
    from rich.cells import cell_len
    from rich.text import Text

    given = widths(columns, width)
    shown = [(columns[n], room, columns[n].cut(columns[n].cells, room)) for n, room in given.items()]
    for row in range(-1, len(columns[0].cells)):
        line = Text()
        for column, room, cells in shown:
            cell = column.title if row < 0 else cells[row]
            style = "bold" if row < 0 else column.style(column.cells[row])
            space = " " * (room - cell_len(cell))
            line.append(space if column.right else "").append(cell, style=style)
            line.append(("" if column.right else space) + " " * GAP)
        line.rstrip()
        console.print(line, soft_wrap=True)


def _total(given: list[int]) -> int:
    return sum(given) + GAP * (len(given) - 1)
