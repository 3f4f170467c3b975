"""The desired settings of one host, in the order in which they must be applied.

The lab's settings below, the experiment's on top, and what a built-in lab needs beneath both. Pure:
no host is asked; what must be known of hosts comes in as a LabContext.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from udpbench.definition.override import merge
from udpbench.definition.placement import Unavailable, host_cpus
from udpbench.definition.problems import Place, Tree, at, raise_all
from udpbench.definition.ranges import addresses_of, parse_cpus
from udpbench.model import Facts, Host, Lab, Scope, Setting, Trial

TSO_FEATURES = (
    "tx-tcp-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp6-segmentation",
)
"""All off on the sender, or veth takes no UDP into NAPI (veth_skb_is_eligible_for_gro, 6.18)."""

FEATURE_GROUPS = {
    "gro": ("rx-gro",),
    "lro": ("rx-lro",),
    "gso": ("tx-generic-segmentation",),
    "tso": TSO_FEATURES,
}
"""Names that ethtool has for one or more kernel features."""

NAMESPACED_CORE = (
    "somaxconn",
    "rps_default_mask",
    "optmem_max",
    "tstamp_allow_data",
    "txrehash",
)
MACHINE_WIDE_IPV4 = ("udp_mem", "tcp_mem", "fib_sync_mem", "tcp_max_orphans", "tcp_low_latency")
# Of a namespace is what stands writable in /proc/sys/net of a child namespace, 6.18.


@dataclass(frozen=True)
class LabContext:
    """What settings need to know of the lab while it runs."""

    pids: Mapping[str, int] = field(default_factory=dict)
    """Host → process id of its agent."""
    facts: Mapping[str, Facts] = field(default_factory=dict)


def settings_for(
    lab: Lab, trial: Trial | None, host: Host, context: LabContext
) -> tuple[Setting, ...]:
    """Return every setting of one host in the order of application; trial None: the lab's own.

    In a built-in lab what the machine shares is left to ``machine_settings_for``. Raises
    Unavailable where the lab asks for CPUs that the host does not have, or for a link to be made
    between hosts of their own.
    """
    wanted = _Wanted(lab, trial, host, context)
    if not lab.built_in and "link" in wanted.block:
        what = f"settings.{host.role}.link: only a built-in lab makes its link; --lab is {lab.name}"
        raise Unavailable(f"{what}; write needs: {{lab: true}}, or leave it out")
    return tuple(
        setting
        for part in _ORDER
        for setting in part(wanted)
        if not (lab.built_in and setting.scope == "machine")
    )


def machine_settings_for(lab: Lab, trial: Trial | None) -> tuple[Setting, ...]:
    """Return what a built-in lab sets for the whole machine; InputError where hosts disagree."""
    if not lab.built_in:
        return ()
    found: dict[str, Setting] = {}
    problems = []
    for host in lab.hosts:
        wanted = _Wanted(lab, trial, host, LabContext())
        for setting in _sysctls(wanted):
            if setting.scope != "machine":
                continue
            other = found.setdefault(setting.target, setting)
            if other.value != setting.value:
                what = f"{other.path} says {other.value}, and both are this machine"
                place = Place(trial.experiment if trial is not None else lab.name)
                step = "set it once"
                problems.append(at(place, setting.path, what, "", step, str(setting.value)))
    raise_all(problems)
    return tuple(found.values())


class _Wanted:
    """One host's blocks put together."""

    def __init__(self, lab: Lab, trial: Trial | None, host: Host, context: LabContext) -> None:
        self.lab = lab
        self.host = host
        self.context = context
        self.block = block_of(lab, trial, host)
        self.optional = set(self.block.get("optional", []))
        receiver = host if host.role == "receiver" else lab.receivers[0]
        self.link = block_of(lab, trial, receiver).get("link", {})

    def setting(self, kind: str, target: str, value: Any, path: str) -> Setting:
        """Return a setting on this host; ``target`` is below its interface."""
        interface = self.host.interface
        full = f"{interface}/{target}" if target else interface
        return Setting(kind, full, value, path=self.path(path), optional=self.is_optional(path))

    def path(self, path: str) -> str:
        return f"settings.{self.host.role}.{path}"

    def is_optional(self, path: str) -> bool:
        return any(path == name or path.startswith(f"{name}.") for name in self.optional)

    @property
    def built_in_receiver(self) -> bool:
        return self.lab.built_in and self.host.role == "receiver"

    @property
    def receive(self) -> str:
        return str(self.link.get("receive", "napi"))

    @property
    def cpus(self) -> tuple[int, ...]:
        """The CPUs that serve the receiver's queues: queue k on the k-th, wrapping round."""
        named = self.link.get("cpus", "lab")
        if named != "lab":
            return parse_cpus(named)
        receiver = self.host if self.host.role == "receiver" else self.lab.receivers[0]
        return host_cpus(self.lab, receiver, self.context.facts)

    @property
    def queues(self) -> int:
        """RX queues of this host's interface: the link's, else those it was found to have."""
        if self.lab.bridged and self.host.role == "sender":
            return 1
        if self.lab.built_in:
            named = self.link.get("queues", "auto")
            return len(self.cpus) if named == "auto" else int(named)
        facts = self.context.facts.get(self.host.name)
        return facts.rx_queues or 1 if facts is not None else 1


