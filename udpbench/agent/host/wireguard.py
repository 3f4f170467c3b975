"""WireGuard of the kernel, or wireguard-go on a tun device: its key, and between which ends it is.

A key is made for each run, and only this process and the kernel, or wireguard-go, its child, ever
have it: it is in no setting, no file and no command. Of an interface that others made no key
is kept.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import Any, Optional

from udpbench.agent.host import genetlink
from udpbench.agent.host.files import lines_of, read
from udpbench.agent.host.namespace import enter_own_run
from udpbench.agent.host.reading import ReadingHost as Host
from udpbench.parent_death import end_with_parent
from udpbench.protocol import Tunnel

PROGRAM, TUN, PORT = "wireguard-go", "/dev/net/tun", 51820
SOCKET = "/proc/{pid}/root/run/wireguard/{name}.sock"
CONTROL_TABLES = {"output": "udpbench_sent", "input": "udpbench_came"}
"""Hook → the table that counts messages without an inner packet there, and is ours."""
INNER_TABLE = "udpbench_inner"
"""Counts in PREROUTING what came out of a tunnel of the kernel."""
DATA_TABLES = {"output": "udpbench_sent_data", "input": "udpbench_came_data"}
"""Hook → the table that counts there messages with an inner packet, of an interface of others."""
FAMILY, GET_DEVICE, SET_DEVICE = "wireguard", 0, 1
IFNAME, PRIVATE_KEY, FLAGS, LISTEN_PORT, PEERS = 2, 3, 5, 6, 8
"""WGDEVICE_A_* of linux/wireguard.h."""
PEER_KEY, PEER_ENDPOINT, PEER_ALLOWED = 1, 4, 9
"""WGPEER_A_*."""
ALLOWED_FAMILY, ALLOWED_ADDRESS, ALLOWED_BITS = 1, 2, 3
"""WGALLOWEDIP_A_*."""
REPLACE_PEERS = 1
TC_H_ROOT, QUEUE_PACKETS = 0xFFFFFFFF, 1000
TUNSETIFF, IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x400454CA, 0x0001, 0x1000, 0x4000
"""linux/if_tun.h; with the last one several packets may be written as one."""
READY_S, END_S, LOOK_S = 5.0, 2.0, 0.02
_FIELD = 2**255 - 19
_BASE, _A24 = 9, 121665
Ends = dict[str, Any]


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
        listed = self._listed(limit_s)
        return tuple(sorted(listed, key=lambda end: (end["peer"] != self._peer, end["peer"])))

    def _listed(self, limit_s: float) -> Sequence[Ends]:
        ends: list[Ends] = []
        for line in lines_of(self._ask("get=1", limit_s=limit_s)):
            name, _, value = line.partition("=")
            if name == "public_key":
                ends.append({"peer": value, "remote": "", "allowed": []})
            elif name == "endpoint":
                ends[-1]["remote"] = value.removesuffix(f":{PORT}")
            elif name == "allowed_ip":
                ends[-1]["allowed"].append(value)
        return ends

    def glance(self) -> tuple[Ends, ...]:
        """Return the same, waiting no longer than a look may take."""
        return self.ends(LOOK_S)

    def _ask(self, *lines: str, limit_s: float = END_S) -> str:
        """Return the answer of the process (the userspace API of WireGuard); OSError if refused."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(limit_s)
            link.connect(SOCKET.format(pid=self.pid, name=self.name))
            link.sendall("".join(f"{line}\n" for line in (*lines, "")).encode())
            answer = b""
            while not answer.endswith(b"\n\n"):
                part = link.recv(2**16)
                if not part:
                    break
                answer += part
        text = answer.decode("ascii", "replace")
        if "errno=0\n" not in text:
            raise OSError(errno.EINVAL, f"{PROGRAM} refused what it was asked")
        return text


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


def _network(data: bytes) -> str:
    known = dict(genetlink.attributes(data))
    bits = genetlink.unsigned(known[ALLOWED_BITS])
    return f"{ip_address(known[ALLOWED_ADDRESS])}/{bits}"


def _endpoint(data: bytes) -> str:
    """Return a socket address, with its port if that is another one; empty: none."""
    if not data:
        return ""
    is_ipv4 = struct.unpack_from("=H", data)[0] == socket.AF_INET
    (port,) = struct.unpack_from("!H", data, 2)
    address = str(ip_address(data[4:8] if is_ipv4 else data[8:24]))
    if port == PORT:
        return address
    return f"{address}:{port}" if is_ipv4 else f"[{address}]:{port}"


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


