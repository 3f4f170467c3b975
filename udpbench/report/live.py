"""What a run says while it works: a view on a terminal, plain lines elsewhere, nothing if quiet.

Draws ``Progress`` and decides nothing. The line of a second is that of the tools whose experiments
udpbench reproduces: packets, MiB of payload, Mbit of payload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console

from udpbench.analysis.judge import judge
from udpbench.model import SECOND_NS, Progress, Trial
from udpbench.report.story import one_line
from udpbench.report.watch import Drops, Watch
from udpbench.units import show_pps

SHOWN_EVENTS = ("run", "host", "phase", "trial", "restore")
Tell = Callable[[Progress], None]


@contextmanager
def live_view(out: TextIO, trials: Sequence[Trial], quiet: bool) -> Iterator[Tell]:
    """Yield the progress callback that fits where the output goes; ``trials`` are to be run."""
    console = Console(file=out, highlight=False)
    if quiet:
        yield lambda _: None
    elif console.is_terminal and not console.is_dumb_terminal:
        from udpbench.report.screen import Screen

        with Screen(console, Watch(trials)) as screen:
            yield screen
    else:
        yield LiveLines(out)


class LiveLines:
    """A progress callback that writes a line per event, and one a second while packets flow.

    Whoever reads it may leave: the run goes on, and what it measures is in its folder.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._watch = Watch()
        self._said_ns = 0
        self._unread = False

    def __call__(self, progress: Progress) -> None:
        """Write what happened."""
        self._watch.take(progress, 0)
        if progress.event == "sample":
            self._sampled()
        elif progress.event in SHOWN_EVENTS:
            self._said_ns = 0
            self._write(event_line(progress))

    def _sampled(self) -> None:
        if self._watch.elapsed_ns - self._said_ns < SECOND_NS:
            return
        rates = self._watch.total_of("receiver")
        if rates is not None:
            self._said_ns = self._watch.elapsed_ns
            self._write(f"  {second_line(*rates)}{drops_text(self._watch.counted.drops)}")

    def _write(self, line: str) -> None:
        if self._unread:
            return
        try:
            self._out.write(line + "\n")
            self._out.flush()
        except BrokenPipeError:
            self._unread = True


def event_line(progress: Progress) -> str:
    """Return an event as a line: ``[3/12] one#3: done: 350.1 kpps delivered, 0.00 % lost``."""
    told = ""
    if progress.event == "trial" and progress.record is not None:
        result = judge(progress.record)
        told = f": {one_line(result)}" if progress.record.error is None else ""
    return f"{head(progress)}{progress.text}{told}"


def head(progress: Progress) -> str:
    """Return ``[3/12] `` where the event is one of many, else nothing."""
    return f"[{progress.index}/{progress.total}] " if progress.total else ""


def second_line(pps: float, bytes_per_s: float) -> str:
    """Return for example ``0.352M pps 10.730MiB / 90.010Mb``, each per second of payload."""
    return f"{pps / 1e6:.3f}M pps {bytes_per_s / 2**20:.3f}MiB / {bytes_per_s * 8 / 1e6:.3f}Mb"


def drops_text(drops: Sequence[Drops]) -> str:
    """Return the stages that take packets now: ``; udp_rcvbuf 1.2 kpps``."""
    now = [f"{one.stage} {show_pps(one.pps)}" for one in drops if one.pps > 0]
    return f"; drops: {', '.join(now)}" if now else ""
