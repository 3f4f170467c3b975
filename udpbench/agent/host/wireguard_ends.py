"""Between which ends a tunnel of WireGuard is, whoever made it: no key is kept.

The kernel tells, or the process that has its tun device. Changes nothing, so an observer may ask.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import Any, Optional

from udpbench.agent.host import genetlink, tun_devices
from udpbench.agent.host.files import lines_of, read
from udpbench.agent.host.reading import ReadingHost as Host
from udpbench.protocol import Tunnel

PORT = 51820
FAMILY, GET_DEVICE = "wireguard", 0
IFNAME, LISTEN_PORT, PEERS = 2, 6, 8
"""WGDEVICE_A_* of linux/wireguard.h."""
PEER_KEY, PEER_ENDPOINT, PEER_ALLOWED = 1, 4, 9
"""WGPEER_A_*."""
ALLOWED_ADDRESS, ALLOWED_BITS = 2, 3
"""WGALLOWEDIP_A_*."""
ANSWER_S, ANSWER_BYTES = 2.0, 2**24
_PROCESS = re.compile(r"/proc/([0-9]+)/root/")
_PORT = re.compile(r"[0-9]{1,5}")
_ENDPOINT = re.compile(r"(?:\[([0-9A-Fa-f:.]+)(?:%[\w.-]+)?\]|([0-9.]+)):([0-9]{1,5})")
_EFFECTIVE_USER = re.compile(r"^Uid:\t\d+\t(\d+)", re.MULTILINE)
Ends = dict[str, Any]


def is_there(host: Host, name: str) -> bool:
    """Return whether an interface is one of the kernel's, whoever made it."""
    return "DEVTYPE=wireguard" in (read(host, f"/sys/class/net/{name}/uevent") or "").split()


def device(name: str) -> tuple[int, tuple[Ends, ...]]:
    """Return on which port such an interface listens, and its other ends.

    OSError if it is gone, or this user may not ask.
    """
    port, ends = 0, dict[bytes, Ends]()
    named = genetlink.attribute(IFNAME, os.fsencode(name) + b"\0")
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


def ask(path: str, limit_s: float = ANSWER_S, lines: Sequence[str] = ("get=1",)) -> str:
    """Return what a process answers at its socket (the userspace API of WireGuard).

    OSError if it refuses or is gone, or the socket is another user's, to which a link of the
    process's own led; a socket's timeout if it has not answered in time.
    """
    end_s = time.monotonic() + limit_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(limit_s)
        link.connect(path)
        _refuse_others(link, path)
        link.sendall("".join(f"{line}\n" for line in (*lines, "")).encode())
        answer = b""
        while not answer.endswith(b"\n\n") and len(answer) < ANSWER_BYTES:
            # Of the whole: a byte now and then would hold the agent for days.
            link.settimeout(max(end_s - time.monotonic(), 0.001))
            part = link.recv(2**16)
            if not part:
                break
            answer += part
    text = answer.decode("ascii", "replace")
    if "errno=0\n" not in text:
        raise OSError(errno.EINVAL, "the process of WireGuard refused what it was asked")
    return text


def _refuse_others(link: socket.socket, path: str) -> None:
    """Raise OSError unless a socket in the files of a process is its own, or its user's."""
    process = _PROCESS.match(path)
    if process is None:
        return
    with open(f"/proc/{process[1]}/status") as file:  # noqa: PTH123
        user = _EFFECTIVE_USER.search(file.read())
    pid, uid, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if pid != int(process[1]) and (user is None or uid != int(user[1])):
        raise OSError(errno.EPERM, "another user's socket is where WireGuard's should be")


def listed(text: str) -> tuple[int, tuple[Ends, ...]]:
    """Return of such an answer what ``device`` does; OSError if a process answers anything else."""
    port, ends = 0, list[Ends]()
    for line in lines_of(text):
        name, _, value = line.partition("=")
        if name == "listen_port":
            if not _PORT.fullmatch(value):
                raise _other_protocol()
            port = int(value)
        elif name == "public_key":
            ends.append({"peer": value, "remote": "", "allowed": []})
        elif name in ("endpoint", "allowed_ip") and not ends:
            raise _other_protocol()
        elif name == "endpoint":
            ends[-1]["remote"] = _checked_endpoint(value).removesuffix(f":{PORT}")
        elif name == "allowed_ip":
            ends[-1]["allowed"].append(value)
    return port, tuple(ends)


