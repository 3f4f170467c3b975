"""Further facts read only by ``udpbench doctor``, because they are too costly for every trial.

What cannot be read is None. Changes and judges nothing.
"""

from __future__ import annotations

import errno
import json
import re
import socket
from collections import Counter
from typing import Any, Optional

from udpbench.agent.host import ethtool, programs
from udpbench.agent.host.files import lines_of, names, read
from udpbench.agent.host.reading import ReadingHost as Host
from udpbench.agent.host.reading import own_address
from udpbench.model.host import Inspection

CPU = "/sys/devices/system/cpu"
NET = "/sys/class/net"
TRACKED = "/proc/sys/net/netfilter/nf_conntrack_count"
PCIE = tuple(f"{which}_link_{what}" for which in ("current", "max") for what in ("speed", "width"))
HOOKS = ("ingress", "prerouting", "input", "output", "postrouting")
"""Hooks on the path of this host's packets; forwarding does not count."""


def inspect_host(host: Host, interface: str) -> Inspection:
    """Return everything; values of a missing interface are None."""
    there = bool(interface) and host.exists(f"{NET}/{interface}")
    return Inspection(
        clock_ns=host.clock_ns(),
        wall_ns=host.wall_ns(),
        wall_synchronised=wall_synchronised(host),
        idle_states_us=idle_states(host),
        pcie=pcie(host, interface) if there else None,
        pause=pause(host, interface) if there else None,
        flow_hash=flow_hash(host, interface) if there else None,
        tracked_connections=tracked_connections(host),
        firewall=firewall(host),
        udp_ports=udp_ports(host),
        arp=arp(host, interface) if there else None,
        other_addresses=other_addresses(host, interface),
        stacked=stacked(host, interface) if there else None,
    )


def wall_synchronised(host: Host) -> Optional[bool]:
    """Return whether CLOCK_REALTIME is synchronised; None if unknown."""
    try:
        return host.is_wall_synchronised()
    except OSError:
        return None


def idle_states(host: Host) -> Optional[dict[str, int]]:
    """Return C-state → wake-up latency in µs, of those enabled on any CPU."""
    if read(host, f"{CPU}/cpuidle/current_driver") == "none":
        return {}
    states: dict[str, int] = {}
    has_states = False
    for cpu in names(host, CPU):
        for state in names(host, f"{CPU}/{cpu}/cpuidle") if re.fullmatch(r"cpu\d+", cpu) else ():
            folder = f"{CPU}/{cpu}/cpuidle/{state}"
            name, latency = read(host, f"{folder}/name"), read(host, f"{folder}/latency")
            has_states = has_states or name is not None
            if name and latency and latency.isdigit() and read(host, f"{folder}/disable") != "1":
                states[name] = max(int(latency), states.get(name, 0))
    return states if has_states else None


def pcie(host: Host, interface: str) -> dict[str, str]:
    """Return current and maximum PCIe speed and width of a card; empty for other buses."""
    device = f"{NET}/{interface}/device"
    values = {name: read(host, f"{device}/{name}") for name in PCIE}
    return {name: value for name, value in values.items() if value is not None}


def pause(host: Host, interface: str) -> Optional[dict[str, int]]:
    """Return the flow control settings; empty if the device has none."""
    try:
        return ethtool.parse_pause(ethtool.show(host, "-a", interface))
    except OSError as error:
        return {} if error.errno == errno.EOPNOTSUPP else None


def flow_hash(host: Host, interface: str) -> Optional[str]:
    """Return ethtool's letters of the fields hashed for UDP over IPv4."""
    try:
        text = ethtool.show(host, "-n", interface, "rx-flow-hash", "udp4")
    except OSError:
        return None
    return ethtool.parse_flow_hash(text)


def tracked_connections(host: Host) -> Optional[int]:
    """Return the number of tracked connections; 0 without the kernel module."""
    text = read(host, TRACKED)
    if text is None:
        return None if host.exists(TRACKED) else 0
    return int(text)


def firewall(host: Host) -> Optional[tuple[str, ...]]:
    """Return each base chain with rules, or a policy other than accept, as text."""
    try:
        if host.program("nft") is not None:
            return chains_of_nft(programs.output(host, *programs.RULESET))
        return chains_of_iptables(programs.output(host, "iptables-save"))
    except (OSError, ValueError):
        return None


def chains_of_nft(text: str) -> tuple[str, ...]:
    """Return the chains of ``nft -j list ruleset``."""
    items: list[dict[str, Any]] = json.loads(text)["nftables"]
    chains = []
    every = (item["rule"] for item in items if "rule" in item)
    rules = Counter((rule["family"], rule["table"], rule["chain"]) for rule in every)
    for chain in (item["chain"] for item in items if "chain" in item):
        place = (chain["family"], chain["table"], chain["name"])
        if chain.get("hook") in HOOKS:
            chains.append((" ".join(place), rules[place], chain.get("policy", "accept")))
    return _in_the_way(chains)


def chains_of_iptables(text: str) -> tuple[str, ...]:
    """Return the chains of ``iptables-save``."""
    chains = []
    for block in text.split("*")[1:]:
        table = block.partition("\n")[0]
        for name, policy in re.findall(r"^:(\S+) (\S+) ", block, re.MULTILINE):
            if name.lower() in HOOKS:
                rules = len(re.findall(rf"^-A {re.escape(name)} ", block, re.MULTILINE))
                chains.append((f"ip {table} {name}", rules, policy.lower()))
    return _in_the_way(chains)


def _in_the_way(chains: list[tuple[str, int, str]]) -> tuple[str, ...]:
    return tuple(
        f"{name}: {rules} {'rule' if rules == 1 else 'rules'}, policy {policy}"
        for name, rules, policy in chains
        if rules or policy != "accept"
    )


def udp_ports(host: Host) -> Optional[tuple[int, ...]]:
    """Return the local ports of the namespace's UDP sockets."""
    texts = [read(host, f"/proc/thread-self/net/{name}") for name in ("udp", "udp6")]
    if texts[0] is None:
        return None
    lines = [line for text in texts for line in lines_of(text)[1:]]
    return tuple(sorted({int(line.split()[1].rpartition(":")[2], 16) for line in lines}))


def arp(host: Host, interface: str) -> Optional[dict[str, int]]:
    """Return the ARP sysctls in force: the maximum of ``all`` and the interface (ip-sysctl.rst)."""
    values = {}
    for name in ("arp_ignore", "arp_filter"):
        texts = [read(host, f"/proc/sys/net/ipv4/conf/{who}/{name}") for who in ("all", interface)]
        if None in texts:
            return None
        values[name] = max(int(text or 0) for text in texts)
    return values


def other_addresses(host: Host, interface: str) -> Optional[dict[str, tuple[str, ...]]]:
    """Return other interface → its IPv4 addresses with prefix length."""
    addresses: dict[str, tuple[str, ...]] = {}
    try:
        for message in host.rtnl("addr", "dump", family=socket.AF_INET):
            name = host.name_of(message["index"])
            if name is not None and name != interface:
                address = f"{own_address(message)}/{message['prefixlen']}"
                addresses[name] = (*addresses.get(name, ()), address)
    except OSError:
        return None
    return addresses


def stacked(host: Host, interface: str) -> tuple[str, ...]:
    """Return the lower interfaces of an interface, and the bond or bridge that it belongs to."""
    lower = [name[6:] for name in names(host, f"{NET}/{interface}") if name.startswith("lower_")]
    master = host.link_target(f"{NET}/{interface}/master")
    parts = [f"part of {master}"] if master is not None else []
    return (*(f"on {name}" for name in lower), *parts)
