"""The numbers that figures draw, before they are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from analysis.build import (
    BASE,
    START_NS,
    experiment,
    failed,
    lossy,
    merged,
    paced,
    receiver_counts,
    record,
    sender_counts,
    series,
    specs,
    trial,
    unlogged,
    worker,
)

from report.stored import swept
from udpbench.analysis.ledger.stages import BEFORE_SENT
from udpbench.judged_run import Chapter, judged
from udpbench.model.experiment import Experiment
from udpbench.model.limits import BEFORE_HOST, LEDGER_STAGES, SECOND_NS
from udpbench.model.record import Snapshot, TrialRecord
from udpbench.report.figure_data import (
    UNCERTAIN,
    Step,
    dots,
    heats,
    queue_times,
    shown_over_time,
    timelines,
    ways,
)
from udpbench.report.figures.experiment_figures import STAGE_STYLES, draw, draw_ways

SENDERS = ("left", "middle")
LOST = {"right": {"snmp.Udp.RcvbufErrors": 250, "snmp.Udp.InErrors": 250}}


def chapter(*records: TrialRecord, of: Experiment | None = None) -> Chapter:
    """Return the one chapter of an experiment with these trials."""
    (only,) = judged([of if of is not None else experiment()], records)
    return only


# --- every trial ---------------------------------------------------------------------------------


def test_every_trial_is_a_dot() -> None:
    """Valid and invalid apart; the median is of the valid ones."""
    records = [record(of=paced()), record(900, of=paced(repetition=2)), failed()]
    (row,) = dots(chapter(*records, of=experiment(points=[paced()], repetitions=3)))
    assert ("all", (1000.0,), (900.0,)) == (row.point, row.valid_pps, row.invalid_pps)
    assert row.median is not None
    assert (1000.0, 1) == (row.median.median, row.median.n)


def test_a_point_without_a_rate_has_its_row() -> None:
    """It is not left out of the figure."""
    (row,) = dots(chapter(failed()))
    assert ((), (), None) == (row.valid_pps, row.invalid_pps, row.median)


def test_each_point_has_the_published_figure_of_its_own_source() -> None:
    """What others published stands beside the point that measures the same."""
    points = [trial("naive", source="cloudflare-2015/naive"), trial("mine")]
    records = [record(of=point) for point in points]
    first, second = dots(chapter(*records, of=experiment(points=points)))
    assert first.published is not None
    assert (195_000, 352_000) == (first.published.low, first.published.high)
    assert second.published is None


# --- the packet's way ----------------------------------------------------------------------------


def test_a_way_ends_where_every_packet_did() -> None:
    """Received and lost are shares of what was sent, and together all of it."""
    (way,) = ways(chapter(lossy(1000, LOST, 250)))
    assert ("all", 1, 1000) == (way.point, way.repetition, way.sent_packets)
    assert (("received", 0.75), ("udp_rcvbuf", 0.25)) == way.parts


def test_what_is_unaccounted_is_a_part_of_the_way() -> None:
    """It is drawn, with its sign."""
    (way,) = ways(chapter(record(1000, 990)))
    assert (("received", 0.99), ("unaccounted", 0.01)) == way.parts


def test_what_no_log_took_is_not_received_as_well() -> None:
    """The way ends once."""
    (way,) = ways(chapter(unlogged(400)))
    assert (("received", 0.6), ("app_log", 0.4)) == way.parts


def test_what_was_counted_merged_is_drawn_as_far_as_it_is_known() -> None:
    """The least that each stage took, and the rest of the way as belonging to one of them."""
    (way,) = ways(chapter(merged()))
    shares = [("received", 840), ("udp_no_port", 120), (UNCERTAIN, 10)]
    assert tuple((name, packets / 970) for name, packets in shares) == way.parts
    assert draw_ways([way]).axes


def test_what_was_never_sent_is_no_part_of_the_way() -> None:
    """The way begins where the kernel took the packet."""
    (way,) = ways(chapter(record(900, of=paced())))
    assert (("received", 1.0),) == way.parts


def test_without_a_packet_there_is_no_way() -> None:
    """Neither for a failed trial nor for one that sent nothing."""
    assert () == ways(chapter(failed()))
    assert () == ways(chapter(record(0)))


# --- over time -----------------------------------------------------------------------------------


def moving() -> TrialRecord:
    """Return a trial of 2 s watched once: 10 lost in its first half, 40 in the other."""
    full = ("snmp.Udp.RcvbufErrors", "snmp.Udp.InErrors", "socket.77.drops")
    counts = {"right": {"snmp.Udp.InDatagrams": 950, **dict.fromkeys(full, 50)}}
    counts["machine"] = {
        "cpu.0.user_ns": 100,
        "cpu.0.idle_ns": 300,
        "cpu.1.system_ns": 400,
    }
    changed = {
        "left": {},
        "right": {
            **dict.fromkeys(full, BASE + 10),
            "snmp.Udp.InDatagrams": BASE + 500,
        },
        "machine": {"cpu.0.user_ns": BASE + 100, "cpu.1.system_ns": BASE + 200},
    }
    at_ns = START_NS + SECOND_NS
    motion = tuple(Snapshot(host, at_ns, moved) for host, moved in changed.items())
    sent = series([1000], of_worker="left.sender0", field="sent_packets")
    plain = record(1000, 950, moves=counts, series=(*sent, *series([1000])))
    return replace(plain, motion=motion)


def test_both_ends_are_on_one_axis() -> None:
    """Rates in tenths of a second from the common start; whole bins between first and last."""
    (line,) = timelines(chapter(moving()))
    assert Step(0.0, 0.1, 1000.0) == line.offered[0]
    assert 10 == len(line.offered)
    # The receiver's first packet came after 1 ms, so its first whole bin is the second one.
    assert [0.1, 1.0] == [line.delivered[0].from_s, line.delivered[-1].to_s]


def test_drops_over_time_are_by_stage() -> None:
    """Ten in the first second, forty in the next; a stage without any is not shown."""
    (line,) = timelines(chapter(moving()))
    assert {"udp_rcvbuf": (Step(0, 1, 10.0), Step(1, 2, 40.0))} == line.drops


@pytest.mark.parametrize(
    ("first_ms", "last_ms", "steps"),
    [
        (0, 1400, [(0, 1, 10), (1, 1.4, 100)]),
        (200, 1001, [(0.2, 1, 12.5), (1, 1.1, 400)]),
        (0, 900, [(0, 0.9, 10 / 0.9), (1, 2, 40)]),
        (1200, 1600, [(0, 1, 10), (1.2, 1.6, 100)]),
    ],
)
def test_drops_over_time_end_with_the_load(
    first_ms: int, last_ms: int, steps: Sequence[tuple[float, float, float]]
) -> None:
    """A counter that is read long after the last packet tells of the time before that."""
    plain = moving()
    (phase,) = plain.phases
    times = {"first_ns": START_NS + first_ms * 10**6, "last_ns": START_NS + last_ms * 10**6}
    sender, receiver = phase.stats
    stats = (replace(sender, counts={**sender.counts, **times}), receiver)
    (line,) = timelines(chapter(replace(plain, phases=(replace(phase, stats=stats),))))
    drawn = [(drop.from_s, drop.to_s, drop.value) for drop in line.drops["udp_rcvbuf"]]
    assert [pytest.approx(step) for step in steps] == drawn


def test_drops_over_time_are_those_of_the_ledger() -> None:
    """What only seemed to be lost while counters moved is not shown."""
    seeming = Snapshot("right", START_NS + SECOND_NS, {"snmp.Udp.InErrors": BASE + 30})
    still = [Snapshot(host, START_NS + SECOND_NS, {}) for host in ("left", "machine")]
    moves = {"right": {"snmp.Udp.InErrors": 30, "snmp.Udp.RcvbufErrors": 30}}
    of = replace(lossy(1000, moves, 30), motion=(still[0], seeming, still[1]))
    (line,) = timelines(chapter(of))
    assert ["udp_rcvbuf"] == list(line.drops)


def test_cpus_over_time_are_those_of_each_end() -> None:
    """The receiver's worker is on CPU 0, the sender's on CPU 1."""
    (line,) = timelines(chapter(moving()))
    assert {
        "sender, CPU 1": (Step(0, 1, 1.0), Step(1, 2, 1.0)),
        "receiver, CPU 0": (Step(0, 1, 1.0), Step(1, 2, 0.0)),
    } == line.cpus


def test_cpus_of_several_machines_are_those_of_each() -> None:
    """Two senders: half of either one's CPU is half, and each is named by its machine."""
    of = moving()
    phase = of.phases[0]
    sending = [worker("sender", sender_counts(500), worker=f"{host}.sender0") for host in SENDERS]
    taken = []
    for snapshots, moved in ((phase.before, 0), (phase.after, 1)):
        own = {"cpu.1.user_ns": 100 * moved, "cpu.1.idle_ns": 100 * moved}
        at_ns = START_NS + 2 * SECOND_NS * moved
        taken.append({**snapshots, **{host: Snapshot(host, at_ns, own) for host in SENDERS}})
    phase = replace(phase, before=taken[0], after=taken[1], stats=(*sending, phase.stats[1]))
    workers = tuple(replace(of.workers[0], host=host) for host in SENDERS)
    facts = {
        host: replace(of.facts["left"], host=host, boot_id=f"boot of {host}") for host in SENDERS
    }
    of = replace(
        of,
        phases=(phase,),
        workers=(*workers, of.workers[1]),
        facts={**of.facts, **facts},
        motion=(),
        built_in_lab=False,
    )
    (line,) = timelines(chapter(of))
    assert (Step(0, 2, 0.5),) == line.cpus["sender, CPU left 1, middle 1"]