def _checked_endpoint(value: str) -> str:
    parts = _ENDPOINT.fullmatch(value)
    try:
        if parts is not None and int(parts[3]) < 2**16:
            ip_address(parts[1] or parts[2])
            return value
    except ValueError:
        pass
    raise _other_protocol()


def _other_protocol() -> OSError:
    text = "the process of WireGuard answered what is not its protocol"
    return OSError(errno.EPROTO, text)


def asked(host: Host, name: str) -> tuple[int, tuple[Ends, ...]]:
    """Return the same of an interface, whether the kernel or a process has it; else OSError."""
    if is_there(host, name):
        return device(name)
    path = tun_devices.wireguard_socket(host, name)
    if path is None:
        raise OSError(errno.ENOTCONN, "its process has no socket of WireGuard")
    return listed(ask(path))


def facts(
    host: Host, name: str, destinations: Collection[str] = (), by_process: bool = False
) -> Optional[Tunnel]:
    """Return the tunnel of an interface, to the end that these are behind; None: it has none.

    ``by_process``: also if it is WireGuard of a process that is there.
    """
    own = host.wireguard
    if own is not None and own.runs and own.name == name:
        listens, leads = PORT, own.ends()[:1]
    elif is_there(host, name) or (by_process and tun_devices.wireguard_socket(host, name)):
        listens, leads = 0, ()
        with suppress(OSError):  # ``without_end`` says why
            listens, ends = asked(host, name)
            leads = _behind(ends, destinations)
    else:
        return None
    remote, port = _apart(leads[0]["remote"]) if leads else ("", PORT)
    local = None
    with suppress(OSError):  # no route to the other end: its packets end here
        local = host.rtnl("route", "get", dst=remote)[0].get_attr("RTA_PREFSRC") if remote else None
    return Tunnel(name, 0, local, remote or None, port, 0, listens)


def unfollowed(host: Host, tunnel: Tunnel, destinations: Collection[str] = ()) -> Iterator[str]:
    """Yield why packets may leave a tunnel elsewhere than at its other end, over IPv4."""
    yield from without_end(host, tunnel.name, destinations)
    if tunnel.remote is not None and ":" in tunnel.remote:
        yield f"{tunnel.name}, a tunnel (wireguard) over IPv6,"


def without_end(host: Host, name: str, destinations: Collection[str] = ()) -> Iterator[str]:
    """Yield why a tunnel has no single other end that is known."""
    what, own = f"{name}, a tunnel (wireguard)", host.wireguard
    if own is not None and own.name == name:
        others = [end["remote"] or "nowhere" for end in own.ends()[1:]]
        if others:
            yield f"{what} with other ends: {', '.join(others)},"
        return
    try:
        leads = _behind(asked(host, name)[1], destinations)
    except OSError as error:
        yield f"{what} whose ends this agent cannot ask for ({error.strerror or error}),"
        return
    remotes = [end["remote"] for end in leads]
    if len(leads) > 1:
        each = ", ".join(remote or "nowhere" for remote in remotes)
        yield f"{what} with several ends for the receivers: {each},"
    if "" in remotes:
        yield f"{what} whose other end has no address yet (endpoint),"
    if any("%" in remote for remote in remotes):
        yield f"{what} whose other end has an address of a link alone,"


def _behind(ends: Sequence[Ends], destinations: Collection[str]) -> tuple[Ends, ...]:
    """Return the ends to which packets are sent: the longest network that has an address decides.

    What is behind none ends at the tunnel. OSError if a process told of what is no network.
    """
    try:
        networks = [
            (ip_network(text), number) for number, end in enumerate(ends) for text in end["allowed"]
        ]
    except ValueError:
        raise _other_protocol() from None
    chosen: set[int] = set()
    for to in map(ip_address, destinations):
        fits = [(network.prefixlen, number) for network, number in networks if to in network]
        chosen |= {number for _, number in [max(fits)]} if fits else set()
    return tuple(ends[number] for number in sorted(chosen))


def _apart(remote: str) -> tuple[str, int]:
    """Return the address and the port of an end."""
    if remote.startswith("["):
        address, _, port = remote[1:].partition("]")
        return address, int(port[1:] or PORT)
    address, _, port = remote.partition(":") if remote.count(":") == 1 else (remote, "", "")
    return address, int(port or PORT)


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
