"""The desired settings of one host, in the order in which they must be applied.

The lab's settings below, the experiment's on top, and what a built-in lab needs beneath both. Pure:
no host is asked; what must be known of hosts comes in as a LabContext.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from udpbench.definition import card, faults
from udpbench.definition.host_block import HostBlock, LabContext
from udpbench.definition.placement import Unavailable
from udpbench.definition.problems import Place, at, raise_all
from udpbench.definition.ranges import addresses_of
from udpbench.model import Host, Lab, Scope, Setting, Trial

NAMESPACED_CORE = (
    "somaxconn",
    "rps_default_mask",
    "optmem_max",
    "tstamp_allow_data",
    "txrehash",
)
MACHINE_WIDE_IPV4 = ("udp_mem", "tcp_mem", "fib_sync_mem", "tcp_max_orphans", "tcp_low_latency")
# Of a namespace is what stands writable in /proc/sys/net of a child namespace, 6.18.


def _explain(wanted: HostBlock) -> Iterator[Setting]:
    """Ask for a second opinion; a host that cannot give it is a finding, and measures."""
    if wanted.explain:
        yield Setting("explain", "drops", True, path="explain", optional=True)


Part = Callable[[HostBlock], Iterator[Setting]]


def settings_for(
    lab: Lab, trial: Trial | None, host: Host, context: LabContext
) -> tuple[Setting, ...]:
    """Return every setting of one host in the order of application; trial None: the lab's own.

    In a built-in lab what the machine shares is left to ``machine_settings_for``. Raises
    Unavailable where the lab asks for CPUs that the host does not have, or for a link to be made
    between hosts of their own.
    """
    wanted = HostBlock(lab, trial, host, context)
    if not lab.built_in and "link" in wanted.block:
        what = f"settings.{host.role}.link: only a built-in lab makes its link; --lab is {lab.name}"
        raise Unavailable(f"{what}; write needs: {{lab: true}}, or leave it out")
    return tuple(
        setting
        for part in ORDER
        for setting in part(wanted)
        if not (lab.built_in and setting.scope == "machine")
    )


def machine_settings_for(lab: Lab, trial: Trial | None, context: LabContext) -> tuple[Setting, ...]:
    """Return what a built-in lab sets for the whole machine; InputError where hosts disagree.

    Raises Unavailable where the lab asks for CPUs that the host does not have.
    """
    if not lab.built_in:
        return ()
    found: dict[tuple[str, str], Setting] = {}
    problems = []
    for setting in _shared(lab, trial, context):
        other = found.setdefault((setting.kind, setting.target), setting)
        if other.value != setting.value:
            what = f"{other.path} says {other.value}, and both are this machine"
            place = Place(trial.experiment if trial is not None else lab.name)
            step = "set it once"
            problems.append(at(place, setting.path, what, "", step, str(setting.value)))
    raise_all(problems)
    return tuple(found.values())


def _shared(lab: Lab, trial: Trial | None, context: LabContext) -> Iterator[Setting]:
    """Yield what each host asks of the machine, part by part, so that the order holds for all."""
    blocks = [HostBlock(lab, trial, host, context) for host in lab.hosts]
    for part in MACHINE_ORDER:
        for block in blocks:
            yield from (setting for setting in part(block) if setting.scope == "machine")


def mac_of(lab: Lab, host: Host) -> str:
    """Return a host's locally administered MAC: ``ub`` in ASCII, then role and number."""
    peers = lab.senders if host.role == "sender" else lab.receivers
    role = 1 if host.role == "sender" else 2
    number = [peer.name for peer in peers].index(host.name) + 1
    return f"02:75:62:{role:02x}:{number // 256:02x}:{number % 256:02x}"


def end_of_link(lab: Lab, trial: Trial | None, host: Host, context: LabContext) -> tuple[int, str]:
    """Return how many queues a built-in host's interface has, and who does the receive work."""
    wanted = HostBlock(lab, trial, host, context)
    return wanted.link_queues, wanted.receive


