"""What ``udpbench export`` shows to Prometheus: every metric, and its text in the classic format.

Draws ``Sums`` and decides nothing, but when a new counter stops standing at 0: Prometheus ignores
the first value of a series (``rate`` and ``increase`` need two).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from udpbench.analysis.watch.host import WATCHED_STAGES
from udpbench.analysis.watch.sums import Sums
from udpbench.export.surveys import Own
from udpbench.model.limits import SECOND_NS
from udpbench.printable import printable

PREFIX = "udpbench_"
SOCKET = ("comm", "unit", "netns", "port", "family")
FILE_NS = 60 * SECOND_NS
"""For which a new counter stands at 0 in a file: who reads it does not tell, and scrapes once a
minute at least."""


@dataclass(frozen=True)
class Family:
    """One metric."""

    kind: type[CounterMetricFamily | GaugeMetricFamily]
    labels: tuple[str, ...]
    help: str


COUNTER, GAUGE = CounterMetricFamily, GaugeMetricFamily
FAMILIES: Mapping[str, Family] = {
    "stage_dropped_packets_total": Family(
        COUNTER,
        ("stage", "device"),
        "Packets that ended at a stage of the host's path, by its own counters. Never add the "
        "socket family to it: both count the same packets.",
    ),
    "stage_observable": Family(
        GAUGE, ("stage",), "Whether this kernel and its drivers count what ends at a stage."
    ),
    "socket_dropped_packets_total": Family(
        COUNTER,
        ("stage", *SOCKET),
        "Packets that UDP sockets lost, closed ones included; of several possible stages all are "
        "named. A socket that lives shorter than a look is missed, unless counted exactly.",
    ),
    "socket_arrived_packets_total": Family(
        COUNTER, SOCKET, "Packets that reached UDP sockets (--exact, the host's namespace)."
    ),
    "socket_read_packets_total": Family(
        COUNTER, SOCKET, "Datagrams that were read from UDP sockets (--exact; Linux 6.3)."
    ),
    "socket_receive_queue_bytes": Family(
        GAUGE, SOCKET, "Memory of the datagrams that wait at UDP sockets."
    ),
    "socket_receive_buffer_bytes": Family(
        GAUGE, SOCKET, "Receive buffers of UDP sockets; not known in other namespaces."
    ),
    "socket_last_read_timestamp_seconds": Family(
        GAUGE,
        SOCKET,
        "When the queue was last seen empty or shorter; of several sockets the earliest.",
    ),
    "reader_seconds_total": Family(
        COUNTER,
        ("state", *SOCKET),
        "What the threads that read a socket did while their process lost packets; who reads "
        "several counts at each that loses.",
    ),
    "cpu_softirq_seconds_total": Family(COUNTER, ("cpu",), "Time of a CPU in soft interrupts."),
    "namespace_readable": Family(
        GAUGE, ("netns",), "Whether a network namespace could be read at the latest look."
    ),
    "namespaces_left_out": Family(
        GAUGE, (), "Network namespaces that were not read at the latest look: there are too many."
    ),
    "exporter_cpu_seconds_total": Family(COUNTER, ("process",), "What the exporter has used."),
    "exporter_look_seconds": Family(GAUGE, (), "How long the latest look took."),
    "exporter_last_look_timestamp_seconds": Family(GAUGE, (), "When it was."),
    "exporter_errors_total": Family(COUNTER, ("what",), "Looks, files and records that failed."),
    "exporter_folded_sockets_total": Family(
        COUNTER, (), 'Sockets that are counted as "other": their user has too many names.'
    ),
    "exporter_build_info": Family(GAUGE, ("version", "build"), "This build."),
}
"""Every metric by its name without the prefix, in the order of the page."""
Values = Mapping[tuple[str, ...], float]


class Page(Collector):
    """The text of one exporter, from look to look."""

    def __init__(self, with_address: bool = False, served: bool = True, stored: bool = False):
        """Take whether clients ask for it, and whether it is written to a file."""
        self.number = 0
        """The number of the latest text."""
        self.delivered = 0
        """The latest text that a client has."""
        self._served, self._stored = served, stored
        self._with_address = with_address
        self._values: dict[str, Values] = {}
        self._new: dict[tuple[str, tuple[str, ...]], tuple[int, int]] = {}
        """Counter → the first text with it, and when that was."""
        self._settled: set[tuple[str, tuple[str, ...]]] = set()
        """Counters that have stood at 0 for long enough."""
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self, sums: Sums, own: Own) -> bytes:
        """Return the next text."""
        self.number += 1
        self._values = {**_of_host(sums, self._with_address), **_of_exporter(sums, own)}
        counters = [name for name, family in FAMILIES.items() if family.kind is COUNTER]
        for name in counters:
            for labels in self._values.get(name, {}):
                self._settle((name, labels), own.wall_ns)
        return bytes(generate_latest(self._registry))

    def _settle(self, counter: tuple[str, tuple[str, ...]], wall_ns: int) -> None:
        if counter in self._settled:
            return
        number, since_ns = self._new.setdefault(counter, (self.number, wall_ns))
        is_read = not self._served or self.delivered >= number
        is_old = not self._stored or wall_ns - since_ns >= FILE_NS
        if number < self.number and is_read and is_old:
            self._settled.add(counter)
            del self._new[counter]

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, for the library; new counters stand at 0."""
        for name, family in FAMILIES.items():
            with_address = self._with_address and "port" in family.labels
            labels = (*family.labels, *(("address",) if with_address else ()))
            metric = family.kind(f"{PREFIX}{name}", family.help, labels=labels)
            for values, number in self._values.get(name, {}).items():
                is_zero = family.kind is COUNTER and (name, values) not in self._settled
                # A name of an interface may be no UTF-8, which the library's text is.
                metric.add_metric([*map(printable, values)], 0 if is_zero else number)
            yield metric


