"""All pairs of a campaign in one view: a table on a terminal, a line per event elsewhere.

Draws ``PairState`` and decides nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.live import Live
from rich.table import Table
from rich.text import Text

from udpbench.campaign.conduct import PairState, Tell
from udpbench.errors import CANNOT_TELL, NO
from udpbench.printable import printable
from udpbench.report.terminal import Terminal
from udpbench.units import plural

DRAW_S = 0.5
WITHOUT = {NO: "with an expectation that does not hold", CANNOT_TELL: "without an answer"}
"""Exit code of a run → what is said of it; of any other its answer says enough."""


@contextmanager
def campaign_view(out: TextIO, now_s: Callable[[], float] = time.monotonic) -> Iterator[Tell]:
    """Yield the callback for the type of output."""
    console = Terminal(file=out)
    if not console.is_terminal or console.is_dumb_terminal:
        yield lambda _, text: _write(out, text)
        return
    drawn_s = float("-inf")
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def draw(pairs: Sequence[PairState], text: str) -> None:
            nonlocal drawn_s
            if text:
                console.print(Text(printable(text, keep="")))
            if text or now_s() - drawn_s >= DRAW_S:
                live.update(pair_table(pairs), refresh=True)
                drawn_s = now_s()

        yield draw


def _write(out: TextIO, text: str) -> None:
    if text:
        out.write(printable(text, keep="") + "\n")
        out.flush()


def pair_table(pairs: Sequence[PairState]) -> Table:
    """Return a row per pair: its progress and current activity."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("left", "right", "left"):
        table.add_column(justify=justify, no_wrap=True, overflow="ellipsis")
    for pair in pairs:
        table.add_row(Text(pair.pair), Text(f"{pair.done}/{pair.total}"), Text(doing(pair)))
    return table


def doing(pair: PairState) -> str:
    """Return a pair's current activity as text."""
    if pair.aside:
        return f"set aside: {pair.aside}"
    if pair.under_way is None:
        return "done" if not pair.left else "next"
    return f"{pair.under_way.experiment.name}: {pair.line or 'waiting for a worker'}"


def summary(pairs: Sequence[PairState]) -> list[str]:
    """Return a line per pair about its cells, and what to type next."""
    width = max((len(pair.pair) for pair in pairs), default=0)
    lines = [f"{pair.pair:<{width}}  {_ended(pair)}" for pair in pairs]
    if any(pair.aside for pair in pairs):
        lines.append("type the same command to retry the pairs that were set aside")
    return lines


def _ended(pair: PairState) -> str:
    answers = Counter(pair.codes)
    parts = [f"{pair.done} of {plural(pair.total, 'experiment')} done"]
    parts += [f"{answers[code]} {what}" for code, what in WITHOUT.items() if answers[code]]
    parts += [f"{name} skipped: {why}" for name, why in pair.passed_over.items()]
    return "; ".join([*parts, *([f"set aside: {pair.aside}"] if pair.aside else [])])
