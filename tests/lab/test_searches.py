"""A search in the real lab, of a rate that is known: a sample of what ``searches.py`` does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from searches import FRAME_BYTES, limited
from verdicts import Session

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]
LINE_BPS = 30_000_000


@pytest.mark.long
def test_a_queue_that_holds_all_ends_the_range(tmp_path: Path) -> None:
    """The sender blocks, nothing is lost, and the line is called by its rate, if it was ever full.

    A CPU that stands still leaves the line empty; a machine that others use cannot be searched, which
    is why this is not one of the sample.
    """
    qdisc = {"tbf": {"rate": "30Mbps", "burst": "32KiB", "limit": "4MiB"}}
    search = {"trial": "300ms", "time": "600ms"}
    experiment = limited("queue", {"sender": {"qdisc": qdisc}}, **search)
    (answer,) = Session(tmp_path).chapter("queue", experiment).searches
    assert ("at least", None) == (answer.headline.kind, answer.breaking)
    assert answer.state.sender_bound
    pps, struck = answer.headline.throughput_pps or 0, any(t.struck for t in answer.trials)
    assert pps < 1.05 * LINE_BPS / 8 / FRAME_BYTES
    assert struck or LINE_BPS == answer.full_line_bps
    warm = [trial.trial.search_trial for trial in answer.trials if trial.status == "done"]
    assert list(range(1, len(answer.trials) + 1)) == warm
