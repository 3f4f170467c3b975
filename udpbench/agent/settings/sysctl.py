"""Kind ``sysctl``: a kernel parameter, ``net.core.rmem_max``; an integer, or text as printed.

As in sysctl(8), a name whose first separator is a slash keeps its dots:
``net/ipv4/conf/eth0.100/rp_filter``.
"""

from __future__ import annotations

import re
from typing import Union

from udpbench.agent.host import Host


def read(host: Host, target: str) -> Union[int, str]:
    """Return the value; several numbers are one text with single spaces."""
    text = " ".join(host.read_text(_path(target)).split())
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def write(host: Host, target: str, value: Union[int, str]) -> None:
    """Set the value."""
    host.write_text(_path(target), f"{value}\n")


def same(wanted: Union[int, str], got: Union[int, str]) -> bool:
    """Compare word by word: the kernel prints tabs."""
    return str(wanted).split() == str(got).split()


def _path(target: str) -> str:
    first = re.search(r"[./]", target)
    parts = target.split("/" if first and first.group() == "/" else ".")
    if any(part in ("", ".", "..") or "/" in part for part in parts):
        raise ValueError(f"{target} is no name of a kernel parameter")
    return "/proc/sys/" + "/".join(parts)
