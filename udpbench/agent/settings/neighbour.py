"""Kind ``neighbour``: a permanent neighbour entry, ``send0/10.0.0.1``; its MAC address, or null.

An entry that the kernel learnt by itself counts as not there: it comes back by itself, too.
"""

from __future__ import annotations

import errno
from typing import Any, Optional

from udpbench.agent.host import Host

NUD_PERMANENT = 0x80  # include/uapi/linux/neighbour.h


def read(host: Host, target: str) -> Optional[str]:
    """Return the MAC address of the permanent entry."""
    interface, _, address = target.partition("/")
    try:
        (entry,) = host.rtnl("neigh", "get", ifindex=host.index(interface), dst=address)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    return entry.get_attr("NDA_LLADDR") if entry["state"] & NUD_PERMANENT else None


def write(host: Host, target: str, value: Optional[str]) -> None:
    """Set the entry, whatever was learnt before, or take it away."""
    interface, _, address = target.partition("/")
    entry = {"ifindex": host.index(interface), "dst": address}
    if value is None:
        host.rtnl("neigh", "del", **entry)
    else:
        host.rtnl("neigh", "replace", lladdr=value, state="permanent", **entry)


def same(wanted: Any, got: Any) -> bool:
    """Compare MAC addresses in either case."""
    return bool((wanted and wanted.lower()) == (got and got.lower()))
