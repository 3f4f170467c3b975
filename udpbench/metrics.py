"""Every metric of a trial: one table for results, tables, files and expectations.

Its order is that of a frame's columns and of the keys of ``show --json``. A test compares the table
in docs/records.md with this one.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from udpbench.cpu_stages import STAGES
from udpbench.units import parse_ratio, show_share

Unit = Literal["packets", "pps", "MiB/s", "ns", "ratio", "calls", "skbs", "CPUs", "B", "files"]
Kind = Literal["count", "rate", "time", "ratio"]
"""Counts, and ratios of two counts, are exact no matter what else ran on the hosts. Rates (anything
per time, and its variation) and times are not: a finding may strike them out."""


class Words(NamedTuple):
    """The words of a comparison for a smaller and a larger value, and which of them is worse."""

    less: str
    more: str
    worse: Literal["less", "more"] | None
    share: bool = False
    """Compared by the difference of shares of the packets sent, because 0 has no ratio."""


class Metric(NamedTuple):
    """Unit, kind and meaning of one metric."""

    unit: Unit
    kind: Kind
    meaning: str
    words: Words | None = None
    """None: those of its unit."""


SPEED = Words("slower", "faster", "less")
COST = Words("less", "more", "more")
LOSS = Words("less", "more", "more", share=True)
SIZE = Words("less", "more", None)
WORDS: dict[Unit, Words] = {
    "packets": Words("fewer", "more", "less"),
    "pps": SPEED,
    "MiB/s": SPEED,
    "ns": Words("shorter", "longer", "more"),
    "ratio": COST,
    "calls": Words("fewer", "more", "more"),
    "skbs": Words("fewer", "more", "more"),
    "CPUs": COST,
    "B": COST,
    "files": Words("fewer", "more", None),
}
"""Unit → the words for metrics that have none of their own."""
MARGIN, SHARE_MARGIN = 0.03, 0.001
"""Differences that count as the same if a comparison names no margin: 3 %, 0.1 percentage
points."""


METRICS: dict[str, Metric] = {
    "intended_packets": Metric(
        "packets", "count", "requested by rate or count; with `rate: unlimited`, attempted"
    ),
    "sent_packets": Metric("packets", "count", "accepted by the kernel"),
    "received_packets": Metric(
        "packets", "count", "packets of this run that the receivers read, each counted once"
    ),
    "answered_packets": Metric(
        "packets", "count", "with `traffic.answers`: answers that came back to the senders"
    ),
    "lost_packets": Metric(
        "packets", "count", "sent − received; with `traffic.answers` sent − answered", LOSS
    ),
    "offered_pps": Metric(
        "pps", "rate", "sent / (last − first send), sender's clock; paced, less the first call's"
    ),
    "delivered_pps": Metric(
        "pps",
        "rate",
        "received between two moments at which nothing was left to read / the time between them, "
        "receiver's clock",
    ),
    "answered_pps": Metric(
        "pps", "rate", "like delivered_pps, for answers, by the senders' clocks"
    ),
    "delivered_mib_s": Metric("MiB/s", "rate", "the same as payload; 1 MiB is 2^20 bytes"),
    "delivered_pps_spread": Metric(
        "ratio", "rate", "coefficient of variation of per-second rates; missing beyond 30 minutes"
    ),
    "loss_ratio": Metric("ratio", "ratio", "lost / sent", LOSS),
    "send_calls_per_packet": Metric("calls", "ratio", "the senders' system calls per packet sent"),
    "skbs_per_packet": Metric(
        "skbs", "ratio", "messages per datagram as the receivers read them; 1 unless GRO merges"
    ),
    "send_cpu_ns_per_packet": Metric(
        "ns", "time", "busy time of senders' CPUs per packet sent", COST
    ),
    "receive_cpu_ns_per_packet": Metric(
        "ns", "time", "busy time of the receivers' and their queues' CPUs per packet received", COST
    ),
    "delay_min_ns": Metric(
        "ns",
        "time",
        "shortest one-way delay: from the time a packet was due until the call that read it "
        "returned (RFC 7679); missing if the hosts' clocks do not allow it",
    ),
    "delay_p50_ns": Metric(
        "ns", "time", "median one-way delay; no percentile without ten packets beyond it"
    ),
    "delay_p90_ns": Metric("ns", "time", "90th percentile of one-way delay"),
    "delay_p99_ns": Metric("ns", "time", "99th percentile of one-way delay"),
    "delay_p999_ns": Metric("ns", "time", "99.9th percentile of one-way delay"),
    "delay_p9999_ns": Metric("ns", "time", "99.99th percentile of one-way delay"),
    "delay_max_ns": Metric("ns", "time", "longest one-way delay"),
    "delay_variation_p99_ns": Metric("ns", "time", "99th percentile − shortest (RFC 5481)"),
    "rest_delay_p50_ns": Metric("ns", "time", "median one-way delay at rest, in the path check"),
    "rest_delay_p90_ns": Metric("ns", "time", "90th percentile of one-way delay at rest"),
    "stack_delay_p50_ns": Metric(
        "ns", "time", "with `receive.timestamps`: median delay until the receiving kernel's stamp"
    ),
    "stack_delay_p99_ns": Metric("ns", "time", "99th percentile of stack delay"),
    "application_delay_p50_ns": Metric("ns", "time", "median time from stamp to the call's return"),
    "application_delay_p99_ns": Metric("ns", "time", "99th percentile of application delay"),
    "round_trip_min_ns": Metric(
        "ns",
        "time",
        "with `traffic.echo`, or `traffic.answers` by ids: shortest time from due until the reply "
        "is read (RFC 2681)",
    ),
    "round_trip_p50_ns": Metric("ns", "time", "median round trip"),
    "round_trip_p90_ns": Metric("ns", "time", "90th percentile of round trip"),
    "round_trip_p99_ns": Metric("ns", "time", "99th percentile of round trip"),
    "round_trip_p999_ns": Metric("ns", "time", "99.9th percentile of round trip"),
    "round_trip_max_ns": Metric("ns", "time", "longest round trip"),
    "rest_round_trip_p50_ns": Metric("ns", "time", "median round trip at rest, in the path check"),
    "rest_round_trip_p90_ns": Metric("ns", "time", "90th percentile of round trip at rest"),
    "pacing_p50_ns": Metric("ns", "time", "median time from due to the send call"),
    "pacing_p99_ns": Metric("ns", "time", "99th percentile of time from due to the send call"),
    "pacing_p999_ns": Metric("ns", "time", "99.9th percentile of time from due to the send call"),
    "pacing_max_ns": Metric("ns", "time", "longest time from due to the send call"),
    "send_cpu_load": Metric(
        "CPUs", "rate", "CPU time of the senders' worker processes / time; missing for a burst"
    ),
    "receive_cpu_load": Metric("CPUs", "rate", "the same for the receivers"),
    "send_memory_bytes": Metric("B", "count", "mean resident memory of the senders' workers"),
    "receive_memory_bytes": Metric("B", "count", "the same for the receivers"),
    "logged_packets": Metric("packets", "count", "written to the log"),
    "logged_pps": Metric("pps", "rate", "like delivered_pps, by the timestamps in the log"),
    "log_files": Metric("files", "count", "log files present at the end"),
    "log_bytes": Metric("B", "count", "size of the log files", SIZE),
    "cpu_ns": Metric(
        "ns",
        "time",
        "with `cpu_time`: CPU time per packet at all stages of both ends and all nodes in the "
        "middle; `cpu_ns[stage=rx_ip]` is that at one stage, `cpu_ns[stage=router1.fwd_ip]` at one "
        "of one node",
        COST,
    ),
    "throughput_pps": Metric(
        "pps",
        "rate",
        "with `search`: the highest rate, as received, at which no more than the goal was lost; "
        "`throughput_pps[loss=0.1%]` is that of one goal, otherwise of the largest",
    ),
    "ledger_received_packets": Metric(
        "packets",
        "count",
        "received, less unlogged and, with `traffic.answers`, unanswered: intended = Σ ledger + "
        "this + unaccounted",
    ),
    "unaccounted": Metric(
        "packets", "count", "packets that no stage of the ledger explains, with their sign", LOSS
    ),
}
SEARCHED = ("throughput_pps",)
"""The metrics of a search, not of a trial; a suffix such as ``[loss=0.1%]`` names a goal."""
TIMED = frozenset(name for name, metric in METRICS.items() if metric.kind in ("rate", "time"))
"""The metrics that a finding of severity ``struck`` removes."""


STAGED = "cpu_ns"
"""The metric of all stages of the CPUs' ledger; a suffix such as ``[stage=rx_ip]`` names one."""
_STAGE = re.compile(r"(?P<name>[a-z_]+)\[stage=(?P<stage>[A-Za-z0-9_.-]+)\]\Z")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
"""The name of a host, as in ``model.limits``."""
_GOAL = re.compile(r"(?P<name>[a-z_]+)\[loss=(?P<goal>[0-9.]+%?)\]\Z")


