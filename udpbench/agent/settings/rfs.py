"""Kind ``rfs``: flows that an RX queue remembers the reading CPU of, ``receive0/rx-0``; 0 is off.

Works only together with the machine's sysctl net.core.rps_sock_flow_entries.
"""

from __future__ import annotations

from udpbench.agent.host import Host
from udpbench.agent.settings import masks


def read(host: Host, target: str) -> int:
    """Return the number of flows."""
    return int(host.read_text(_path(target)))


def write(host: Host, target: str, value: int) -> None:
    """Set the number of flows; the kernel rounds up to a power of two."""
    host.write_text(_path(target), str(value))


def rounded(wanted: int, got: int) -> bool:
    """Say whether ``got`` is the power of two that the kernel makes of ``wanted``."""
    return wanted > 0 and got == 1 << (wanted - 1).bit_length()


def _path(target: str) -> str:
    path = masks.path(target, "rps_flow_cnt")
    if "/rx-" not in target:
        raise ValueError(f"{target} is no RX queue; write for example receive0/rx-0")
    return path
