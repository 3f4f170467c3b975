"""Properties that affect a measurement and must not change during it, as text by name."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Optional

from udpbench.agent.host.control_path import control_interface
from udpbench.agent.host.files import cpuinfo_value, lines_of, names, read
from udpbench.agent.host.interrupts import is_irqbalance_running
from udpbench.agent.host.reading import ReadingHost as Host
from udpbench.model.host import GENERIC_XDP, KERNEL_BUILD, NOTHING_ATTACHED

CPU = "/sys/devices/system/cpu"
CLOCKSOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
TRANSPARENT_HUGEPAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
DRIVER_KEYS = {"version": "driver_version", "firmware-version": "firmware"}
PROGRAMS = {"ethtool": r"version (\S+)", "iptables": r"v(\S+ \(\w+\)|\S+)", "nft": r"v(\S+)"}
SYSCTLS = ("net.ipv4.udp_mem", "net.core.default_qdisc")
"""Sysctls that are text; single numbers are among the limits."""
UNAFFECTED = "Not affected"
CGROUP_LIMITS = {"": "/sys/fs/cgroup{}/memory.max",
                 "memory": "/sys/fs/cgroup/memory{}/memory.kmem.tcp.limit_in_bytes"}  # fmt: skip
"""Controllers in /proc/PID/cgroup, none in version 2 → file of the limit that sockets have; that of
version 1 is for UDP, too, in spite of its name (mm/memcontrol.c: mem_cgroup_charge_skmem)."""
NEVER_REFUSED = (6, 1)
"""From Linux 6.1 on a limit of version 2 refuses no datagram (commit 720ca52bcef2)."""
UNLIMITED_BYTES = 2**62


def environment(host: Host, interface: Optional[str], cpuinfo: str) -> dict[str, str]:
    """Return all known properties; ``interface`` is None if it does not exist yet."""
    facts = {
        **_machine(host, cpuinfo),
        **(_device(host, interface) if interface is not None else {}),
        **{name: version(host, name) for name in PROGRAMS},
    }
    return {key: value for key, value in facts.items() if value}


def _machine(host: Host, cpuinfo: str) -> dict[str, Optional[str]]:
    governors = {read(host, f"{CPU}/{n}/cpufreq/scaling_governor") for n in names(host, CPU)}
    flags = (cpuinfo_value(cpuinfo, "flags") or "").split()
    return {
        "mitigations": mitigations(host),
        "governor": ", ".join(sorted(g for g in governors if g is not None)) or None,
        "turbo": turbo_state(host),
        "smt": read(host, f"{CPU}/smt/control"),
        "isolated_cpus": read(host, f"{CPU}/isolated"),
        "nohz_full_cpus": _nohz_full_cpus(host),
        "idle_driver": read(host, f"{CPU}/cpuidle/current_driver"),
        "transparent_hugepages": _chosen(read(host, TRANSPARENT_HUGEPAGES)),
        "clocksource": read(host, CLOCKSOURCE),
        "caches": caches(host),
        "virtual_machine": "yes" if "hypervisor" in flags else "no" if flags else None,
        "irqbalance": _irqbalance(host),
        "system": _system(host),
        KERNEL_BUILD: host.kernel()[1],
        "control_interface": control_interface(host),
        **{name: sysctl(host, name) for name in SYSCTLS},
    }


def _device(host: Host, interface: str) -> dict[str, Optional[str]]:
    return {
        "offloads": offloads(host, interface),
        "link": link_state(host, interface),
        "rp_filter": reverse_path_filter(host, interface),
        "xdp": xdp_program(host, interface),
        "tcx": tcx_programs(host, interface),
        **driver_facts(host, interface),
    }


def _nohz_full_cpus(host: Host) -> Optional[str]:
    """Return the nohz_full CPUs; the kernel prints ``(null)`` if there are none."""
    cpus = read(host, f"{CPU}/nohz_full")
    return None if cpus == "(null)" else cpus


def mitigations(host: Host) -> Optional[str]:
    """Return the CPU vulnerabilities of this machine and their mitigations."""
    folder = f"{CPU}/vulnerabilities"
    states = {name: read(host, f"{folder}/{name}") for name in names(host, folder)}
    return (
        "; ".join(f"{n}: {state}" for n, state in states.items() if state and state != UNAFFECTED)
        or None
    )


def socket_memory(host: Host) -> Optional[str]:
    """Return the lowest limit of memory for this process's sockets: ``65536 bytes of cgroup /x``.

    Of its cgroup and those around it; None where no limit makes the kernel refuse datagrams.
    """
    release = re.match(r"(\d+)\.(\d+)", host.kernel()[0])
    version_2 = release is not None and tuple(map(int, release.groups())) < NEVER_REFUSED
    limits = []
    for line in lines_of(read(host, "/proc/self/cgroup")):
        _, kind, path = (*line.split(":", 2), "", "")[:3]
        if kind not in CGROUP_LIMITS or not (kind or version_2) or ".." in path:
            continue
        for folder in (PurePosixPath(path), *PurePosixPath(path).parents):
            file = CGROUP_LIMITS[kind].format("" if folder == folder.parent else folder)
            # A built-in lab's agent has a /sys of its own, without cgroups.
            limit = read(host, file) or read(host, f"/proc/{os.getppid()}/root{file}")
            if re.fullmatch("[0-9]{1,19}", limit or "") and int(limit or 0) < UNLIMITED_BYTES:
                limits.append((int(limit or 0), str(folder)))
    return "{} bytes of cgroup {}".format(*min(limits)) if limits else None


def turbo_state(host: Host) -> Optional[str]:
    """Return whether CPUs may exceed their nominal frequency: on, off, or None if unknown."""
    no_turbo = read(host, f"{CPU}/intel_pstate/no_turbo")
    if no_turbo is not None:
        return "off" if no_turbo == "1" else "on"
    boost = read(host, f"{CPU}/cpufreq/boost")
    return {"1": "on", "0": "off"}.get(boost or "")


def caches(host: Host) -> Optional[str]:
    """Return the caches of the first CPU: ``L1d 32K, L1i 32K, L2 1024K``."""
    folder = f"{CPU}/cpu0/cache"
    listed = []
    for index in sorted(names(host, folder)):
        level, size = (read(host, f"{folder}/{index}/{name}") for name in ("level", "size"))
        kind = read(host, f"{folder}/{index}/type")
        if level is not None and size is not None:
            letter = {"Data": "d", "Instruction": "i"}.get(kind or "", "")
            listed.append(f"L{level}{letter} {size}")
    return ", ".join(listed) or None


def sysctl(host: Host, name: str) -> Optional[str]:
    """Return a sysctl with single spaces; None if this namespace does not have it."""
    text = read(host, "/proc/sys/" + name.replace(".", "/"))
    return " ".join(text.split()) if text is not None else None


def reverse_path_filter(host: Host, interface: str) -> Optional[str]:
    """Return the mode in force: the maximum of ``all`` and the interface (ip-sysctl.rst)."""
    folder = "/proc/sys/net/ipv4/conf"
    modes = [read(host, f"{folder}/{name}/rp_filter") for name in ("all", interface)]
    return max((text for text in modes if text is not None), default=None)


def _chosen(text: Optional[str]) -> Optional[str]:
    """Return the bracketed word of ``always [madvise] never``."""
    match = re.search(r"\[(\w+)\]", text or "")
    return match.group(1) if match is not None else None


def _irqbalance(host: Host) -> str:
    try:
        running = is_irqbalance_running(host)
    except OSError:
        running = None
    return {True: "running", False: "paused", None: "not running"}[running]


def _system(host: Host) -> Optional[str]:
    match = re.search(
        r'^PRETTY_NAME="?([^"\n]*)', read(host, "/etc/os-release") or "", re.MULTILINE
    )
    return match.group(1) if match is not None else None


def offloads(host: Host, interface: str) -> Optional[str]:
    """Return the enabled offload features by kernel name."""
    try:
        features = host.features(interface)
    except OSError:
        return None
    return " ".join(sorted(name for name, enabled in features.items() if enabled))


def xdp_program(host: Host, interface: str) -> Optional[str]:
    """Return the id of an interface's XDP program and whether it is generic; None if unknown."""
    try:
        attached = host.xdp_program(interface)
        if not attached:
            return NOTHING_ATTACHED
        return f"program {attached}{f', {GENERIC_XDP}' if host.is_xdp_generic(interface) else ''}"
    except OSError:
        return None


