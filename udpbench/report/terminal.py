"""The terminal's door: a console that shows texts as they are and obeys none of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

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