def with_goal(name: str, goal: float | None = None) -> str:
    """Return the metric of one goal of a search: ``throughput_pps[loss=0.1%]``."""
    return name if goal is None else f"{name}[loss={show_share(goal)}]"


def goal_of(name: str) -> tuple[str, float | None]:
    """Return a metric without its goal, and the goal if it has one."""
    match = _GOAL.match(name)
    if match is None:
        return name, None
    try:
        return match.group("name"), parse_ratio(match.group("goal"))
    except ValueError:
        return name, None


def at_stage(stage: str) -> str:
    """Return the metric of one stage: ``cpu_ns[stage=rx_ip]``."""
    return f"{STAGED}[stage={stage}]"


def is_cpu_stage(name: str) -> bool:
    """Return whether a name is that of a stage of the CPUs, or of one at a node in the middle."""
    node, _, stage = name.rpartition(".")
    return stage in STAGES and (name == stage or _NODE.fullmatch(node) is not None)


def plain_name(name: str) -> str:
    """Return a metric without its goal or its stage."""
    match = _STAGE.match(name)
    return goal_of(name)[0] if match is None else match.group("name")


def is_metric(name: str) -> bool:
    """Return whether a metric of a trial or a search has this name."""
    plain, goal = goal_of(name)
    staged = _STAGE.match(name)
    if staged is not None:
        return staged.group("name") == STAGED and is_cpu_stage(staged.group("stage"))
    return plain in (METRICS if goal is None else SEARCHED)


def is_timed(name: str) -> bool:
    """Return whether a finding of severity ``struck`` removes a metric."""
    return plain_name(name) in TIMED


def unit_of(name: str) -> Unit:
    """Return the unit of a metric or of a ledger stage, which is in packets."""
    return METRICS[plain_name(name)].unit if is_metric(name) else "packets"


def words_of(name: str) -> Words:
    """Return the words for a metric, or for a ledger stage, where packets are lost."""
    if not is_metric(name):
        return LOSS
    metric = METRICS[plain_name(name)]
    return WORDS[metric.unit] if metric.words is None else metric.words


def margin_of(name: str) -> float:
    """Return the default margin of a comparison: a ratio, or a share of the packets."""
    return SHARE_MARGIN if words_of(name).share else MARGIN
