"""Kind ``indirection``: which RX queue each hash value goes to; "equal 2", "weight 6 2", "default".

What is read is {rings, table}. A table that ethtool has no words for is never changed, because it
could not be put back.
"""

from __future__ import annotations

import errno
from typing import Any, Optional, Union

from udpbench.agent import ethtool
from udpbench.agent.host import Host

Table = dict[str, Any]


def read(host: Host, target: str) -> Table:
    """Return the number of RX rings and the table of queues."""
    rings, table = ethtool.parse_indirection(ethtool.show(host, "-x", target))
    return {"rings": rings, "table": table}


def write(host: Host, target: str, value: Union[str, Table]) -> None:
    """Set the table; OSError EBUSY where the one that is there could not be put back."""
    now = read(host, target)
    if words_for(now) is None:
        raise OSError(errno.EBUSY, f"{target} has a table that ethtool could not set again")
    # Read with other rings than now, a table that was the default may need other words.
    words = value if isinstance(value, str) else words_for({**value, "rings": now["rings"]})
    if words is None:
        raise ValueError("no words of ethtool make this table")
    ethtool.change(host, "-X", target, words.split())


def same(wanted: Union[str, Table], got: Table) -> bool:
    """Compare table with table."""
    if isinstance(wanted, str):
        return bool(table_of(wanted, got["rings"], len(got["table"])) == got["table"])
    return bool(wanted["table"] == got["table"])


def words_for(value: Table) -> Optional[str]:
    """Return what sets a table; None where nothing does. ``default`` frees it from the user's."""
    size = len(value["table"])
    runs = [value["table"].count(queue) for queue in range(max(value["table"]) + 1)]
    weights = " ".join(str(run) for run in runs)
    for words in ("default", f"equal {len(runs)}", f"weight {weights}"):
        if table_of(words, value["rings"], size) == value["table"]:
            return words
    return None


def table_of(words: str, rings: int, size: int) -> list[int]:
    """Return the table that words of ethtool make; ValueError where they make none.

    ``default`` is the kernel's ethtool_rxfh_indir_default(), which nearly every driver takes;
    ``weight`` as in ethtool.c: fill_indir_table().
    """
    kind, *numbers = words.split()
    values = [int(number) for number in numbers]
    if kind == "default" and not values:
        return [entry % rings for entry in range(size)]
    if kind == "equal" and len(values) == 1 and values[0] > 0:
        return [entry % values[0] for entry in range(size)]
    if kind == "weight" and sum(values) > 0:
        return _weighted(values, size)
    raise ValueError(f"{words!r} is none of default, equal N, weight N N ...")


def _weighted(weights: list[int], size: int) -> list[int]:
    table: list[int] = []
    partial = 0
    for queue, weight in enumerate(weights):
        partial += weight
        end = size * partial // sum(weights)
        table += [queue] * (end - len(table))
    return table
