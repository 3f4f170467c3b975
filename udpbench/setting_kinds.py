"""The kinds of setting, in the order in which they are applied: target, value, and scope of each.

``agent/settings`` holds how each is read and written; docs/settings.md shows this table. Owns how
messages show a value: as ``ethtool`` would, never as Python would.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from udpbench.cpu_lists import format_cpu_list
from udpbench.model.host import Setting
from udpbench.model.limits import Scope
from udpbench.text_tables import rows_of


@dataclass(frozen=True)
class SettingKind:
    """One kind; the value null, where allowed, means that the thing does not exist."""

    name: str
    scope: Scope
    """For ``sysctl``, that of most parameters; the parameter's name decides."""
    target: str
    """An example."""
    value: str
    meaning: str
    field: str = ""
    """Field of ``host_settings.Settings`` whose value it takes; ``.*``: one setting per key."""
    traits: frozenset[str] = frozenset()
    """Words of ``TRAITS``, written behind the scope."""


TRAITS = {
    "exists": "its value is true or null: whether the thing is there",
    "steady": "it alters no address, MTU, queue, ring or CPU of one, which binding reads",
    "exit": "a node in the middle has it where packets leave, others where they come in",
    "counts": "only its numbers are shown",
    "switches": "its parts are 1 and 0, shown as on and off",
    "uniform": "shown as a single value if its parts are equal",
    "options": "its value is a name, with options",
}

_TABLE = """\
rps_default | namespace | queues | [cpu, ...]
  | RPS of every queue created in the namespace afterwards
link | namespace | receive0 | {peer, peer_pid, peer_mac, mac, queues} or null
  | a veth pair, the peer in `peer_pid`'s namespace; compared without `peer_pid`
bridge | namespace exists | bridge0 | true or null | a bridge of this name
vxlan | namespace | vxlan0 | {vni, local, remote, ttl} or null
  | a VXLAN interface to a single other end, which learns no further one
wireguard | namespace | wg0 | {peer, remote, allowed: [network, ...]} or null
  | an interface of WireGuard, the kernel's or one of wireguard-go, to a single other end, whose
  public key is `peer`; its own key is made for the run and told to nobody
tunnel_counts | namespace exists | wg0 | true or null
  | rules that count what an interface of WireGuard, which was there already, takes and gives
port | namespace | left | {bridge, station} or null
  | a port of a bridge, and the MAC address of the one host behind it
astray | namespace exists | vxlan0/02:75:62:ff:ff:fe | true or null
  | frames to this MAC leave by the tunnel for a network that the other end does not have
sysctl | namespace | net.core.rmem_max | integer or text
  | a kernel parameter, as the kernel prints it; scope machine if it is not per namespace
irqbalance | machine uniform | irqbalance | bool
  | false pauses root's processes of that name; read as {pid/start: bool}
governor | machine uniform | cpus | text
  | frequency governor of all CPUs; read as {policy: governor}
turbo | machine | cpus | bool | whether CPUs may run above their nominal frequency
cpu_latency | machine | cpus | µs or null
  | the longest wake-up time of an idle CPU; held only while the agent runs
interface_state | namespace | eth3 | {name: text}
  | what the interface had before the run, to be seen again after it; sets nothing
qdisc_tree | namespace | eth3 | {frame_bytes, qdiscs: {root: mq, :1: fq_codel 0600…}} or null
  | the queueing disciplines that the kernel chose; never set, but kept before `channels`, `mtu`,
  `txqueuelen`, `up`, `qdisc` or `trap` and restored after them
channels | namespace counts | eth3 | number, {combined} or {rx, tx}
  | queues of an interface; applied before any setting that names a queue
  | ethtool.channels
rings | namespace | eth3 | {rx, tx, rx-mini, rx-jumbo}, in part
  | descriptors per ring; may be rounded up
  | ethtool.rings
pause | namespace switches | eth3 | {autoneg, rx, tx}, 0 or 1, in part | Ethernet flow control
feature | namespace | send0/rx-gro | bool | an offload, by the kernel's name for it
mtu | namespace exit | send0 | bytes | an interface's largest packet
  | mtu_bytes
txqueuelen | namespace steady exit | send0 | packets | an interface's transmit queue length
  | txqueuelen_packets
up | namespace | send0 | bool | whether an interface is up
unclaimed | namespace | send0/10.0.0.1,fd00::1 | {}
  | nobody on the link answers for these addresses; checked after `up`
address | namespace exists | send0/10.0.0.1/24 | true or null | an IP address of an interface
neighbour | namespace steady exit | send0/10.0.0.1 | MAC address or null
  | a permanent neighbour entry
route | namespace exit | send0/10.1.0.0/16 | gateway's address, "link" or null
  | a route through an interface
flow_hash | namespace | eth3/udp4 | "sdfn"
  | letters of `ethtool -N rx-flow-hash`; also udp6, tcp4, tcp6
  | ethtool.rx_flow_hash.*
indirection | namespace | eth3 | "equal 2", "weight 6 2", "default"
  | the RX queue of each hash value; read as {rings, table}
  | ethtool.indirection
ntuple | namespace | eth3/udp4/4321 | RX queue or null
  | the queue of a port; needs the feature rx-ntuple-filter
device | namespace | receive0/threaded | integer
  | threaded, napi_defer_hard_irqs or gro_flush_timeout in /sys/class/net
napi_state | namespace | eth3 | {rx-0: {cpus, policy, priority, nice, gro-flush-timeout, ...}}
  | what NAPI instances and their threads have of their own; never set, but kept before
  `channels`, `rings`, `mtu`, `feature` or `device` and restored after them
napi_cpus | namespace | receive0 | [[cpu, ...], ...] | CPUs of the k-th RX queue's NAPI thread
coalesce | namespace steady | eth3 | {rx-usecs, adaptive-rx, ...}, integers, in part
  | when an interface interrupts; may be rounded
  | ethtool.coalesce
irq | machine | eth3/rx-0 | [cpu, ...] | CPUs of an RX queue's interrupt
rps | namespace | receive0/rx-0 | [cpu, ...] | CPUs that process packets of an RX queue
xps | namespace steady exit | send0/tx-0 | [cpu, ...] | CPUs whose packets leave by a TX queue
rfs | namespace steady | receive0/rx-0 | flows
  | flows whose reading CPU an RX queue remembers; with the sysctl net.core.rps_sock_flow_entries
qdisc | namespace steady exit options | send0 | {tbf: {rate_bps, burst_bytes, limit_bytes}},
  {pfifo: {limit_packets}}, {bfifo: {limit_bytes}} or null | the root queueing discipline
firewall_tables | namespace | ipv4 | {ip filter: {uses, chains: {INPUT: bool}}} or null
  | tables and chains in nf_tables; never set, but kept before `firewall` and restored after it,
  if then empty
firewall | namespace exists steady | ipv4/input/accept/udp/4321 | true or null
  | a rule of the namespace: ipv4, ipv6; input, output, prerouting, forward; accept, notrack,
  drop
passed_rules | namespace | input/4321 | {rules, track} or null
  | rules of a table of its own that datagrams to the port pass, and whether their connections are
  tracked; at input, output or forward
nat | namespace exit | eth1 | "masquerade" or null
  | packets that leave by the interface get its address as their source
  | nat
published | namespace exit | docker0 | {"8080": "172.17.0.2:4321"} or null
  | packets to such a port of the host's own addresses, but for those that come in by the interface,
  get this address and port as their destination
path_guard | namespace | eth0 | {out, from: [address, ...], to: [address, ...], ports} or null
  | what a node in the middle may forward of the traffic that comes in there; all else is dropped
trap | namespace exists steady | send0 | true or null
  | a qdisc that drops the packets to be lost on purpose, by their priority
xdp | namespace | receive0 | port or null | an XDP program that drops UDP to the port
tc_drop | namespace | receive0 | port or null | a tc filter that drops UDP to the port on ingress
explain | namespace steady | drops | [UDP port, ...] or null
  | counts the kernel's drop reasons, separately for these ports; held only while the agent runs
"""


