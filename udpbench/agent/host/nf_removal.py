"""The removal of empty tables and base chains of nf_tables, without the program nft.

The kernel itself refuses to remove what is not empty (NLM_F_NONREC), so nothing that another
process adds meanwhile is lost.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from udpbench.agent.host.genetlink import (
    ACKNOWLEDGE,
    ANSWER_BYTES,
    GENERIC,
    HEADER,
    NETLINK_NETFILTER,
    REQUEST,
    attribute,
    read_messages,
)
from udpbench.agent.host.nf_tables import CHAIN_NAME, CHAIN_TABLE, FAMILIES, NFTABLES, TABLE_NAME

# include/uapi/linux/netfilter/nfnetlink.h and nf_tables.h
BATCH_BEGIN, BATCH_END = 0x10, 0x11
DELTABLE, DELCHAIN = 2, 5
NLM_F_NONREC = 0x100


def remove(family: str, table: str, chains: Sequence[str], with_table: bool) -> None:
    """Remove empty chains of a table, and the table itself, all or none; OSError if not empty."""
    name = table.encode() + b"\0"
    words = [
        (DELCHAIN, attribute(CHAIN_TABLE, name) + attribute(CHAIN_NAME, chain.encode() + b"\0"))
        for chain in chains
    ]
    if with_table:
        words.append((DELTABLE, attribute(TABLE_NAME, name)))
    flags = REQUEST | ACKNOWLEDGE | NLM_F_NONREC
    requests = [
        _message(NFTABLES << 8 | command, flags, FAMILIES[family], asked)
        for command, asked in words
    ]
    batch = [_message(BATCH_BEGIN, REQUEST), *requests, _message(BATCH_END, REQUEST)]
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as link:
        link.connect((0, 0))
        link.send(b"".join(batch))
        for _ in requests:  # each acknowledgement is a datagram of its own
            read_messages(link.recv(ANSWER_BYTES))


def _message(kind: int, flags: int, family: int = 0, asked: bytes = b"") -> bytes:
    subsystem = socket.htons(NFTABLES) if kind in (BATCH_BEGIN, BATCH_END) else 0
    body = GENERIC.pack(family, 0, subsystem) + asked
    return HEADER.pack(HEADER.size + len(body), kind, flags, 0, 0) + body
