"""What helps: one table of ledger, doctor, diagnosis and tune, by stage, check or bottleneck.

Owns every text that recommends something; a name that two of them share has one remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from udpbench.model.limits import stage_of
from udpbench.text_tables import blanks_of, filled, rows_of


@dataclass(frozen=True)
class Remedy:
    """What helps against one thing."""

    text: str
    """In the imperative, without a full stop; words in <angles> are filled in."""
    settings: str = ""
    """The line below ``settings:`` that does it; empty if none does."""


@dataclass(frozen=True)
class TuningStep:
    """What ``udpbench tune`` tries against a bottleneck: one change of a point."""

    against: str
    scope: str
    """One of ``SCOPES``: whom it changes."""
    name: str
    """As in the name of a point: ``buffer=4MiB``."""
    sets: tuple[str, ...]
    """``path=value`` each, as of ``--set``; words in <angles> are filled in."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the keys that it sets."""
        return tuple(each.partition("=")[0] for each in self.sets)


SCOPES = ("application", "host", "machine")
"""The program that sends or receives; one network namespace; all that runs on the machine."""


_STAGES = """\
unsent | give the sender more workers or CPUs or a larger batch, or lower the rate
tx_policy | change the IPsec policy that ip -s xfrm policy lists
tx_netfilter | change the OUTPUT rules of the sending host
tx_ipsec | have its keys exchanged (ip -s xfrm state), or change the IPsec policy
tx_qdisc | lengthen the queue, raise its limit, or lower the rate
tx_device | speed up receive processing: more queues and CPUs, no reader on the polling CPU
link | check the cable and the counters of switch and hypervisor; set the same MTU on every
  host; in the built-in lab see tx_device
fwd_ring | lengthen the node's ring, use more queues, or give its interrupt more CPU time
fwd_xdp | change the XDP program, which ip link show names
fwd_backlog | raise net.core.netdev_max_backlog on the node, or spread packets over more CPUs
fwd_tc | change the filter that tc filter show dev <interface> ingress lists on the node
fwd_bridge | compare the MTU of the bridge's ports, and see its table and rules (bridge fdb, bridge
  -d link, nft list ruleset)
fwd_tun | lower the rate, lengthen the tunnel's ring (ip link set <tunnel> txqueuelen), or give its
  process more CPU time
fwd_encap | send shorter datagrams, let them be fragmented (traffic.fragment), or raise the MTU of
  the way between the tunnel's ends; of WireGuard lower the rate, and see that its ends have keys
  and networks of each other (wg show)
fwd_ip | raise traffic.ttl to 1 and the nodes in the middle, or leave it out; check whether the path
  damages packets
fwd_prerouting | change the node's rule in PREROUTING (nft list ruleset, iptables -t raw -vnL)
fwd_conntrack | enlarge net.netfilter.nf_conntrack_max on the node, or leave the traffic untracked
  (settings.middle.firewall.notrack)
fwd_rp_filter | give the node a route back to the source, or lower net.ipv4.conf.*.rp_filter
fwd_route | give the node a route to the receiver
fwd_local | see which rule leaves packets to the published port as they are, or untracked (nft list
  ruleset, iptables -t nat -vnL, iptables -t raw -vnL)
fwd_mtu | send shorter datagrams, raise the MTU of the way out, or set traffic.fragment
fwd_netfilter | change the node's rule in FORWARD or POSTROUTING that counts it (nft list ruleset,
  iptables -vnL FORWARD)
fwd_neighbour | check that the next hop answers (ip neigh on the node), or enter its MAC
fwd_rcvbuf | lower the rate, or give the process at the tunnel's end more CPU time
fwd_decap | give both ends of the tunnel the same VNI and port (ip -d link), or keys and networks
  (wg show)
fwd_ecn | let senders use ECN, or find who marks the outer packets
fwd_cells | raise net.core.netdev_max_backlog on the node, or spread packets over more CPUs
fwd_qdisc | lengthen the queue of the node's way out, raise its limit, or lower the rate
fwd_device | speed up receive processing at the next host: more queues and CPUs
rx_ring | lengthen the ring, use more queues, or give the queue's interrupt more CPU time
rx_xdp | change the XDP program, which ip link show names
xsk_ring | make readers faster, or use more queues with a worker each
xsk_fill | make readers faster; check that no frame is longer than those of the traffic
rx_backlog | raise net.core.netdev_max_backlog, or spread packets over more CPUs
rx_tc | change the filter that tc filter show dev <interface> ingress lists
rx_ip | check addresses, routes, net.ipv4.conf.*.rp_filter, and whether the path damages packets
rx_netfilter | change the rule that counts it (iptables -vnL, nft list ruleset); enlarge the
  conntrack table, if that is full
udp_checksum | replace a bad cable or NIC, or turn off a bad offload
udp_no_port | start the receiver; check address and port
rx_policy | change the IPsec policy that ip -s xfrm policy lists
udp_filter | change the application's own filter
udp_rcvbuf | for bursts enlarge receive.buffer; for a sustained load use faster or more readers
udp_memory | raise net.ipv4.udp_mem, or make receive buffers smaller
udp_purged | close a socket only when nothing is sent to it any more, or drain it first
app_truncated | enlarge receive.room
app_log | use a faster disk for receive.log, or lower the rate
app_unanswered | check what the program answers, and whether it limits rates; give it more CPUs or
  threads, or lower the rate
answer_lost | see the stage of the return path beside it; its remedy is the same as on the way out
before_host | lower the client's rate; look at the client's host and at the path, as by udpbench
  serve on a host nearer to it
"""
_CHECKS = """\
link | check the cable, the switch and the kernel's log
steal | repeat when its host is less busy
busy | stop what uses CPUs of the load (`top`)
traffic | stop it, or use an interface of its own
control_path | reach the host by another address: set HostName in ~/.ssh/config
listeners | stop it (`ss -nap`), or use another port in traffic.flows.to
firewall | accept the port before them | firewall: {udp: <port>, accept: true}
conntrack | exempt the port | firewall: {udp: <port>, notrack: true}
xdp | remove it: ip link set dev <interface> xdp off
tc_filter | remove them: tc qdisc del dev <interface> clsact
stacked | use an interface without bond, bridge, VLAN or the like
mtu | set the same MTU everywhere, on the switch too | mtu: <largest>
link_speed | check cable, switch port and autonegotiation
pcie | move the card to another slot
queue_nodes | serve them on the card's node | irq: {cpus: "<cpus>"}
worker_nodes | list CPUs of that node as cpus in the lab
single_queue | use more queues, if the card has them | ethtool: {channels: <cpus>}
flow_hash | include the ports | ethtool: {rx-flow-hash: {udp4: sdfn}}
flow_hash_idle | steer by another means: ethtool.ntuple, ethtool.indirection or rps
ring | enlarge it | ethtool: {rings: {rx: <largest>}}
pause | switch flow control off | ethtool: {pause: {rx: false, tx: false}}
offloads | switch it on | ethtool: {features: {<feature>: true}}
reverse_path | loosen it | sysctl: {net.ipv4.conf.all.rp_filter: 2}
arp_flux | let each interface answer only for its own | sysctl: {net.ipv4.conf.all.arp_ignore: 1}
governor | set it to performance | cpu: {governor: performance}
idle_states | forbid deep C-states | cpu: {latency: 0s}
irqbalance | stop it, or pin the interrupts, which pauses it | <irq>
smt_siblings | list one CPU of each core as cpus in the lab
buffer_limit | raise it, or give the agent CAP_NET_ADMIN | sysctl: {net.core.rmem_max: <wanted>}
rights | run as root, or set become: sudo
clocksource | boot without clocksource= or notsc; see the kernel's log for why it is not used
turbo | switch turbo off | cpu: {turbo: false}
mitigations | compare only hosts with the same mitigations; on a test machine boot with
  mitigations=off
clock_synchronised | start chrony or ntpd
clock_offset | have chrony or ntpd synchronise both
"""
_BOTTLENECKS = """\
cgroup_memory | raise that limit (of a container, its memory), or make receive buffers smaller
failing_calls | start the receiver, or see the findings for the errors
node_cpu | spread packets over more of <node>'s CPUs (RPS, more queues), or give them less to do:
  fewer rules, no connection tracking
inline | have the receiver's CPUs do it: link.receive napi, on a host RPS or another queue
sender_queue | raise rate or limit of the queue, or lower the load
sender_cpu | give the sender more workers or CPUs, a larger batch, or GSO
small_buffer | raise receive.buffer, starting with <buffer>
default_buffer | set net.core.rmem_default to <default> (settings.receiver.sysctl) before the
  program starts, since it asks for no size, or have it ask for <buffer> (setsockopt SO_RCVBUF)
clamped_buffer | raise net.core.rmem_max to <limit> (settings.receiver.sysctl): the program asks for
  all that it allows, or more
own_buffer | have the program ask for <buffer> (setsockopt SO_RCVBUF, up to net.core.rmem_max): it
  sets its size itself, which no setting changes
attached_buffer | have the program ask for <buffer> (setsockopt SO_RCVBUF, up to net.core.rmem_max)
  and start it anew: no setting reaches a socket that is open already
standstill | check what stopped it (a signal, a debugger, a frozen cgroup, a lock), then repeat
reader_sleeps | have it read while datagrams wait, and do its waiting elsewhere; no buffer helps
reader_pauses | have it read more often, or give its socket a buffer for all that comes in a pause
cpu_quota | raise the CPU quota of its cgroup (cpu.max), or lift it
changed | find out who changed it, and repeat
stranger | end that program, or use another port in traffic.flows.to
unseen_rules | look at them (nft list ruleset), and repeat with --set explain=true
stopped_sender | check what stopped it (a signal, a debugger, a frozen cgroup), then repeat
short_ring | lengthen the ring, or move its interrupt to a CPU that is always free
shared_socket | give each reader a socket and a CPU of its own: receive.sockets reuseport
unmerged | read merged datagrams: receive.gro true
one_queue | use more flows, hash their ports too (rx-flow-hash), or steer by RPS
shared_cpu | move the reader, or the queue's work
reader_work | do less for each datagram, or read with more workers on other CPUs (reuseport)
reader_system | read more in a call, or read with more workers on other CPUs (reuseport)
receive_cpu | use more queues, or RPS, so that more CPUs receive; GRO and fewer rules save work
ring_of_veth | spread packets over more of the node's CPUs (RPS), or have a thread poll it (NAPI)
late_readers | use faster readers, or more of them on other CPUs (reuseport)
longer_burst | send a longer burst to find how much they hold, or let `search` find a rate
nothing | raise the load to find the limit, or let `search` find it
bounded_loss | repeat with --set explain=true: the kernel then says what it dropped at <explained>
unaccounted | see the ledger's finding for what to try
"""
_OF_PROGRAM = """\
udp_rcvbuf | for bursts enlarge the buffer in the program (setsockopt SO_RCVBUF), or, if it asks
  for none, net.core.rmem_default (settings.receiver.sysctl) before it starts; for a sustained load
  use faster or more readers
app_truncated | have the program read into a larger array
app_log | have the program write less, or to a faster disk
small_buffer | enlarge the buffer in the program (setsockopt SO_RCVBUF, up to net.core.rmem_max),
  or, if it asks for none, net.core.rmem_default (settings.receiver.sysctl) before it starts
shared_socket | give each reader a socket (SO_REUSEPORT) and a CPU of its own
unmerged | have the program read merged datagrams (UDP_GRO)
"""
"""Against the same in a program of the user's own, which keys of our receiver do not describe."""


