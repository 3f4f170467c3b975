"""Kind ``governor``: how the CPUs choose their clock, target ``cpus``; "performance".

Read as {policy: governor}, because CPUs need not agree before; one name is for all of them.
"""

from __future__ import annotations

import errno
import re
from typing import Union

from udpbench.agent.host import Host

FOLDER = "/sys/devices/system/cpu/cpufreq"
Value = Union[str, dict[str, str]]


def read(host: Host, target: str) -> dict[str, str]:
    """Return each policy's governor; OSError EOPNOTSUPP where there is no cpufreq."""
    return {policy: host.read_text(_path(policy)) for policy in _policies(host, target)}


def write(host: Host, target: str, value: Value) -> None:
    """Set every policy's governor."""
    for policy in _policies(host, target):
        governor = value if isinstance(value, str) else value.get(policy)
        if governor is not None:
            host.write_text(_path(policy), governor)


def same(wanted: Value, got: dict[str, str]) -> bool:
    """Compare policy by policy."""
    if isinstance(wanted, str):
        return set(got.values()) == {wanted}
    return wanted == got


def _policies(host: Host, target: str) -> list[str]:
    if target != "cpus":
        raise ValueError(f"{target} is not cpus")
    names = host.listdir(FOLDER) if host.exists(FOLDER) else []
    found = [name for name in names if re.fullmatch(r"policy\d+", name)]
    if not found:
        raise OSError(errno.EOPNOTSUPP, "this machine's CPUs have no cpufreq")
    return found


def _path(policy: str) -> str:
    return f"{FOLDER}/{policy}/scaling_governor"
