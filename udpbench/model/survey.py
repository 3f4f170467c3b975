"""What one who looks on every network namespace of a machine sees at one moment."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Optional

from udpbench.frozen import dataclass
from udpbench.model.host import Facts
from udpbench.model.record import HostLook


@dataclass(frozen=True)
class SpaceLook:
    """A network namespace at one moment, as one who looks on all of them sees it."""

    netns: int
    """The inode number of the namespace."""
    name: str
    """``host`` of the observer's own, that of ``ip netns``, or the number."""
    look: Optional[HostLook]
    """None: it could not be read. Of other namespaces a socket's cookie is its inode."""


@dataclass(frozen=True)
class MachineLook:
    """Every network namespace of a machine at one moment."""

    wall_ns: int
    """CLOCK_REALTIME."""
    spaces: tuple[SpaceLook, ...]
    """The observer's own first, with the devices and what namespaces share."""
    units: dict[str, str] = field(default_factory=dict)
    """Process, as of ``UdpSocket`` → its systemd unit, of the sockets that are new or changed."""
    ephemeral: tuple[int, ...] = ()
    """First and last port that the kernel gives a socket which asks for none."""
    left_out: int = 0
    """Namespaces that were not read, because there are too many."""
    sees_all: bool = True
    """Else there are processes whose namespace cannot be seen."""
    cpu_ns: int = 0
    """What the observer has used so far."""
    settings: dict[str, str] = field(default_factory=dict)
    """Sysctls that decide how much waits; only if asked for, as what follows."""
    changed: dict[str, int] = field(default_factory=dict)
    """How often routes, addresses, firewall and the like were changed in the first namespace."""
    processes: dict[str, int] = field(default_factory=dict)
    """Process → CPU time so far, of those that ran since these were last read."""
    cpu_time: dict[str, int] = field(default_factory=dict)
    """``0 rx_udp``, ``0 unbound``: a CPU and what it did → ns since the look before, sampled."""
    unrecorded: dict[str, int] = field(default_factory=dict)
    """User → sockets that its share of a recording had no room for as they came."""
    cpu_time_why: str = ""
    """Why it cannot be sampled, though it is asked for."""


@dataclass(frozen=True)
class Moment:
    """One look of a flight recorder: a survey, and the facts of its interfaces."""

    survey: MachineLook
    facts: dict[str, Facts]
    whole: bool = False
    """All sockets are listed, not only those that changed."""


@dataclass(frozen=True)
class MachineRows:
    """What an observer answers: rows take half the time of objects to be written and read."""

    look: MachineLook
    """Without sockets."""
    rows: tuple[Any, ...]
    """For each namespace that was read, its sockets as lists of the values of ``UdpSocket``."""
