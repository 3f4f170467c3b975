"""When a warm-up may end: rates and clocks of every worker, by its host's time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from control.fake import World, experiment, go
from udpbench.control.steadiness import CPU_KHZ, Steadiness
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import Sample

STEP_NS = SECOND_NS // 10


def readings(packets: list[int], khz: list[int | None] | None = None) -> Steadiness:
    """Return what is known of a worker that has counted so many packets in each tenth of a second."""
    steadiness = Steadiness({"left": 1000})
    so_far = 0
    for n, (more, clock) in enumerate(zip(packets, khz or [None] * len(packets), strict=True)):
        so_far += more
        known = {CPU_KHZ: clock} if clock is not None else {}
        sample = Sample("left.sender0", 1000 + n * STEP_NS, {"sent_packets": so_far, **known})
        steadiness.add("left", "sender", [sample])
    return steadiness


@pytest.mark.parametrize(
    ("packets", "khz", "steady"),
    [
        ([0, 1000], None, False),
        ([0, 1000, 1040], None, True),
        ([0, 1000, 1060], None, False),
        ([0, 500, 1000, 1010], None, True),
        ([0, 5, 25], None, True),
        ([0, 5, 26], None, False),
        ([0, 1000, 1000], [800_000, 3_000_000, 3_100_000], False),
        ([0, 1000, 1000], [2_990_000, 3_000_000, 3_100_000], True),
    ],
)
def test_three_readings_that_are_alike_are_steady(
    packets: list[int], khz: Any, steady: bool
) -> None:
    """Within 5 %, or twenty packets; the clock as well, where it is known."""
    known = readings(packets, khz)
    assert steady == known.is_steady(["left.sender0"])
    assert (khz is not None) == known.knows_clocks
    assert not known.is_steady(["left.sender0", "right.receiver0"])


def test_what_was_read_before_the_start_does_not_count() -> None:
    """A loop waits for the common time."""
    steadiness = Steadiness({"left": 2 * STEP_NS})
    samples = [Sample("left.sender0", n * STEP_NS, {"sent_packets": 0}) for n in range(4)]
    steadiness.add("left", "sender", samples)
    assert not steadiness.is_steady(["left.sender0"])


def test_a_warm_up_ends_when_rates_are_steady(tmp_path: Path) -> None:
    """The senders are stopped, and the result says when, and what was known."""
    world = World()
    _, stored = go(world, tmp_path, experiment(warmup="auto"))
    (record,) = stored.records
    warmup = world.words[world.words.index("start sender warmup") :]
    assert ["start sender warmup", "stop sender", "stop receiver"] == warmup[:3]
    (finding,) = [each for each in record.findings if each.where == "phase warmup"]
    assert ("note", "the warm-up ended when rates were steady") == (finding.severity, finding.what)
    assert finding.value is not None
    length_ms, _, known = finding.value.partition("ms; ")
    assert "the kernel knows no CPU clocks" == known
    assert 200 <= int(length_ms) < 600
    assert record.overhead_ns["warmup"] < SECOND_NS


def test_a_warm_up_that_is_never_steady_ends_after_a_second(tmp_path: Path) -> None:
    """With a warning."""
    world = World(
        reading=lambda since_ns: (
            max(0, since_ns) ** 2 // 10**13 if since_ns < SECOND_NS else 10**5,
            0,
        )
    )
    _, stored = go(world, tmp_path, experiment(warmup="auto"))
    findings = [each for each in stored.records[0].findings if each.where == "phase warmup"]
    assert [("warning", "after 1s")] == [(each.severity, each.value) for each in findings]
