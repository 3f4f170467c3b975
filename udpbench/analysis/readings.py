"""What one phase of a record says in plain numbers: sums over workers, and over the path's nodes.

Owns which part of the path a host is and whose counter is read; it never judges a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from udpbench.analysis.delta import Deltas, HostDeltas
from udpbench.model.experiment import Receive, Traffic
from udpbench.model.host import GENERIC_XDP, NOTHING_ATTACHED, Facts
from udpbench.model.limits import Part, PhaseName
from udpbench.model.record import Phase, RecordedError, SelfTest, TrialRecord, WorkerStats
from udpbench.model.work import WorkerSpec
from udpbench.ways import Way, way_to_receive

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

NO_PHASE = RecordedError(message="the record holds no measured phase")
FAMILIES: Mapping[Literal[4, 6], Mapping[str, str]] = {
    4: {"{ip}": "snmp.Ip.", "{ipx}": "netstat.IpExt.", "{udp}": "snmp.Udp."},
    6: {"{ip}": "snmp6.Ip6", "{ipx}": "snmp6.Ip6", "{udp}": "snmp6.Udp6"},
}
"""Placeholder in a pattern → prefix of the IP version's counters."""


KEPT_VIEWS = ("_narrowed", "_hops")
DERIVED = ("way_back", "path", "_parts", "kept", *KEPT_VIEWS)
"""Attributes of a view that hold what refers to it."""
Nodes = Mapping[Part, tuple[str, ...]]
"""Part of the path → the names of its nodes; none of a part that is left out."""


V = TypeVar("V", bound="CounterView", covariant=True)


