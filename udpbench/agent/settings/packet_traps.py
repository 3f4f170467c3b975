"""Kinds that drop packets on purpose, and count them: ``trap``, ``xdp``, ``tc_drop``."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from typing import Any, Optional, Union

from udpbench.agent.host.bpf import bpf, instructions
from udpbench.agent.host.socket_options import TRAP_PRIORITY
from udpbench.agent.host.system import Host
from udpbench.agent.settings.kind import Command, Kind
from udpbench.agent.settings.qdisc import root_discipline, teach_bfifo

TRAP_HANDLE = TRAP_PRIORITY & 0xFFFF0000
"""Major number of the class, which htb selects by socket priority (htb_classify)."""
TRAP_LEAF = 0x75630000


class Trap(Kind):
    """A root qdisc that drops packets of one socket priority; true, or null.

    An htb passes all traffic except that of priority TRAP_PRIORITY, whose queue holds one byte. An
    existing qdisc is not replaced.
    """

    disruptive = destroys = True
    alters = ("qdisc_tree",)

    def read(self, host: Host, target: str) -> Union[bool, str, None]:
        """Return true if it is set, the kind of another qdisc, or null."""
        message = root_discipline(host, target)
        if message is None:
            return None
        return True if message["handle"] == TRAP_HANDLE else str(message.get_attr("TCA_KIND"))

    def write(self, host: Host, target: str, value: Union[bool, None]) -> None:
        """Create or delete it; EBUSY if another qdisc is set."""
        index, there = host.index(target), self.read(host, target)
        if isinstance(there, str):
            raise OSError(errno.EBUSY, f"{target} already has root qdisc {there}")
        if value is None:
            host.rtnl("tc", "del", kind="htb", index=index)
            return
        teach_bfifo()
        host.rtnl("tc", "add", kind="htb", index=index, handle=TRAP_HANDLE, default=0)
        common = {"index": index, "handle": TRAP_PRIORITY, "parent": TRAP_HANDLE}
        host.rtnl("tc", "add-class", kind="htb", rate="1mbit", **common)
        host.rtnl(
            "tc", "add", kind="bfifo", index=index, handle=TRAP_LEAF, parent=TRAP_PRIORITY, limit=1
        )

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that takes it away."""
        return ["tc", "qdisc", "del", "dev", target, "root"] if value is None else None


PROGRAM_NAME = "udpb_drop_{}"
XDP_CONTEXT = (0, 4)
"""data and data_end in struct xdp_md."""
XDP_VERDICTS = (1, 2)
"""XDP_DROP and XDP_PASS."""


def named_port(name: str) -> Optional[int]:
    """Return the port of a udpbench program by its name; None for other programs."""
    match = re.fullmatch(PROGRAM_NAME.format(r"(\d+)"), name)
    return int(match.group(1)) if match is not None else None


def _attach(host: Host, interface: str, loaded: int) -> None:
    attached = {"attrs": [("IFLA_XDP_FD", loaded), ("IFLA_XDP_FLAGS", bpf.XDP_FLAGS_DRV_MODE)]}
    host.rtnl("link", "set", index=host.index(interface), xdp=attached)


class Xdp(Kind):
    """An XDP program that drops UDP to one port, ``receive0`` = 64001; null: no program.

    Another program's XDP program reads as its name and is refused, because it could not be
    restored.
    """

    disruptive = True

    def read(self, host: Host, target: str) -> Union[int, str, None]:
        """Return the port, another program's name, or null."""
        number = host.xdp_program(target)
        if number is None:
            return None
        name = bpf.program_name(number)
        port = named_port(name)
        return port if port is not None else name or f"program {number}"

    def write(self, host: Host, target: str, value: Optional[int]) -> None:
        """Attach or detach the program; EBUSY if another one is attached."""
        there = self.read(host, target)
        if isinstance(there, str):
            raise OSError(errno.EBUSY, f"{target} has the XDP program {there}; detach it first")
        if value is None:
            _attach(host, target, -1)
            return
        loaded = bpf.load(
            bpf.XDP,
            instructions.drops_port(value, XDP_CONTEXT, XDP_VERDICTS),
            PROGRAM_NAME.format(value),
        )
        try:
            _attach(host, target, loaded)
        finally:
            os.close(loaded)

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that takes it away."""
        return ["ip", "link", "set", target, "xdp", "off"] if value is None else None


TC_H_CLSACT = 0xFFFFFFF1
INGRESS = 0xFFFFFFF2
TC_CONTEXT = (76, 80)
"""data and data_end in struct __sk_buff."""
TC_VERDICTS = (2, -1)
"""TC_ACT_SHOT, and TC_ACT_UNSPEC: go on."""


class TcDrop(Kind):
    """A tc ingress filter that drops UDP to one port; null: no clsact qdisc.

    It is attached to its own clsact qdisc, which counts the drops. Another program's qdisc reads as
    text and is refused, because its filters could not be restored.
    """

    def read(self, host: Host, target: str) -> Union[int, str, None]:
        """Return the port, text for another program's qdisc, or null."""
        index = host.index(target)
        listed = host.rtnl("tc", "dump", index=index)
        if not any(message["parent"] == TC_H_CLSACT for message in listed):
            return None
        filters = list(host.netlink.get_filters(index=index, parent=INGRESS))
        names = [
            options.get_attr("TCA_BPF_NAME")
            for options in (message.get_attr("TCA_OPTIONS") for message in filters)
            if options is not None and hasattr(options, "get_attr")
        ]
        ports = [named_port(name or "") for name in names]
        if len(ports) == 1 and ports[0] is not None:
            return ports[0]
        return f"{len(filters)} filters"

    def write(self, host: Host, target: str, value: Optional[int]) -> None:
        """Create or delete qdisc and filter; EBUSY if another program has a qdisc there."""
        index, there = host.index(target), self.read(host, target)
        if isinstance(there, str):
            raise OSError(errno.EBUSY, f"{target} already has an ingress qdisc with {there}")
        if there is not None:
            host.rtnl("tc", "del", kind="clsact", index=index)
        if value is None:
            return
        name = PROGRAM_NAME.format(value)
        code = instructions.drops_port(value, TC_CONTEXT, TC_VERDICTS)
        program = bpf.load(bpf.SCHED_CLS, code, name)
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

    def by_hand(self, target: str, value: Any) -> Command:
        """Return the command that takes it away."""
        return ["tc", "qdisc", "del", "dev", target, "clsact"] if value is None else None


KINDS: Mapping[str, Kind] = {"trap": Trap(), "xdp": Xdp(), "tc_drop": TcDrop()}
