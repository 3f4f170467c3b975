"""Kind ``rps``: the CPUs that work on what an RX queue received, ``receive0/rx-0``; [] is off."""

from __future__ import annotations

from udpbench.agent.host import Host
from udpbench.agent.settings import masks


def read(host: Host, target: str) -> list[int]:
    """Return the CPUs of the queue's mask."""
    return masks.parse(host.read_text(masks.path(target, "rps_cpus")))


def write(host: Host, target: str, value: list[int]) -> None:
    """Set the queue's mask."""
    host.write_text(masks.path(target, "rps_cpus"), masks.text(value))


def same(wanted: list[int], got: list[int]) -> bool:
    """Compare as sets."""
    return set(wanted) == set(got)
