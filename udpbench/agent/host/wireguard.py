"""WireGuard of the kernel, or wireguard-go on a tun device: its key, and between which ends it is.

A key is made for each run, and only this process and the kernel, or wireguard-go, its child, ever
have it: it is in no setting, no file and no command.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import Optional

from udpbench.agent.host import genetlink
from udpbench.agent.host.files import read
from udpbench.agent.host.namespace import enter_own_run
from udpbench.agent.host.reading import ReadingHost as Host
from udpbench.agent.host.tun_devices import SOCKET
from udpbench.agent.host.wireguard_ends import (
    ALLOWED_ADDRESS,
    ALLOWED_BITS,
    FAMILY,
    IFNAME,
    LISTEN_PORT,
    PEER_ALLOWED,
    PEER_ENDPOINT,
    PEER_KEY,
    PEERS,
    PORT,
    Ends,
    ask,
    device,
    listed,
)
from udpbench.parent_death import end_with_parent

PROGRAM, TUN = "wireguard-go", "/dev/net/tun"
CONTROL_TABLES = {"output": "udpbench_sent", "input": "udpbench_came"}
"""Hook → the table that counts messages without an inner packet there, and is ours."""
INNER_TABLE = "udpbench_inner"
"""Counts in PREROUTING what came out of a tunnel of the kernel."""
DATA_TABLES = {"output": "udpbench_sent_data", "input": "udpbench_came_data"}
"""Hook → the table that counts there messages with an inner packet, of an interface of others."""
SET_DEVICE, PRIVATE_KEY, FLAGS = 1, 3, 5
"""WG_CMD_SET_DEVICE, and WGDEVICE_A_* that only who sets a key needs (linux/wireguard.h)."""
ALLOWED_FAMILY, REPLACE_PEERS = 1, 1
TC_H_ROOT, QUEUE_PACKETS = 0xFFFFFFFF, 1000
TUNSETIFF, IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x400454CA, 0x0001, 0x1000, 0x4000
"""linux/if_tun.h; with the last one several packets may be written as one."""
READY_S, END_S, LOOK_S = 5.0, 2.0, 0.02
_FIELD = 2**255 - 19
_BASE, _A24 = 9, 121665


def lacking(host: Host) -> str:
    """Return what a host needs for a tunnel and does not have, with what to type; or nothing."""
    if in_kernel():
        return ""
    if host.program(PROGRAM) is None:
        return f"{PROGRAM} is not installed; install that package (apt-get install {PROGRAM})"
    return "" if host.exists(TUN) else f"there is no {TUN}; load its module (modprobe tun)"


def in_kernel() -> bool:
    """Return whether the kernel has WireGuard; asked for it, it loads its module."""
    try:
        genetlink.family_id(FAMILY)
    except OSError:
        return False
    return True


class WireGuard:
    """The key of this agent, and the process that has it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._key = os.urandom(32)
        self.public = public_key(self._key).hex()
        self.name = ""
        """The interface, once it was made."""
        self._peer = ""
        self._process: Optional[subprocess.Popen[bytes]] = None

    @property
    def pid(self) -> Optional[int]:
        """The process, if it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def runs(self) -> bool:
        """Whether there is an interface with its key."""
        return self.pid is not None

    def begin(self, name: str) -> None:
        """Make an interface; OSError if that cannot be done here.

        A release that writes several packets as one to a device of its own gets one from here.
        """
        self._start(name)
        flags = read(self._host, f"/sys/class/net/{name}/tun_flags") or "0"
        if int(flags, 16) & IFF_VNET_HDR:
            self.end()
            tun = one_by_one(name)
            try:
                self._start(name, tun)
            finally:
                os.close(tun)

    def _start(self, name: str, tun: Optional[int] = None) -> None:
        self.name = name
        given = {} if tun is None else {"WG_TUN_FD": str(tun)}
        self._process = subprocess.Popen(
            (str(self._host.program(PROGRAM) or PROGRAM), "--foreground", name),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"LOG_LEVEL": "silent", **given},
            pass_fds=() if tun is None else (tun,),
            preexec_fn=_with_parent,
            start_new_session=True,
        )
        try:
            what = f"{PROGRAM} made no interface {name}"
            self._host.wait_for(what, self._is_ready, READY_S)
        except OSError:
            self.end()
            raise

    def _is_ready(self) -> bool:
        if self.pid is None:
            raise OSError(errno.ECHILD, f"{PROGRAM} ended: it needs {TUN}, and root")
        with suppress(OSError):
            return bool(self._ask("get=1"))
        return False

    def end(self) -> None:
        """Remove the interface with its process."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(END_S)
        self._process, self.name = None, ""

    def lead(self, peer: str, remote: str, allowed: Sequence[str]) -> None:
        """Set the only other end, and which addresses may be behind it."""
        self._peer = peer
        self._ask(
            "set=1",
            f"private_key={self._key.hex()}",
            f"listen_port={PORT}",
            "replace_peers=true",
            f"public_key={peer}",
            f"endpoint={remote}:{PORT}",
            *(f"allowed_ip={network}" for network in allowed),
        )

    def ends(self, limit_s: float = END_S) -> tuple[Ends, ...]:
        """Return each other end, with its key, its address and port, and what may be behind it.

        The one that was set comes first: they are listed in any order. OSError if the interface is
        gone, a socket's timeout if its process does not answer.
        """
        ends = self._listed(limit_s)
        return tuple(sorted(ends, key=lambda end: (end["peer"] != self._peer, end["peer"])))

    def _listed(self, limit_s: float) -> Sequence[Ends]:
        return listed(self._ask("get=1", limit_s=limit_s))[1]

    def glance(self) -> tuple[Ends, ...]:
        """Return the same, waiting no longer than a look may take."""
        return self.ends(LOOK_S)

    def _ask(self, *lines: str, limit_s: float = END_S) -> str:
        """Return the answer of the process; OSError if it refused."""
        return ask(SOCKET.format(pid=self.pid, name=self.name), limit_s, lines)