OTHER_CPUS = ", or list other CPUs as cpus in the lab"
"""What helps besides stopping who uses CPUs of the load, where there are others."""
REMEDIES = {
    name: Remedy(*rest)
    for text in (_STAGES, _CHECKS, _BOTTLENECKS)
    for name, *rest in rows_of(text)
}


PROGRAM_REMEDIES = {name: Remedy(*rest) for name, *rest in rows_of(_OF_PROGRAM)}


def remedy_text(name: str, of_program: bool) -> str:
    """Return what helps against one thing; a program of the user's own has no keys of ours."""
    own = PROGRAM_REMEDIES if of_program else {}
    return own.get(stage_of(name), REMEDIES[stage_of(name)]).text


def helps_at(place: str, of_program: bool) -> str:
    """Return what helps at a stage, or at each of several: ``at link: …. At rx_ring: …``."""
    return at_each({stage: remedy_text(stage, of_program) for stage in place.split(" or ")})


def at_each(steps: Mapping[str, str]) -> str:
    """Return what helps at each of some stages; of a single one without its name."""
    if len(steps) < 2:
        return "".join(steps.values())
    return "at " + ". At ".join(f"{stage}: {step}" for stage, step in steps.items())


_STEPS = """\
small_buffer | application | buffer=<buffer> | receive.buffer=<buffer>
small_buffer | application | buffer=<large_buffer> | receive.buffer=<large_buffer>
small_buffer | machine | rmem_default=<default>
  | settings.receiver.sysctl.net.core.rmem_default=<default>
small_buffer | machine | rmem_default=<large_default>
  | settings.receiver.sysctl.net.core.rmem_default=<large_default>
small_buffer | machine | rmem_max=<limit> | settings.receiver.sysctl.net.core.rmem_max=<limit>
small_buffer | machine | rmem_max=<large_limit>
  | settings.receiver.sysctl.net.core.rmem_max=<large_limit>
udp_memory | machine | udp_mem=<udp_pages> | settings.receiver.sysctl.net.ipv4.udp_mem=<udp_mem>
inline | host | napi | settings.receiver.link.receive=napi
inline | host | rps | settings.receiver.link.receive=rps
small_backlog | machine | backlog=<backlog>
  | settings.receiver.sysctl.net.core.netdev_max_backlog=<backlog>
small_backlog | machine | backlog=<large_backlog>
  | settings.receiver.sysctl.net.core.netdev_max_backlog=<large_backlog>
short_ring | host | ring=<ring> | settings.receiver.ethtool.rings.rx=<ring>
firewall | host | accept-first | settings.receiver.firewall.udp=<port>
  ; settings.receiver.firewall.accept=true; settings.receiver.firewall.notrack=true
shared_socket | application | one-reader | receive.workers=1
shared_socket reader_work reader_system | application | reuseport
  | receive.sockets=reuseport; receive.workers=<cpus>
unmerged reader_system shared_cpu | application | gro | receive.gro=true
reader_system | application | recvmmsg | receive.call=recvmmsg; receive.batch=auto
remote_node | application | same-node | receive.cpus=same-node
shared_cpu | application | reader-moved | receive.cpus=<other_cpus>
shared_cpu short_ring | host | irq | settings.receiver.irq.cpus=<other_cpus>
one_queue | host | hash-ports | settings.receiver.ethtool.rx-flow-hash.udp4=sdfn
one_queue receive_cpu | host | rps | settings.receiver.rps.cpus=<all_cpus>
others_cpu | application | nice | <late>.priority=nice -20
others_cpu | application | fifo | <late>.priority=fifo 1
others_cpu | application | buffer=<large_buffer> | receive.buffer=<large_buffer>
others_cpu | machine | rmem_default=<large_default>
  | settings.receiver.sysctl.net.core.rmem_default=<large_default>
others_cpu | machine | rmem_max=<large_limit>
  | settings.receiver.sysctl.net.core.rmem_max=<large_limit>
sender_queue | host | pfifo | settings.sender.qdisc={pfifo: {limit: 1000}}
sender_cpu | application | senders=<sender_cpus> | send.workers=<sender_cpus>
sender_cpu | application | sendmmsg | send.call=sendmmsg; send.batch=auto
sender_cpu | application | gso | send.gso=max
governor | machine | governor | settings.receiver.cpu.governor=performance
fwd_ring | host | ring=<node_ring> | settings.middle.ethtool.rings.rx=<node_ring>
fwd_ring | host | irq | settings.middle.irq.cpus=<irq_cpus>
fwd_backlog fwd_cells | machine | backlog=<node_backlog>
  | settings.middle.sysctl.net.core.netdev_max_backlog=<node_backlog>
fwd_backlog fwd_cells | machine | backlog=<large_node_backlog>
  | settings.middle.sysctl.net.core.netdev_max_backlog=<large_node_backlog>
fwd_ring fwd_backlog fwd_cells node_cpu | host | rps | settings.middle.rps.cpus=<node_cpus>
fwd_conntrack | machine | conntrack=<node_table>
  | settings.middle.sysctl.net.netfilter.nf_conntrack_max=<node_table>
fwd_conntrack | host | notrack | settings.middle.firewall.udp=<untracked_port>
  ; settings.middle.firewall.notrack=true
fwd_netfilter | host | accept-first | settings.middle.firewall.udp=<node_port>
  ; settings.middle.firewall.accept=true
fwd_ring fwd_backlog node_cpu | host | accept-first | settings.middle.firewall.udp=<rules_port>
  ; settings.middle.firewall.accept=true
fwd_qdisc | host | pfifo=<node_queue> | settings.middle.qdisc={pfifo: {limit: <node_queue>}}
fwd_qdisc | host | pfifo=<large_node_queue>
  | settings.middle.qdisc={pfifo: {limit: <large_node_queue>}}
"""
"""Bottlenecks | scope | name of the step | what it sets: in the order in which they are tried.

None touches the traffic, what a reader does with a datagram, losses made on purpose, a search, or
the cable. 1000 packets are a device's queue by default (DEFAULT_TX_QUEUE_LEN)."""