def tcx_programs(host: Host, interface: str) -> Optional[str]:
    """Return the number of tcx ingress programs, whose drops no qdisc counts."""
    try:
        count = host.tcx_programs(interface)
    except OSError:
        return None
    return None if count is None else str(count) if count else NOTHING_ATTACHED


def link_state(host: Host, interface: str) -> Optional[str]:
    """Return speed and duplex, ``10000 Mb/s, full duplex``; None if the link has no speed."""
    speed = read(host, f"/sys/class/net/{interface}/speed")
    duplex = read(host, f"/sys/class/net/{interface}/duplex")
    if speed is None or not speed.isdigit():
        return None
    return f"{speed} Mb/s" + (f", {duplex} duplex" if duplex in ("full", "half") else "")


def driver_facts(host: Host, interface: str) -> dict[str, Optional[str]]:
    """Return driver and firmware version from ethtool -i, if known."""
    try:
        done = host.run("ethtool", "-i", interface)
    except OSError:
        return {}
    split = [line.partition(":") for line in lines_of(done.out)]
    return {
        DRIVER_KEYS[key]: value.strip()
        for key, _, value in split
        if key in DRIVER_KEYS and value.strip() not in ("", "N/A")
    }


_read_before: dict[str, Optional[str]] = {}
"""Program → version, as known to the process of which this one is a fork."""


def load_versions() -> None:
    """Read the programs' versions once for all processes that are forked later."""
    _read_before.update({name: version(Host(), name) for name in PROGRAMS})


@lru_cache(maxsize=len(PROGRAMS))
def version(host: Host, program: str) -> Optional[str]:
    """Return a program's version, None if not installed; cached, because a run reads it often."""
    if program in _read_before:
        return _read_before[program]
    try:
        output = host.run(program, "--version").out
    except OSError:
        return None
    match = re.search(PROGRAMS[program], output)
    return match.group(1) if match is not None else None