def _of_host(sums: Sums, with_address: bool) -> dict[str, Values]:
    shown = len(SOCKET) + with_address
    gauges = {labels[:shown]: gauges for labels, gauges in sums.gauges.items()}
    return {
        "stage_dropped_packets_total": {(*key,): number for key, number in sums.stages.items()},
        "stage_observable": {
            (stage,): stage in sums.observable for stage in WATCHED_STAGES if sums.observable
        },
        "socket_dropped_packets_total": {
            (stage, *labels[:shown]): packets for (stage, labels), packets in sums.dropped.items()
        },
        "socket_arrived_packets_total": {
            labels[:shown]: packets for labels, packets in sums.arrived.items()
        },
        "socket_read_packets_total": {
            labels[:shown]: packets for labels, packets in sums.read.items()
        },
        "socket_receive_queue_bytes": {key: each.queue_bytes for key, each in gauges.items()},
        "socket_receive_buffer_bytes": {
            key: each.buffer_bytes for key, each in gauges.items() if each.buffer_bytes is not None
        },
        "socket_last_read_timestamp_seconds": {
            key: each.last_read_ns / SECOND_NS
            for key, each in gauges.items()
            if each.last_read_ns is not None
        },
        "reader_seconds_total": {
            (state, *labels[:shown]): spent_ns / SECOND_NS
            for (state, labels), spent_ns in sums.reader_ns.items()
        },
        "cpu_softirq_seconds_total": {
            (str(cpu),): spent_ns / SECOND_NS for cpu, spent_ns in sums.softirq_ns.items()
        },
        "namespace_readable": {(name,): readable for name, readable in sums.readable.items()},
        "namespaces_left_out": {(): sums.left_out},
    }


def _of_exporter(sums: Sums, own: Own) -> dict[str, Values]:
    return {
        "exporter_cpu_seconds_total": {
            ("exporter",): own.cpu_seconds,
            ("observer",): sums.observer_cpu_ns / SECOND_NS,
        },
        "exporter_look_seconds": {(): own.look_seconds},
        "exporter_last_look_timestamp_seconds": {(): own.wall_ns / SECOND_NS},
        "exporter_errors_total": {(what,): number for what, number in own.errors.items()},
        "exporter_folded_sockets_total": {(): sums.folded},
        "exporter_build_info": {(own.version, own.build): 1},
    }