def _kind(name: str, scope: str, *cells: str) -> SettingKind:
    plain, *traits = scope.split()
    return replace(SettingKind(name, plain, *cells), traits=frozenset(traits))  # type: ignore[arg-type]


SETTING_KINDS = {row[0]: _kind(*row) for row in rows_of(_TABLE)}
"""Name → kind, in the order of application.

Changing channels resets other settings of a card, and a link that flaps loses addresses and routes,
so these come later.
"""

INDEX_OF = "index of "
"""Key of a parameter's value, before an interface: what it is known by under another name."""
PEER_PID = "peer_pid"
"""Part of a pair of interfaces: the process in whose namespace the peer is, another each time."""
SWITCHES = ("adaptive-rx", "adaptive-tx", "autoneg")
"""Keys whose 1 and 0 are ``on`` and ``off``, of every kind."""
FEW_RUNS, FEW_PARTS = 8, 4
"""Maximum runs of a table, and parts of a part, that are listed."""


def show_value(kind: str, value: Any) -> str:
    """Return a setting's value for reading: ``rx=4096 tx=512``, ``0-3``, ``on``.

    Of channels only the counts, without what depends on them; of parameters not the indexes by
    which their interfaces are known.
    """
    if isinstance(value, Mapping):
        value = {key: part for key, part in value.items() if not str(key).startswith(INDEX_OF)}
    if has_trait(kind, "counts") and isinstance(value, Mapping):
        value = {key: part for key, part in value.items() if isinstance(part, int)}
    return _show(kind, "", value)