class KernelWireGuard(WireGuard):
    """The key of this agent, and the kernel's interface that has it."""

    @property
    def runs(self) -> bool:
        """Whether that interface is there."""
        return bool(self.name) and self._host.exists(f"/sys/class/net/{self.name}")

    def begin(self, name: str) -> None:
        """Make the interface, with a queue: nothing else counts what it is given."""
        self._host.rtnl("link", "add", kind=FAMILY, ifname=name)
        self.name = name
        try:
            queue = {"index": self._host.index(name), "parent": TC_H_ROOT}
            self._host.rtnl("tc", "add", kind="pfifo", limit=QUEUE_PACKETS, **queue)
        except OSError:
            self.end()
            raise

    def end(self) -> None:
        """Remove the interface."""
        if self.runs:
            self._host.rtnl("link", "del", index=self._host.index(self.name))
        self.name = ""

    def lead(self, peer: str, remote: str, allowed: Sequence[str]) -> None:
        """Set the only other end, and which addresses may be behind it."""
        self._peer = peer
        end = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", PORT, _packed(remote))
        given = (
            genetlink.attribute(PEER_KEY, bytes.fromhex(peer)),
            genetlink.attribute(PEER_ENDPOINT, end),
            genetlink.nest(PEER_ALLOWED, *map(_allowed, allowed)),
        )
        genetlink.ask(
            FAMILY,
            SET_DEVICE,
            genetlink.attribute(IFNAME, self.name.encode() + b"\0"),
            genetlink.attribute(PRIVATE_KEY, self._key),
            genetlink.number(FLAGS, REPLACE_PEERS),
            genetlink.attribute(LISTEN_PORT, struct.pack("=H", PORT)),
            genetlink.nest(PEERS, genetlink.nest(0, *given)),
        )

    def _listed(self, limit_s: float) -> Sequence[Ends]:
        del limit_s  # the kernel answers at once
        return device(self.name)[1]


def _packed(address: str) -> bytes:
    return ip_address(address).packed


def _allowed(text: str) -> bytes:
    """Return a network as an attribute."""
    network = ip_network(text)
    family = socket.AF_INET if network.version == 4 else socket.AF_INET6
    return genetlink.nest(
        0,
        genetlink.attribute(ALLOWED_FAMILY, struct.pack("=H", family)),
        genetlink.attribute(ALLOWED_ADDRESS, network.network_address.packed),
        genetlink.attribute(ALLOWED_BITS, struct.pack("=B", network.prefixlen)),
    )


def chosen(host: Host) -> WireGuard:
    """Return that of the kernel, where there is; else that of a process."""
    return KernelWireGuard(host) if in_kernel() else WireGuard(host)


def one_by_one(name: str) -> int:
    """Make a tun device of which each read and write is a packet; OSError if it is refused."""
    tun = os.open(TUN, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    except OSError:
        os.close(tun)
        raise
    return tun


def _with_parent() -> None:
    """Let a process end with the agent, and have a /run of its own for its socket."""
    end_with_parent(signal.SIGKILL)
    enter_own_run()


def public_key(private: bytes) -> bytes:
    """Return the public key of a private one (X25519: RFC 7748, section 5)."""
    number = int.from_bytes(private, "little") & ~(7 | 1 << 255) | 1 << 254
    x_2, z_2, x_3, z_3, swapped = 1, 0, _BASE, 1, 0
    for place in reversed(range(255)):
        bit = number >> place & 1
        if bit != swapped:
            x_2, z_2, x_3, z_3 = x_3, z_3, x_2, z_2
        swapped = bit
        plus, minus = x_2 + z_2, x_2 - z_2
        first, second = plus * plus % _FIELD, minus * minus % _FIELD
        left, right = (x_3 - z_3) * plus % _FIELD, (x_3 + z_3) * minus % _FIELD
        x_3, z_3 = (left + right) ** 2 % _FIELD, _BASE * (left - right) ** 2 % _FIELD
        between = first - second
        x_2, z_2 = first * second % _FIELD, between * (first + _A24 * between) % _FIELD
    if swapped:
        x_2, z_2 = x_3, z_3
    return (x_2 * pow(z_2, _FIELD - 2, _FIELD) % _FIELD).to_bytes(32, "little")
