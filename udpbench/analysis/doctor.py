"""What would distort a measurement on a host: one table of checks, from what was read to findings.

Pure. ``doctor`` has everything read for it, ``run`` only facts; a check of what was not read is
unknown, never ready. Limits and texts that a trial's findings share are those of ``checks``. Long,
because a check is a function and a row of one table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from ipaddress import ip_interface
from typing import Any, Literal, TypeVar

from udpbench.analysis.checks.cpu_checks import HYPERVISOR, NOTED, STRUCK
from udpbench.analysis.checks.host_checks import BUFFER_LIMIT, SHARED_PATH
from udpbench.analysis.delta import Deltas, deltas
from udpbench.analysis.rates import IDLE_TIMES, link_megabits
from udpbench.analysis.readings import known_sum
from udpbench.analysis.remedies import OTHER_CPUS, REMEDIES
from udpbench.cpu_lists import format_cpu_list
from udpbench.drivers import driver_of
from udpbench.host_settings import Settings, merged, set_keys
from udpbench.model.experiment import Flows, Receive
from udpbench.model.host import NOTHING_ATTACHED, WITHOUT, Facts, Inspection
from udpbench.model.lab import Lab, Node
from udpbench.model.limits import SECOND_NS
from udpbench.model.record import Examined, Finding
from udpbench.text_tables import filled, rows_of
from udpbench.units import show_ratio

MACHINE = "machine"
PERFORMANCE = "performance"
SLOW_CLOCKS = ("acpi_pm", "hpet", "jiffies", "pit", "refined-jiffies")
"""Reading them takes a system call and a device; the others are read in user space."""
VIRTUAL = ("bond", "bridge", "ipvlan", "macvlan", "team", "tun", "vlan", "vxlan")
"""Kinds of interface that pass packets on to another one."""
NEEDED_FEATURES = ("rx-checksum", "rx-gro", "tx-generic-segmentation")
TX_CHECKSUMS = ("tx-checksum-ip-generic", "tx-checksum-ipv4")
RIGHTS = ("net_admin", *WITHOUT)
PORT = int(Flows().to.rpartition(":")[2])
TRAFFIC_PPS = 100
"""More than ARP, neighbour discovery, LLDP and spanning tree make on a quiet link."""
IDLE_US = 10
"""Longest wake-up of an idle CPU; a shallow C-state takes 1 to 2 µs, a deep one over 100."""
WALL_NS = 10**7
"""Between the clocks of two hosts; chrony and ntpd keep them within 1 ms on one network."""
HASHED_PACKETS = 10_000
"""From here on a hash that acts has spread even little traffic."""
HASHED_SHARE = 0.99
STRICT = "1"
"""Mode of rp_filter (RFC 3704)."""

Known = TypeVar("Known")
Excess = Mapping[str, object]
"""``value``, what the row's ``limit``, ``key`` and ``setting`` name in braces, ``severity``, if it
is not the row's, and ``besides``, if more helps than the row says."""


class _Unknown(Exception):
    """What a check needs was not read."""


def require_read(value: Known | None) -> Known:
    """Return what was read; _Unknown if it was not."""
    if value is None:
        raise _Unknown
    return value


