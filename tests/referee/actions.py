"""What is done to a run from outside: rules, stops, limits, other programs.

Each function returns an action: a context that does it, and undoes it at its end.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from planting import Action, Site

CPU_GROUPS = Path("/sys/fs/cgroup/cpu")
"""cgroup v1; without it a quota cannot be planted."""
PERIOD_US = 100_000
ADDRESS = (192 << 24) + (168 << 16) + (254 << 8) + 1
"""The first address of the receiver in the lab ``local``."""


def commands(role: str, do: str, undo: str = "true") -> Action:
    """Run a line of shell in a host's network namespace, and another at the end."""

    @contextmanager
    def act(site: Site) -> Iterator[None]:
        site.do(role, do)
        try:
            yield
        finally:
            # The namespace may have gone, and what was done to it with it.
            with suppress(RuntimeError):
                site.do(role, undo)

    return act


def rule(role: str, hook: str, text: str) -> Action:
    """Add an nftables rule for the traffic's port at a hook (``ingress``, ``input`` …)."""
    device = {"sender": "send0", "receiver": "receive0"}[role]
    family = "netdev" if hook in ("ingress", "egress") else "inet"
    at = f" device {device}" if family == "netdev" else ""
    # At -310 a packet has not yet been seen by any other table (raw is -300).
    chain = f"add chain {family} planted c {{ type filter hook {hook}{at} priority -310; }}"
    lines = (
        f"add table {family} planted",
        chain,
        f"add rule {family} planted c udp dport 4321 {text}",
    )
    do = "\n".join(f"nft '{line}'" for line in lines)
    return commands(role, f"set -e\n{do}", f"nft 'delete table {family} planted'")


def many_rules(role: str, hook: str, count: int) -> Action:
    """Add rules that match nothing of the traffic; each is compared with every packet."""
    lines = [
        "table inet planted {",
        f"chain c {{ type filter hook {hook} priority -310;",
        *(
            f"ip saddr 10.{k >> 16 & 255}.{k >> 8 & 255}.{k & 255} udp dport 9 drop"
            for k in range(count)
        ),
        "}",
        "}",
    ]
    text = "\n".join(lines)
    return commands(role, f"nft -f - <<'END'\n{text}\nEND", "nft 'delete table inet planted'")


def stopped(role: str, index: int | None = None) -> Action:
    """Stop a host's worker processes, or the k-th alone, as a debugger or an operator would."""

    @contextmanager
    def act(site: Site) -> Iterator[None]:
        pids = site.workers(role)
        chosen = pids if index is None else [pids[index]]
        for pid in chosen:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in chosen:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    return act


def beside(*words: str, role: str | None = None) -> Action:
    """Run another program meanwhile; ``PROGRAM`` stands for the built one."""

    @contextmanager
    def act(site: Site) -> Iterator[None]:
        command = [str(site.program) if word == "PROGRAM" else word for word in words]
        placed = command if role is None else list(site.within(role, *command))
        quiet = subprocess.DEVNULL
        other = subprocess.Popen(placed, stdin=quiet, stdout=quiet, stderr=quiet)
        try:
            yield
        finally:
            early = other.poll()
            other.kill()
            other.wait()
        if early is not None:
            raise RuntimeError(f"{command}: ended early with {early}")

    return act


def hog(cpu: int, *how: str) -> Action:
    """Burn a CPU by another program, with ``chrt`` or ``nice`` before it."""
    return beside(*how, "taskset", "-c", str(cpu), "PROGRAM", "burn")


def drop_program(mode: str) -> Action:
    """Drop all that the receiver's interface receives, by a BPF program: ``xdp`` or ``tcx``."""
    return beside("PROGRAM", mode, role="receiver")


def stranger(mode: str, address: int) -> Action:
    """Bind another program's socket to the traffic's port: ``stranger``, or ``-idle``: unread.

    To all addresses (0), as udpbench's own are, it takes a share of the flows; to one, all of them.
    """
    return beside("PROGRAM", mode, "4321", str(address), role="receiver")


def quota(role: str, share: float) -> Action:
    """Allow a host's workers so much CPU time of every tenth of a second."""

    @contextmanager
    def act(site: Site) -> Iterator[None]:
        group = CPU_GROUPS / f"referee-{os.getpid()}"
        group.mkdir()
        try:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(int(PERIOD_US * share)))
            for pid in site.workers(role):
                (group / "cgroup.procs").write_text(str(pid))
            yield
        finally:
            for text in (group / "cgroup.procs").read_text().split():
                with suppress(OSError):
                    (CPU_GROUPS / "cgroup.procs").write_text(text)
            group.rmdir()

    return act