@dataclass(frozen=True, eq=False)
class CounterView:
    """What ledger stages read: nodes' counters, already subtracted, and what they depend on.

    Equal only to itself, so that what is derived from it can be kept.
    """

    nodes: Nodes
    deltas: Mapping[str, Deltas]
    facts: Mapping[str, Facts]
    traffic: Traffic
    receive: Receive
    built_in_lab: bool = False
    selftests: Mapping[str, SelfTest] = field(default_factory=dict)
    specs: tuple[WorkerSpec, ...] = ()
    stats: tuple[WorkerStats, ...] = ()
    """Final ones of every worker."""
    loss_workers: tuple[WorkerStats, ...] = ()
    """Final ones of workers that lost packets on purpose."""
    within: CounterView | None = None
    """The whole phase, with workers' counts, if this covers a part of it and has none."""
    exits: Mapping[str, str] = field(default_factory=dict)
    """Node in the middle → the interface by which packets leave it; in the path's order."""
    bridges: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Node in the middle → its bridge and the ports that the traffic passes."""
    wired: bool = False
    """Veth pairs alone join the hosts of the path."""

    @property
    def receiving(self) -> Way:
        """How the receivers receive."""
        return way_to_receive(self.receive)

    @property
    def whole(self) -> CounterView:
        """Return the view of the whole phase, which says what an skb holds."""
        return self.within or self

    @property
    def one_pair(self) -> bool:
        """Whether both ends are of one veth pair, whose sending end counts what a ring refuses."""
        return self.built_in_lab and not self.exits and not self.at("link").hosts

    @cached_property
    def copies(self) -> int:
        """How many receivers each packet is for: 1, or all members of a group."""
        reaching = {spec.host: spec.flows for spec in self.specs if spec.role == "receiver"}
        copies = Counter(flow.flow for flows in reaching.values() for flow in flows)
        return max(copies.values(), default=1)

    @cached_property
    def way_back(self) -> CounterView:
        """The same counters as answers see them: receivers send, one in each skb, senders receive.

        Without workers' counts, which are not of answers, and without the nodes between, which do
        not tell the two ways apart.
        """
        return CounterView(
            nodes={"sender": self.receiver.hosts, "receiver": self.sender.hosts},
            deltas=self.deltas,
            facts=self.facts,
            traffic=self.traffic,
            receive=Receive(),
            built_in_lab=self.built_in_lab,
            selftests=self.selftests,
        )

    def at(self, part: Part) -> NodeView[Self]:
        """Return the view of one part of the path."""
        if part not in self._parts:
            self._parts[part] = NodeView(self, part, self.nodes.get(part, ()))
        return self._parts[part]

    @cached_property
    def _parts(self) -> dict[Part, NodeView[Self]]:
        """What ``at`` returned, which keeps what was read of it."""
        return {}

    @cached_property
    def kept(self) -> dict[Hashable, Any]:
        """What others derived from this view, under names of their own; each asks first."""
        return {}

    def only(self, node: str) -> Self:
        """Return the same with one of the nodes in the middle alone; the same object each time."""
        if node not in self._narrowed:
            self._narrowed[node] = replace(self, nodes={**self.nodes, "middle": (node,)})
        return self._narrowed[node]

    @cached_property
    def _narrowed(self) -> dict[str, Self]:
        """What ``only`` returned."""
        return {}

    def arriving(self, *nodes: str) -> Self:
        """Return the view of what comes in at a node: its predecessor sends, and it receives.

        Without the receivers' workers. No node: what comes in at the receivers.
        """
        return self._hop(nodes or self.nodes.get("receiver", ()))

    def leaving(self, node: str) -> Self:
        """Return the view of what comes in at the next host after a node."""
        following = list(self.exits)[list(self.exits).index(node) + 1 :][:1]
        return self.arriving(*following)

    @property
    def first_hop(self) -> Self:
        """The view of what the senders hand to the next host."""
        return self.arriving(*list(self.exits)[:1]) if self.exits else self

    @property
    def last_hop(self) -> Self:
        """The view of what comes in at the receivers."""
        return self.arriving() if self.exits else self

    def _hop(self, hosts: tuple[str, ...]) -> Self:
        key = " ".join(hosts)
        if key not in self._hops:
            names = list(self.exits)
            before = names[: names.index(hosts[0])] if hosts[:1] and hosts[0] in names else names
            sending = tuple(before[-1:]) or self.nodes.get("sender", ())
            at_end = hosts == self.nodes.get("receiver", ())
            nodes: Nodes = {"sender": sending, "receiver": hosts}
            stats = self.stats if at_end else self._of_senders
            self._hops[key] = replace(self, nodes=nodes, stats=stats)
        return self._hops[key]

    def forget(self) -> None:
        """Forget what was derived from this view, which refers to it.

        Such a cycle is collected late: of a thousand trials that took gigabytes.
        """
        derived = {name: self.__dict__.pop(name, None) for name in DERIVED}
        views = [derived["way_back"], derived["path"]]
        for view in (*views, *chain.from_iterable((derived[n] or {}).values() for n in KEPT_VIEWS)):
            if view is not None:
                view.forget()

    @property
    def _of_senders(self) -> tuple[WorkerStats, ...]:
        return tuple(stats for stats in self.stats if stats.role == "sender")

    @cached_property
    def _hops(self) -> dict[str, Self]:
        """What ``arriving`` returned."""
        return {}

    @property
    def middle(self) -> tuple[NodeView[Self], ...]:
        """Each node in the middle, in the path's order."""
        return tuple(NodeView(self, "middle", (name,)) for name in self.exits)

    @property
    def sender(self) -> NodeView[Self]:
        """The hosts at which the path begins."""
        return self.at("sender")

    @property
    def receiver(self) -> NodeView[Self]:
        """The hosts at which it ends."""
        return self.at("receiver")

    @property
    def ends(self) -> tuple[NodeView[Self], NodeView[Self]]:
        """Both."""
        return self.sender, self.receiver

    def pinned(self, stats: WorkerStats) -> frozenset[int]:
        """Return the CPUs that a worker is pinned to; empty: none in particular."""
        if stats.cpu is not None:
            return frozenset({stats.cpu})
        return self._cpus_of.get(stats.worker, frozenset())

    @cached_property
    def _cpus_of(self) -> dict[str, frozenset[int]]:
        """Worker → the CPUs that its specification names."""
        return {spec.name: frozenset(spec.cpus) for spec in reversed(self.specs)}

    @cached_property
    def cpus_of_hosts(self) -> dict[str, frozenset[int]]:
        """Host → the CPUs that its agent may use, once: a set for each process took its square."""
        return {host: frozenset(facts.cpus) for host, facts in self.facts.items()}

    def lost_on_purpose(self, stage: str) -> tuple[int, int]:
        """Return the messages, and the packets in them, that were sent to end at a stage."""
        for stats in self.loss_workers:
            if stats.role == "sender" and stats.worker.endswith(f".loss_{stage}"):
                return stats.counts.get("sent_messages", 0), stats.counts.get("sent_packets", 0)
        return 0, 0

    def of_host(self, host: str, *patterns: str) -> int | None:
        """Return the sum of some counters' differences at a host; None if it has none of them."""
        if host not in self.deltas:
            return None
        return known_sum(self.deltas[host].total(self.named(host, each)) for each in patterns)

    @property
    def all_veth(self) -> bool:
        """True if every host's interface is an end of a veth pair."""
        return {facts.driver for facts in self.facts.values()} == {"veth"}

    def machine_of(self, host: str) -> str:
        """Return the snapshot that has the counters of a host's machine; its own if none has.

        A host that sees its whole machine has them itself; of several on one machine the first
        speaks for all. In the built-in lab they are in the snapshot of the machine's own agent,
        which is no node.
        """
        if host not in self._machines:
            self._machines[host] = self._machine_of(host)
        return self._machines[host]

    @cached_property
    def _machines(self) -> dict[str, str]:
        """What ``machine_of`` returned, which is asked for each queue and each process."""
        return {}

    def _machine_of(self, host: str) -> str:
        nodes, facts = {name for names in self.nodes.values() for name in names}, self.facts
        seeing = [name for name in sorted(self.deltas) if _has_machine(self.deltas[name])]
        if host in seeing:
            boots = {name: facts[name].boot_id for name in seeing if name in facts}
            return next((name for name in boots if boots[name] == boots.get(host)), host)
        return next((name for name in seeing if name not in nodes), host)

    def named(self, host: str, pattern: str) -> str:
        """Return a pattern with the host's interface and the family's protocols put in."""
        facts = self.facts.get(host)
        interface = facts.interface if facts is not None else "*"
        return _named(pattern, self.traffic.family, interface, self.exits.get(host, interface))

    def in_family(self, pattern: str) -> str:
        """Return a pattern with the names of the trial's IP version put in."""
        return _named(pattern, self.traffic.family, "{interface}", "{out}")