def _read_steps(text: str) -> dict[str, tuple[TuningStep, ...]]:
    steps: dict[str, tuple[TuningStep, ...]] = {}
    for names, scope, name, sets in rows_of(text):
        pairs = tuple(each.strip() for each in sets.split(";"))
        for against in names.split():
            step = TuningStep(against, scope, name, pairs)
            steps[against] = (*steps.get(against, ()), step)
    return steps


REMEDY_STEPS = _read_steps(_STEPS)
"""Bottleneck → the steps against it."""


def filled_step(step: TuningStep, words: Mapping[str, str]) -> TuningStep | None:
    """Return a step with its <angles> filled in; None if a word is missing."""
    texts = (step.name, *step.sets)
    if any(word not in words for text in texts for word in blanks_of(text)):
        return None
    name, *sets = (filled(text, words) for text in texts)
    return replace(step, name=name, sets=tuple(sets))


SAVED_STAGES: dict[str, tuple[str, ...]] = {
    "firewall": ("rx_netfilter", "rx_conntrack"),
    "unmerged": ("rx_ip", "rx_netfilter", "rx_conntrack", "rx_udp", "rx_core", "rx_backlog"),
    "reader_work": ("rx_application",),
    "reader_system": ("rx_syscall", "rx_schedule", "rx_wakeup"),
    "shared_cpu": ("rx_application", "rx_syscall", "rx_read", "rx_copy", "rx_schedule"),
}
"""Bottleneck → the stages whose CPU time its remedy saves on that CPU, at most all of it."""