def block_of(lab: Lab, trial: Trial | None, host: Host) -> dict[str, Any]:
    """Return a host's settings: the lab's for its role, its own, then the experiment's on top."""
    blocks = [lab.settings.get(host.role, {}), host.settings]
    if trial is not None:
        blocks.append(trial.settings.get(host.role, {}))
    result: dict[str, Any] = {}
    for block in blocks:
        optional = [*result.get("optional", []), *block.get("optional", [])]
        # A device has one root queue: another kind replaces it instead of joining it.
        if "qdisc" in block:
            result = {key: value for key, value in result.items() if key != "qdisc"}
        result = merge(Tree(result, Place("")), Tree(block, Place(""))).data
        if optional:
            result = {**result, "optional": optional}
    return result


def mac_of(lab: Lab, host: Host) -> str:
    """Return a host's locally administered MAC: ``ub`` in ASCII, then role and number."""
    peers = lab.senders if host.role == "sender" else lab.receivers
    role = 1 if host.role == "sender" else 2
    number = [peer.name for peer in peers].index(host.name) + 1
    return f"02:75:62:{role:02x}:{number // 256:02x}:{number % 256:02x}"


def end_of_link(lab: Lab, trial: Trial | None, host: Host, context: LabContext) -> tuple[int, str]:
    """Return how many queues a built-in host's interface has, and who does the receive work."""
    wanted = _Wanted(lab, trial, host, context)
    return wanted.queues, wanted.receive


def _link(wanted: _Wanted) -> Iterator[Setting]:
    if wanted.built_in_receiver and not wanted.lab.bridged:
        sender = wanted.lab.senders[0]
        value = {
            "peer": sender.interface,
            "peer_pid": wanted.context.pids.get(sender.name),
            "peer_mac": mac_of(wanted.lab, sender),
            "mac": mac_of(wanted.lab, wanted.host),
            "queues": wanted.queues,
        }
        yield wanted.setting("link", "", value, "link")


def _quiet(wanted: _Wanted) -> Iterator[Setting]:
    """IPv6 off while the link is down: its neighbour discovery would count as foreign packets."""
    if wanted.lab.built_in:
        name = f"net.ipv6.conf.{wanted.host.interface}.disable_ipv6"
        # A kernel without IPv6 has nothing to switch off.
        yield Setting("sysctl", name, 1, path=wanted.path("link"), optional=True)


def is_machine_wide(name: str) -> bool:
    """Return whether a sysctl belongs to the machine and not to a network namespace."""
    top, room, rest = (*name.split(".", 2), "", "")[:3]
    if (top, room) == ("net", "core"):
        return rest not in NAMESPACED_CORE
    if (top, room) == ("net", "ipv4"):
        return rest in MACHINE_WIDE_IPV4
    return top != "net"


def _sysctls(wanted: _Wanted) -> Iterator[Setting]:
    for name, value in wanted.block.get("sysctl", {}).items():
        path = f"sysctl.{name}"
        scope: Scope = "machine" if is_machine_wide(name) else "namespace"
        yield Setting("sysctl", name, value, scope, wanted.path(path), wanted.is_optional(path))


def _sizes(wanted: _Wanted) -> Iterator[Setting]:
    for kind, key in (("mtu", "mtu_bytes"), ("txqueuelen", "txqueuelen_packets")):
        if key in wanted.block:
            yield wanted.setting(kind, "", wanted.block[key], kind)