@dataclass(frozen=True, eq=False)
class NodeView(Generic[V]):
    """One part of the path: sums over its nodes, of which there may be none.

    ``{interface}`` in a pattern stands for each node's own interface, ``{out}`` for that by which
    packets leave: of the ends the same.
    """

    view: V
    part: Part
    hosts: tuple[str, ...]

    @cached_property
    def workers(self) -> tuple[WorkerStats, ...]:
        """Return the final statistics of every worker."""
        return tuple(stats for stats in self.view.stats if stats.role == self.part)

    def count(self, field: str) -> int:
        """Return the sum of one C field over workers, those of losses on purpose included.

        0 without any worker.
        """
        counted = (*self.view.stats, *self.view.loss_workers)
        return sum(stats.counts.get(field, 0) for stats in counted if stats.role == self.part)

    def worked(self, field: str) -> int:
        """Return the sum of one C field over the workers alone: for rates and cost."""
        return sum(stats.counts.get(field, 0) for stats in self.workers)

    def is_unmoved(self, stage: str) -> bool:
        """Return whether it is proven of a node's kernel that no counter of a stage moves there."""
        tests, family = self.view.selftests, self.view.traffic.family
        return any(
            facts.host in tests and tests[facts.host].is_unmoved(stage, family, facts.driver)
            for facts in self.facts
        )

    def is_disproven(self, stage: str) -> bool:
        """Return whether a known number that was lost at a stage was not what it said."""
        tests, family = self.view.selftests, self.view.traffic.family
        return any(
            facts.host in tests and tests[facts.host].is_disproven(stage, family)
            for facts in self.facts
        )

    def counter(self, pattern: str) -> int | None:
        """Return one counter's difference; None if no node has it."""
        return self.total(pattern)

    def total(self, *patterns: str) -> int | None:
        """Return the sum of counters that see different packets; None if no node has any."""
        if patterns not in self._totals:
            sums = (self.view.of_host(host, *patterns) for host in self.hosts)
            self._totals[patterns] = known_sum(sums)
        return self._totals[patterns]

    def has(self, block: str) -> bool:
        """Return whether any node has a counter of a block, such as ``reason``."""
        deltas_of = self.view.deltas
        return any(deltas_of[host].has(block) for host in self.hosts if host in deltas_of)

    @cached_property
    def _totals(self) -> dict[tuple[str, ...], int | None]:
        """What ``total`` returned: stages, checks and diagnosis ask for each ten times."""
        return {}

    def by_name(self, pattern: str) -> dict[str, int]:
        """Return the counters that match a pattern and moved, by name.

        With several nodes the names are prefixed with the node's.
        """
        deltas_of, named = self.view.deltas, self.view.named
        return {
            f"{host} {name}" if len(self.hosts) > 1 else name: value
            for host in self.hosts
            if host in deltas_of
            for name, value in deltas_of[host].matching(named(host, pattern)).items()
            if value != 0
        }

    @cached_property
    def facts(self) -> tuple[Facts, ...]:
        """The facts of those of which any are known."""
        return tuple(self.view.facts[host] for host in self.hosts if host in self.view.facts)

    def without(self, hook: str) -> bool:
        """Return whether the interfaces are known to have no program on a hook."""
        return {facts.environment.get(hook) for facts in self.facts} == {NOTHING_ATTACHED}

    @property
    def has_generic_xdp(self) -> bool:
        """Whether an XDP program of an interface runs in the stack."""
        return any(GENERIC_XDP in (facts.environment.get("xdp") or "") for facts in self.facts)

    @cached_property
    def machines(self) -> tuple[str, ...]:
        """Return the machines that the nodes are on, as ``machine_of`` names them.

        Each once, however many of the nodes are namespaces of it.
        """
        return tuple(dict.fromkeys(self.view.machine_of(host) for host in self.hosts))

    def machine_counter(self, pattern: str) -> int | None:
        """Return one counter's difference summed over the nodes' machines."""
        return known_sum(self.view.of_host(name, pattern) for name in self.machines)

    def machine_by_name(self, pattern: str) -> dict[str, int]:
        """Return the counters of the machines that match a pattern and moved, by name."""
        totals: Counter[str] = Counter()
        for machine in self.machines:
            if machine in self.view.deltas:
                totals.update(self.view.deltas[machine].matching(pattern))
        return {name: value for name, value in totals.items() if value != 0}

    def display(self, pattern: str) -> str:
        """Return a pattern as a reader may look it up: with the interface, or with a star."""
        names = {self.view.named(host, pattern) for host in self.hosts}
        general = self.view.in_family(pattern).replace("{interface}", "*").replace("{out}", "*")
        return names.pop() if len(names) == 1 else general


