"""A search in the real lab, of a rate that is known: a sample of what ``searches.py`` does."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from searches import FRAME_BYTES, limited
from verdicts import Session

from udpbench.definition.load import load_experiment_data
from udpbench.report.search import breaking_lines, found_text

pytestmark = [
    pytest.mark.quiet,
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo python3 noxfile.py lab"),
]
LINE_BPS = 30_000_000


SLEEPER = """
import socket, time
receiving = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiving.bind(("0.0.0.0", 4321))
print("ready", flush=True)
while True:
    receiving.recv(2000)
    time.sleep(0.0005)
"""
"""Serves less than 2 kpps, and its buffer hides for a while that it falls behind."""


def test_what_a_program_sleeps_is_what_breaks_first(tmp_path: Path) -> None:
    """At the bound or above, with what it served of what came; also if others keep it from an end."""
    data = {
        "question": "How many datagrams does a program take that sleeps 0.5 ms on each?",
        "traffic": {"size": "64B"},
        "receive": {"command": ["python3", "-c", SLEEPER], "ready": "ready"},
        "search": {
            "rate": {"from": "500pps", "to": "20kpps"},
            "loss": "1%",
            "precision": "5%",
            "trial": "500ms",
            "time": "1s",
            "within": "40s",
        },
    }
    chapter = Session(tmp_path).chapter("sleeps", load_experiment_data(data, "sleeps"))
    (search,) = chapter.searches
    assert search.breaking is not None
    assert search.breaking.bottleneck is not None
    assert "reader_sleeps" == search.breaking.bottleneck.name
    text = "\n".join([found_text(search), *breaking_lines(chapter.searches)])
    assert re.search(r"[\d.]+ k?pps of [\d.]+ kpps: the program sleeps \d+ % of the time", text)
    assert "keeps up with" not in text
    assert "nothing" not in {each.name for each in search.result.diagnosis}
    if search.state.ended == "done":
        assert "regular" == search.headline.kind
        assert 1_000 < (search.headline.throughput_pps or 0) < 2_000


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
