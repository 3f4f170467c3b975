"""The kinds of setting, in the order in which they are applied: target, value, and scope of each.

``agent/settings`` holds how each is read and written; docs/settings.md shows this table.
"""

from __future__ import annotations

from dataclasses import dataclass

from udpbench.model import Scope


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


_TABLE = """\
rps_default | namespace | queues | [cpu, ...]
  | RPS of every queue created in the namespace afterwards
link | namespace | receive0 | {peer, peer_pid, peer_mac, mac, queues} or null
  | a veth pair, the peer in `peer_pid`'s namespace; compared without `peer_pid`
bridge | namespace | bridge0 | true or null | a bridge of this name
port | namespace | left | {bridge, station} or null
  | a port of a bridge, and the MAC address of the one host behind it
sysctl | namespace | net.core.rmem_max | integer or text
  | a kernel parameter, as the kernel prints it; scope machine if it is not per namespace
irqbalance | machine | irqbalance | bool | false pauses the daemon
governor | machine | cpus | text | frequency governor of all CPUs; read as {policy: governor}
turbo | machine | cpus | bool | whether CPUs may run above their nominal frequency
cpu_latency | machine | cpus | µs or null
  | the longest wake-up time of an idle CPU; held only while the agent runs
channels | namespace | eth3 | number, {combined} or {rx, tx}
  | queues of an interface; applied before any setting that names a queue
  | ethtool.channels
rings | namespace | eth3 | {rx, tx, rx-mini, rx-jumbo}, in part
  | descriptors per ring; may be rounded up
  | ethtool.rings
pause | namespace | eth3 | {autoneg, rx, tx}, 0 or 1, in part | Ethernet flow control
feature | namespace | send0/rx-gro | bool | an offload, by the kernel's name for it
mtu | namespace | send0 | bytes | an interface's largest packet
  | mtu_bytes
txqueuelen | namespace | send0 | packets | an interface's transmit queue length
  | txqueuelen_packets
up | namespace | send0 | bool | whether an interface is up
unclaimed | namespace | send0/10.0.0.1,fd00::1 | {}
  | nobody on the link answers for these addresses; checked after `up`
address | namespace | send0/10.0.0.1/24 | true or null | an IP address of an interface
neighbour | namespace | send0/10.0.0.1 | MAC address or null | a permanent neighbour entry
route | namespace | send0/10.1.0.0/16 | gateway's address, "link" or null
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
napi_cpus | namespace | receive0 | [[cpu, ...], ...] | CPUs of the k-th RX queue's NAPI thread
coalesce | namespace | eth3 | {rx-usecs, adaptive-rx, ...}, integers, in part
  | when an interface interrupts; may be rounded
  | ethtool.coalesce
irq | machine | eth3/rx-0 | [cpu, ...] | CPUs of an RX queue's interrupt
rps | namespace | receive0/rx-0 | [cpu, ...] | CPUs that process packets of an RX queue
xps | namespace | send0/tx-0 | [cpu, ...] | CPUs whose packets leave by a TX queue
rfs | namespace | receive0/rx-0 | flows
  | flows whose reading CPU an RX queue remembers; with the sysctl net.core.rps_sock_flow_entries
qdisc | namespace | send0 | {tbf: {rate_bps, burst_bytes, limit_bytes}}, {pfifo: {limit_packets}},
  {bfifo: {limit_bytes}} or null | the root queueing discipline
firewall | namespace | ipv4/input/accept/udp/4321 | true or null
  | a rule of the namespace: ipv4, ipv6; input, output, prerouting; accept, notrack, drop
trap | namespace | send0 | true or null
  | a qdisc that drops the packets to be lost on purpose, by their priority
xdp | namespace | receive0 | port or null | an XDP program that drops UDP to the port
tc_drop | namespace | receive0 | port or null | a tc filter that drops UDP to the port on ingress
explain | namespace | drops | [UDP port, ...] or null
  | counts the kernel's drop reasons, separately for these ports; held only while the agent runs
"""


def _kind(name: str, scope: str, *rest: str) -> SettingKind:
    whose: Scope = "machine" if scope == "machine" else "namespace"
    return SettingKind(name, whose, *rest)


SETTING_KINDS = {
    kind.name: kind
    for kind in (
        _kind(*(part.strip() for part in row.split(" | ")))
        for row in _TABLE.replace("\n  ", " ").splitlines()
    )
}
"""Name → kind, in the order of application.

Changing channels resets other settings of a card, and a link that flaps loses addresses and routes,
so these come later.
"""
