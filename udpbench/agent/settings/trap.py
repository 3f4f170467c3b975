"""Kind ``trap``: a root queueing discipline that drops whatever has its priority; true, or null.

An htb lets all traffic pass but that of socket priority PRIORITY, whose queue holds one byte. It
refuses to replace a discipline that was set.
"""

from __future__ import annotations

import errno
from typing import Union

from udpbench.agent.host import Host
from udpbench.agent.settings.qdisc import TC_H_ROOT, teach_bfifo

HANDLE = 0x75620000
"""``ub`` in ASCII, so that it is known again."""
PRIORITY = HANDLE | 2
"""The class: htb takes a priority that is a class's number as its choice (htb_classify)."""
LEAF = 0x75630000


def read(host: Host, target: str) -> Union[bool, str, None]:
    """Return true where it is, the kind of another that was set, or null."""
    for message in host.rtnl("tc", "dump", index=host.index(target)):
        # The kernel's default (noqueue, mq, pfifo_fast) has no handle; one that was set has.
        if message["parent"] == TC_H_ROOT and message["handle"] != 0:
            return True if message["handle"] == HANDLE else str(message.get_attr("TCA_KIND"))
    return None


def write(host: Host, target: str, value: Union[bool, None]) -> None:
    """Make it, or take it away; EBUSY where another is set."""
    index, there = host.index(target), read(host, target)
    if isinstance(there, str):
        raise OSError(errno.EBUSY, f"{target} has a {there} as its root discipline")
    if value is None:
        host.rtnl("tc", "del", kind="htb", index=index)
        return
    teach_bfifo()
    host.rtnl("tc", "add", kind="htb", index=index, handle=HANDLE, default=0)
    common = {"index": index, "handle": PRIORITY, "parent": HANDLE}
    host.rtnl("tc", "add-class", kind="htb", rate="1mbit", **common)
    host.rtnl("tc", "add", kind="bfifo", index=index, handle=LEAF, parent=PRIORITY, limit=1)
