"""Restores what a flapping link loses, after waiting until it is up again.

A driver that changes rings or channels takes the link down; the kernel then drops IPv6 addresses,
neighbours and routes of the interface, whether set by the host or by udpbench.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any, Callable, Optional

from udpbench.agent.host.system import Host

CARRIER_DEADLINE_S = 15.0
"""10GBASE-T autonegotiation takes up to 6 s; longer with spanning tree on the switch."""
IFF_LOWER_UP = 0x10000  # include/uapi/linux/if.h
RTPROT_KERNEL = 2  # include/uapi/linux/rtnetlink.h
IFA_F_NODAD = 2  # include/uapi/linux/if_addr.h
IFA_F_PERMANENT = 0x80
IFA_F_NOPREFIXROUTE = 0x200
IFA_F_MCAUTOJOIN = 0x400
_FLAGS = IFA_F_NODAD | IFA_F_NOPREFIXROUTE | IFA_F_MCAUTOJOIN
FOREVER_S = 2**32 - 1
NUD_PERMANENT = 0x80  # include/uapi/linux/neighbour.h
_ADDRESS = (
    ("address", "IFA_ADDRESS"),
    ("local", "IFA_LOCAL"),
    ("broadcast", "IFA_BROADCAST"),
    ("label", "IFA_LABEL"),
)
_ROUTE = (
    ("dst", "RTA_DST"),
    ("gateway", "RTA_GATEWAY"),
    ("prefsrc", "RTA_PREFSRC"),
    ("priority", "RTA_PRIORITY"),
    ("table", "RTA_TABLE"),
)
Request = tuple[str, tuple[tuple[str, Any], ...]]


@contextmanager
def restored_link(
    host: Host, interface: str, note: Callable[[Sequence[Request]], None] = lambda _: None
) -> Iterator[None]:
    """Run a change that may take the link down; afterwards the link and its state are restored.

    Calls ``note`` with the state before, and with an empty list once it is restored. OSError
    ETIMEDOUT if the carrier does not return.
    """
    index = host.index(interface)
    carrier = has_carrier(host, interface)
    had = attached(host, index)
    note(had)
    try:
        yield
    finally:
        try:
            if carrier:
                what = f"{interface} has no carrier"
                host.wait_for(what, lambda: has_carrier(host, interface), CARRIER_DEADLINE_S)
        finally:
            restore_missing(host, had, attached(host, index))
            note(())


def has_carrier(host: Host, interface: str) -> bool:
    """Return whether an interface has a carrier."""
    return bool(host.link(interface)["flags"] & IFF_LOWER_UP)


def assigned_ipv6(host: Host, index: int) -> list[Request]:
    """Return requests that recreate permanent IPv6 addresses, except link-local ones."""
    messages = host.rtnl("addr", "dump", index=index, family=socket.AF_INET6)
    requests = [_address(item, 0) for item in messages if item["flags"] & IFA_F_PERMANENT]
    return [item for item in requests if not _is_link_local(dict(item[1]))]


def attached(host: Host, index: int) -> list[Request]:
    """Return requests that recreate an interface's addresses, neighbours and routes."""
    requests: list[Request] = []
    requests += [_address(message) for message in host.rtnl("addr", "dump", index=index)]
    for message in host.rtnl("neigh", "dump", ifindex=index):
        if message["state"] & NUD_PERMANENT and message.get_attr("NDA_LLADDR"):
            entry = {"dst": message.get_attr("NDA_DST"), "lladdr": message.get_attr("NDA_LLADDR")}
            requests.append(("neigh", (*entry.items(), ("ifindex", index), ("state", "permanent"))))
    return requests + _routes(host, index)


def _address(message: Any, hurry: int = IFA_F_NODAD) -> Request:
    own = [(key, message.get_attr(name)) for key, name in _ADDRESS if message.get_attr(name)]
    more = [
        ("index", message["index"]),
        ("prefixlen", message["prefixlen"]),
        ("family", message["family"]),
    ]
    flags = (message.get_attr("IFA_FLAGS") or message["flags"]) & _FLAGS
    if message["family"] == socket.AF_INET6:
        flags |= hurry  # usable at once, not a second later
    else:
        more.append(("scope", message["scope"]))
    if flags:
        more.append(("flags", flags))
    # A leased address must not become permanent. Equal requests may differ in the remaining
    # seconds; the kernel then returns EEXIST.
    times = message.get_attr("IFA_CACHEINFO") or {}
    limited = times.get("ifa_valid", FOREVER_S) != FOREVER_S
    lasting = (
        [
            ("preferred_lft", times["ifa_preferred"]),
            ("valid_lft", times["ifa_valid"]),
        ]
        if limited
        else []
    )
    return "addr", (*own, *more, *lasting)


def _routes(host: Host, index: int) -> list[Request]:
    requests: list[Request] = []
    for message in host.rtnl("route", "dump", oif=index):
        if message["proto"] == RTPROT_KERNEL or message["type"] != 1:
            continue
        own = [(key, message.get_attr(name)) for key, name in _ROUTE if message.get_attr(name)]
        family = message["family"]
        if message["dst_len"] == 0:
            own.append(("dst", "default"))
        else:
            own[0] = ("dst", f"{own[0][1]}/{message['dst_len']}")
        more = [("oif", index), ("family", family), ("proto", message["proto"])]
        if family == socket.AF_INET:
            more.append(("scope", message["scope"]))
        requests.append(("route", (*own, *more)))
    return requests


def restore_missing(host: Host, had: Sequence[Request], have: Sequence[Request]) -> None:
    """Recreate what is missing; additions by other processes stay.

    Continues after a refusal; OSError at the end lists every refusal.
    """
    missing = [request for request in had if request not in have]
    while missing:
        refusals = [
            (request, error)
            for request in missing
            if (error := _refusal(host, *request)) is not None
        ]
        if len(refusals) == len(missing):
            words = "; ".join(f"{_named(request)}: {error.strerror}" for request, error in refusals)
            raise OSError(refusals[0][1].errno, f"could not be recreated: {words}")
        # A request may depend on a later one: a default route on its gateway's network.
        missing = [request for request, _ in refusals]


def _refusal(host: Host, noun: str, fields: tuple[tuple[str, Any], ...]) -> Optional[OSError]:
    try:
        host.rtnl(noun, "add", **dict(fields))
    except OSError as error:
        # The kernel recreates link-local addresses.
        if error.errno != errno.EEXIST and not _is_link_local(dict(fields)):
            return error
    return None


def _named(request: Request) -> str:
    noun, fields = request[0], dict(request[1])
    return f"{noun} {fields.get('dst') or fields.get('address')}"


def _is_link_local(fields: dict[str, Any]) -> bool:
    return "address" in fields and ip_address(fields["address"]).is_link_local
