"""Progress of a run: a live view on a terminal, plain lines elsewhere.

Draws ``Progress`` and decides nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from udpbench.model.experiment import Trial
from udpbench.model.result import Progress
from udpbench.printable import printable
from udpbench.report.live_rates import Watch
from udpbench.report.summary import event_line, first_reason
from udpbench.report.terminal import Terminal

SHOWN_EVENTS = ("wait", "run", "host", "trial", "search", "restore")
Tell = Callable[[Progress], None]


@contextmanager
def live_view(out: TextIO, trials: Sequence[Trial], quiet: bool) -> Iterator[Tell]:
    """Yield the progress callback for the type of output; ``trials`` are to be run."""
    console = Terminal(file=out)
    if quiet:
        yield tell_wait
    elif console.is_terminal and not console.is_dumb_terminal:
        from udpbench.report.screen import Screen

        with Screen(console, Watch(trials)) as screen:
            yield screen
    else:
        yield LiveLines(out)


def tell_wait(progress: Progress) -> None:
    """Print on stderr which run is being waited for."""
    if progress.event == "wait":
        print(printable(progress.text), file=sys.stderr, flush=True)


class LiveLines:
    """A progress callback that writes a line for each trial, with its result in the result's units.

    A reason that many trials in a row have is written once. If the reader closes the pipe, the run
    continues; its folder has the results.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._unread = False
        self._known = ""
        """Why the latest trial has no rates that count."""

    def __call__(self, progress: Progress) -> None:
        """Write what happened; of a search besides its trials only its end."""
        undecided = progress.event == "search" and not progress.ended
        if self._unread or undecided or progress.event not in SHOWN_EVENTS:
            return
        try:
            self._out.write(printable(event_line(progress, self._known), keep="") + "\n")
            self._out.flush()
        except BrokenPipeError:
            self._unread = True
        if progress.result is not None:
            self._known = first_reason(progress.result)
