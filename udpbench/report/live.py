"""Progress of a run: a live view on a terminal, plain lines elsewhere.

Draws ``Progress`` and decides nothing. The line per second has the format of the tools whose
experiments udpbench reproduces: packets, MiB of payload, Mbit of payload.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from udpbench.model.experiment import Trial
from udpbench.model.result import Progress
from udpbench.printable import printable
from udpbench.report.live_rates import Drops, Seconds, Watch
from udpbench.report.summary import event_line
from udpbench.report.terminal import Terminal
from udpbench.units import show_pps

SHOWN_EVENTS = ("wait", "run", "host", "phase", "trial", "search", "restore")
NEARLY_S = 0.95
"""Minimum duration for which the last interval of a phase counts as a full second."""
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
    """A progress callback that writes a line per event, and one per second while packets flow.

    If the reader closes the pipe, the run continues; its folder has the results.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._watch = Watch()
        self._seconds = Seconds("receiver")
        self._unread = False

    def __call__(self, progress: Progress) -> None:
        """Write what happened."""
        self._watch.add(progress, 0)
        if progress.event == "sample":
            self._seconds.add(progress.samples)
            for rates in self._seconds.passed():
                self._write(f"  {second_line(*rates)}{drops_text(self._watch.counted.drops)}")
            return
        rest = self._seconds.rest()
        if rest is not None:
            pps, bytes_per_s, seconds = rest
            short = "" if seconds > NEARLY_S else f"; of the last {seconds:.1f} s"
            self._write(f"  {second_line(pps, bytes_per_s)}{short}")
        self._seconds = Seconds("receiver")
        if progress.event in SHOWN_EVENTS:
            self._write(event_line(progress))

    def _write(self, line: str) -> None:
        if self._unread:
            return
        try:
            self._out.write(printable(line, keep="") + "\n")
            self._out.flush()
        except BrokenPipeError:
            self._unread = True


def second_line(pps: float, bytes_per_s: float) -> str:
    """Return payload rates per second, such as ``0.352M pps 10.730MiB / 90.010Mb``."""
    return f"{pps / 1e6:.3f}M pps {bytes_per_s / 2**20:.3f}MiB / {bytes_per_s * 8 / 1e6:.3f}Mb"


def drops_text(drops: Sequence[Drops]) -> str:
    """Return the stages that currently drop packets: ``; drops: udp_rcvbuf 1.2 kpps``."""
    now = [f"{drop.stage} {show_pps(drop.pps)}" for drop in drops if drop.pps > 0]
    return f"; drops: {', '.join(now)}" if now else ""