@dataclass(frozen=True)
class Subject:
    """One host as a check sees it."""

    examined: Examined
    host: Node | None
    """None: the machine of a built-in lab."""
    peers: tuple[Examined, ...] = ()
    """The other hosts of the lab."""

    @property
    def facts(self) -> Facts:
        """The facts of the host."""
        return self.examined.facts

    @property
    def inspection(self) -> Inspection:
        """What was read for readiness alone; _Unknown in a run."""
        return require_read(self.examined.inspection)

    @property
    def receives(self) -> bool:
        """Whether its RX queues carry the load."""
        return self.host is None or self.host.receives

    def environment(self, name: str) -> str:
        """Return a text of the environment; _Unknown if it was not read."""
        return require_read(self.facts.environment.get(name))

    @property
    def cpus(self) -> tuple[int, ...]:
        """CPUs that the lab gives to workers: those it lists, or all."""
        listed = self.host.cpus if self.host is not None else None
        return listed if listed is not None else self.facts.cpus

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses that the interface has, or has during a run."""
        own = self.host.addresses if self.host is not None else ()
        return tuple(dict.fromkeys((*self.facts.addresses, *own)))

    def share(self, cpu: int, times: Iterable[str]) -> float:
        """Return the share of a CPU's time between the two snapshots; _Unknown if not counted."""
        moved = self.moved
        spent_ns = known_sum(moved.values.get(f"cpu.{cpu}.{time}_ns") for time in times)
        if moved.elapsed_ns <= 0:
            raise _Unknown
        return require_read(spent_ns) / moved.elapsed_ns

    @cached_property
    def moved(self) -> Deltas:
        """What counters did between the two snapshots; _Unknown if there are none."""
        return deltas(require_read(self.examined.before), require_read(self.examined.after))

    def counters(self, pattern: str) -> dict[str, int]:
        """Return counters of the latest snapshot by what a pattern's first group matches."""
        counters = require_read(self.examined.after).counters
        matches = ((re.fullmatch(pattern, name), value) for name, value in counters.items())
        return {match.group(1): value for match, value in matches if match is not None}


@dataclass(frozen=True)
class ReadinessCheck:
    """One row: what is wrong if its function finds a value; ``remedies`` says what would help."""

    name: str
    severity: Literal["invalid", "struck", "warning", "note"]
    """That of the finding that a trial has, or deserves, for it."""
    scope: Literal["machine", "interface"]
    what: str
    limit: str

    @property
    def remedy(self) -> str:
        """What would help."""
        return REMEDIES[self.name].text

    @property
    def settings(self) -> str:
        """The line below ``settings:`` of a lab that mends it; empty if none does."""
        return REMEDIES[self.name].settings

    @property
    def excesses(self) -> Callable[[Subject], Iterator[Excess]]:
        """Its function, which yields each value beyond the limit, or raises _Unknown."""
        return FUNCTIONS[self.name]


@dataclass(frozen=True)
class Readiness:
    """What one check says of one host."""

    check: str
    host: str
    status: Literal["spoils", "unknown", "ready"]
    severity: Literal["invalid", "struck", "warning", "note"]
    what: str
    value: str | None = None
    limit: str = ""
    remedy: str = ""
    settings: str = ""

    @property
    def finding(self) -> Finding:
        """The same as a finding."""
        return Finding(self.severity, self.what, self.host, self.value, self.limit, self.remedy)


# --- one function per check ----------------------------------------------------------------------


def _beyond(shares: Mapping[int, float], limit: float) -> Iterator[Excess]:
    cpus = [cpu for cpu, share in shares.items() if share > limit]
    if cpus:
        up_to = "up to " if len(cpus) > 1 else ""
        value = f"{_named(cpus)}: {up_to}{show_ratio(max(shares.values()))}"
        yield {"value": value, "most": show_ratio(limit)}


def _named(cpus: Sequence[int]) -> str:
    return f"{'CPU' if len(cpus) == 1 else 'CPUs'} {format_cpu_list(cpus)}"


def steal(subject: Subject) -> Iterator[Excess]:
    """Find CPUs that a hypervisor took away, by the limits of a trial."""
    shares = {cpu: subject.share(cpu, ("steal",)) for cpu in subject.cpus}
    struck = list(_beyond(shares, STRUCK))
    yield from struck or ({**each, "severity": "warning"} for each in _beyond(shares, NOTED))


def busy(subject: Subject) -> Iterator[Excess]:
    """Find CPUs that something uses before any load is there."""
    idle = (*IDLE_TIMES, "steal")
    shares = {cpu: 1 - subject.share(cpu, idle) for cpu in subject.cpus}
    spare = set(subject.facts.cpus) - {cpu for cpu, share in shares.items() if share > STRUCK}
    for excess in _beyond(shares, STRUCK):
        # Sender and receiver of a built-in lab need one each.
        yield {**excess, "besides": OTHER_CPUS * (len(spare) > (subject.host is None))}