def asked_for(setting: Setting) -> str:
    """Return what a setting requests: ``asked for rx=4096``."""
    if setting.value is True and has_trait(setting.kind, "exists"):
        return "asked to add it"
    return f"asked for {show_value(setting.kind, setting.value)}"


def has_trait(kind: str, trait: str) -> bool:
    """Return whether a kind is known and has one of ``TRAITS``."""
    return kind in SETTING_KINDS and trait in SETTING_KINDS[kind].traits


def show_values(kind: str, *values: Any) -> list[str]:
    """Return values of one setting for reading, of mappings only the parts that differ."""
    texts = [_show(kind, "", value) for value in _differing(values)]
    return texts if len(set(texts)) > 1 else [show_value(kind, value) for value in values]


def requested_part(requested: Any, got: Any) -> Any:
    """Return the part of a value in force that was requested."""
    if not isinstance(got, Mapping):
        return got
    if isinstance(requested, Mapping):
        return {key: got.get(key) for key in requested}
    if isinstance(requested, int) and not isinstance(requested, bool):
        return {key: got[key] for key in ("rx", "tx", "combined") if got.get(key)}
    return got


def _differing(values: Sequence[Any]) -> list[Any]:
    """Return mappings without the keys at which they are all equal."""
    maps = [value for value in values if isinstance(value, Mapping)]
    if len(maps) < 2 or any("table" in each for each in maps):
        return list(values)
    keys = dict.fromkeys(key for each in maps for key in each)
    parts = {key: _differing([each.get(key) for each in maps]) for key in keys}
    unlike = [key for key in keys if any(part != parts[key][0] for part in parts[key])]
    kept = iter([{key: parts[key][place] for key in unlike} for place in range(len(maps))])
    return [next(kept) if isinstance(value, Mapping) else value for value in values]


def _show(kind: str, key: str, value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool) or key in SWITCHES or (key and has_trait(kind, "switches")):
        words = ("present", "none") if has_trait(kind, "exists") else ("on", "off")
        return words[0] if value else words[1]
    if isinstance(value, Mapping):
        return _show_parts(kind, key, value)
    if isinstance(value, (list, tuple)):
        return _show_list(value)
    return " ".join(str(value).split()) or "empty"


def _show_parts(kind: str, key: str, value: Mapping[str, Any]) -> str:
    if "table" in value:
        return show_table(value["table"])
    if has_trait(kind, "uniform") and len(set(value.values())) == 1:
        return _show(kind, key, next(iter(value.values())))
    texts = [(name, _show(kind, name, part)) for name, part in value.items() if name != PEER_PID]
    if has_trait(kind, "options") and not key:
        return " ".join(f"{name} {options}" for name, options in texts)
    words = [f"{name}=({text})" if " " in text else f"{name}={text}" for name, text in texts]
    if key and len(words) > FEW_PARTS:
        words = [*words[:FEW_PARTS], f"and {len(words) - FEW_PARTS} more"]
    return " ".join(words) or "none"


def _show_list(value: Sequence[Any]) -> str:
    """Return CPUs as ``0-3``; the CPUs of each RX queue as ``rx-0=0-3 rx-1=4``."""
    if all(isinstance(item, int) for item in value):
        return format_cpu_list(sorted(value)) or "none"
    if not all(item is None or isinstance(item, (list, tuple)) for item in value):
        return ", ".join(map(str, value))
    words, queue = [], 0
    for cpus, alike in groupby(_show_list(item or ()) for item in value):
        first, queue = queue, queue + len(list(alike))
        words.append(f"rx-{format_cpu_list(range(first, queue))}={cpus}")
    return " ".join(words)


def show_table(table: Sequence[int]) -> str:
    """Return an RX indirection table for reading: ``equal over queues 0-3``, ``0 ×96, 1 ×32``."""
    queues = sorted(set(table))
    first, several = (queues[0], len(queues)) if queues else (0, 0)
    if several == 1:
        return f"all on queue {first}"
    if several and all(queue == first + n % several for n, queue in enumerate(table)):
        return f"equal over queues {format_cpu_list(queues)}"
    if not queues:
        return "empty"
    runs = [(queue, len(list(run))) for queue, run in groupby(table)]
    if len(runs) <= FEW_RUNS:
        return f"queues {_show_runs(runs)}"
    totals = [(queue, list(table).count(queue)) for queue in queues]
    return f"mixed over queues {_show_runs(totals)}"


def _show_runs(runs: Iterable[tuple[int, int]]) -> str:
    """Return queues with their entries; neighbours with as many are one: ``0-3 ×32``."""
    words = []
    for entries, alike in groupby(runs, key=lambda run: run[1]):
        words.append(f"{format_cpu_list(queue for queue, _ in alike)} ×{entries}")
    return ", ".join(words)