def test_of_unpinned_workers_all_cpus_are_shown_once() -> None:
    """In the built-in lab they are those of one machine."""
    loose = [
        worker("sender", sender_counts(1000), cpu=None),
        worker("receiver", receiver_counts(1000), cpu=None),
    ]
    moves = {"machine": {"cpu.0.user_ns": 100, "cpu.1.idle_ns": 300}}
    (line,) = timelines(chapter(record(1000, workers=loose, moves=moves, series=series([1000]))))
    assert {"all CPUs": (Step(0, 2, 0.25),)} == line.cpus


def test_a_burst_shorter_than_a_bin_has_no_line() -> None:
    """Its axes would be empty, and one interval of counters says what the ledger says."""
    assert () == timelines(chapter(lossy(1000, LOST, 250)))


def test_a_failed_trial_has_no_line() -> None:
    """Nothing was measured."""
    assert () == timelines(chapter(failed()))


@pytest.mark.parametrize(
    ("sizes", "shown"),
    [
        ([1, 2, 3, 4], ["size=1", "size=2", "size=3", "size=4"]),
        ([5, 900, 1, 7, 6], ["size=5", "size=900", "size=1", "size=6"]),
    ],
)
def test_of_many_points_the_extreme_ones_are_shown(sizes: list[int], shown: list[str]) -> None:
    """First and last, most and least delivered; of few all."""
    of, records = swept(sizes, repetitions=1)
    points = shown_over_time(chapter(*records, of=of))
    assert shown == [point.name for point in points]