def governor(subject: Subject) -> Iterator[Excess]:
    """Find CPUs whose clock follows their load."""
    now = subject.environment("governor")
    if now != PERFORMANCE:
        yield {"value": now}


def turbo(subject: Subject) -> Iterator[Excess]:
    """Find CPUs whose clock depends on heat and on how many are busy."""
    if subject.environment("turbo") == "on":
        yield {"value": "on"}


def smt_siblings(subject: Subject) -> Iterator[Excess]:
    """Find cores of which workers or RX queues get more than one thread."""
    cpus = set(subject.cpus)
    if subject.receives:
        cpus.update(cpu for served in subject.facts.queue_cpus.values() for cpu in served)
    if not subject.facts.siblings:
        raise _Unknown
    cores = {subject.facts.siblings.get(str(cpu), (cpu,)) for cpu in sorted(cpus)}
    shared = [both for core in sorted(cores) if len(both := sorted(cpus.intersection(core))) > 1]
    if shared:
        more = f"; {len(shared)} cores in all" if len(shared) > 1 else ""
        yield {"value": f"{_named(shared[0])}{more}"}


def irqbalance(subject: Subject) -> Iterator[Excess]:
    """Find the daemon that moves interrupts."""
    if subject.environment("irqbalance") == "running":
        cpus = subject.cpus
        pinned = ",".join(map(str, cpus[: subject.facts.rx_queues or 1]))
        yield {"value": "running", "irq": f'irq: {{cpus: "{pinned}"}}' if subject.host else ""}


def clocksource(subject: Subject) -> Iterator[Excess]:
    """Find a clock that costs a system call."""
    now = subject.environment("clocksource")
    if now in SLOW_CLOCKS:
        yield {"value": now}


def mitigations(subject: Subject) -> Iterator[Excess]:
    """Find mitigations, which make system calls slower."""
    parts = subject.environment("mitigations").split("; ")
    mitigated = [part for part in parts if ": Mitigation" in part]
    if mitigated:
        yield {"value": ", ".join(part.partition(":")[0] for part in mitigated)}


def rights(subject: Subject) -> Iterator[Excess]:
    """Find what the agent may not do."""
    able = subject.facts.capabilities
    lacking = [name for name in RIGHTS if able.get(name) is False]
    if lacking:
        yield {"value": ", ".join(lacking)}
    elif not able:
        raise _Unknown


def buffer_limit(subject: Subject) -> Iterator[Excess]:
    """Find a limit below the default receive buffer, for an agent that cannot exceed it."""
    wanted_bytes = require_read(Receive().buffer_bytes)
    limit_bytes = require_read(subject.facts.limits.get(BUFFER_LIMIT["receiver"]))
    forced = require_read(subject.facts.capabilities.get("rcvbuf_force"))
    if subject.receives and limit_bytes < wanted_bytes and not forced:
        yield {"value": f"{limit_bytes} bytes", "wanted": wanted_bytes}


def link(subject: Subject) -> Iterator[Excess]:
    """Find an interface without a carrier."""
    if require_read(subject.facts.link) == "no carrier":
        yield {"value": f"{subject.facts.interface}: no carrier"}


def _is_virtual(subject: Subject) -> bool:
    """Tell whether an interface has neither a cable nor a card of its own."""
    return require_read(subject.facts.driver) in ("veth", *VIRTUAL)


def link_speed(subject: Subject) -> Iterator[Excess]:
    """Find half duplex, or a link that is slower than another of the lab."""
    if _is_virtual(subject):
        return
    now = subject.environment("link")
    speeds = [link_megabits(facts.environment.get("link")) for facts in _facts_of(subject.peers)]
    fastest = max((speed for speed in speeds if speed is not None), default=None)
    own = require_read(link_megabits(now))
    if "half" in now or (fastest is not None and own < fastest):
        yield {"value": now, "fastest": fastest if fastest is not None else own}


