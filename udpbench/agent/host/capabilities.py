"""The agent's capabilities, each determined by trying, without lasting effect.

What happens where a kernel lacks them: docs/kernel.md, Older kernels.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
from typing import Callable

from udpbench.agent.host import native
from udpbench.agent.host.bpf import bpf, instructions, port_taker
from udpbench.agent.host.reading import KTHREADD
from udpbench.agent.host.reading import ReadingHost as Host
from udpbench.agent.host.socket_options import (
    AF_XDP,
    BPF_LOAD_CPU,
    BPF_RETURN_LOADED,
    SO_ATTACH_REUSEPORT_CBPF,
    SO_BUSY_POLL,
    SO_RCVBUFFORCE,
    SO_ZEROCOPY,
    SOL_UDP,
    UDP_GRO,
    UDP_SEGMENT,
    attach_filter,
)

SIOCGIFFLAGS = 0x8913
SIOCSIFFLAGS = 0x8914
XDP_LINK_RELEASE = (5, 9)
INCOMING_CPU_RELEASE = (6, 2)
"""Before it the option can be set but has no effect (net/core/sock_reuseport.c): not tried."""
MACHINE_SYSCTL = "/proc/sys/net/core/netdev_max_backlog"
"""Exists only in the initial network namespace."""
RPS = "/sys/class/net/lo/queues/rx-0/rps_cpus"
"""Missing in a kernel for one CPU (CONFIG_RPS)."""
RPS_DEFAULT = "/proc/sys/net/core/rps_default_mask"
"""Since Linux 6.3."""
THREAD_NAMES_RELEASE = (5, 17)
"""Before it a kernel thread's name ends after 15 bytes (kernel/kthread.c: get_kthread_comm)."""


def try_capabilities(host: Host) -> dict[str, bool]:
    """Return capability → whether it works."""
    return {
        "net_admin": _net_admin(),
        "rcvbuf_force": _option(socket.SOL_SOCKET, SO_RCVBUFFORCE, 2**16),
        "udp_gso": _option(SOL_UDP, UDP_SEGMENT, 1),
        "udp_gro": _option(SOL_UDP, UDP_GRO, 1),
        "udp_zerocopy": _option(socket.SOL_SOCKET, SO_ZEROCOPY, 1),
        "af_xdp": _af_xdp(),
        "io_uring_send": _io_uring(with_buffers=False),
        "io_uring_receive": _io_uring(with_buffers=True),
        "af_xdp_receive": _af_xdp() and _sockets_of_queues(),
        "busy_poll": _option(socket.SOL_SOCKET, SO_BUSY_POLL, 50),
        "reuseport_cbpf": _reuseport_program(),
        "reuseport_ebpf": _opens(lambda: bpf.create_map(bpf.REUSEPORT_SOCKARRAY, 1)),
        "incoming_cpu": _release(os.uname().release) >= INCOMING_CPU_RELEASE,
        "machine_sysctl": _machine_sysctl(host),
        "kernel_threads": _kernel_threads(host),
        "napi_threads": napi_threads(host, os.uname().release),
        "rps": host.exists(RPS),
        "rps_default": host.exists(RPS_DEFAULT),
        "real_time": _real_time(),
        # A program that passes every packet, not attached anywhere.
        "bpf": _opens(lambda: bpf.load(bpf.XDP, instructions.passes(2), "udpb_pass")),
    }


def _net_admin() -> bool:
    """Set lo's flags to their current value, which needs CAP_NET_ADMIN in this namespace."""
    request = struct.pack("16sh22x", b"lo", 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            now = fcntl.ioctl(probe, SIOCGIFFLAGS, request)
            fcntl.ioctl(probe, SIOCSIFFLAGS, now)
        except OSError:
            return False
    return True


def _opens(make: Callable[[], int]) -> bool:
    """Open a descriptor and close it; return whether that worked."""
    try:
        os.close(make())
    except OSError:
        return False
    return True


def _af_xdp() -> bool:
    """Open an AF_XDP socket without binding it."""
    try:
        socket.socket(AF_XDP, socket.SOCK_RAW, 0).close()
    except OSError:
        return False
    return True


def _sockets_of_queues() -> bool:
    """Load, without attaching it, a program that redirects frames, and its map of sockets.

    Its link, and the counter of a full ring, need Linux 5.9.
    """
    if _release(os.uname().release) < XDP_LINK_RELEASE:
        return False
    try:
        sockets = bpf.create_sockets(1)
        try:
            os.close(
                bpf.load(bpf.XDP, port_taker.takes(sockets, 4, (9,), ("127.0.0.1",)), "udpb_take")
            )
        finally:
            os.close(sockets)
    except OSError:
        return False
    return True


def _io_uring(with_buffers: bool) -> bool:
    try:
        native.try_io_uring(with_buffers)
    except OSError:
        return False
    return True


def _kernel_threads(host: Host) -> bool:
    """Pin kthreadd to its current CPUs, which needs the same permission as pinning NAPI threads.

    In a separate PID namespace, such as a container, there is no kthreadd.
    """
    try:
        if host.read_text(f"/proc/{KTHREADD}/comm").strip() != "kthreadd":
            return False
        os.sched_setaffinity(KTHREADD, os.sched_getaffinity(KTHREADD))
    except OSError:
        return False
    return True


def napi_threads(host: Host, release: str) -> bool:
    """Return whether NAPI has threads (Linux 5.12) that can be told apart, with several queues.

    By netlink (Linux 6.8, or added by a distribution), or by their whole names.
    """
    if not host.exists("/sys/class/net/lo/threaded"):
        return False
    return host.knows_napis() or _release(release) >= THREAD_NAMES_RELEASE


def _real_time() -> bool:
    """Switch to SCHED_FIFO briefly, which needs CAP_SYS_NICE on the machine."""
    now, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        return False
    os.sched_setscheduler(0, now, parameters)
    return True


def _option(level: int, option: int, value: int) -> bool:
    """Set an option on a temporary UDP socket."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.setsockopt(level, option, value)
        except OSError:
            return False
    return True


def _reuseport_program() -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            probe.bind(("127.0.0.1", 0))
            program = [BPF_LOAD_CPU, (BPF_RETURN_LOADED, 0, 0, 0)]
            attach_filter(probe, SO_ATTACH_REUSEPORT_CBPF, program)
        except OSError:
            return False
    return True


def _release(text: str) -> tuple[int, int]:
    """Return major and minor version of a kernel release such as ``6.1.0-18-amd64``."""
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match.group(1)), int(match.group(2))) if match is not None else (0, 0)


def _machine_sysctl(host: Host) -> bool:
    """Open a host-wide sysctl for writing without writing."""
    try:
        os.close(os.open(host.path(MACHINE_SYSCTL), os.O_WRONLY))
    except OSError:
        return False
    return True
