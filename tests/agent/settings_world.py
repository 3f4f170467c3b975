"""A host that is a folder, and kinds of setting that are a dictionary: for tests without root."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, Optional

from udpbench.agent.host.system import Host
from udpbench.agent.settings.engine import Engine
from udpbench.agent.settings.journal import Journal
from udpbench.agent.settings.kind import Kind
from udpbench.model.host import Setting

BOOT_ID = "6ab1c5d0-0000-4000-8000-000000000001"
FILES = {
    "proc/sys/kernel/random/boot_id": BOOT_ID,
    "proc/self/ns/net": "",
    "proc/thread-self/net/unix": "Num       RefCount Protocol Flags    Type St Inode Path",
    "proc/sys/net/core/rmem_max": "212992",
    "proc/sys/vm/dirty_bytes": "0",
    "proc/sys/vm/dirty_ratio": "20",
    "proc/sys/net/ipv4/udp_mem": "100\t200\t300",
    "proc/sys/net/ipv4/conf/eth0.100/rp_filter": "0",
    "sys/class/net/send0/threaded": "0",
    "sys/class/net/send0/queues/tx-0/xps_cpus": "0",
    "proc/sys/net/core/rps_default_mask": "00000000,00000002",
    "sys/class/net/send0/queues/rx-0/rps_cpus": "00000001,0000000f",
}


def fake_host(root: Path) -> Host:
    """Return a host whose /proc and /sys are plain files under ``root``."""
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return Host(root)


class World(Kind):
    """Values by target behind one fake kind, with the refusals and events a test asks for."""

    def __init__(self, root: Path, values: Optional[dict[str, Any]] = None) -> None:
        self.host = fake_host(root)
        self.values: dict[str, Any] = dict(values or {"a": 1, "b": 2, "c": 3})
        self.events: list[str] = []
        self.refused: set[tuple[str, Any]] = set()
        """Writes that fail with EPERM."""
        self.kept: set[tuple[str, Any]] = set()
        """Writes that succeed and change nothing."""
        self.half_done: set[tuple[str, Any]] = set()
        """Writes that change the value and then fail."""
        self.journal = Journal(self.host, "run")
        self.kinds: dict[str, Kind] = {"fake": self}
        self.unforeseen: set[tuple[str, Any]] = set()
        """Writes that fail with what no kernel says: with a fault of udpbench."""
        self.unreadable: set[str] = set()
        """Targets whose reads do so."""
        self.apart: set[str] = set()
        """Targets that are set by themselves."""
        self.rounds_up = False
        """Every write is taken as one more than was asked for, and that counts as rounded."""
        self.gone_to_writes: set[tuple[str, Any]] = set()
        """Writes that fail with ENODEV although the thing is there."""
        self.takes_along: dict[tuple[str, Any], str] = {}
        """Writes with which another thing goes, too."""

    def engine(self, scopes: tuple[Any, ...] = ("namespace",)) -> Engine:
        """Return an engine of this world's kind."""
        return Engine(self.host, self.journal, scopes, self.kinds)

    def reopened(self) -> Engine:
        """Return the engine of another process, after this one's was killed."""
        path = self.journal.path
        self.journal.close()
        self.journal = Journal.open(self.host, path)
        return self.engine()

    def is_apart(self, target: str) -> bool:
        """Return whether a test says so."""
        return target in self.apart

    def read(self, _: Host, target: str) -> Any:
        """Read a value; ENODEV where there is none."""
        if target in self.unreadable:
            raise AttributeError("no attribute get_attr")
        if target not in self.values:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return self.values[target]

    def write(self, _: Host, target: str, value: Any) -> None:
        """Write a value, or do what the test asked for."""
        assert self.journal.path.exists(), "written before it was journalled"
        self.events.append(f"{target}={value}")
        self.values.pop(self.takes_along.get((target, value), ""), None)
        if (target, value) in self.refused:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        if (target, value) in self.unforeseen:
            raise IndexError("list index out of range")
        if (target, value) in self.gone_to_writes:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        if (target, value) not in self.kept:
            self.values[target] = value + self.rounds_up
        if (target, value) in self.half_done:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def rounded(self, requested: Any, actual: Any) -> bool:
        """Accept one more than was asked for, where the test has it so."""
        return self.rounds_up and actual == requested + 1


def fake(target: str, value: Any, **more: Any) -> Setting:
    """Return a setting of the fake kind."""
    return Setting("fake", target, value, **more)
