"""Kind ``cpu_latency``: the longest wake-up of an idle CPU, target ``cpus``; µs, or null.

A promise of /dev/cpu_dma_latency lasts as long as the file is open in this agent, so it ends with
the agent, however that ends; to any other process there is nothing to undo.
"""

from __future__ import annotations

from typing import Optional

from udpbench.agent.host import Host


def read(host: Host, target: str) -> Optional[int]:
    """Return the latency in force, in µs, while this agent asks for one."""
    _check(target)
    return host.held_cpu_latency()


def write(host: Host, target: str, value: Optional[int]) -> None:
    """Ask for a latency in µs, or no longer."""
    _check(target)
    host.hold_cpu_latency(value)


def rounded(wanted: Optional[int], got: Optional[int]) -> bool:
    """Accept a shorter one: somebody else on the machine asked for that."""
    return wanted is not None and got is not None and got <= wanted


def _check(target: str) -> None:
    if target != "cpus":
        raise ValueError(f"{target} is not cpus")
