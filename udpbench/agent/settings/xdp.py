"""Kind ``xdp``: an XDP program that drops UDP to one port, ``receive0`` = 64001; null: no program.

A program that somebody else has attached is read as its name, and refused, because it could not be
put back.
"""

from __future__ import annotations

import errno
import os
import re
from typing import Optional, Union

from udpbench.agent import bpf
from udpbench.agent.host import Host

NAME = "udpb_drop_{}"
CONTEXT = (0, 4)
"""data and data_end in struct xdp_md."""
XDP_FLAGS_DRV_MODE = 4
"""In the driver itself: what the generic hook drops is counted nowhere (kernel-reference 1.3)."""
VERDICTS = (1, 2)
"""XDP_DROP and XDP_PASS."""


def named_port(name: str) -> Optional[int]:
    """Return the port of a program of udpbench by its name; None for any other's."""
    found = re.fullmatch(NAME.format(r"(\d+)"), name)
    return int(found.group(1)) if found is not None else None


def program(host: Host, interface: str) -> Optional[int]:
    """Return the id of the XDP program on an interface; None where there is none."""
    attached = host.link(interface).get_attr("IFLA_XDP")
    return (attached.get_attr("IFLA_XDP_PROG_ID") if attached is not None else None) or None


def read(host: Host, target: str) -> Union[int, str, None]:
    """Return the port, the name of another's program, or null."""
    number = program(host, target)
    if number is None:
        return None
    name = bpf.program_name(number)
    port = named_port(name)
    return port if port is not None else name or f"program {number}"


def write(host: Host, target: str, value: Optional[int]) -> None:
    """Attach the program, or detach it; EBUSY where another's is attached."""
    there = read(host, target)
    if isinstance(there, str):
        raise OSError(errno.EBUSY, f"{target} has the XDP program {there}; detach it before")
    if value is None:
        _attach(host, target, -1)
        return
    loaded = bpf.load(bpf.XDP, bpf.drops_port(value, CONTEXT, VERDICTS), NAME.format(value))
    try:
        _attach(host, target, loaded)
    finally:
        os.close(loaded)


def _attach(host: Host, interface: str, loaded: int) -> None:
    attached = {"attrs": [("IFLA_XDP_FD", loaded), ("IFLA_XDP_FLAGS", XDP_FLAGS_DRV_MODE)]}
    host.rtnl("link", "set", index=host.index(interface), xdp=attached)
