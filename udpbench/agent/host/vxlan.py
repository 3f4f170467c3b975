"""VXLAN interfaces: between which two ends their tunnel is, and what else may lead out of it.

Reads; changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Optional

from udpbench.agent.host.system import Host, link_kind
from udpbench.protocol import Tunnel

PORT = 4789
"""That of IANA; Linux has 8472 without `dstport`."""
_ELSEWHERE = {
    "IFLA_VXLAN_LEARNING": "whose ends are learnt from packets (learning)",
    "IFLA_VXLAN_COLLECT_METADATA": "whose ends are chosen by rules (external)",
    "IFLA_VXLAN_RSC": "which routes by itself (rsc)",
    "IFLA_VXLAN_VNIFILTER": "of several networks (vnifilter)",
}


def facts(host: Host, name: str) -> Optional[Tunnel]:
    """Return the tunnel of an interface; None if it is of another kind."""
    message = host.link(name)
    if link_kind(message) != "vxlan":
        return None
    known = _data(message)
    return Tunnel(
        name=name,
        vni=int(known.get("IFLA_VXLAN_ID") or 0),
        local=known.get("IFLA_VXLAN_LOCAL") or known.get("IFLA_VXLAN_LOCAL6"),
        remote=known.get("IFLA_VXLAN_GROUP") or known.get("IFLA_VXLAN_GROUP6"),
        port=int(known.get("IFLA_VXLAN_PORT") or 0),
        ttl=int(known.get("IFLA_VXLAN_TTL") or 0),
    )


def unfollowed(host: Host, tunnel: Tunnel) -> Iterator[str]:
    """Yield why frames may leave a tunnel elsewhere than at its other end."""
    known = _data(host.link(tunnel.name))
    for key, why in _ELSEWHERE.items():
        if known.get(key):
            yield f"{tunnel.name}, a tunnel (vxlan) {why},"
    if tunnel.local is None or tunnel.remote is None or ":" in tunnel.remote:
        yield f"{tunnel.name}, a tunnel (vxlan) without both ends in IPv4 (local, remote),"
    others = {*_ends(host, tunnel.name)} - {tunnel.remote}
    if others:
        yield f"{tunnel.name}, a tunnel (vxlan) with other ends: {', '.join(sorted(others))},"


def _ends(host: Host, name: str) -> Iterable[str]:
    """Return where the entries of its table lead; a nexthop object in place of an address, too."""
    index = host.index(name)
    for entry in host.rtnl("fdb", "dump", ifindex=index):
        if entry["ifindex"] == index and entry.get_attr("NDA_NH_ID"):
            yield f"nexthop {entry.get_attr('NDA_NH_ID')}"
        elif entry["ifindex"] == index and entry.get_attr("NDA_DST"):
            yield str(entry.get_attr("NDA_DST"))


def _data(message: Any) -> dict[str, Any]:
    info = message.get_attr("IFLA_LINKINFO")
    data = info.get_attr("IFLA_INFO_DATA") if info is not None else None
    return dict(data["attrs"]) if data is not None else {}
