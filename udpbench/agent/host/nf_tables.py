"""Tables and base chains of nf_tables, without the program nft. Read-only."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from udpbench.agent.host.genetlink import (
    NETLINK_NETFILTER,
    attributes,
    dump,
)

# include/uapi/linux/netfilter/nfnetlink.h and nf_tables.h
NFTABLES = 10
GETTABLE, GETCHAIN = 1, 4
TABLE_NAME, TABLE_USE = 1, 3
CHAIN_TABLE, CHAIN_NAME, CHAIN_HOOK, CHAIN_POLICY, CHAIN_USE = 1, 3, 4, 5, 6
NF_ACCEPT = 1
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
    chains: dict[bytes, dict[str, bool]] = {}
    for chain in (dict(attributes(message)) for message in _list(GETCHAIN, number)):
        chains.setdefault(chain[CHAIN_TABLE], {})[_text(chain[CHAIN_NAME])] = _is_empty(chain)
    return [
        Table(
            family,
            _text(table[TABLE_NAME]),
            _number(table[TABLE_USE]),
            chains.get(table[TABLE_NAME], {}),
        )
        for table in listed
    ]


def _list(command: int, family: int) -> list[bytes]:
    return dump(NFTABLES << 8 | command, NETLINK_NETFILTER, family=family)


def _is_empty(chain: dict[int, bytes]) -> bool:
    if CHAIN_HOOK not in chain or _number(chain[CHAIN_USE]):
        return False
    return _number(chain[CHAIN_POLICY]) == NF_ACCEPT


def _text(payload: bytes) -> str:
    return payload.rstrip(b"\0").decode("utf-8", "replace")


def _number(payload: bytes) -> int:
    return int(struct.unpack("!I", payload)[0])