def _facts_of(peers: Iterable[Examined]) -> list[Facts]:
    return [peer.facts for peer in peers]


def mtu(subject: Subject) -> Iterator[Excess]:
    """Find an MTU below that of another host."""
    own = require_read(subject.facts.mtu)
    largest = max((require_read(facts.mtu) for facts in _facts_of(subject.peers)), default=own)
    if own < largest:
        yield {"value": str(own), "largest": largest}


def control_path(subject: Subject) -> Iterator[Excess]:
    """Find control traffic on the interface under test."""
    if subject.facts.environment.get("control_interface") == subject.facts.interface:
        yield {"value": f"SSH uses {subject.facts.interface}"}


def xdp(subject: Subject) -> Iterator[Excess]:
    """Find a program that sees packets before the kernel does."""
    now = subject.environment("xdp")
    if now != NOTHING_ATTACHED:
        yield {"value": now}


def stacked(subject: Subject) -> Iterator[Excess]:
    """Find an interface that passes packets on to another one, or gets them from one."""
    kind = require_read(subject.facts.driver)
    if kind in VIRTUAL:
        yield {"value": kind}
    else:
        for name in require_read(subject.inspection.stacked):
            yield {"value": name}


def _near(subject: Subject) -> set[int]:
    """Return the CPUs of the card's node; none where there is but one node."""
    nodes = subject.facts.numa_nodes
    if len(nodes) == 1:
        return set()
    return set(require_read(nodes.get(str(require_read(subject.facts.interface_node)))))


def worker_nodes(subject: Subject) -> Iterator[Excess]:
    """Find CPUs that the lab lists for workers, far from the card."""
    near, listed = _near(subject), subject.host.cpus if subject.host is not None else None
    far = sorted({*(listed or ())} - near) if near else []
    if far:
        yield {"value": _named(far), "node": subject.facts.interface_node}


def queue_nodes(subject: Subject) -> Iterator[Excess]:
    """Find RX queues served by CPUs far from the card."""
    near = _near(subject)
    if not subject.receives or not near:
        return
    served = subject.facts.queue_cpus
    if not served:
        raise _Unknown
    far = sorted({cpu for cpus in served.values() for cpu in cpus} - near)
    if far:
        usable = [cpu for cpu in subject.cpus if cpu in near] or sorted(near)
        yield {
            "value": _named(far),
            "node": subject.facts.interface_node,
            "cpus": ",".join(map(str, usable[: len(served)])),
        }


def single_queue(subject: Subject) -> Iterator[Excess]:
    """Find a receiver of several CPUs that takes all packets on one."""
    if subject.receives and len(subject.cpus) > 1 and require_read(subject.facts.rx_queues) == 1:
        yield {"value": "1", "cpus": len(subject.cpus)}


