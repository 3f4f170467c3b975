"""The live view on a terminal: the current measurement with its rates and losses.

Draws ``Watch`` and decides nothing. Redrawn on progress, at most twice per second, in the reporting
thread: on a small machine drawing takes CPU time from the workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from udpbench.analysis.motion import CpuShare
from udpbench.cpu_lists import format_cpu_list
from udpbench.model.experiment import Trial
from udpbench.model.limits import SECOND_NS
from udpbench.model.result import Progress
from udpbench.printable import printable
from udpbench.report.live_rates import Moving, QueueRate, Watch, WorkerRate
from udpbench.report.search import search_line
from udpbench.report.summary import event_line
from udpbench.units import format_duration, show_count, show_percent, show_pps

DRAW_NS = SECOND_NS
"""Interval of redrawing while packets flow: 17 ms of CPU time at 120 columns, on loaded CPUs."""
WIDE_COLUMNS = 120
"""Minimum columns for counters beside the rest; on a narrower terminal they are below."""
NARROW_COLUMNS = 64
"""Minimum columns for complete rows."""
KEPT_LINES = 12
"""Lines that are reprinted after a resize; older ones are left to the terminal."""
MOST_ROWS = 8
"""Maximum workers, queues or CPUs that are listed individually."""
SAID_EVENTS = ("wait", "run", "host", "trial", "restore")
"""Events printed as lines, and a search that has ended; a running search is in the view."""


class Screen:
    """A progress callback that keeps the lower part of a terminal up to date."""

    def __init__(
        self, console: Console, watch: Watch, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._console = console
        self._watch = watch
        self._now_ns = now_ns
        self._drawn_ns = 0
        self._width = console.width
        self._lines: list[str] = []
        self._live = self._new()

    def _new(self) -> Live:
        return Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        """Start drawing."""
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Keep the printed lines and remove the view."""
        self._live.stop()

    def __call__(self, progress: Progress) -> None:
        """Process progress and draw."""
        now_ns = self._now_ns()
        self._watch.add(progress, now_ns)
        if self._console.width != self._width:
            self._restart()
        if progress.event in SAID_EVENTS or progress.ended:
            self._say(printable(event_line(progress), keep=""))
        elif now_ns - self._drawn_ns < DRAW_NS and progress.event == "sample":
            return
        self._drawn_ns = now_ns
        width, height = self._console.size
        self._live.update(view(self._watch, now_ns, width, height - 1), refresh=True)

    def _say(self, line: str) -> None:
        self._lines = [*self._lines, line][-KEPT_LINES:]
        self._console.print(Text(line))

    def _restart(self) -> None:
        """Clear after a resize, since the old view may have wrapped; reprint the last lines."""
        self._width = self._console.width
        self._live.stop()
        self._console.clear()
        for line in self._lines:
            self._console.print(Text(line))
        self._live = self._new()
        self._live.start()


def view(watch: Watch, now_ns: int, width: int, height: int) -> RenderableType:
    """Return the view for a terminal of ``width`` columns and ``height`` lines."""
    if watch.trial is None:
        return Text("")
    line = headline(watch, watch.trial, now_ns, width)
    head = [Text(line, style="bold", no_wrap=True, overflow="ellipsis")]
    bar = Table.grid()
    if watch.search is not None:
        bar.add_row(Text(search_line(watch.search), no_wrap=True, overflow="ellipsis"))
    else:
        bar.add_row(ProgressBar(total=watch.total, completed=done(watch), width=width))
    rows = list(body(watch))
    table = Table.grid(padding=(0, 2, 0, 0))
    columns: tuple[JustifyMethod, ...] = ("left", "left", "right", "left")
    # On a very narrow terminal the rate keeps its unit, and details are cut.
    columns = columns if width >= NARROW_COLUMNS else columns[:-1]
    for justify in columns:
        table.add_column(justify=justify, no_wrap=True)
    for row in rows[: max(height - 2, 1)]:
        table.add_row(*(Text(cell) for cell in row[: len(columns)]))
    if width >= WIDE_COLUMNS:
        both = Table.grid(padding=(0, 4, 0, 0))
        both.add_row(table, counters(watch.counted.moving, height - 2))
        return Group(*head, bar, both)
    room = height - 2 - len(rows)
    below = [counters(watch.counted.moving, room)] if room > 1 and watch.counted.moving else []
    return Group(*head, bar, table, *below)


