"""The only interface between the agent and its host: what can be read, and what can be changed.

Makes no decisions. Every failure is an OSError with the kernel's text.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

from udpbench.agent.host import genetlink, nf_removal, rtchange
from udpbench.agent.host.reading import (
    KTHREADD,
    NAPI_ID,
    NAPI_NUMBERS,
    PROGRAM_FOLDERS,
    PROGRAM_TIMEOUT_S,
    TCM_BYTES,
    Done,
    NapiInstance,
    ReadingHost,
    device_features,
    link_kind,
    own_address,
)

__all__ = [
    "KTHREADD",
    "NAPI_NUMBERS",
    "PROGRAM_FOLDERS",
    "TCM_BYTES",
    "Done",
    "Host",
    "NapiInstance",
    "link_kind",
    "own_address",
]

NETDEV_CMD_NAPI_SET = 14  # Linux 6.13
CPU_LATENCY = "/dev/cpu_dma_latency"


class AnyVerb:
    """Contains every request of rtnetlink."""

    def __contains__(self, verb: object) -> bool:
        """Return whether a request may be made: it may."""
        return True


class Host(ReadingHost):
    """The host as seen by its agent; ``root`` is another folder in tests of file settings."""

    verbs = AnyVerb()

    def __init__(self, root: Path = Path("/")) -> None:
        super().__init__(root)
        self._latency: Optional[int] = None
        self._lent: tuple[int, ...] = ()

    def rtnl(self, noun: str, verb: str, **fields: Any) -> list[Any]:
        """Make a request as ``ReadingHost.rtnl``; a plain change without pyroute2."""
        request = rtchange.packed(noun, verb, fields)
        if request is None:
            return super().rtnl(noun, verb, **fields)
        rtchange.change(*request)
        return []

    # --- files and processes -------------------------------------------------------------------

    def write_text(self, path: str, text: str) -> None:
        """Write an existing file in one write(2), as /proc and /sys require."""
        file = os.open(self.path(path), os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)

    def set_affinity(self, pid: int, cpus: Iterable[int]) -> None:
        """Restrict a thread to these CPUs."""
        os.sched_setaffinity(pid, cpus)

    def set_scheduling(self, pid: int, policy: int, priority: int, nice: int) -> None:
        """Set a thread's policy, its priority if that is a real-time one, and its nice value."""
        os.sched_setscheduler(pid, policy, os.sched_param(priority))
        os.setpriority(os.PRIO_PROCESS, pid, nice)

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a process; OSError ESRCH if there is none."""
        os.kill(pid, number)

    # --- programs ------------------------------------------------------------------------------

    def run(self, *command: str, stdin: str = "") -> Done:
        """Run an installed program to its end, in the C locale, and return its output.

        OSError ENOPKG if it is not installed, ETIMEDOUT if it does not end. A program that holds a
        lent file also gets a kernel timer, in case this process is killed while another one waits
        for the file; other programs start faster without one.
        """
        timer = _end_in_time if self._lent else None
        return self._run(command, stdin, pass_fds=self._lent, preexec_fn=timer)

    @contextmanager
    def lending(self, file: Optional[int]) -> Iterator[None]:
        """Let programs inherit an open file, so that its lock lasts as long as they run."""
        self._lent = () if file is None else (file,)
        try:
            yield
        finally:
            self._lent = ()

    # --- held by this process -------------------------------------------------------------------

    def hold_cpu_latency(self, latency_us: Optional[int]) -> None:
        """Request a maximum CPU wake-up latency for this process's lifetime; None: no longer."""
        if self._latency is not None:
            os.close(self._latency)
            self._latency = None
        if latency_us is None:
            return
        file = os.open(self.path(CPU_LATENCY), os.O_RDWR | os.O_CLOEXEC)
        try:
            os.write(file, struct.pack("=i", latency_us))
        except BaseException:
            os.close(file)
            raise
        self._latency = file

    def held_cpu_latency(self) -> Optional[int]:
        """Return the latency in force in µs while this process requests one; else None."""
        if self._latency is None:
            return None
        return int(struct.unpack("=i", os.pread(self._latency, 4, 0))[0])

    def packet_socket(self, interface: Optional[str], protocol: int) -> socket.socket:
        """Return a packet socket for one protocol, without link-layer headers; None: of all."""
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
        if interface is None:
            return socket.socket(socket.AF_PACKET, kind, socket.htons(protocol))
        link = socket.socket(socket.AF_PACKET, kind, 0)
        link.bind((interface, protocol))
        return link

    # --- interfaces and firewall -----------------------------------------------------------------

    def set_feature(self, interface: str, name: str, enabled: bool) -> None:
        """Request one feature; the kernel may silently ignore it, so read it back."""
        with device_features(interface) as (device, listed):
            if name not in listed:
                raise OSError(errno.EINVAL, f"{interface} has no feature {name}")
            listed[name] = enabled
            device.set_features(listed)

    def set_napi(self, napi_id: int, numbers: Mapping[str, int]) -> None:
        """Set numbers of one NAPI instance, by names in NAPI_NUMBERS; OSError before Linux 6.13."""
        asked = (
            genetlink.number(NAPI_NUMBERS[name], value)
            if value < 2**32
            else genetlink.attribute(NAPI_NUMBERS[name], struct.pack("=Q", value))
            for name, value in numbers.items()
        )
        genetlink.ask("netdev", NETDEV_CMD_NAPI_SET, genetlink.number(NAPI_ID, napi_id), *asked)

    def remove_from_firewall(
        self, family: str, table: str, chains: Iterable[str], with_table: bool
    ) -> None:
        """Remove empty chains of a table, and the table; OSError if one is not empty."""
        nf_removal.remove(family, table, tuple(chains), with_table)


def _end_in_time() -> None:
    """Set a timer that sends SIGALRM after the timeout; execve(2) keeps it."""
    signal.setitimer(signal.ITIMER_REAL, PROGRAM_TIMEOUT_S + 1)
