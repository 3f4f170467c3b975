"""Kind ``turbo``: whether CPUs may clock above their nominal frequency, target ``cpus``; a bool."""

from __future__ import annotations

import errno

from udpbench.agent.host import Host

NO_TURBO = "/sys/devices/system/cpu/intel_pstate/no_turbo"
BOOST = "/sys/devices/system/cpu/cpufreq/boost"


def read(host: Host, target: str) -> bool:
    """Say whether they may; OSError EOPNOTSUPP where neither file of the kernel is there."""
    path = _path(host, target)
    return (host.read_text(path) == "1") != (path == NO_TURBO)


def write(host: Host, target: str, value: bool) -> None:
    """Allow or forbid it."""
    path = _path(host, target)
    host.write_text(path, str(int(value != (path == NO_TURBO))))


def _path(host: Host, target: str) -> str:
    if target != "cpus":
        raise ValueError(f"{target} is not cpus")
    for path in (NO_TURBO, BOOST):
        if host.exists(path):
            return path
    raise OSError(errno.EOPNOTSUPP, "this machine shows no switch for turbo")
