"""Kind ``port``: an interface as a port of a bridge, with the one station that is behind it.

Value: {bridge, station}, or null where it is in no bridge. Nothing is learnt or flooded: a station
that only receives would never be learnt, and every frame to it would be copied to every other port.
"""

from __future__ import annotations

from typing import Any, Optional

from udpbench.agent.host import Host

# include/uapi/linux/neighbour.h. Both together make an entry static: neither aged nor the bridge's
# own; it is listed with the first alone (net/bridge/br_fdb.c: fdb_to_nud).
NUD_NOARP = 0x40
NUD_REACHABLE = 0x02
NTF_MASTER = 0x04


def read(host: Host, target: str) -> Optional[dict[str, Any]]:
    """Return the bridge's name and the station's MAC; a port without a station has None for it."""
    message = host.link(target)
    master = message.get_attr("IFLA_MASTER")
    if master is None:
        return None
    entries = host.rtnl("fdb", "dump", ifindex=message["index"])
    stations = [
        str(entry.get_attr("NDA_LLADDR")).lower()
        for entry in entries
        if entry["ifindex"] == message["index"] and entry["state"] == NUD_NOARP
    ]
    return {
        "bridge": host.rtnl("link", "get", index=master)[0].get_attr("IFLA_IFNAME"),
        "station": stations[0] if stations else None,
    }


def write(host: Host, target: str, value: Optional[dict[str, Any]]) -> None:
    """Put the interface into the bridge, or take it out of any; the kernel forgets the rest."""
    index = host.index(target)
    if value is None:
        host.rtnl("link", "set", index=index, master=0)
        return
    host.rtnl("link", "set", index=index, master=host.index(value["bridge"]))
    flooding = dict.fromkeys(("learning", "unicast_flood", "mcast_flood", "bcast_flood"), 0)
    host.rtnl("brport", "set", index=index, **flooding)
    host.rtnl(
        "fdb",
        "append",
        ifindex=index,
        lladdr=value["station"],
        state=NUD_NOARP | NUD_REACHABLE,
        flags=NTF_MASTER,
    )
