"""Tables and base chains of nf_tables, and the removal of empty ones, without the program nft.

The kernel itself refuses to remove what is not empty (NLM_F_NONREC), so nothing that another
process adds meanwhile is lost.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from udpbench.agent.host.genetlink import (
    ACKNOWLEDGE,
    ANSWER_BYTES,
    GENERIC,
    HEADER,
    NETLINK_NETFILTER,
    REQUEST,
    attribute,
    attributes,
    dump,
    read_messages,
)

# include/uapi/linux/netfilter/nfnetlink.h and nf_tables.h
NFTABLES = 10
BATCH_BEGIN, BATCH_END = 0x10, 0x11
GETTABLE, DELTABLE, GETCHAIN, DELCHAIN = 1, 2, 4, 5
TABLE_NAME, TABLE_USE = 1, 3
CHAIN_TABLE, CHAIN_NAME, CHAIN_HOOK, CHAIN_POLICY, CHAIN_USE = 1, 3, 4, 5, 6
NF_ACCEPT = 1
NLM_F_NONREC = 0x100
FAMILIES = {"inet": 1, "ip": 2, "ip6": 10}


@dataclass(frozen=True)
class Table:
    """A table, and whether each of its chains is empty: a base chain that only accepts."""

    family: str
    name: str
    uses: int
    """Chains, sets and other objects in it."""
    chains: dict[str, bool]


def tables(family: str) -> list[Table]:
    """Return the tables of a family, such as ip; OSError if the kernel has no nf_tables."""
    number = FAMILIES[family]
    listed = [dict(attributes(message)) for message in _list(GETTABLE, number)]
    chains = [dict(attributes(message)) for message in _list(GETCHAIN, number)]
    return [
        Table(
            family,
            _text(table[TABLE_NAME]),
            _number(table[TABLE_USE]),
            {
                _text(chain[CHAIN_NAME]): _is_empty(chain)
                for chain in chains
                if chain[CHAIN_TABLE] == table[TABLE_NAME]
            },
        )
        for table in listed
    ]


def _list(command: int, family: int) -> list[bytes]:
    return dump(NFTABLES << 8 | command, NETLINK_NETFILTER, family=family)


def _is_empty(chain: dict[int, bytes]) -> bool:
    if CHAIN_HOOK not in chain or _number(chain[CHAIN_USE]):
        return False
    return _number(chain[CHAIN_POLICY]) == NF_ACCEPT


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
        link.send(b"".join(batch))
        for _ in requests:  # each acknowledgement is a datagram of its own
            read_messages(link.recv(ANSWER_BYTES))


def _message(kind: int, flags: int, family: int = 0, asked: bytes = b"") -> bytes:
    subsystem = socket.htons(NFTABLES) if kind in (BATCH_BEGIN, BATCH_END) else 0
    body = GENERIC.pack(family, 0, subsystem) + asked
    return HEADER.pack(HEADER.size + len(body), kind, flags, 0, 0) + body


def _text(payload: bytes) -> str:
    return payload.rstrip(b"\0").decode("utf-8", "replace")


def _number(payload: bytes) -> int:
    return int(struct.unpack("!I", payload)[0])