def _link(wanted: HostBlock) -> Iterator[Setting]:
    if wanted.built_in_receiver and not wanted.lab.bridged:
        sender = wanted.lab.senders[0]
        value = {
            "peer": sender.interface,
            "peer_pid": wanted.context.pids.get(sender.name),
            "peer_mac": mac_of(wanted.lab, sender),
            "mac": mac_of(wanted.lab, wanted.host),
            "queues": wanted.link_queues,
        }
        yield wanted.setting("link", "", value, "link")


def _coming_queues(wanted: HostBlock) -> Iterator[Setting]:
    """Give queues their RPS as they are made, where only root may do so afterwards."""
    lab_rps = wanted.built_in_receiver and wanted.receive == "rps" and wanted.without_root
    if lab_rps and not wanted.lab.bridged:
        cpus = list(wanted.cpus)
        yield wanted.beyond("rps_default", "queues", cpus, "link.receive")


def _quiet(wanted: HostBlock) -> Iterator[Setting]:
    """Keep IPv6's own packets away while the link is down: they would count as foreign ones.

    IPv6 is off, and where it carries the traffic it announces nothing but its multicast groups,
    once, at once. A kernel without IPv6 has nothing to switch off.
    """
    if not wanted.lab.built_in:
        return
    conf = f"net/ipv6/conf/{wanted.host.interface}"
    silent = {f"{conf}/disable_ipv6": 1}
    if wanted.family == 6:
        silent = {
            f"{conf}/disable_ipv6": 0,
            f"{conf}/addr_gen_mode": 1,
            f"{conf}/router_solicitations": 0,
            f"{conf}/mldv2_unsolicited_report_interval": MLD_REPORT_MS,
        }
    for name, value in silent.items():
        optional = wanted.family == 4
        yield Setting("sysctl", name, value, path=wanted.path("link"), optional=optional)


def is_machine_wide(name: str) -> bool:
    """Return whether a sysctl belongs to the machine and not to a network namespace."""
    # As in sysctl(8), the first separator says which one it is.
    separator = "/" if "/" in name.partition(".")[0] else "."
    top, room, rest = (*name.split(separator, 2), "", "")[:3]
    if (top, room) == ("net", "core"):
        return rest not in NAMESPACED_CORE
    if (top, room) == ("net", "ipv4"):
        return rest in MACHINE_WIDE_IPV4
    return top != "net"


def _sysctls(wanted: HostBlock) -> Iterator[Setting]:
    for name, value in wanted.block.get("sysctl", {}).items():
        scope: Scope = "machine" if is_machine_wide(name) else "namespace"
        yield wanted.beyond("sysctl", name, value, f"sysctl.{name}", scope)


def _power(wanted: HostBlock) -> Iterator[Setting]:
    """Set what the CPUs do; irqbalance would move the interrupts that ``irq`` pins."""
    if "irq" in wanted.block:
        yield wanted.beyond("irqbalance", "irqbalance", False, "irq", "machine")
    cpu = wanted.block.get("cpu", {})
    for key in ("governor", "turbo"):
        if key in cpu:
            yield wanted.beyond(key, "cpus", cpu[key], f"cpu.{key}", "machine")
    if "latency_ns" in cpu:
        latency_us = cpu["latency_ns"] // 1000
        yield wanted.beyond("cpu_latency", "cpus", latency_us, "cpu.latency", "machine")


def _sizes(wanted: HostBlock) -> Iterator[Setting]:
    for kind, key in (("mtu", "mtu_bytes"), ("txqueuelen", "txqueuelen_packets")):
        if key in wanted.block:
            yield wanted.setting(kind, "", wanted.block[key], kind)


def _up(wanted: HostBlock) -> Iterator[Setting]:
    if wanted.lab.built_in:
        yield wanted.setting("up", "", True, "link")
    else:
        host = wanted.host
        yield Setting("up", host.interface, True, path=f"{host.role}.interface")


def _added(wanted: HostBlock) -> tuple[str, ...]:
    more = [one for text in wanted.block.get("addresses", ()) for one in addresses_of(text)]
    wanted_ones = dict.fromkeys([*wanted.host.addresses, *more])
    # A built-in lab has those alone that carry traffic, so that nothing else speaks there.
    return tuple(
        one
        for one in wanted_ones
        if not wanted.lab.built_in or (":" in one) == (wanted.family == 6)
    )


