"""A campaign's order, and what becomes of each pair, by an engine that is a list."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from campaign_fixture import ListEngine, answered, cells
from golden import Golden

from udpbench.campaign.campaign_view import pair_table, summary
from udpbench.campaign.cells import CampaignFolder, CellResult, store_result
from udpbench.campaign.conduct import UNSERVED_NS, News, PairState, conduct
from udpbench.control.wait import Clock, Interrupt
from udpbench.errors import ConnectError, Interrupted
from udpbench.folder import Folder
from udpbench.report.terminal import Terminal


class Ticking(Clock):
    """Half a minute passes between two looks."""

    def __init__(self) -> None:
        self.at_ns = 0

    def now_ns(self) -> int:
        """Return a later time."""
        self.at_ns += UNSERVED_NS // 2
        return self.at_ns


class Campaign:
    """A campaign in folder ``out``, with all that it said."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.shown: list[str] = []
        self.interrupt = Interrupt()

    def run(self, engine: ListEngine, *sets: str) -> Sequence[PairState]:
        """Conduct it."""
        with CampaignFolder.open(Path("out")) as folder:
            return conduct(cells(*sets), folder, engine, self.tell, self.interrupt, clock=Ticking())

    def tell(self, pairs: Sequence[PairState], text: str) -> None:
        """Note it, and draw the table."""
        self.messages += [text] if text else []
        console = Terminal(width=80)
        with console.capture() as drawn:
            console.print(pair_table(pairs))
        self.shown.append(drawn.get())


def by_experiment(name: str, result: News) -> ListEngine:
    """Return an engine on which an experiment of rack1 ends in another way than well."""

    def ends(cell: str) -> News:
        other = cell.startswith(f"rack1/{name}")
        return News(cell, result=result.result if other else answered(), lost=result.lost * other)

    return ListEngine(ends)


def test_pairs_go_side_by_side_and_their_cells_in_order(golden: Golden) -> None:
    """A pair's next cell is placed once the one before has ended."""
    campaign, engine = Campaign(), ListEngine()
    states = campaign.run(engine)
    names = [cell.rpartition("-")[0] for cell in engine.placed]
    assert ["rack1/first", "rack2/first", "rack1/second", "rack2/second"] == names
    assert [(2, 0), (2, 0)] == [(state.done, state.exit_code) for state in states]
    assert engine.withdrawn
    golden.check([*campaign.messages, *summary(states)])


def test_what_is_done_is_left_out(golden: Golden) -> None:
    """The same command goes on: only what has no result is placed."""
    first, *_, last = cells()
    for cell in (first, last):
        with Folder.open(Path("out", cell.folder), make=True) as held:
            held.write("run.jsonl", b"")
            store_result(held, CellResult(0))
    campaign, engine = Campaign(), ListEngine()
    states = campaign.run(engine)
    assert ["rack1/second", "rack2/first"] == [cell.rpartition("-")[0] for cell in engine.placed]
    assert [2, 2] == [state.done for state in states]
    golden.check(campaign.messages)


@pytest.mark.parametrize(
    ("news", "code"),
    [
        (News("", result=answered(3, "right: cannot be reached")), 3),
        (News("", result=answered(2, "not understood")), 3),
        (News("", result=answered(4, "right: sysctl stays")), 4),
        (News("", result=answered(130)), 130),
        (News("", lost="its worker failed: KilledWorker"), 3),
    ],
)
def test_a_pair_that_fails_is_set_aside(news: News, code: int, golden: Golden) -> None:
    """With the reason; the rest of its cells is not run, and all others are."""
    campaign, engine = Campaign(), by_experiment("first", news)
    states = campaign.run(engine)
    assert ["rack1/first", "rack2/first", "rack2/second"] == [
        cell.rpartition("-")[0] for cell in engine.placed
    ]
    assert [code, 0] == [state.exit_code for state in states]
    golden.check([campaign.messages[1], *summary(states), campaign.shown[-1]])


def test_an_answer_is_no_failure_and_needs_choose(golden: Golden) -> None:
    """No, cannot tell, and a pair that is passed over: the next cell follows."""
    results = {
        "rack1/first": answered(1),
        "rack1/second": answered(5),
        "rack2/first": answered(0, "receiver needs the driver ice and has veth", chosen=False),
        "rack2/second": answered(),
    }
    campaign = Campaign()
    engine = ListEngine(lambda cell: News(cell, result=results[cell.rpartition("-")[0]]))
    states = campaign.run(engine)
    assert ([1, 0], 4) == ([state.exit_code for state in states], len(engine.placed))
    golden.check([*campaign.messages, *summary(states)])


def test_a_pair_that_nobody_serves_is_reported_at_once_and_set_aside(golden: Golden) -> None:
    """After a minute; the other pair is not delayed."""
    engine = ListEngine(served=lambda pair: pair != "rack1")
    engine.ends = lambda cell: None if "rack1" in cell else News(cell, result=answered())
    campaign = Campaign()
    states = campaign.run(engine)
    assert [(0, 3), (2, 0)] == [(state.done, state.exit_code) for state in states]
    assert [cell.folder for cell in cells()][:1] == engine.forgotten
    golden.check(campaign.messages)


def test_a_worker_that_comes_in_time_is_waited_for() -> None:
    """Nothing is set aside where somebody serves the pair again."""
    serves = iter([False, *[True] * 100])
    campaign = Campaign()
    states = campaign.run(ListEngine(served=lambda _: next(serves)))
    assert [2, 2] == [state.done for state in states]


def test_lines_are_shown_where_they_belong() -> None:
    """Until the cell ends; what comes of a cell that is none is ignored."""
    lines = iter(["trial 3 of 7", "trial 4 of 7"])

    def ends(cell: str) -> News:
        line = next(lines, "") if "rack1" in cell else ""
        return News(cell, line=line) if line else News(cell, result=answered())

    campaign, engine = Campaign(), ListEngine(ends)
    campaign.run(engine)
    assert any("first: trial 4 of 7" in shown for shown in campaign.shown)
    engine = ListEngine(lambda _: News("rack1/other", line="x"))
    campaign = Campaign()
    campaign.interrupt.requested = True
    with pytest.raises(Interrupted):
        campaign.run(engine)


def test_whatever_ends_it_cells_are_withdrawn() -> None:
    """Ctrl-C, and an engine that is lost."""
    campaign, engine = Campaign(), ListEngine(lambda _: campaign.interrupt.note())  # type: ignore[func-returns-value]
    with pytest.raises(Interrupted):
        campaign.run(engine)
    assert engine.withdrawn

    def lost(_: str) -> None:
        raise ConnectError("the scheduler is lost")

    engine = ListEngine(lost)
    with pytest.raises(ConnectError):
        Campaign().run(engine)
    assert engine.withdrawn


def test_what_a_worker_brings_is_stored() -> None:
    """The run folder is the campaign's, wherever the run was."""
    engine = ListEngine(lambda cell: News(cell, result=answered(**{"run.jsonl": cell.encode()})))
    Campaign().run(engine)
    for cell in cells():
        assert cell.folder == Path("out", cell.folder, "run.jsonl").read_text()
