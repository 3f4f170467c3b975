"""An interface's statistics by RTM_GETSTATS (Linux 4.7), on its own socket.

Takes 30 µs, while a link dump by pyroute2 takes 1 ms, and pyroute2 0.9.7 does not know the field
rx_otherhost_dropped. Read-only.
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
    """Return the answer's attributes; OSError if there is no such interface."""
    size_bytes = HEADER.size + MESSAGE.size
    asked = HEADER.pack(size_bytes, RTM_GETSTATS, NLM_F_REQUEST, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
        link.connect((0, 0))
        link.send(asked + MESSAGE.pack(socket.AF_UNSPEC, index, LINK_64))
        answer = link.recv(65536)
    if HEADER.unpack_from(answer)[1] != RTM_NEWSTATS:
        code = -struct.unpack_from("=i", answer, HEADER.size)[0]
        raise OSError(code, os.strerror(code))
    return answer[size_bytes:]
