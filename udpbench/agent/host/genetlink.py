"""Generic netlink on its own socket: asks one family and parses its attributes.

Each query opens a socket in the calling thread's namespace and takes 0.1 ms, while pyroute2 takes
several. Knows no family's attributes, nor which commands change something.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from functools import cache
from typing import Optional

HEADER = struct.Struct("=IHHII")
"""struct nlmsghdr"""
GENERIC = struct.Struct("=BBH")
"""struct genlmsghdr"""
ATTRIBUTE = struct.Struct("=HH")
"""struct nlattr"""
NESTED, KIND_MASK = 0x8000, 0x3FFF
NETLINK_GENERIC, NETLINK_NETFILTER = 16, 12
NLMSG_ERROR, NLMSG_DONE = 2, 3
REQUEST, ACKNOWLEDGE, DUMP = 0x1, 0x4, 0x300
GENL_ID_CTRL, CTRL_CMD_GETFAMILY = 0x10, 3
NFT_GETRULE, NFT_GETGEN = 10 << 8 | 7, 10 << 8 | 16
"""NFNL_SUBSYS_NFTABLES, NFT_MSG_GETRULE and NFT_MSG_GETGEN (linux/netfilter/nf_tables.h)."""
NFTA_GEN_ID = 1
CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 1, 2
ANSWER_BYTES = 2**16
MOST_BYTES, MESSAGE_BYTES = 2**26, 64
"""Kept of an answer, and what a message takes beside its content: root of a container decides how
many rules, classes or policies it has."""
_NUMBERS = {1: "=B", 2: "=H", 4: "=I", 8: "=Q"}


def attribute(kind: int, payload: bytes) -> bytes:
    """Return one attribute, padded."""
    size_bytes = ATTRIBUTE.size + len(payload)
    return ATTRIBUTE.pack(size_bytes, kind) + payload + b"\0" * (-size_bytes % 4)


def number(kind: int, value: int) -> bytes:
    """Return a 32-bit attribute."""
    return attribute(kind, struct.pack("=I", value))


def nest(kind: int, *attributes: bytes) -> bytes:
    """Return a nested attribute."""
    return attribute(kind | NESTED, b"".join(attributes))


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (kind, payload) of each attribute at one level."""
    at = 0
    while at + ATTRIBUTE.size <= len(data):
        size_bytes, kind = ATTRIBUTE.unpack_from(data, at)
        if size_bytes < ATTRIBUTE.size:
            return
        yield kind & KIND_MASK, data[at + ATTRIBUTE.size : at + size_bytes]
        at += -(-size_bytes // 4) * 4


def unsigned(payload: bytes) -> int:
    """Return a number; the kernel sends 64-bit numbers in 32 bits if they fit (nla_put_uint)."""
    return int(struct.unpack(_NUMBERS[len(payload)], payload)[0])


def numbers(data: bytes) -> dict[int, int]:
    """Return kind → value of the numeric attributes at one level."""
    return {
        kind: unsigned(payload) for kind, payload in attributes(data) if len(payload) in _NUMBERS
    }


def ask(family: str, command: int, *asked: bytes, dump: bool = False) -> list[bytes]:
    """Return the attributes of each message of the answer.

    OSError if the kernel lacks the family (ENOENT) or refuses.
    """
    flags = REQUEST | (DUMP if dump else ACKNOWLEDGE)
    return _exchange(family_id(family), command, flags, b"".join(asked))


def count_rules() -> int:
    """Return the number of nf_tables rules in this namespace.

    OSError if the kernel has no nf_tables, or refuses.
    """
    return sum(1 for _ in walk(NFT_GETRULE, NETLINK_NETFILTER))


def firewall_generation() -> int:
    """Return a number that each change of nf_tables in this namespace raises.

    OSError if the kernel has no nf_tables, or refuses.
    """
    flags = REQUEST | ACKNOWLEDGE
    answer = _exchange(NFT_GETGEN, 0, flags, b"", NETLINK_NETFILTER)[0]
    return int(struct.unpack("!I", dict(attributes(answer))[NFTA_GEN_ID])[0])


def get(kind: int, protocol: int, asked: bytes, family: int) -> bytes:
    """Return as ``dump`` what the kernel has of a single thing; OSError if it refuses."""
    return _exchange(kind, family, REQUEST | ACKNOWLEDGE, asked, protocol)[0]


def dump_whole(kind: int, protocol: int, family: int = 0, asked: bytes = bytes(4)) -> list[bytes]:
    """Return each message of a dump of another protocol; OSError if the kernel refuses."""
    return _exchange(kind, family, REQUEST | DUMP, asked, protocol, skipped_bytes=0)


def dump(kind: int, protocol: int, asked: bytes = b"", family: int = 0) -> list[bytes]:
    """Return what follows the first four bytes of each message of a dump of another protocol.

    Those are the whole header of nfnetlink (linux/netfilter/nfnetlink.h), and the family and the
    padding of rtnetlink's struct tcmsg, or zeros of its nhmsg. OSError if the kernel refuses.
    """
    return _exchange(kind, family, REQUEST | DUMP, asked, protocol)


def walk(kind: int, protocol: int, asked: bytes = b"") -> Iterator[bytes]:
    """Yield as ``dump`` each message of what may have no end; it is not kept."""
    return each_answer(kind, 0, REQUEST | DUMP, asked, protocol)


def family_id(name: str) -> int:
    """Return a family's id, which is constant while it is loaded; OSError if there is none."""
    number = _family(name)
    if number is None:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    return number


@cache
def _family(name: str) -> Optional[int]:
    """Return a family's id; None is kept, too: for each request the kernel runs modprobe."""
    text = attribute(CTRL_ATTR_FAMILY_NAME, name.encode() + b"\0")
    try:
        answer = _exchange(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, REQUEST | ACKNOWLEDGE, text)
    except FileNotFoundError:
        return None
    return unsigned(dict(attributes(answer[0]))[CTRL_ATTR_FAMILY_ID])


def _exchange(
    family: int,
    command: int,
    flags: int,
    asked: bytes,
    protocol: int = NETLINK_GENERIC,
    skipped_bytes: int = GENERIC.size,
) -> list[bytes]:
    """Return every message of an answer; OSError if the kernel refuses, or it has no end."""
    answers: list[bytes] = []
    left_bytes = MOST_BYTES
    for message in each_answer(family, command, flags, asked, protocol, skipped_bytes):
        answers.append(message)
        left_bytes -= MESSAGE_BYTES + len(message)
        if left_bytes < 0:
            limit = f"{MOST_BYTES // 2**20} MiB"
            raise OSError(errno.EFBIG, f"the kernel lists more than the {limit} that are read")
    return answers


def each_answer(
    family: int,
    command: int,
    flags: int,
    asked: bytes,
    protocol: int = NETLINK_GENERIC,
    skipped_bytes: int = GENERIC.size,
) -> Iterator[bytes]:
    """Yield each message of an answer, without some bytes at its beginning, as it comes."""
    body = GENERIC.pack(command, protocol == NETLINK_GENERIC, 0) + asked
    request = HEADER.pack(HEADER.size + len(body), family, flags, 0, 0) + body
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as link:
        link.connect((0, 0))  # to the kernel: whoever has our network namespace may write, too
        link.send(request)
        while True:
            messages, ended = read_messages(link.recv(ANSWER_BYTES), skipped_bytes)
            yield from messages
            if ended:
                return


def read_messages(datagram: bytes, skipped_bytes: int = GENERIC.size) -> tuple[list[bytes], bool]:
    """Return what follows some bytes of each message of a datagram, and whether the answer ends.

    OSError with the kernel's errno if it refused.
    """
    messages: list[bytes] = []
    at = 0
    while at + HEADER.size <= len(datagram):
        size_bytes, kind = HEADER.unpack_from(datagram, at)[:2]
        if size_bytes < HEADER.size:
            raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG), "netlink")
        payload = datagram[at + HEADER.size : at + size_bytes]
        if kind in (NLMSG_ERROR, NLMSG_DONE):
            code = -struct.unpack_from("=i", payload)[0] if payload else 0
            if code:
                raise OSError(code, os.strerror(code))
            return messages, True
        messages.append(payload[skipped_bytes:])
        at += -(-size_bytes // 4) * 4
    return messages, False