def ring(subject: Subject) -> Iterator[Excess]:
    """Find an RX ring of less than half of what the card has."""
    if not subject.receives or _is_virtual(subject):
        return
    now, largest = (require_read(subject.facts.rings.get(name)) for name in ("rx", "rx-max"))
    if 2 * now < largest:
        yield {"value": str(now), "least": largest // 2, "largest": largest}


def offloads(subject: Subject) -> Iterator[Excess]:
    """Find offloads that would save the kernel work."""
    enabled = subject.environment("offloads").split()
    missing = [name for name in NEEDED_FEATURES if name not in enabled]
    if not any(name in enabled for name in TX_CHECKSUMS):
        missing.append(TX_CHECKSUMS[0])
    for name in missing:
        yield {"value": name, "feature": name}


def reverse_path(subject: Subject) -> Iterator[Excess]:
    """Find strict reverse path filtering on an interface with several addresses."""
    if subject.environment("rp_filter") == STRICT and len(subject.addresses) > 1:
        yield {"value": f"strict, {len(subject.addresses)} addresses"}


def idle_states(subject: Subject) -> Iterator[Excess]:
    """Find C-states from which an idle CPU wakes up late."""
    states = require_read(subject.inspection.idle_states_us)
    deepest = max(states, key=lambda name: states[name], default=None)
    if deepest is not None and states[deepest] > IDLE_US:
        yield {"value": f"{deepest}: {states[deepest]} µs"}


def clock_synchronised(subject: Subject) -> Iterator[Excess]:
    """Find a clock that nothing keeps."""
    if not require_read(subject.inspection.wall_synchronised):
        yield {"value": "free-running"}


def clock_offset(subject: Subject) -> Iterator[Excess]:
    """Find a clock that differs from that of a host before this one."""
    own = subject.examined
    for peer in subject.peers:
        if peer.facts.host > own.facts.host:
            continue
        difference_ns = require_read(own.wall_offset_ns) - require_read(peer.wall_offset_ns)
        surely_ns = (
            abs(difference_ns) - require_read(own.wall_bound_ns) - require_read(peer.wall_bound_ns)
        )
        if surely_ns > WALL_NS:
            yield {"value": f"{difference_ns / SECOND_NS:+.3f} s to {peer.facts.host}"}


def pcie(subject: Subject) -> Iterator[Excess]:
    """Find a slot narrower or slower than its card."""
    attributes = require_read(subject.inspection.pcie)
    for what, unit in (("width", " lanes"), ("speed", " GT/s")) if attributes else ():
        numbers = [
            re.match(
                r"[0-9]{1,6}(\.[0-9]{1,3})?(?![0-9.])", attributes.get(f"{which}_link_{what}", "")
            )
            for which in ("current", "max")
        ]
        now, most = (require_read(number).group() for number in numbers)
        if float(now) < float(most):
            yield {"value": f"{now}{unit}", "most": f"{most}{unit}"}


def pause(subject: Subject) -> Iterator[Excess]:
    """Find flow control, which makes a full receiver look like a slow sender."""
    now = require_read(subject.inspection.pause)
    enabled = [way for way in ("rx", "tx") if now.get(way)]
    if enabled:
        yield {"value": f"{' and '.join(enabled)} on"}


def flow_hash(subject: Subject) -> Iterator[Excess]:
    """Find a flow hash without ports, by which all flows of two hosts take one queue."""
    if subject.receives and require_read(subject.facts.rx_queues) > 1:
        letters = require_read(subject.inspection.flow_hash)
        if not {"f", "n"} <= set(letters):
            yield {"value": letters or "none"}


def flow_hash_idle(subject: Subject) -> Iterator[Excess]:
    """Find a hash that includes ports, and nearly all packets since boot on one queue."""
    if not subject.receives or require_read(subject.facts.rx_queues) == 1:
        return
    if not {"f", "n"} <= set(require_read(subject.inspection.flow_hash)):
        return
    prefix = re.escape(f"ethtool.{subject.facts.interface}.")
    for pattern in driver_of(subject.facts).queue_packets:
        packets = subject.counters(prefix + pattern)
        if packets:
            total, most = sum(packets.values()), max(packets, key=lambda queue: packets[queue])
            if total >= HASHED_PACKETS and packets[most] > HASHED_SHARE * total:
                share = show_ratio(packets[most] / total)
                yield {"value": f"queue {most}: {share} of {total} packets"}
            return
    raise _Unknown


def conntrack(subject: Subject) -> Iterator[Excess]:
    """Find connection tracking, which looks every packet up."""
    count = require_read(subject.inspection.tracked_connections)
    if count:
        yield {"value": f"{count} connections", "port": PORT}


def firewall(subject: Subject) -> Iterator[Excess]:
    """Find rules that packets pass, or chains that drop by default."""
    chains = require_read(subject.inspection.firewall)
    if chains:
        more = f"; {len(chains)} chains in all" if len(chains) > 1 else ""
        yield {"value": f"{chains[0]}{more}", "port": PORT}


def tc_filter(subject: Subject) -> Iterator[Excess]:
    """Find filters that see packets before the IP layer."""
    ingress = rf"(qdisc\.{re.escape(subject.facts.interface)}\.ingress)\..*"
    if subject.counters(ingress):
        yield {"value": "a qdisc on ingress"}
    else:
        now = subject.environment("tcx")
        if now != NOTHING_ATTACHED:
            yield {"value": f"tcx: {now}"}


def listeners(subject: Subject) -> Iterator[Excess]:
    """Find a socket on the port that experiments use unless they say otherwise."""
    if PORT in require_read(subject.inspection.udp_ports):
        yield {"value": f"UDP port {PORT}"}


def traffic(subject: Subject) -> Iterator[Excess]:
    """Find packets on the interface before any load is there."""
    moved = subject.moved
    names = (f"link.{subject.facts.interface}.{way}_packets" for way in ("rx", "tx"))
    packets = sum(require_read(moved.values.get(name)) for name in names)
    rate_pps = packets * SECOND_NS // max(moved.elapsed_ns, 1)
    if rate_pps > TRAFFIC_PPS:
        yield {"value": f"{rate_pps} pps"}


def arp_flux(subject: Subject) -> Iterator[Excess]:
    """Find another interface of the same network, which answers ARP for this one's addresses."""
    arp = require_read(subject.inspection.arp)
    if arp.get("arp_ignore", 0) or arp.get("arp_filter", 0):
        return
    own = {ip_interface(address).network for address in subject.addresses}
    for other, addresses in require_read(subject.inspection.other_addresses).items():
        if any(ip_interface(address).network in own for address in addresses):
            yield {"value": f"{other} is in the same network"}


_TABLE = """\
link | invalid | interface | the link has no carrier | up
steal | struck | machine | <steal> | at most <most>
busy | struck | machine | CPUs are busy before any load | at most <most>
traffic | warning | interface | the interface carries other traffic | at most <traffic> pps
control_path | warning | interface | <shared_path> | an interface of its own
listeners | warning | interface | another program listens on the default port | none
firewall | warning | interface | firewall rules see every packet | none
conntrack | warning | interface | connections are tracked | none
xdp | warning | interface | an XDP program sees every packet | none
tc_filter | warning | interface | tc filters see every packet | none
stacked | warning | interface | the interface is stacked on or below another | a card alone
mtu | warning | interface | the MTU differs between hosts | <largest>
link_speed | warning | interface | the link is slow or half duplex | full duplex, <fastest> Mb/s
pcie | warning | interface | the PCIe link is below what the card can do | <most>
queue_nodes | warning | interface | RX queues are served on another NUMA node | node <node>
worker_nodes | warning | interface | workers run on another NUMA node than the card's | node <node>
single_queue | warning | interface | all packets take one RX queue | several
flow_hash | warning | interface | the flow hash ignores ports | sdfn
flow_hash_idle | warning | interface | the flow hash was accepted but has no effect | packets on
  several queues
ring | warning | interface | the RX ring is small | at least <least>
pause | warning | interface | pause frames slow down the sender | off
offloads | warning | interface | an offload is off | on
reverse_path | warning | interface | reverse path filtering is strict | loose (2) or off (0)
arp_flux | warning | interface | another interface answers ARP for its addresses | one per network
governor | warning | machine | the governor is not performance | performance
idle_states | warning | machine | idle CPUs wake up late | at most <idle> µs
irqbalance | warning | machine | irqbalance may move interrupts | stopped
smt_siblings | warning | machine | CPUs of one core share its execution units | one of each core
buffer_limit | warning | machine | the receive buffer's limit is small | at least <wanted> bytes
rights | warning | machine | the agent lacks rights | all of them
clocksource | warning | machine | reading the clock is slow | tsc or similar
turbo | note | machine | the CPUs' clock depends on heat and load | off
mitigations | note | machine | mitigations make system calls slower | none
clock_synchronised | note | machine | nothing synchronises the clock | synchronised
clock_offset | note | machine | the clocks of two hosts differ | at most <wall> ms
"""
WORDS: Mapping[str, object] = {
    "steal": HYPERVISOR[0],
    "shared_path": SHARED_PATH[0],
    "traffic": TRAFFIC_PPS,
    "idle": IDLE_US,
    "wall": WALL_NS // 10**6,
}
"""What rows share with the checks of a trial, and limits."""


READINESS = tuple(
    ReadinessCheck(*(filled(cell, WORDS) for cell in row))  # type: ignore[arg-type]
    for row in rows_of(_TABLE)
)
"""Every check, worst first."""
FUNCTIONS: Mapping[str, Callable[[Subject], Iterator[Excess]]] = {
    function.__name__: function
    for function in (
        link, steal, busy, traffic, control_path, listeners, firewall, conntrack, xdp,
        tc_filter, stacked, mtu, link_speed, pcie, queue_nodes, worker_nodes, single_queue,
        flow_hash, flow_hash_idle, ring, pause, offloads, reverse_path, arp_flux, governor,
        idle_states, irqbalance, smt_siblings, buffer_limit, rights, clocksource, turbo,
        mitigations, clock_synchronised, clock_offset,
    )
}  # fmt: skip


# --- all of them ---------------------------------------------------------------------------------


def assess(hosts: Sequence[Examined], lab: Lab) -> tuple[Readiness, ...]:
    """Return what every check says of every host, worst first, unknown before ready.

    Of a built-in lab only its machine is checked: the interfaces are made by a run. What the lab's
    own settings will set is ready.
    """
    order = {"spoils": 0, "unknown": 1, "ready": 2}
    results = [
        readiness
        for check in READINESS
        if check.scope == MACHINE or not lab.built_in
        for examined in hosts
        for readiness in _check(check, _subject(examined, hosts, lab), lab)
    ]
    return tuple(sorted(results, key=lambda readiness: order[readiness.status]))


def _subject(examined: Examined, hosts: Sequence[Examined], lab: Lab) -> Subject:
    own = next((host for host in lab.hosts if host.name == examined.facts.host), None)
    peers = tuple(other for other in hosts if other is not examined)
    return Subject(examined, None if lab.built_in else own, peers)


def _check(check: ReadinessCheck, subject: Subject, lab: Lab) -> Iterator[Readiness]:
    plain = Readiness(check.name, subject.facts.host, "ready", check.severity, check.what)
    try:
        excesses = list(check.excesses(subject))
    except _Unknown:
        yield replace(plain, status="unknown")
        return
    hosts = lab.hosts if subject.host is None else (subject.host,)
    blocks = [merged(lab.settings.get(host.part, Settings()), host.settings) for host in hosts]
    distorting = []
    for excess in excesses:
        words = {"interface": subject.facts.interface, **excess}
        line = filled(check.settings, words)
        if not any(_is_set(line, block) for block in blocks):
            limit = filled(check.limit, words)
            remedy = filled(check.remedy, words) + str(excess.get("besides", ""))
            severity: Any = excess.get("severity", check.severity)
            readiness = replace(plain, status="spoils", severity=severity, limit=limit)
            readiness = replace(readiness, value=str(excess["value"]))
            distorting.append(replace(readiness, remedy=remedy, settings=line))
    yield from distorting or [plain]


def _is_set(line: str, settings: Settings) -> bool:
    """Tell whether settings have the innermost key of a line, so that a run sets it."""
    block: Any = set_keys(settings)
    for key in (*re.findall(r"([\w./-]+): \{", line), *re.findall(r"([\w./-]+):", line)[-1:]):
        name = key if key in block else key.replace("-", "_")
        units = rf"{re.escape(name)}(_[a-z]+)?"
        block = next((block[own] for own in block if re.fullmatch(units, own)), None)
        if block is None:
            return False
    return bool(line)


def most_distorting(hosts: Iterable[Facts], lab: Lab, count: int = 3) -> tuple[Readiness, ...]:
    """Return the worst that a run's own facts show."""
    facts = tuple(hosts)
    if lab.built_in:  # one machine, seen from each of its namespaces
        facts = tuple(replace(each, host=MACHINE, interface="") for each in facts[:1])
    results = assess([Examined(each) for each in facts], lab)
    return tuple(readiness for readiness in results if readiness.status == "spoils")[:count]
