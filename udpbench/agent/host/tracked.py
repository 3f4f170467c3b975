"""Connections that conntrack remembers: where it sends packets by a rule that may be gone by now.

Reads; changes nothing.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Collection
from ipaddress import ip_address

from udpbench.agent.host import genetlink
from udpbench.agent.host.files import read
from udpbench.agent.host.reading import ReadingHost as Host

COUNT = "/proc/sys/net/netfilter/nf_conntrack_count"
GET = 1 << 8 | 1
"""NFNL_SUBSYS_CTNETLINK and IPCTNL_MSG_CT_GET (linux/netfilter/nfnetlink_conntrack.h)."""
_ORIGINAL, _REPLY, _STATUS, _STATUS_MASK, _ADDRESSES, _PORTS = 1, 2, 3, 26, 1, 2
"""CTA_*; addresses are 1 and 2, or 3 and 4; a protocol has number, source and destination port."""
DESTINATION_REWRITTEN = 1 << 5
"""IPS_DST_NAT (linux/netfilter/nf_conntrack_common.h)."""

Way = tuple[str, str, int, int]
"""Source, destination, protocol and destination port."""


def rewritten(
    host: Host, destinations: Collection[str], ports: Collection[int], protocol: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return where such packets to these are sent instead, and why that is not known, in words."""
    if not int(read(host, COUNT) or 0):
        return (), ()  # nor is anything loaded to ask for them
    status = struct.pack("!I", DESTINATION_REWRITTEN)
    # Linux before 5.18 lists all.
    asked = genetlink.attribute(_STATUS, status) + genetlink.attribute(_STATUS_MASK, status)
    known: dict[str, None] = {}
    try:
        for message in genetlink.walk(GET, genetlink.NETLINK_NETFILTER, asked):
            parts = dict(genetlink.attributes(message))
            (flags,) = struct.unpack("!I", parts.get(_STATUS, bytes(4)))
            if flags & DESTINATION_REWRITTEN:
                _, to, number, port = _way(parts[_ORIGINAL])
                if to in destinations and number == protocol and port in (ports or (port,)):
                    known[_way(parts[_REPLY])[0]] = None
    except OSError as error:
        if error.errno == errno.EPERM:  # nor may this user read rules
            return (), ()
        return (), (f"the connections that are tracked ({error.strerror})",)
    return tuple(known), ()


def _way(tuple_: bytes) -> Way:
    parts = dict(genetlink.attributes(tuple_))
    addresses = [str(ip_address(each)) for _, each in genetlink.attributes(parts[_ADDRESSES])]
    words = dict(genetlink.attributes(parts[_PORTS]))
    port = int.from_bytes(words.get(3, b""), "big")
    return addresses[0], addresses[1], words[1][0], port
