"""VXLAN interfaces: between which two ends their tunnel is, and what else may lead out of it.

Reads; changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Optional

from udpbench.agent.host.system import Host, link_kind
from udpbench.protocol import Tunnel

ANY = "00:00:00:00:00:00"
"""The MAC of entries for every MAC without one of its own."""
PORT = 4789
"""That of IANA; Linux has 8472 without `dstport`."""
_ELSEWHERE = {
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
    yield from without_end(host, tunnel)
    if _data(host.link(tunnel.name)).get("IFLA_VXLAN_LEARNING"):
        yield f"{tunnel.name}, a tunnel (vxlan) whose ends are learnt from packets (learning),"
    if tunnel.local is None or tunnel.remote is None or ":" in tunnel.remote:
        yield f"{tunnel.name}, a tunnel (vxlan) without both ends in IPv4 (local, remote),"
    others = {end for ends in table(host, tunnel.name).values() for end in ends} - {tunnel.remote}
    if others:
        yield f"{tunnel.name}, a tunnel (vxlan) with other ends: {', '.join(sorted(others))},"


def without_end(host: Host, tunnel: Tunnel) -> Iterator[str]:
    """Yield why no table says where frames leave a tunnel."""
    known = _data(host.link(tunnel.name))
    for key, why in _ELSEWHERE.items():
        if known.get(key):
            yield f"{tunnel.name}, a tunnel (vxlan) {why},"


def bound_to(host: Host, tunnel: Tunnel) -> Optional[int]:
    """Return the index of the interface by which outer packets are to leave; None: by any."""
    return _data(host.link(tunnel.name)).get("IFLA_VXLAN_LINK")


def ends(
    known: Mapping[str, Collection[str]], tunnel: Tunnel, mac: Optional[str]
) -> tuple[str, ...]:
    """Return where frames to a MAC leave, by a tunnel's table: an unknown one's at each default."""
    default = known.get(ANY) or ({tunnel.remote} if tunnel.remote is not None else set())
    return tuple(sorted(known.get(mac or ANY) or default))


def table(host: Host, name: str) -> dict[str, set[str]]:
    """Return MAC → where its frames leave; a nexthop object in place of an address, too."""
    index = host.index(name)
    known: dict[str, set[str]] = {}
    for entry in host.rtnl("fdb", "dump", ifindex=index):
        hop, end = entry.get_attr("NDA_NH_ID"), entry.get_attr("NDA_DST")
        if entry["ifindex"] == index and (hop or end):
            own = known.setdefault(str(entry.get_attr("NDA_LLADDR")), set())
            own.add(f"nexthop {hop}" if hop else str(end))
    return known


def _data(message: Any) -> dict[str, Any]:
    info = message.get_attr("IFLA_LINKINFO")
    data = info.get_attr("IFLA_INFO_DATA") if info is not None else None
    return dict(data["attrs"]) if data is not None else {}