def headline(watch: Watch, trial: Trial, now_ns: int, width: int) -> str:
    """Return progress and remaining time in one line of ``width`` columns."""
    doing = watch.step
    if watch.phase is not None:
        doing = watch.phase
        if watch.phase == "measured":
            seconds = watch.elapsed_ns / SECOND_NS
            limit = "of" if trial.traffic.count_packets is None else "of at most"
            doing += f" {seconds:.0f} s {limit} {format_duration(trial.duration_ns)}"
    bound = "at most " if watch.searched else "at least " * watch.open_ended
    left = f"{bound}{clock(watch.left_ns(now_ns))} left"
    tail = f"  {doing}  {left}"
    name = f"{watch.place} {trial.name}"
    room = max(width - len(tail), 8)
    return (name if len(name) <= room else name[: room - 1] + "…").ljust(room) + tail


def clock(time_ns: int) -> str:
    """Return a time as a clock shows it: ``1:05``, ``2:00:05``."""
    minutes, seconds = divmod(-(-time_ns // SECOND_NS), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def done(watch: Watch) -> float:
    """Return how many trials are done, with the elapsed part of a measured phase."""
    trial = watch.trial
    part = 0.0
    if trial is not None and watch.phase == "measured":
        part = min(watch.elapsed_ns / trial.duration_ns, 1.0)
    over = watch.index if watch.step == "" else watch.index - 1
    return over + part


def body(watch: Watch) -> Iterator[tuple[str, str, str, str]]:
    """Yield the rows: title, name, number, detail."""
    workers = watch.workers
    for title, role in (("send", "sender"), ("receive", "receiver")):
        mine = [worker for worker in workers if worker.role == role]
        yield from titled(title, [_worker(worker) for worker in mine], [_sum(mine)])
    drops = [
        (drop.stage, show_pps(drop.pps), f"{show_count(drop.packets)} so far")
        for drop in watch.counted.drops
    ]
    yield from titled("drops", drops)
    yield from titled("queues", [queue_row(queue) for queue in watch.counted.queues])
    cpus = [(name, *cpu_cells(share)) for name, share in busiest_first(watch.counted.cpus)]
    yield from titled("CPUs", cpus)


def cpu_cells(share: CpuShare) -> tuple[str, str]:
    """Return how busy a CPU is."""
    return f"{show_percent(share.busy)} busy", f"{show_percent(share.softirq)} in softirq"


def busiest_first(cpus: Mapping[str, CpuShare]) -> list[tuple[str, CpuShare]]:
    """Return the CPUs in order; the busiest first if they are too many to list."""
    if len(cpus) <= MOST_ROWS:
        return list(cpus.items())
    return sorted(cpus.items(), key=lambda item: -item[1].busy)


Row = tuple[str, str, str]


def titled(
    title: str, rows: Sequence[Row], summary: Sequence[Row] = ()
) -> Iterator[tuple[str, str, str, str]]:
    """Yield rows below a title, at most MOST_ROWS, and a sum if there are several."""
    shown = [*rows[:MOST_ROWS], *(summary if len(rows) > 1 else ())]
    more = len(rows) - MOST_ROWS
    if more > 0:
        shown.insert(MOST_ROWS, (f"and {more} more", "", ""))
    for number, row in enumerate(shown):
        yield (title if number == 0 else "", *row)


def queue_row(queue: QueueRate) -> Row:
    """Return a queue's packets, with its drops, interrupts and CPUs if known."""
    details = []
    if queue.drops_per_s:
        details.append(f"{show_count(queue.drops_per_s)}/s dropped")
    if queue.interrupts_per_s is not None:
        details.append(f"{show_count(queue.interrupts_per_s)} interrupts/s")
    if queue.cpus:
        details.append(f"CPU {format_cpu_list(queue.cpus)}")
    return queue.name, show_pps(queue.pps), "  ".join(details)


def _worker(worker: WorkerRate) -> Row:
    cpu = f"CPU {worker.cpu}" if worker.cpu is not None else "any CPU"
    return worker.worker, show_pps(worker.pps), f"{_mib(worker.bytes_per_s)}  {cpu}"


def _sum(workers: Sequence[WorkerRate]) -> Row:
    known = [worker for worker in workers if worker.pps is not None]
    pps = sum(worker.pps or 0 for worker in known) if known else None
    size = sum(worker.bytes_per_s or 0 for worker in known) if known else None
    return f"all {len(workers)}", show_pps(pps), _mib(size)


def _mib(bytes_per_s: float | None) -> str:
    return "–" if bytes_per_s is None else f"{bytes_per_s / 2**20:.1f} MiB/s"


def counters(moving: Sequence[Moving], height: int) -> Table:
    """Return the fastest counters, as many as fit."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_column(justify="right", no_wrap=True)
    if moving and height > 1:
        table.add_row(Text("counters", style="bold"), Text("per second", style="bold"))
    for counter in moving[: max(height - 1, 0)]:
        table.add_row(Text(f"{counter.host} {counter.name}"), Text(show_count(counter.per_second)))
    return table