SURE = (
    *("small_buffer", "udp_memory", "small_backlog", "short_ring", "inline", "firewall"),
    *("unmerged", "shared_socket", "one_queue", "remote_node", "governor"),
)
"""Bottlenecks whose first step is the remedy itself; steps against others are tries of a tune."""


def sets_against(name: str, words: Mapping[str, str], of_program: bool = False) -> tuple[str, ...]:
    """Return what the first step against a bottleneck sets; empty if that is only to be tried.

    A program of the user's own has no keys of our receiver.
    """
    steps = (filled_step(step, words) for step in REMEDY_STEPS.get(name, ()) if name in SURE)
    known = (step for step in steps if step is not None)
    fit = (s for s in known if not (of_program and any(p.startswith("receive.") for p in s.paths)))
    return next((step.sets for step in fit), ())


BEYOND_SETTINGS = {
    "reader_work": "a faster reader",
    "reader_system": "a reader that reads more in a call, or more CPUs",
    "shared_cpu": "another CPU for the reader, or for the queue's work",
    "receive_cpu": "a faster CPU, or more of them",
    "sender_cpu": "a faster sender",
    "others_cpu": "a CPU that no other program uses",
    "steal": "a host that is less busy",
    "reader_sleeps": "a program that reads while datagrams wait",
    "standstill": "a reader that nothing stops",
    "cpu_quota": "a larger CPU quota",
    "stopped_sender": "a sender that nothing stops",
}
"""Bottleneck → what would help where no setting does; of others it is their remedy."""
