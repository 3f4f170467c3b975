"""Rates of simulated readers, whose packets arrive at times that the simulation knows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from analysis import build
from udpbench.analysis import rates
from udpbench.analysis.comparison.comparisons import Comparison, compare_points, resolution
from udpbench.analysis.rates import lump_share, node_rate, pps_by_bin, spread, totals_at
from udpbench.analysis.readings import Readings, readings_of
from udpbench.model.experiment import PointPair
from udpbench.model.limits import DAY_NS, SECOND_NS
from udpbench.model.record import Sample, WorkerStats
from udpbench.model.result import Result

MS = 10**6
Times = NDArray[np.int64]
LOAD_NS = SECOND_NS // 2


@dataclass
class Reader:
    """A loop as in native/receiver, by a clock of its own; calls take a µs, naps their slack."""

    nap_ns: int = 0
    """0: it waits for each datagram."""
    batch: int = 64
    work_ns: int = 0
    room: int = 10**6
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))

    def read(self, arrivals: Times, begin_ns: int) -> dict[str, int]:
        """Return what the loop counts of datagrams that arrive at these times."""
        counts, clock_ns, came, queued, drained_ns = self.counts, begin_ns, 0, 0, 0
        times = arrivals.tolist()  # an array's search for a single time takes ten times a list's
        while came < len(times) or queued:
            if not self.nap_ns and not queued:
                clock_ns = max(clock_ns, times[came])
            due = bisect_right(times, clock_ns, came)
            queued, came = min(queued + due - came, self.room), due
            taken = min(queued, self.batch)
            queued -= taken
            clock_ns += 1000
            counts["receive_calls"] += 1
            counts["empty_calls"] += not taken
            if taken and drained_ns:
                self._note("drained_last", drained_ns)
                drained_ns = 0
            counts["received_packets"] += taken
            counts["received_bytes"] += taken * 32
            if taken and not counts["first_ns"]:
                self._note("first", clock_ns)
            counts["last_ns"] = clock_ns if taken else counts["last_ns"]
            emptied = taken < self.batch
            if emptied and not drained_ns and counts["received_packets"]:
                drained_ns = clock_ns
                if not counts["drained_first_ns"]:
                    self._note("drained_first", clock_ns)
            clock_ns += taken * self.work_ns
            clock_ns += (self.nap_ns + 60_000) * (emptied and self.nap_ns > 0)
        return counts

    def _note(self, edge: str, clock_ns: int) -> None:
        so_far = {part: self.counts[f"received_{part}"] for part in ("packets", "bytes")}
        values = {"ns": clock_ns, **so_far}
        self.counts |= {f"{edge}_{part}": value for part, value in values.items()}


EDGES = ("first", "drained_first", "drained_last")
COUNTS = (
    *("receive_calls", "empty_calls", "received_packets", "received_bytes", "last_ns"),
    *(f"{edge}_{part}" for edge in EDGES for part in ("ns", "packets", "bytes")),
)
WAITS = {
    "block": Reader(),
    "one by one": Reader(batch=1),
    "nap 100us": Reader(100_000),
    "nap 1ms": Reader(MS),
    "nap 20ms": Reader(20 * MS),
    "nap 20ms, one by one": Reader(20 * MS, batch=1),
}


def steady(pps: float, rng: np.random.Generator) -> Times:
    """Return arrivals at a rate, each up to 20 µs late."""
    times = np.arange(round(pps * LOAD_NS / SECOND_NS)) * (SECOND_NS / pps)
    late_ns = rng.uniform(0, 20_000, len(times))
    return np.sort(build.START_NS + times + late_ns).astype(np.int64)


def bursts(pps: float, rng: np.random.Generator) -> Times:
    """Return arrivals at a rate, all of a ms together."""
    times = steady(pps, rng) - build.START_NS
    return build.START_NS + np.sort(times // MS * MS + times % MS // 100)


def random(pps: float, rng: np.random.Generator) -> Times:
    """Return arrivals of which each comes at a time of its own, as many as at that rate."""
    times = np.sort(rng.uniform(0, LOAD_NS, round(pps * LOAD_NS / SECOND_NS)))
    return (build.START_NS + times).astype(np.int64)


LOADS = {"steady": steady, "bursts": bursts, "random": random}


def read_by(reader: Reader, flows: Sequence[Times], rng: np.random.Generator) -> Readings:
    """Return what a worker for each flow counted, whose naps began at any time before."""
    stats = []
    for number, arrivals in enumerate(flows):
        own = Reader(reader.nap_ns, reader.batch, reader.work_ns, reader.room)
        begin_ns = build.START_NS - MS - int(rng.uniform(0, reader.nap_ns + 1))
        counts = own.read(arrivals, begin_ns)
        stats.append(build.worker("receiver", counts, worker=f"right.receiver{number}"))
    return measured(*stats, *(sent_as(arrivals) for arrivals in flows))


def sent_as(arrivals: Times) -> WorkerStats:
    """Return a sender that sent what arrived, with a call for what it sent within a ms."""
    calls = len(np.unique((arrivals - build.START_NS) // MS))
    return build.worker("sender", build.sender_counts(len(arrivals), send_calls=calls))


def measured(*stats: WorkerStats) -> Readings:
    """Return the readings of these workers."""
    readings = readings_of(build.record(of=build.paced(), workers=stats))
    assert readings is not None
    return readings


def rate_of(readings: Readings) -> float:
    """Return the delivered rate, which there is."""
    pps = node_rate(readings.receiver, "received_packets")
    assert pps is not None
    return pps


@pytest.mark.drawn(18)
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize(("pps", "workers"), [(1000, 1), (2000, 4), (10_000, 1)])
def test_a_rate_has_no_bias_by_how_readers_wait(
    load: str, wait: str, pps: int, workers: int
) -> None:
    """Each trial is off by what comes at once at most; steady, the mean by a tenth of that."""
    rng = np.random.default_rng(7)
    trials = [
        read_by(WAITS[wait], [LOADS[load](pps / workers, rng) for _ in range(workers)], rng)
        for _ in range(12)
    ]
    errors = np.array([rate_of(trial) / pps - 1 for trial in trials])
    lumps = np.array([lump_share(trial) for trial in trials])
    chance = 4 / np.sqrt(pps * LOAD_NS / SECOND_NS) if load == "random" else 0
    assert (abs(errors) <= lumps + chance).all()
    if load == "steady":
        assert abs(errors.mean()) <= lumps.mean() / 10


@pytest.mark.parametrize("wait", WAITS)
def test_a_reader_that_is_always_behind_has_the_rate_at_which_it_reads(wait: str) -> None:
    """50 µs of work for each are 20 kpps, and what waited longest is read after the load."""
    rng = np.random.default_rng(7)
    slow = Reader(WAITS[wait].nap_ns, WAITS[wait].batch, 50_000)
    trial = read_by(slow, [steady(40_000, rng)], rng)
    assert rate_of(trial) == pytest.approx(20_000, rel=0.03)


@pytest.mark.parametrize("wait", ["nap 1ms", "nap 20ms"])
def test_what_a_full_socket_loses_between_naps_is_not_in_the_rate(wait: str) -> None:
    """A socket for 15 takes 15 a nap, and whoever naps longer loses more."""
    rng = np.random.default_rng(7)
    small = Reader(WAITS[wait].nap_ns, 64, 0, 15)
    trial = read_by(small, [steady(40_000, rng)], rng)
    assert rate_of(trial) == pytest.approx(15 * SECOND_NS / (small.nap_ns + 61_000), rel=1e-3)


def test_a_worker_that_ends_early_counts_with_all_it_read() -> None:
    """Two readers at 1 kpps, one for half of the time: 1.5 kpps together, not 2."""
    rng = np.random.default_rng(7)
    both = [steady(1000, rng), steady(1000, rng)[:250]]
    assert rate_of(read_by(WAITS["block"], both, rng)) == pytest.approx(1500, rel=0.01)


def test_senders_with_few_packets_each_offer_no_more_than_their_rate() -> None:
    """Four readers at 250 pps each have a first packet; only that of the first was left out."""
    stats = [
        build.worker(
            "sender",
            build.sender_counts(126, first_packets=1, last_ns=build.START_NS + LOAD_NS),
            worker=f"left.sender{number}",
        )
        for number in range(4)
    ]
    assert node_rate(measured(*stats).sender, "sent_packets") == pytest.approx(1000)


# --- compared ------------------------------------------------------------------------------------


def verdict_of(
    a: Sequence[Readings], b: Sequence[Readings], lost: int = 1, pps: int = 1000
) -> Comparison:
    """Return the verdict over blocks of two points, of whose packets so many are lost."""
    results = []
    for point, trials in (("a", a), ("b", b)):
        for repetition, trial in enumerate(trials, 1):
            numbers = {"delivered_pps": rate_of(trial), "lost_packets": lost}
            share = lump_share(trial)
            of = build.paced(pps, point=point, repetition=repetition)
            results.append(Result(of, "done", True, (), numbers=numbers, lag=0.0, lump_share=share))
    pair = PointPair("a", "b", "delivered_pps", 0.03, (7,))
    points = tuple(build.trial(name) for name in "ab")
    return compare_points(replace(build.experiment(points=points), compare=(pair,)), results)[0]


def blocks_of(wait: str, load: str, workers: int, seed: int, fixed: bool) -> list[Readings]:
    """Return seven trials at 1 kpps; naps that are ``fixed`` lie alike in every one."""
    rng = np.random.default_rng(seed)
    trials = []
    for _ in range(7):
        flows = [LOADS[load](1000 / workers, rng) for _ in range(workers)]
        own = np.random.default_rng(seed) if fixed else rng
        trials.append(read_by(WAITS[wait], flows, own))
    return trials


@pytest.mark.drawn(2)
@pytest.mark.parametrize("fixed", [False, True], ids=["any phase", "one phase"])
@pytest.mark.parametrize("load", ["steady", "bursts"])
@pytest.mark.parametrize("workers", [1, 4])
def test_equal_points_differ_by_no_way_of_waiting(load: str, workers: int, fixed: bool) -> None:
    """At most 5 % of 45 pairs of waits, each with a packet lost, are called different."""
    called = []
    for part in range(3):
        points = [
            blocks_of(wait, load, workers, 100 * part + seed, fixed)
            for seed, wait in enumerate(WAITS)
        ]
        verdicts = [verdict_of(*pair).verdict for pair in combinations(points, 2)]
        called += [verdict in ("faster", "slower") for verdict in verdicts]
    assert 45 == len(called)
    assert sum(called) <= 2


def test_what_received_all_that_was_offered_is_the_same() -> None:
    """Though a read of 20 ms has 4 % of a trial, which with a loss leaves nothing to tell."""
    a, b = (blocks_of(wait, "steady", 1, 7, True) for wait in ("block", "nap 20ms"))
    assert "same within 3 % [0.00 – 0.00]" == verdict_of(a, b, lost=0).text
    lossy = verdict_of(a, b)
    assert "cannot tell" == lossy.verdict
    assert lossy.text.endswith("3.8 % of a trial come at once: take longer trials")
    assert resolution(verdict_of(a, b, lost=0)) is None


def test_a_difference_beyond_a_read_is_called() -> None:
    """5 % less are slower, by an interval that is wider by a read of 1 ms at each end."""
    rng = np.random.default_rng(7)
    points = ([read_by(WAITS["nap 1ms"], [steady(pps, rng)], rng) for _ in range(7)]
              for pps in (4000, 3800))  # fmt: skip
    verdict = verdict_of(*points)
    assert "slower" == verdict.verdict
    assert verdict.low is not None
    assert verdict.low < 0.95 * 0.9985
    least = resolution(verdict)
    assert least is not None
    assert least[7] > 0.002


@pytest.mark.parametrize("clocks", [[], [7], [7, 7], [5, 9, 9, 30], [2**63, 2**63 + 50]])
def test_many_times_are_interpolated_as_a_few(clocks: list[int]) -> None:
    """To the last bit, also where samples are alone, at once, or at no time of a clock."""
    samples = [Sample("w", clock, {"sent_packets": 3 * n**2}) for n, clock in enumerate(clocks)]
    times = [min(clocks, default=0) - 5 + n // 10 for n in range(rates.FEW_TIMES + 1)]
    apart = [totals_at(samples, "sent_packets", [time])[0] for time in times]
    many = totals_at(samples, "sent_packets", times)
    assert apart == (many if max(clocks, default=0) < rates.SMALL else apart)
    assert len(apart) == len(many)


def test_rates_of_a_day_are_not_told_by_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever duration was asked for; and no bins where they would take minutes."""
    late = build.receiver_counts(1000, last_ns=build.START_NS + DAY_NS // 2)
    workers = (build.worker("sender", build.sender_counts(1000)), build.worker("receiver", late))
    record = build.record(
        workers=workers, series=build.series([500, 500]), overhead_ns={"measured": DAY_NS}
    )
    readings = readings_of(record)
    assert readings is not None
    assert spread(readings) is None
    assert pps_by_bin(readings.receiver, 60 * SECOND_NS)
    monkeypatch.setattr(rates, "MOST_TOTALS", 100)
    assert {} == pps_by_bin(readings.receiver, 60 * SECOND_NS)
