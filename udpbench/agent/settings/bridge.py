"""Kind ``bridge``: a bridge of this name; true, or null where there is none.

Plain forwarding: no spanning tree, no snooping, so that it never sends a frame of its own.
"""

from __future__ import annotations

import errno
from typing import Optional

from udpbench.agent.host import Host


def read(host: Host, target: str) -> Optional[bool]:
    """Return true where the interface is there and is a bridge."""
    try:
        info = host.link(target).get_attr("IFLA_LINKINFO")
    except OSError as error:
        if error.errno == errno.ENODEV:
            return None
        raise
    return True if info is not None and info.get_attr("IFLA_INFO_KIND") == "bridge" else None


def write(host: Host, target: str, value: Optional[bool]) -> None:
    """Make the bridge, or take it away."""
    if value is None:
        host.rtnl("link", "del", index=host.index(target))
        return
    host.rtnl("link", "add", kind="bridge", ifname=target, br_stp_state=0, br_mcast_snooping=0)
