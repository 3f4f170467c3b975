"""GRE, IP in IP, Geneve and the like: where the kernel sends what it puts into other packets.

By the numbers of their attributes, as a notification has them, too. Reads; changes nothing.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Optional

from udpbench.agent.host import genetlink
from udpbench.agent.host.reading import ReadingHost as Host
from udpbench.agent.host.reading import link_kind
from udpbench.frozen import dataclass
from udpbench.protocol import Tunnel

RTM_GETLINK, LINKINFO, INFO_KIND, INFO_DATA = 18, 18, 1, 2
"""A request of linux/rtnetlink.h, and IFLA_* of linux/if_link.h."""


@dataclass(frozen=True)
class TunnelLayout:
    """Which attributes say where a kind of tunnel leads; 0: it has none for that."""

    remotes: tuple[int, ...]
    protocols: tuple[str, ...]
    """What its outer packets are."""
    local: int = 0
    bound: int = 0
    service: int = 0
    port: int = 0
    inside: int = 0
    external: int = 0
    mark: int = 0


_GRE = TunnelLayout(
    (7,), ("gre",), local=6, bound=1, service=9, inside=14, external=18, mark=20
)  # IFLA_GRE_* of linux/if_tunnel.h
_IP = TunnelLayout(
    (3,), ("ipencap", "ipv6"), local=2, bound=1, service=5, inside=15, external=19, mark=20
)  # IFLA_IPTUN_*
LAYOUTS: Mapping[str, TunnelLayout] = {
    **dict.fromkeys(("gre", "gretap", "erspan", "ip6gre", "ip6gretap", "ip6erspan"), _GRE),
    **dict.fromkeys(("ipip", "sit", "ip6tnl"), _IP),
    # IFLA_GENEVE_* of linux/if_link.h
    "geneve": TunnelLayout((2, 7), ("udp",), service=4, port=5, external=6),
}
WATCHED = (*LAYOUTS, "vxlan", "bareudp", "vti", "vti6", "xfrm", "gtp", "amt")
"""Kinds whose description is to stay as it is."""
INHERITED = 1
"""A type of service that is that of the packet within."""


def watched(words: Mapping[int, bytes]) -> Optional[bytes]:
    """Return what is to stay as it is of a tunnel, by its message; None: the link is none."""
    kind, data = _description(words)
    return data if kind in WATCHED else None


def _description(words: Mapping[int, bytes]) -> tuple[str, bytes]:
    info = dict(genetlink.attributes(words.get(LINKINFO, b"")))
    kind = info.get(INFO_KIND, b"").rstrip(b"\0").decode("ascii", "replace")
    return kind, info.get(INFO_DATA, b"")


def facts(host: Host, name: str) -> Optional[Tunnel]:
    """Return the tunnel of an interface; None if it is of another kind."""
    layout = _layout(host, name)
    if layout is None:
        return None
    known = _data(host, name)
    remotes = [known[kind] for kind in layout.remotes if any(known.get(kind, b""))]
    local = known.get(layout.local, b"")
    return Tunnel(
        name,
        0,
        str(ip_address(local)) if any(local) else None,
        str(ip_address(remotes[0])) if remotes else None,
        int.from_bytes(known.get(layout.port, b""), "big"),
        0,
    )


def protocols(host: Host, name: str) -> tuple[str, ...]:
    """Return what outer packets of a tunnel may be."""
    layout = _layout(host, name)
    return layout.protocols if layout is not None else ("udp",)


def bound_to(host: Host, name: str) -> Optional[int]:
    """Return the index of the interface by which outer packets are to leave; None: by any."""
    layout = _layout(host, name)
    return (_number(_data(host, name), layout.bound) or None) if layout is not None else None


def without_end(host: Host, tunnel: Tunnel) -> Iterator[str]:
    """Yield why packets may leave such a tunnel elsewhere than at a single other end."""
    layout = _layout(host, tunnel.name) or _GRE
    known = _data(host, tunnel.name)
    what = f"{tunnel.name}, a tunnel"
    if layout.external in known:
        yield f"{what} whose ends are chosen by rules (external),"
    elif tunnel.remote is None or ip_address(tunnel.remote).is_multicast:
        yield f"{what} without a single other end (remote),"
    if _number(known, layout.inside):
        yield f"{what} within UDP (encap),"
    if _number(known, layout.mark):
        yield f"{what} by a mark (fwmark),"
    if _number(known, layout.service) not in (0, INHERITED):
        yield f"{what} by a type of service (tos),"


def _layout(host: Host, name: str) -> Optional[TunnelLayout]:
    return LAYOUTS.get(link_kind(host.link(name)) or "")


def _data(host: Host, name: str) -> dict[int, bytes]:
    asked = struct.pack("=iII", host.index(name), 0, 0)
    message = genetlink.get(RTM_GETLINK, socket.NETLINK_ROUTE, asked, socket.AF_UNSPEC)
    _, data = _description(dict(genetlink.attributes(message[len(asked) :])))
    return dict(genetlink.attributes(data))


def _number(known: Mapping[int, bytes], kind: int) -> int:
    return int.from_bytes(known.get(kind, b""), sys.byteorder)