def _features(wanted: _Wanted) -> Iterator[Setting]:
    found: dict[str, tuple[bool, str]] = {}
    if wanted.lab.built_in and wanted.receive == "napi":
        if wanted.built_in_receiver:
            found["rx-gro"] = (True, "link.receive")
        elif not wanted.lab.bridged:
            found = dict.fromkeys(TSO_FEATURES, (False, "link.receive"))
    for name, value in wanted.block.get("ethtool", {}).get("features", {}).items():
        for feature in FEATURE_GROUPS.get(name, (name,)):
            found[feature] = (value, f"ethtool.features.{name}")
    for feature, (value, path) in found.items():
        yield wanted.setting("feature", feature, value, path)


def _addresses(wanted: _Wanted) -> Iterator[Setting]:
    added = [one for text in wanted.block.get("addresses", ()) for one in addresses_of(text)]
    for address in dict.fromkeys([*wanted.host.addresses, *added]):
        yield wanted.setting("address", address, True, "addresses")


def _up(wanted: _Wanted) -> Iterator[Setting]:
    yield wanted.setting("up", "", True, "link")


def _neighbours(wanted: _Wanted) -> Iterator[Setting]:
    """Permanent entries both ways, so that no ARP takes a place in queues and counters."""
    if not wanted.lab.built_in:
        return
    others = wanted.lab.senders if wanted.host.role == "receiver" else wanted.lab.receivers
    for other in others:
        for address in other.addresses:
            ip = address.partition("/")[0]
            yield wanted.setting("neighbour", ip, mac_of(wanted.lab, other), "link")


def _polling(wanted: _Wanted) -> Iterator[Setting]:
    """After ``up``: veth has no NAPI to make threaded before (EOPNOTSUPP, 6.18)."""
    napi = wanted.block.get("napi", {})
    lab_napi = wanted.built_in_receiver and wanted.receive == "napi"
    threaded = napi.get("threaded", True if lab_napi else None)
    if threaded is not None:
        path = "napi.threaded" if "threaded" in napi else "link.receive"
        yield wanted.setting("device", "threaded", int(threaded), path)
    for key, file, spelled in (
        ("defer_hard_irqs", "napi_defer_hard_irqs", "defer-hard-irqs"),
        ("gro_flush_timeout_ns", "gro_flush_timeout", "gro-flush-timeout"),
    ):
        if key in napi:
            yield wanted.setting("device", file, napi[key], f"napi.{spelled}")
    if "cpus" in napi:
        yield wanted.setting("napi_cpus", "", _one_each(napi["cpus"], wanted.queues), "napi.cpus")
    elif lab_napi and threaded:
        cpus = [[wanted.cpus[k % len(wanted.cpus)]] for k in range(wanted.queues)]
        yield wanted.setting("napi_cpus", "", cpus, "link.cpus")


def _steering(wanted: _Wanted) -> Iterator[Setting]:
    if wanted.built_in_receiver and wanted.receive == "rps" and "rps" not in wanted.block:
        # Every queue gets all CPUs and the flow hash chooses: veth hands get_rps_cpu a queue number
        # that is one too high, so that a CPU for each queue would meet the wrong queue (6.18).
        for k in range(wanted.queues):
            yield wanted.setting("rps", f"rx-{k}", list(wanted.cpus), "link.receive")
    for kind, queue in (("rps", "rx"), ("xps", "tx")):
        if kind in wanted.block:
            cpus = _one_each(wanted.block[kind]["cpus"], wanted.queues)
            for k, mask in enumerate(cpus):
                yield wanted.setting(kind, f"{queue}-{k}", mask, f"{kind}.cpus")


def _one_each(cpus: str, queues: int) -> list[list[int]]:
    listed = parse_cpus(cpus)
    return [[listed[k % len(listed)]] for k in range(queues)]


def _qdisc(wanted: _Wanted) -> Iterator[Setting]:
    if "qdisc" in wanted.block:
        yield wanted.setting("qdisc", "", wanted.block["qdisc"], "qdisc")


_ORDER: tuple[Callable[[_Wanted], Iterator[Setting]], ...] = (
    _link,
    _quiet,
    _sysctls,
    _sizes,
    _features,
    _addresses,
    _up,
    _neighbours,
    _polling,
    _steering,
    _qdisc,
)
