"""The arithmetic of the ablations, without a lab: what holds, what is missed, and what a mutant does."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from analysis import sampled
from analysis.build import trial
from analysis.sampled import QUIET, Seen

from udpbench.cpu_stages import anchor_of
from udpbench.model.record import CpuSamples, TrialRecord

sys.path.append(str(Path(__file__).parents[1] / "lab"))

import ablation

POLL = ("__napi_poll", "napi_threaded_poll")
RULES = ("nft_do_chain", "nf_hook_slow", "ip_rcv", *POLL)


def blocks(extra: Iterable[Seen], busy_ms: int, thing: str = "rules-100") -> list[TrialRecord]:
    """Return seven blocks of both arms; with the thing a CPU is busy so much longer."""
    records = []
    idle = QUIET[4]._replace(count=1200 - busy_ms)
    for repetition in range(1, 8):
        for point, seen, busy in (
            ("without", QUIET, 800),
            ("with", (*QUIET[:4], idle, *QUIET[5:], *extra), 800 + busy_ms),
        ):
            plain = sampled.record(seen=seen, busy_ms=busy)
            records.append(replace(plain, trial=trial(point, repetition)))
    assert thing in ablation.THINGS
    return records


def test_what_was_attributed_is_what_was_saved() -> None:
    """In ns per packet; what changes besides is told apart, and counts."""
    extra = (Seen(0, 30, RULES, 100), Seen(0, 0, ("__schedule", "schedule", "do_idle"), 20))
    outcome = ablation.outcome_of("rules-100", blocks(extra, 120))
    assert outcome is not None
    numbers = outcome.saved, outcome.attributed, outcome.elsewhere, outcome.error
    assert (120_000, 100_000, 20_000, 0) == pytest.approx(numbers, abs=50)
    assert (True, 7) == (outcome.holds, outcome.blocks)


def test_time_at_another_stage_is_missed() -> None:
    """Rules whose time appears in the look-up of the socket are attributed wrongly."""
    outcome = ablation.outcome_of("rules-100", blocks([Seen(0, 30, ("udp_rcv", *POLL), 100)], 100))
    assert outcome is not None
    assert (-100_000, False) == (pytest.approx(outcome.error, abs=50), outcome.holds)


def test_of_few_blocks_nothing_is_told() -> None:
    """Nor of trials that are struck, or lost packets."""
    records = blocks([Seen(0, 30, RULES, 100)], 100)
    assert ablation.outcome_of("rules-100", records[:8]) is None
    struck = blocks([Seen(0, 30, RULES, 100)], 900)
    assert ablation.outcome_of("rules-100", struck) is None


def test_each_trial_that_does_not_count_says_why() -> None:
    """Struck, with both of its sums; not sampled, with what forbids it; failed."""
    plain = sampled.record()
    (phase,) = plain.phases
    forbidden = {"machine": CpuSamples(why="not permitted; run as root")}
    silent = replace(plain, phases=(replace(phase, cpu_samples=forbidden),))
    lossy = replace(phase, stats=tuple(s for s in phase.stats if s.role == "sender"))
    for record, expected in (
        (sampled.record(busy_ms=1800), "CPU 0: samples say 40 % busy, the kernel 90 %"),
        (silent, "not permitted; run as root"),
        (replace(plain, phases=(lossy,)), "0 of 1000 packets received"),
        (replace(plain, status="failed"), "failed"),
    ):
        assert expected == ablation.arm_of(record, "receiver")


@pytest.mark.parametrize("words", [["work", "--blocks", "3"], ["--seconds", "0"], ["dance"]])
def test_what_cannot_be_measured_is_refused_in_words(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is measured."""
    with pytest.raises(SystemExit) as ended:
        ablation.main(words)
    assert 2 == ended.value.code
    text = capsys.readouterr().err
    assert any(each in text for each in ("6 to 200", "100ms to 24h", "unknown: dance"))


def test_a_mutant_is_seen() -> None:
    """With the rules' anchor swapped for another the sum is wrong; afterwards the table is whole."""
    runs = {"rules-100": blocks([Seen(0, 30, RULES, 100)], 100)}
    first, second, failing = ablation.mutant(random.Random(1), runs)
    assert ("nft_do_chain", ["rules-100"]) == (first, failing)
    anchor = anchor_of(second)
    assert anchor is not None
    assert anchor.stage != "?_netfilter"
    assert anchor_of("nft_do_chain") == anchor_of("ipt_do_table")