def is_there(host: Host, name: str) -> bool:
    """Return whether an interface is one of the kernel's, whoever made it."""
    return "DEVTYPE=wireguard" in (read(host, f"/sys/class/net/{name}/uevent") or "").split()


def device(name: str) -> tuple[int, tuple[Ends, ...]]:
    """Return on which port such an interface listens, and its other ends.

    OSError if it is gone, or this user may not ask.
    """
    port, ends = 0, dict[bytes, Ends]()
    named = genetlink.attribute(IFNAME, name.encode() + b"\0")
    for answer in genetlink.ask(FAMILY, GET_DEVICE, named, dump=True):
        message = dict(genetlink.attributes(answer))
        port = genetlink.unsigned(message[LISTEN_PORT]) if LISTEN_PORT in message else port
        for _, peer in genetlink.attributes(message.get(PEERS, b"")):
            known = dict(genetlink.attributes(peer))
            key = known[PEER_KEY]
            # What does not fit in a message follows in the next, under the key alone.
            end = ends.setdefault(key, {"peer": key.hex(), "remote": "", "allowed": []})
            end["remote"] = end["remote"] or _endpoint(known.get(PEER_ENDPOINT, b""))
            listed = genetlink.attributes(known.get(PEER_ALLOWED, b""))
            end["allowed"] += [_network(each) for _, each in listed]
    return port, tuple(ends.values())


def facts(host: Host, name: str, destinations: Collection[str] = ()) -> Optional[Tunnel]:
    """Return the tunnel of an interface, to the end that these are behind; None: it has none."""
    own = host.wireguard
    if own is not None and own.runs and own.name == name:
        listens, leads = PORT, own.ends()[:1]
    elif is_there(host, name):
        listens, leads = 0, ()
        with suppress(OSError):  # ``unfollowed`` says why
            listens, ends = device(name)
            leads = _behind(ends, destinations)
    else:
        return None
    remote, port = _apart(leads[0]["remote"]) if leads else ("", PORT)
    local = None
    with suppress(OSError):  # no route to the other end: its packets end here
        local = host.rtnl("route", "get", dst=remote)[0].get_attr("RTA_PREFSRC") if remote else None
    return Tunnel(name, 0, local, remote or None, port, 0, listens)


def unfollowed(host: Host, tunnel: Tunnel, destinations: Collection[str] = ()) -> Iterator[str]:
    """Yield why packets may leave a tunnel elsewhere than at its other end."""
    what, own = f"{tunnel.name}, a tunnel (wireguard)", host.wireguard
    if own is not None and own.name == tunnel.name:
        others = [end["remote"] or "nowhere" for end in own.ends()[1:]]
        if others:
            yield f"{what} with other ends: {', '.join(others)},"
        return
    try:
        leads = _behind(device(tunnel.name)[1], destinations)
    except OSError as error:
        yield f"{what} whose ends this agent cannot ask for ({error.strerror}),"
        return
    remotes = [end["remote"] for end in leads]
    if len(leads) > 1:
        each = ", ".join(remote or "nowhere" for remote in remotes)
        yield f"{what} with several ends for the receivers: {each},"
    if "" in remotes:
        yield f"{what} whose other end has no address yet (endpoint),"
    if any(":" in _apart(remote)[0] for remote in remotes):
        yield f"{what} over IPv6,"


def _behind(ends: Sequence[Ends], destinations: Collection[str]) -> tuple[Ends, ...]:
    """Return the ends to which packets are sent: the longest network that has an address decides.

    What is behind none ends at the tunnel.
    """
    networks = [
        (ip_network(text), number) for number, end in enumerate(ends) for text in end["allowed"]
    ]
    chosen: set[int] = set()
    for to in map(ip_address, destinations):
        fits = [(network.prefixlen, number) for network, number in networks if to in network]
        chosen |= {number for _, number in [max(fits)]} if fits else set()
    return tuple(ends[number] for number in sorted(chosen))


def _apart(remote: str) -> tuple[str, int]:
    """Return the address and the port of an end; of IPv6 the address alone matters."""
    address, _, port = remote.partition(":") if remote.count(":") == 1 else (remote, "", "")
    return address, int(port or PORT)


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
