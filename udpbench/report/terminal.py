"""The terminal's door: a console that shows texts as they are and obeys none of them.

Every table is drawn here, from its columns and cells.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from udpbench.printable import printable


class Terminal(Console):
    """A console of plain texts: no markup, no emoji, no control characters but rich's own."""

    def __init__(self, **options: Any) -> None:
        """Take what a ``Console`` takes."""
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield the segments of a renderable, their texts printable, before they are laid out."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))

    def on_broken_pipe(self) -> None:
        """Raise if the reader closed the pipe; rich would end the program."""
        raise BrokenPipeError


def drawn(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    title: str = "",
    numbers: Collection[int] = (),
) -> Table:
    """Return a table; the columns at the places of ``numbers`` are to the right, and never wrap."""
    # A title is cut to its table, which may be narrower.
    heading = Text(title, style="bold", no_wrap=True, overflow="ignore") if title else None
    table = Table(title=heading, title_justify="left", box=None)
    for place, column in enumerate(columns):
        if place in numbers:
            table.add_column(Text(column), justify="right", no_wrap=True)
        else:
            table.add_column(Text(column), overflow="fold")
    return _filled(table, rows)


def listed(rows: Iterable[Sequence[str | Text]]) -> Table:
    """Return pairs of a word and a text without a heading."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return _filled(table, rows)


def _filled(table: Table, rows: Iterable[Sequence[str | Text]]) -> Table:
    for cells in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))
    return table
