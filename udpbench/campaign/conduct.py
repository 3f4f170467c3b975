"""Entry point of this room: ``conduct`` runs the cells of a campaign, one at a time on each pair.

Owns the order and the state of each pair. An engine only places cells and forwards their output;
results are in the run folders, so that an engine may lose all its state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from udpbench.campaign.cells import CampaignFolder, Cell, CellResult, pairs_of, task_of
from udpbench.control.wait import Clock, Interrupt
from udpbench.errors import CANNOT_TELL, FAILED, INTERRUPTED, NO, NOT_RESTORED, YES, worst_code
from udpbench.model.limits import SECOND_NS

NEWS_S = 0.2
UNSERVED_NS = 60 * SECOND_NS
"""A pair is set aside after this time without a worker, enough to restart a dead worker."""
ANSWER = {YES: "yes", NO: "no", CANNOT_TELL: "cannot tell"}


@dataclass(frozen=True)
class News:
    """News of a cell from an engine: a line of its run's output, or its result."""

    cell: str
    """Its folder, unique in the campaign."""
    line: str = ""
    result: Mapping[str, Any] | None = None
    """As returned by ``cell_run.run_cell``."""
    lost: str = ""
    """Reason for which there will be no result."""


class CellEngine(Protocol):
    """Places cells on workers; tests replace it."""

    def serves(self, pair: str) -> bool:
        """Return whether any worker would run the cells of a pair."""

    def how_to_serve(self, pair: str) -> str:
        """Return the command that starts a worker for that pair."""

    def place(self, pair: str, task: Mapping[str, Any]) -> None:
        """Run a cell on a worker that serves its pair, as soon as one is free."""

    def news(self, wait_s: float) -> Sequence[News]:
        """Wait for news and return it; ConnectError if the engine is lost."""

    def forget(self, cell: str) -> None:
        """Withdraw a cell that no worker has started."""

    def withdraw(self) -> None:
        """Interrupt every running cell, and wait until its hosts are restored."""


@dataclass
class PairState:
    """State of a pair."""

    pair: str
    left: deque[Cell]
    total: int
    done: int = 0
    codes: list[int] = field(default_factory=list)
    passed_over: dict[str, str] = field(default_factory=dict)
    """Experiment that did not choose this pair → its unmet needs."""
    under_way: Cell | None = None
    line: str = ""
    """Last line of its run's output."""
    aside: str = ""
    """Why its remaining cells are not run."""
    code_aside: int = FAILED
    unserved_since_ns: int | None = None

    @property
    def over(self) -> bool:
        """Return whether nothing is left to be done."""
        return self.under_way is None and (not self.left or bool(self.aside))

    @property
    def exit_code(self) -> int:
        """Return the most serious code of its cells."""
        return worst_code([*self.codes, *([self.code_aside] if self.aside else [])])


Tell = Callable[[Sequence[PairState], str], None]
"""Gets all pairs and a line about the latest event, which may be empty."""


def conduct(
    cells: Sequence[Cell],
    campaign: CampaignFolder,
    engine: CellEngine,
    tell: Tell,
    interrupt: Interrupt,
    share: bool = False,
    clock: Clock | None = None,
) -> Sequence[PairState]:
    """Run every cell that is not done, and return the state of each pair.

    Raises Interrupted, ConnectError if the engine is lost, RecordError if results cannot be
    stored; in any case running cells are interrupted and their hosts restored.
    """
    return _Conductor(cells, campaign, engine, tell, share, clock or Clock()).conduct(interrupt)


