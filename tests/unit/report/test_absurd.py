"""Records of a host that says absurd things: shown at once, and never work without end."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from analysis.build import START_NS, experiment, paced, record, worker

from report.stored import printed, stored
from udpbench.analysis.rates import link_megabits, pps_by_bin
from udpbench.analysis.readings import readings_of
from udpbench.model.limits import INTEGERS, LIMITS, SECOND_NS
from udpbench.model.record import Histogram, Sample, Snapshot, Stall
from udpbench.report.data_frames import frames
from udpbench.report.document import write
from udpbench.report.figure_data import Heat
from udpbench.report.figures.bursts import rings, sent_per_ms
from udpbench.report.figures.heat_maps import MOST_NAMES, draw_heat
from udpbench.report.figures.style import styled
from udpbench.report.json_output import as_json

MOST = INTEGERS[1]


def sample(clock_ns: int = START_NS, **changes: Any) -> Sample:
    """Return a sample of the sender."""
    return replace(Sample("left.sender0", clock_ns, {"sent_packets": 5}), **changes)


def test_a_heat_map_names_no_more_workers_than_can_be_read() -> None:
    """And has room for the names, without which nothing of it could be laid out."""
    names = tuple(f"right.receiver{number}" for number in range(4000))
    heat = Heat("worker", ("all",), names, ((1 / 4000,) * 4000,))
    with styled(), warnings.catch_warnings(action="error"):
        figure = draw_heat(heat)
        figure.draw_without_rendering()
    (axes,) = figure.axes
    named = [label.get_text() for label in axes.get_xticklabels()]
    assert (MOST_NAMES, "right.receiver0") == (len(named), named[0])


def test_a_link_of_an_absurd_speed_has_none() -> None:
    """Python reads no number of so many digits."""
    assert (10, None) == (
        link_megabits("10 Mb/s, full duplex"),
        link_megabits(f"{'9' * 5000} Mb/s"),
    )


@pytest.mark.parametrize("stamps", [(START_NS, 2**62), (0, 2**62), (2**62, 2**62 + 1), (9, 8)])
def test_rates_are_of_the_phase_whatever_stamps_say(stamps: tuple[int, int]) -> None:
    """A packet in a hundred years is in no bin; nor is one before the start."""
    counts = {"sent_packets": 5, "first_ns": stamps[0], "last_ns": stamps[1]}
    measured = readings_of(record(workers=(worker("sender", counts),), series=(sample(),)))
    assert measured is not None
    bins = pps_by_bin(measured.sender, SECOND_NS)
    assert len(bins) <= 11
    assert all(0 <= begin <= 11 * SECOND_NS for begin in bins)


def test_the_controllers_own_time_of_a_phase_counts_what_drains_after_the_load() -> None:
    """Half a minute of it is shown; what it cannot have lasted is not."""
    counts = {"sent_packets": 5, "first_ns": START_NS, "last_ns": START_NS + 30 * SECOND_NS}
    for spent_ns, bins in ((0, 11), (40 * SECOND_NS, 30)):
        trial_record = record(
            workers=(worker("sender", counts),), overhead_ns={"measured": spent_ns}
        )
        measured = readings_of(replace(trial_record, series=(sample(),)))
        assert measured is not None
        assert bins == len(pps_by_bin(measured.sender, SECOND_NS))


def test_packets_of_a_millisecond_are_of_the_phase() -> None:
    """One that lies a day later is in no turn."""
    late = sample(first_ms=LIMITS["first_ms"][1], packets_per_ms=(9,))
    series = (sample(first_ms=1, packets_per_ms=(7,)), late)
    assert {1: 7} == sent_per_ms(record(of=paced(), series=series))
    assert 2 <= len(rings(MOST, log=False)) <= 4


def test_a_worker_without_stamps_has_no_rate() -> None:
    """It counted, and does not say when."""
    trial_record = record(workers=(worker("sender", {"sent_packets": 5}),))
    measured = readings_of(trial_record)
    assert measured is not None
    assert {} == pps_by_bin(measured.sender, SECOND_NS)


def absurd() -> Any:
    """Return a record in which every number of a host is the largest there is."""
    names = ("attempted_packets", "sent_packets", "received_packets", "read_packets", "first_ns")
    counts = dict.fromkeys((*names, "last_ns", "received_bytes", "user_ns"), MOST)
    histograms = dict.fromkeys(
        ("delay", "pacing", "round_trip", "stack", "application"),
        Histogram(((-5, MOST), (3, MOST), (MOST, MOST)), MOST),
    )
    workers = tuple(
        worker(
            role,  # type: ignore[arg-type]
            {**counts, "first_ns": 0},
            histograms=histograms,
            stalls=(Stall(0, MOST, MOST),),
        )
        for role in ("sender", "receiver")
    )
    odd = {"first_ms": 5, "packets_per_ms": (MOST, 0, MOST), "range_per_ms": (0, MOST, MOST)}
    series = tuple(
        sample(clock_ns, worker=worker.worker, counts=counts, **odd)
        for worker in workers
        for clock_ns in (0, START_NS, MOST)
    )
    motion = tuple(
        Snapshot(host, clock_ns, {"cpu.1.user_ns": MOST, "softnet.cpu0.dropped": MOST})
        for clock_ns in (START_NS + SECOND_NS, MOST)
        for host in ("left", "right", "machine")
    )
    trial_record = record(of=paced(), workers=workers, series=series, motion=motion)
    (phase,) = trial_record.phases
    after = {
        name: replace(snapshot, clock_ns=MOST, counters=dict.fromkeys(snapshot.counters, MOST))
        for name, snapshot in phase.after.items()
    }
    return replace(trial_record, phases=(replace(phase, after=after),))


def test_every_view_shows_an_absurd_record(tmp_path: Path) -> None:
    """Table, JSON, frames and the document end, and soon."""
    run = stored(tmp_path / "run", [absurd()], experiment(points=[paced()]))
    json.dumps(as_json(run), allow_nan=False)
    frames([run])
    assert printed(run)
    assert write([run], tmp_path / "out")
