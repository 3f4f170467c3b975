"""MAC addresses for AF_XDP frames, which bypass the IP layer.

Has the kernel resolve them as for its own packets; sends and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Optional

from udpbench.agent.host.system import Host
from udpbench.agent.route_proof import next_hop
from udpbench.errors import AgentError
from udpbench.model.work import WorkerSpec
from udpbench.ways import way_of

NTF_USE = 1
"""As if a packet were sent: the kernel resolves the address."""
KNOWN = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80
"""NUD_* of include/uapi/linux/neighbour.h with a valid address."""
RESOLVE_S = 3.0
"""As long as the kernel tries: three times, one second apart (neigh/*/mcast_solicit)."""


def frame_addresses(host: Host, interface: str, workers: Iterable[WorkerSpec]) -> dict[str, str]:
    """Return address → MAC for both ends of all flows sent as frames; empty without such flows.

    A destination behind a gateway gets the gateway's MAC. AgentError lists unresolved addresses.
    """
    senders = [spec for spec in workers if way_of(spec).takes == "frames"]
    pairs = {(flow.source, flow.destination) for spec in senders for flow in spec.flows}
    if not pairs:
        return {}
    index = host.index(interface)
    own = str(host.rtnl("link", "get", index=index)[0].get_attr("IFLA_ADDRESS"))
    hops = {to: next_hop(host, source, to) for source, to in sorted(pairs)}
    macs = {hop: _neighbour(host, index, hop) for hop in set(hops.values())}
    unknown = [to for to, hop in hops.items() if macs[hop] is None]
    if unknown:
        key = way_of(senders[0]).key
        raise AgentError(
            f"{key}: no neighbour entry on {interface} for {', '.join(unknown)}; "
            f"check that the hosts answer: ip neigh show dev {interface}"
        )
    return {source: own for source, _ in pairs} | {to: str(macs[hop]) for to, hop in hops.items()}


def _neighbour(host: Host, index: int, address: str) -> Optional[str]:
    """Return a neighbour's MAC, resolving it if necessary; None if nothing answers."""

    def resolved() -> Optional[str]:
        mac = _known(host, index, address)
        if mac is None:
            with suppress(PermissionError):  # without CAP_NET_ADMIN the entry must already exist
                host.rtnl("neigh", "replace", dst=address, ifindex=index, state=0, flags=NTF_USE)
        return mac

    with suppress(TimeoutError):
        return host.wait_for(f"no answer from {address}", resolved, RESOLVE_S)
    return None


def _known(host: Host, index: int, address: str) -> Optional[str]:
    try:
        entry: Any = host.rtnl("neigh", "get", dst=address, ifindex=index)[0]
    except OSError:
        return None
    return entry.get_attr("NDA_LLADDR") if entry["state"] & KNOWN else None