def _unclaimed(wanted: HostBlock) -> Iterator[Setting]:
    """Have nobody on a real link answer for what is to be added; in a built-in lab nobody is."""
    new = [one.partition("/")[0] for one in _added(wanted)]
    if new and not wanted.lab.built_in:
        yield wanted.setting("unclaimed", ",".join(new), {}, "addresses")


def _addresses(wanted: HostBlock) -> Iterator[Setting]:
    for address in _added(wanted):
        yield wanted.setting("address", address, True, "addresses")


def _neighbours(wanted: HostBlock) -> Iterator[Setting]:
    """Make them permanent both ways in a built-in lab, so that no ARP is in queues and counters.

    Between real hosts only those that were asked for: a switch forgets a host that never sends.
    """
    found: dict[str, tuple[str, str]] = {}
    if wanted.lab.built_in:
        lab = wanted.lab
        for other in lab.senders if wanted.host.role == "receiver" else lab.receivers:
            for address in other.addresses:
                if (":" in address) != (wanted.family == 6):
                    continue
                found[address.partition("/")[0]] = (mac_of(lab, other), "link")
    for text in wanted.block.get("neighbours", ()):
        ip, _, mac = text.partition(" ")
        found[ip] = (mac, "neighbours")
    for ip, (mac, path) in found.items():
        yield wanted.setting("neighbour", ip, mac, path)


def _routes(wanted: HostBlock) -> Iterator[Setting]:
    for text in wanted.block.get("routes", ()):
        network, _, gateway = text.partition(" via ")
        yield wanted.setting("route", network, gateway, "routes")


def _qdisc(wanted: HostBlock) -> Iterator[Setting]:
    """Set the root queue: one that was asked for, or what gives the lab's link its rate."""
    rate_bps = wanted.link.get("rate_bps")
    if rate_bps is not None and wanted.host.role == "sender":
        if "qdisc" in wanted.block:
            what = f"the root queue of {wanted.host.interface} gives the link its rate"
            step = "leave out settings.receiver.link.rate or settings.sender.qdisc"
            raise Unavailable(f"settings.sender.qdisc: {what}; {step}")
        yield wanted.setting("qdisc", "", card.cable(rate_bps, wanted.block), "link.rate")
    if "qdisc" in wanted.block:
        yield wanted.setting("qdisc", "", wanted.block["qdisc"], "qdisc")


def _firewall(wanted: HostBlock) -> Iterator[Setting]:
    """Make rules for one port; each goes before those that are there, so the last one wins."""
    rules = wanted.block.get("firewall", {})
    receiving = wanted.host.role == "receiver"
    chains = []
    if rules.get("accept"):
        chains.append(("accept", "input" if receiving else "output"))
    if rules.get("notrack"):
        chains.append(("notrack", "prerouting" if receiving else "output"))
    if rules.get("drop", "none") != "none":
        chains.append(("drop", rules["drop"]))
    for verdict, chain in chains:
        target = f"ipv{wanted.family}/{chain}/{verdict}/udp/{rules['udp']}"
        yield wanted.beyond("firewall", target, True, f"firewall.{verdict}")


ORDER: tuple[Part, ...] = (
    _coming_queues,
    _link,
    _quiet,
    _sysctls,
    card.flow_table,
    _power,
    card.shape,
    card.features,
    _sizes,
    _up,
    _unclaimed,
    _addresses,
    _neighbours,
    _routes,
    card.queue_choice,
    card.polling,
    card.interrupts,
    card.steering,
    _qdisc,
    _firewall,
    faults.settings,
    _explain,
)
"""Channels take the rest of a card along when they change, and a link that flaps takes addresses
and routes along; so what is lost thereby comes after it."""

MLD_REPORT_MS = 20
"""A whole number of ticks at any CONFIG_HZ; else it does not read back as it was asked for."""

MACHINE_ORDER: tuple[Part, ...] = (_sysctls, card.flow_table, _power, card.interrupts)
"""Parts of which something belongs to the machine."""
