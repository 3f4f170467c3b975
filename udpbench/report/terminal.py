"""The terminal's door: a console that shows texts as they are and obeys none of them.

Every table is drawn here, from its columns and cells.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from udpbench.printable import printable
from udpbench.units import unbroken

JOINT = "\ue000"
"""Stands for a blank at which no line may be broken: rich breaks them at a no-break space, too."""


class Terminal(Console):
    """A console of plain texts: no markup, no emoji, no control characters but rich's own."""

    def __init__(self, **options: Any) -> None:
        """Take what a ``Console`` takes."""
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield the segments of a renderable, printable; no line parts a number from its unit."""
        if isinstance(renderable, Text):
            joined = unbroken(renderable.plain, JOINT)
            if joined != renderable.plain:
                renderable = renderable.copy()
                renderable.plain = joined
        for segment in super().render(renderable, options):
            text = segment.text.replace(JOINT, " ")
            yield segment if segment.control else segment._replace(text=printable(text))

    def on_broken_pipe(self) -> None:
        """Raise if the reader closed the pipe; rich would end the program."""
        raise BrokenPipeError


LONG = 100
"""Rows from which a table is laid out here."""
PADDING = 2
"""Blanks in a cell, one at each side."""
NARROWEST = 8
"""Columns of a terminal to which a column of texts may be narrowed here."""


class LongTable(Table):
    """A table that is laid out here if it is long, as rich would.

    Rich takes 0.2 ms for each cell, of which a plan or a run may have tens of thousands.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the segments of all lines."""
        widths = self._widths(options.max_width) if self.row_count >= LONG else None
        if widths is None:
            yield from super().__rich_console__(console, options)
            return
        if self.title:
            width = sum(widths) + PADDING * len(widths)
            yield from console.render(self.title, options.update(width=width, justify="left"))
        heads = [column.header for column in self.columns]
        head = self._row(console, heads, widths)
        yield from Segment.apply_style(head, console.get_style("table.header"))
        for cells in zip(*(column.cells for column in self.columns), strict=True):
            yield from self._row(console, cells, widths)

    def _calculate_column_widths(self, console: Console, options: ConsoleOptions) -> list[int]:
        """Return rich's widths, paddings included, in which words are whole where that is possible.

        Rich narrows the widest columns, be their words blanks apart or names of a setting.
        """
        widths = super()._calculate_column_widths(console, options)
        return _with_whole_words(widths, self.columns, PADDING)

    def _widths(self, room: int) -> list[int] | None:
        """Return the width of each column; None if rich has to find a way.

        Those that may wrap are as wide as they need to be, or equally wide.
        """
        room -= PADDING * len(self.columns)
        texts = [[*map(str, (column.header, *column.cells))] for column in self.columns]
        if any(printable(text, keep="") != text for column in texts for text in column):
            return None
        widths = [max(map(cell_len, column)) for column in texts]
        limit = max(widths)
        while sum(widths) > room and limit > NARROWEST:
            limit -= 1
            widths = [
                width if column.no_wrap else min(width, limit)
                for width, column in zip(widths, self.columns, strict=True)
            ]
        if sum(widths) > room:
            return None
        return _with_whole_words(widths, self.columns)

    def _row(
        self, console: Console, cells: Iterable[RenderableType], widths: list[int]
    ) -> Iterator[Segment]:
        """Yield the segments of a row, whose cells may have several lines."""
        texts = [cell if isinstance(cell, Text) else Text(str(cell)) for cell in cells]
        plain = not any(text.style or text.spans for text in texts)
        wrapped = [
            [text]
            if cell_len(text.plain) <= width
            else [*text.wrap(console, width, overflow="fold")]
            for text, width in zip(texts, widths, strict=True)
        ]
        for line in zip_longest(*wrapped, fillvalue=Text()):
            segments: list[Segment] = []
            for text, column, width in zip(line, self.columns, widths, strict=True):
                blanks = " " * (width - cell_len(text.plain))
                right = column.justify == "right"
                segments.append(Segment(" " + blanks * right))
                # In the style of the whole text.
                segments += [Segment(text.plain)] if plain else Text().join([text]).render(console)
                segments.append(Segment(blanks * (not right) + " "))
            if plain:
                yield Segment("".join(segment.text for segment in segments))
            else:
                yield from segments
            yield Segment.line()


def _with_whole_words(
    widths: Sequence[int], columns: Sequence[Column], padding: int = 0
) -> list[int]:
    """Return widths that columns give to those whose longest word has no room, as far as they can.

    No word gets more than two thirds of the table.
    """
    most = 2 * sum(widths) // 3
    least = [
        width if column.no_wrap else min(_longest_word(column) + padding, most)
        for width, column in zip(widths, columns, strict=True)
    ]
    given = list(widths)
    for place, width in enumerate(least):
        while given[place] < width:
            spare = [more - enough for more, enough in zip(given, least, strict=True)]
            if max(spare) <= 0:
                return given
            given[spare.index(max(spare))] -= 1
            given[place] += 1
    return given


def _longest_word(column: Column) -> int:
    cells = (unbroken(str(cell), JOINT) for cell in (column.header, *column.cells))
    longest = max((cell_len(word) for cell in cells for word in cell.split()), default=0)
    return longest if column.max_width is None else min(longest, column.max_width)


def drawn(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    title: str = "",
    numbers: Collection[int] = (),
) -> Table:
    """Return a table; the columns at the places of ``numbers`` are to the right, and never wrap."""
    # A title is cut to its table, which may be narrower.
    heading = Text(title, style="bold", no_wrap=True, overflow="ignore") if title else None
    table = LongTable(title=heading, title_justify="left", box=None)
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
