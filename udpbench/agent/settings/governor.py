"""Kind ``governor``: how the CPUs choose their clock, target ``cpus``; "performance".

Read as {policy: governor}, because CPUs need not agree before; one name is for all of them. Some
drivers change the energy preference with it, so that is read, and put back, as well.
"""

from __future__ import annotations

import errno
import re
from typing import Union

from udpbench.agent.host import Host

FOLDER = "/sys/devices/system/cpu/cpufreq"
PREFERENCE = "energy_performance_preference"
Value = Union[str, dict[str, str]]


def read(host: Host, target: str) -> dict[str, str]:
    """Return each policy's governor and preference; EOPNOTSUPP where there is no cpufreq."""
    policies = _policies(host, target)
    found = {policy: host.read_text(path(policy)) for policy in policies}
    preferences = [f"{policy}/{PREFERENCE}" for policy in policies]
    return found | {
        name: host.read_text(path(name)) for name in preferences if host.exists(path(name))
    }


def write(host: Host, target: str, value: Value) -> None:
    """Set every policy's governor, then the preference that it had with it before."""
    for policy in _policies(host, target):
        governor = value if isinstance(value, str) else value.get(policy)
        if governor is not None:
            host.write_text(path(policy), governor)
    preferences = {} if isinstance(value, str) else value
    for name, preference in preferences.items():
        # While the governor is performance a driver may refuse any (intel_pstate: EBUSY).
        if "/" in name and host.read_text(path(name)) != preference:
            host.write_text(path(name), preference)


def same(wanted: Value, got: dict[str, str]) -> bool:
    """Compare policy by policy; of one name the governors alone."""
    if isinstance(wanted, str):
        return {governor for name, governor in got.items() if "/" not in name} == {wanted}
    return wanted == got


def _policies(host: Host, target: str) -> list[str]:
    if target != "cpus":
        raise ValueError(f"{target} is not cpus")
    names = host.listdir(FOLDER) if host.exists(FOLDER) else []
    found = [name for name in names if re.fullmatch(r"policy\d+", name)]
    if not found:
        raise OSError(errno.EOPNOTSUPP, "this machine's CPUs have no cpufreq")
    return found


def path(name: str) -> str:
    """Return the file of a policy's governor, or of its preference."""
    return f"{FOLDER}/{name}" if "/" in name else f"{FOLDER}/{name}/scaling_governor"
