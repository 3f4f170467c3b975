"""Kind ``tc_drop``: a tc filter that drops UDP to one port on receipt; null: no clsact discipline.

It hangs on a clsact discipline of its own, which counts what it drops. One that somebody else has
made is read as text, and refused, because its filters could not be put back.
"""

from __future__ import annotations

import errno
import os
from typing import Optional, Union

from udpbench.agent import bpf
from udpbench.agent.host import Host
from udpbench.agent.settings.xdp import NAME, named_port

TC_H_CLSACT = 0xFFFFFFF1
INGRESS = 0xFFFFFFF2
CONTEXT = (76, 80)
"""data and data_end in struct __sk_buff."""
VERDICTS = (2, -1)
"""TC_ACT_SHOT, and TC_ACT_UNSPEC: go on."""


def read(host: Host, target: str) -> Union[int, str, None]:
    """Return the port, text where somebody else has a discipline there, or null."""
    index = host.index(target)
    listed = host.rtnl("tc", "dump", index=index)
    if not any(message["parent"] == TC_H_CLSACT for message in listed):
        return None
    filters = list(host.netlink.get_filters(index=index, parent=INGRESS))
    names = [
        options.get_attr("TCA_BPF_NAME")
        for options in (one.get_attr("TCA_OPTIONS") for one in filters)
        if options is not None and hasattr(options, "get_attr")
    ]
    ports = [named_port(name or "") for name in names]
    if len(ports) == 1 and ports[0] is not None:
        return ports[0]
    return f"{len(filters)} filters"


def write(host: Host, target: str, value: Optional[int]) -> None:
    """Make discipline and filter, or take both away; EBUSY where there are another's."""
    index, there = host.index(target), read(host, target)
    if isinstance(there, str):
        raise OSError(errno.EBUSY, f"{target} has an ingress discipline with {there}")
    if there is not None:
        host.rtnl("tc", "del", kind="clsact", index=index)
    if value is None:
        return
    name = NAME.format(value)
    program = bpf.load(bpf.SCHED_CLS, bpf.drops_port(value, CONTEXT, VERDICTS), name)
    try:
        host.rtnl("tc", "add", kind="clsact", index=index)
        host.rtnl(
            "tc",
            "add-filter",
            kind="bpf",
            index=index,
            handle=":0",
            fd=program,
            name=name,
            parent=INGRESS,
            classid=1,
            direct_action=True,
        )
    finally:
        os.close(program)
