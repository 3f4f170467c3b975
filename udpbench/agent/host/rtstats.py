"""An interface's statistics by RTM_GETSTATS alone (Linux 4.7), on a socket of its own.

It takes 30 µs where a whole link by pyroute2 takes 1 ms, and what pyroute2 0.9.7 knows of the
struct ends before rx_otherhost_dropped. Reads only.
"""

from __future__ import annotations

import os
import socket
import struct

RTM_NEWSTATS, RTM_GETSTATS = 92, 94  # include/uapi/linux/rtnetlink.h
NLM_F_REQUEST = 1
LINK_64 = 1
"""IFLA_STATS_FILTER_BIT(IFLA_STATS_LINK_64)"""
HEADER = struct.Struct("=IHHII")
"""struct nlmsghdr"""
MESSAGE = struct.Struct("=B3xII")
"""struct if_stats_msg"""


def request(index: int) -> bytes:
    """Return the attributes of the answer; OSError if there is no such interface."""
    size_bytes = HEADER.size + MESSAGE.size
    asked = HEADER.pack(size_bytes, RTM_GETSTATS, NLM_F_REQUEST, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
        link.send(asked + MESSAGE.pack(socket.AF_UNSPEC, index, LINK_64))
        answer = link.recv(65536)
    if HEADER.unpack_from(answer)[1] != RTM_NEWSTATS:
        code = -struct.unpack_from("=i", answer, HEADER.size)[0]
        raise OSError(code, os.strerror(code))
    return answer[size_bytes:]
