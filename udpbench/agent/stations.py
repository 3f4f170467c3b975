"""Where frames leave the bridges and VXLANs below a way out, by the MAC that they are for.

A bridge floods what is for a MAC that it has not learnt. Has the kernel ask neighbours whom it has
forgotten, so that their answers make them known; sends and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress

from udpbench.agent.counters.snapshot import bridge_ports
from udpbench.agent.host import vxlan
from udpbench.agent.host.files import beneath
from udpbench.agent.host.system import Host, link_kind
from udpbench.agent.neighbours import KNOWN, RESOLVE_S
from udpbench.agent.route_proof import next_hop
from udpbench.protocol import EVERY_PORT, Tunnel

PERMANENT, PROBE = 0x80, 0x10
"""NUD_* of include/uapi/linux/neighbour.h; the kernel asks one in the latter state at once."""


def stations(host: Host, out: str, macs: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield MAC and where its frames leave the bridges and VXLANs that packets leave by."""
    bridges = _bridges(host, out) if macs else {}
    for tunnel in vxlans(host, out) if macs else ():
        table = vxlan.table(host, tunnel.name)
        yield from ((mac, ", ".join(vxlan.ends(table, tunnel, mac))) for mac in sorted(macs))
    flooded = set(macs) if any(bridges.values()) else set()
    for entry in host.rtnl("fdb", "dump") if bridges else ():
        mac = entry.get_attr("NDA_LLADDR")
        port = host.name_of(entry["ifindex"])
        if entry.get_attr("NDA_MASTER") in bridges and mac in macs and port is not None:
            flooded.discard(mac)
            yield mac, port
    yield from ((mac, EVERY_PORT) for mac in sorted(flooded))


def find_stations(host: Host, out: str, pairs: Collection[tuple[str, str]]) -> None:
    """Have neighbours asked whose MAC is known, and is none that a bridge on the way out knows.

    A neighbour is kept for longer than a bridge remembers its port, and is asked for its MAC some
    seconds after the first packet.
    """
    if not any(_bridges(host, out).values()):
        return
    hops = set()
    for source, to in pairs:
        with suppress(OSError):  # no route
            hops.add(next_hop(host, source, to))
    index = host.index(out)

    def flooded() -> list[tuple[str, str]]:
        known = {hop: mac for hop, mac in neighbours(host, out, ~PERMANENT) if hop in hops}
        every = {mac for mac, port in stations(host, out, [*known.values()]) if port == EVERY_PORT}
        return [(hop, mac) for hop, mac in known.items() if mac in every]

    with suppress(PermissionError):  # without CAP_NET_ADMIN the first packets have it asked
        for hop, mac in flooded():
            host.rtnl("neigh", "replace", dst=hop, lladdr=mac, ifindex=index, state=PROBE)
    with suppress(TimeoutError):  # nobody answers: after the path check that is refused
        host.wait_for("a neighbour", lambda: not flooded(), RESOLVE_S)


def _bridges(host: Host, out: str) -> dict[int, bool]:
    """Return the bridges that packets leave by, as indexes, and whether each may flood."""
    return {
        host.index(name): len(bridge_ports(host, name)) > 1
        for name in (out, *beneath(host, out))
        if link_kind(host.link(name)) == "bridge"
    }


def vxlans(host: Host, out: str) -> Iterator[Tunnel]:
    """Yield the VXLANs that packets leave by: a way out, or what it stands on."""
    for name in (out, *beneath(host, out)):
        tunnel = vxlan.facts(host, name)
        if tunnel is not None:
            yield tunnel


def neighbours(host: Host, out: str, states: int = KNOWN) -> Iterator[tuple[str, str]]:
    """Yield address and MAC of what is known on a link."""
    index = host.index(out)
    for message in host.rtnl("neigh", "dump", ifindex=index):
        mac, address = message.get_attr("NDA_LLADDR"), message.get_attr("NDA_DST")
        if message["ifindex"] == index and mac and message["state"] & KNOWN & states:
            yield address, mac