def _unnamed() -> Any:
    raise TypeError("name record and phase")


@dataclass(frozen=True, eq=False)
class Readings(CounterView):
    """One phase of one record; both have to be named (``kw_only`` is of Python 3.10)."""

    record: TrialRecord = field(default_factory=_unnamed)
    phase: Phase = field(default_factory=_unnamed)

    @cached_property
    def path(self) -> Readings | None:
        """The readings of the path phase; None where there was none."""
        return readings_of(self.record, "path")


AnyNode = NodeView[CounterView]
End = NodeView[Readings]
"""One end of the path in a phase."""


@lru_cache(maxsize=4096)
def _named(pattern: str, family: Literal[4, 6], interface: str, out: str) -> str:
    for placeholder, prefix in FAMILIES[family].items():
        pattern = pattern.replace(placeholder, prefix)
    return pattern.replace("{interface}", interface).replace("{out}", out)


def known_sum(values: Iterable[int | None]) -> int | None:
    """Return the sum of the values that are known; None where none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _has_machine(delta: Deltas) -> bool:
    return delta.has("softnet") or delta.has("cpu")


def nodes_of(record: TrialRecord) -> Nodes:
    """Return which hosts sent, which were sent to, and which nodes between have counters.

    With ``receive.workers: 0`` no worker names the receiver: it is the host with the address of a
    flow's destination.
    """
    senders = {spec.host for spec in record.workers if spec.role == "sender"}
    receivers = {spec.host for spec in record.workers if spec.role == "receiver"}
    targets = {flow.destination for spec in record.workers for flow in spec.flows}
    for host, facts in record.facts.items():
        if targets & facts.destinations and host not in record.between:
            receivers.add(host)
    nodes: dict[Part, tuple[str, ...]] = {
        "sender": tuple(sorted(senders)),
        "receiver": tuple(sorted(receivers - senders)),
    }
    for name, part in record.between.items():
        if any(name in phase.before for phase in record.phases):
            nodes[part] = (*nodes.get(part, ()), name)
    return nodes


def phase_readings(
    record: TrialRecord, phase: Phase, hosts: Iterable[str], within: CounterView | None = None
) -> Readings:
    """Return the readings of some hosts in a phase, or in a part of one."""
    return Readings(
        nodes=nodes_of(record),
        deltas=HostDeltas({host: (phase.before[host], phase.after[host]) for host in hosts}),
        facts=record.facts,
        traffic=record.trial.traffic,
        receive=record.trial.receive,
        built_in_lab=record.built_in_lab,
        selftests=record.selftests,
        exits=record.exits,
        bridges=record.bridges,
        wired=record.wired,
        specs=record.workers,
        stats=phase.stats,
        loss_workers=phase.losses,
        within=within,
        record=record,
        phase=phase,
    )


def readings_of(record: TrialRecord, name: PhaseName = "measured") -> Readings | None:
    """Return the readings of one phase; None if the record has no such phase."""
    for phase in record.phases:
        if phase.name == name:
            return phase_readings(record, phase, sorted({*phase.before} & {*phase.after}))
    return None