class _Conductor:
    """One campaign in progress."""

    def __init__(
        self,
        cells: Sequence[Cell],
        campaign: CampaignFolder,
        engine: CellEngine,
        tell: Tell,
        share: bool,
        clock: Clock,
    ) -> None:
        self.campaign = campaign
        self.engine = engine
        self.share = share
        self.clock = clock
        self.pairs = {
            name: PairState(name, deque(own), len(own)) for name, own in pairs_of(cells).items()
        }
        self._tell = tell

    def conduct(self, interrupt: Interrupt) -> Sequence[PairState]:
        self._skip_done()
        try:
            while not all(pair.over for pair in self.pairs.values()):
                interrupt.check()
                for pair in self.pairs.values():
                    self._place_next(pair)
                    self._await_workers(pair)
                for news in self.engine.news(NEWS_S):
                    self._keep(news)
                self.tell()
        finally:
            interrupt.doing = "restoring the hosts of the running cells"
            self.engine.withdraw()
        return list(self.pairs.values())

    def tell(self, text: str = "") -> None:
        self._tell(list(self.pairs.values()), text)

    def _skip_done(self) -> None:
        """Skip cells that an earlier campaign in this folder has done."""
        for pair in self.pairs.values():
            cells, pair.left = pair.left, deque()
            for cell in cells:
                result = self.campaign.result_of(cell)
                if result is None:
                    pair.left.append(cell)
                else:
                    self._count(pair, cell, result)
        total = sum(pair.total for pair in self.pairs.values())
        done = sum(pair.done for pair in self.pairs.values())
        before = f", {done} already done" if done else ""
        self.tell(f"{total} cells on {len(self.pairs)} pairs{before}")

    def _place_next(self, pair: PairState) -> None:
        if pair.under_way is None and not pair.over:
            pair.under_way, pair.line = pair.left.popleft(), ""
            self.engine.place(pair.pair, task_of(pair.under_way, self.campaign, self.share))

    def _await_workers(self, pair: PairState) -> None:
        """Report at once if no worker serves a pair, and set it aside if none appears."""
        if pair.under_way is None or self.engine.serves(pair.pair):
            pair.unserved_since_ns = None
            return
        how = f"no worker serves it; start one: {self.engine.how_to_serve(pair.pair)}"
        if pair.unserved_since_ns is None:
            pair.unserved_since_ns = self.clock.now_ns()
            self.tell(f"{pair.pair}: {how}")
        elif self.clock.now_ns() - pair.unserved_since_ns > UNSERVED_NS:
            self.engine.forget(pair.under_way.folder)
            pair.under_way = None
            self._set_aside(pair, how, FAILED)

    def _keep(self, news: News) -> None:
        pair = self._pair_of(news)
        if pair is None or pair.under_way is None:
            return
        if news.line:
            pair.line = news.line
            return
        cell, pair.under_way, pair.line = pair.under_way, None, ""
        if news.result is None:
            self._set_aside(pair, f"{cell.experiment.name}: {news.lost}", FAILED)
            return
        if news.result["files"]:
            self.campaign.keep(cell, news.result["files"])
        result = CellResult(*(news.result[key] for key in ("exit_code", "reason", "chosen")))
        if result.done:
            self._count(pair, cell, result)
            name = f"{pair.pair}: {cell.experiment.name}: {pair.done} of {pair.total}"
            answer = ANSWER[result.exit_code] if result.chosen else f"skipped: {result.reason}"
            self.tell(f"{name}: {answer}")
        elif result.exit_code == INTERRUPTED:
            self._set_aside(pair, f"{cell.experiment.name} was interrupted", INTERRUPTED)
        else:
            code = NOT_RESTORED if result.exit_code == NOT_RESTORED else FAILED
            self._set_aside(pair, f"{cell.experiment.name}: {result.reason}", code)

    def _pair_of(self, news: News) -> PairState | None:
        """Return the pair on which a cell is running; None if it was withdrawn."""
        pair = self.pairs.get(news.cell.partition("/")[0])
        cell = None if pair is None else pair.under_way
        return pair if cell is not None and cell.folder == news.cell else None

    def _count(self, pair: PairState, cell: Cell, result: CellResult) -> None:
        pair.done += 1
        pair.codes.append(result.exit_code)
        if not result.chosen:
            pair.passed_over[cell.experiment.name] = result.reason

    def _set_aside(self, pair: PairState, why: str, code: int) -> None:
        pair.aside, pair.code_aside = why, code
        self.tell(f"{pair.pair}: set aside: {why}")