def test_every_stage_that_loses_packets_has_a_colour_and_hatch_of_its_own() -> None:
    """By its name, so that no other's changes where a stage is inserted."""
    assert {*LEDGER_STAGES, BEFORE_HOST} - {*BEFORE_SENT} == set(STAGE_STYLES)
    assert len(STAGE_STYLES) == len(set(STAGE_STYLES.values()))


# --- over workers and queues ---------------------------------------------------------------------


def test_a_heat_map_shows_how_packets_spread_over_workers() -> None:
    """Three quarters to the first of two; a single worker needs no map."""
    two = [
        worker("sender", sender_counts(1000)),
        worker("receiver", receiver_counts(750)),
        worker("receiver", receiver_counts(250), worker="right.receiver1"),
    ]
    of = trial()
    more = (*specs(of), replace(specs(of)[1], index=1))
    (heat,) = heats(chapter(replace(record(1000, workers=two), workers=more)))
    assert ("worker", ("all",), ("receiver0", "receiver1")) == (
        heat.column_kind,
        heat.points,
        heat.columns,
    )
    assert ((0.75, 0.25),) == heat.shares
    assert () == heats(chapter(record()))


def over_time(*moved: dict[str, int]) -> TrialRecord:
    """Return a trial whose receiver's counters moved so far in each further second."""
    trial_record = record(moves={"right": moved[-1]})
    motion = tuple(
        Snapshot(
            host,
            START_NS + second * SECOND_NS,
            {name: BASE + value for name, value in (counters.items() if host == "right" else ())},
        )
        for second, counters in enumerate(moved[:-1], start=1)
        for host in ("left", "right", "machine")
    )
    return replace(trial_record, motion=motion)


def test_queues_are_shown_over_time_with_their_drops(tmp_path: Path) -> None:
    """Two RX queues in two seconds; one that nothing moved is left out."""
    first, second, drops, still = (
        f"ethtool.receive0.rx_queue_{name}"
        for name in ("0_xdp_packets", "1_xdp_packets", "1_drops", "2_xdp_packets")
    )
    trial_record = over_time(
        {first: 100, second: 0, drops: 0, still: 0},
        {first: 400, second: 600, drops: 5, still: 0},
    )
    (shown,) = queue_times(chapter(trial_record))
    assert ("all", 1, ("right rx-0", "right rx-1")) == (shown.point, shown.repetition, shown.queues)
    assert ((0.0, 1.0, 2.0), ((100.0, 300.0), (0.0, 600.0))) == (shown.edges_s, shown.pps)
    assert ((False, False), (False, True)) == shown.dropping
    assert ["queues-1"] == draw(chapter(trial_record), tmp_path, ["svg"])["queues"]
    assert () == queue_times(chapter(record()))


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("veth", "rx_queue_{}_xdp_packets"),
        ("ena", "queue_{}_rx_cnt"),
        ("bnxt_en", "[{}]: rx_ucast_packets"),
    ],
)
def test_a_heat_map_shows_how_packets_spread_over_queues(driver: str, name: str) -> None:
    """By the driver's own counters; a point that has no such queue has no share of it."""
    first, second = (f"ethtool.receive0.{name.format(queue)}" for queue in (0, 1))
    points = [trial("one"), trial("two")]
    records = [
        record(of=points[0], moves={"right": {first: 1000}}),
        record(of=points[1], moves={"right": {first: 400, second: 600}}),
    ]
    nic = replace(records[0].facts["right"], driver=driver)
    records = [replace(record, facts={**record.facts, "right": nic}) for record in records]
    (heat,) = heats(chapter(*records, of=experiment(points=points)))
    assert ("RX queue", ("one", "two"), ("rx-0", "rx-1")) == (
        heat.column_kind,
        heat.points,
        heat.columns,
    )
    assert ((1.0, None), (0.4, 0.6)) == heat.shares
