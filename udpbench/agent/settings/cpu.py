"""Kinds of CPU power management, target ``cpus``: ``governor``, ``turbo``, ``cpu_latency``."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from typing import Any, Optional, Union

from udpbench.agent.host.system import Host
from udpbench.agent.settings.kind import Command, Kind, echo

_ON_ITS_HOST = "a virtual machine has none; set it on its host"

FOLDER = "/sys/devices/system/cpu/cpufreq"
PREFERENCE = "energy_performance_preference"
SPEED = "scaling_setspeed"
"""The file of governor userspace, in kHz."""
Governors = Union[str, dict[str, str]]


def _policies(host: Host, target: str) -> list[str]:
    _check_target(target)
    names = host.listdir(FOLDER) if host.exists(FOLDER) else []
    policies = [name for name in names if re.fullmatch(r"policy\d+", name)]
    if not policies:
        raise OSError(errno.EOPNOTSUPP, "this machine has no cpufreq")
    return policies


def governor_path(name: str) -> str:
    """Return the file of a policy's governor, or of its preference or a tunable."""
    return f"{FOLDER}/{name}" if "/" in name else f"{FOLDER}/{name}/scaling_governor"


class Governor(Kind):
    """The cpufreq governor, target ``cpus``; "performance".

    Reads as {policy: governor}, because policies may differ; one name applies to all. Some drivers
    change the energy preference with it, and a governor that is replaced loses its tunables, so
    these are read and restored as well.
    """

    instead: Mapping[int, str] = {
        errno.EOPNOTSUPP: _ON_ITS_HOST,
        errno.EINVAL: "see scaling_available_governors",
    }

    def read(self, host: Host, target: str) -> dict[str, str]:
        """Return each policy's governor, preference and tunables; EOPNOTSUPP without cpufreq."""
        policies = _policies(host, target)
        governors = {policy: host.read_text(governor_path(policy)) for policy in policies}
        names = [f"{policy}/{PREFERENCE}" for policy in policies]
        for policy, governor in governors.items():
            if governor == "userspace":
                names.append(f"{policy}/{SPEED}")
            # Of the policy or of all policies (cpufreq.c: have_governor_per_policy).
            for folder in (f"{policy}/{governor}", governor):
                if host.exists(f"{FOLDER}/{folder}"):
                    names += [f"{folder}/{name}" for name in host.listdir(f"{FOLDER}/{folder}")]
        return governors | {
            name: host.read_text(governor_path(name))
            for name in names
            if host.exists(governor_path(name))
        }

    def write(self, host: Host, target: str, value: Governors) -> None:
        """Set every policy's governor, then the preference and tunables that belonged to it."""
        for policy in _policies(host, target):
            governor = value if isinstance(value, str) else value.get(policy)
            if governor is not None:
                host.write_text(governor_path(policy), governor)
        preferences = {} if isinstance(value, str) else value
        for name, preference in preferences.items():
            # With governor performance a driver may refuse any preference (intel_pstate: EBUSY).
            if "/" in name and host.read_text(governor_path(name)) != preference:
                host.write_text(governor_path(name), preference)

    def same(self, requested: Governors, got: dict[str, str]) -> bool:
        """Compare policy by policy; for a single name the governors only."""
        if isinstance(requested, str):
            return {governor for name, governor in got.items() if "/" not in name} == {requested}
        return requested == got

    def by_hand(self, _target: str, value: Any) -> Command:
        """Return the command that sets it."""
        return "; ".join(echo(text, governor_path(name)) for name, text in value.items())


NO_TURBO = "/sys/devices/system/cpu/intel_pstate/no_turbo"
BOOST = "/sys/devices/system/cpu/cpufreq/boost"


def _turbo_path(host: Host, target: str) -> str:
    _check_target(target)
    for path in (NO_TURBO, BOOST):
        if host.exists(path):
            return path
    raise OSError(errno.EOPNOTSUPP, "this machine has no turbo switch")


class Turbo(Kind):
    """Whether CPUs may exceed their nominal frequency, target ``cpus``; a bool."""

    instead: Mapping[int, str] = {errno.EOPNOTSUPP: _ON_ITS_HOST}

    def read(self, host: Host, target: str) -> bool:
        """Return whether they may; OSError EOPNOTSUPP if the kernel has neither file."""
        path = _turbo_path(host, target)
        return (host.read_text(path) == "1") != (path == NO_TURBO)

    def write(self, host: Host, target: str, value: bool) -> None:
        """Allow or forbid it."""
        path = _turbo_path(host, target)
        host.write_text(path, str(int(value != (path == NO_TURBO))))

    def by_hand(self, _target: str, value: Any) -> Command:
        """Return the command that sets it."""
        return (
            "cd /sys/devices/system/cpu; if [ -e intel_pstate/no_turbo ]; "
            f"then {echo(int(not value), 'intel_pstate/no_turbo')}; "
            f"else {echo(int(value), 'cpufreq/boost')}; fi"
        )


def _check_target(target: str) -> None:
    if target != "cpus":
        raise ValueError(f"{target}: the only target is cpus")


class CpuLatency(Kind):
    """The maximum wake-up latency of idle CPUs, target ``cpus``; µs, or null.

    A request in /dev/cpu_dma_latency lasts while the file is open, so it ends with the agent,
    however that ends; nothing is left to undo.
    """

    instead: Mapping[int, str] = {
        errno.ENOENT: "this kernel has no /dev/cpu_dma_latency; omit it, or add it to optional"
    }

    def read(self, host: Host, target: str) -> Optional[int]:
        """Return the latency in force in µs while this agent requests one; else None."""
        _check_target(target)
        return host.held_cpu_latency()

    def write(self, host: Host, target: str, value: Optional[int]) -> None:
        """Request a latency in µs, or drop the request."""
        _check_target(target)
        host.hold_cpu_latency(value)

    def rounded(self, requested: Optional[int], got: Optional[int]) -> bool:
        """Accept a shorter latency: another process requested it."""
        return requested is not None and got is not None and got <= requested


KINDS: Mapping[str, Kind] = {"governor": Governor(), "turbo": Turbo(), "cpu_latency": CpuLatency()}
