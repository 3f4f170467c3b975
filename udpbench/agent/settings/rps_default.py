"""Kind ``rps_default``: the CPUs that every RX queue made after it gets for RPS; [] is off.

Of the namespace (Linux 6.3), and all the RPS there is without root: the files of the queues
themselves want CAP_NET_ADMIN over the machine.
"""

from __future__ import annotations

from udpbench.agent.host import Host
from udpbench.agent.settings import masks, rps

PATH = "/proc/sys/net/core/rps_default_mask"
NAME = "queues"
same = rps.same


def read(host: Host, target: str) -> list[int]:
    """Return the CPUs of the namespace's mask."""
    return masks.parse(host.read_text(_path(target)))


def write(host: Host, target: str, value: list[int]) -> None:
    """Set the namespace's mask."""
    host.write_text(_path(target), masks.text(value))


def _path(target: str) -> str:
    if target != NAME:
        raise ValueError(f"{target}: the only target is {NAME}")
    return PATH
